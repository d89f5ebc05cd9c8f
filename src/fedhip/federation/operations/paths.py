"""Where the files of running processes lie, at the server and at a site."""

from __future__ import annotations

import errno
import json
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement import roster as roster_file
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import EngineError, FederationError, SetupError
from fedhip.utils.files import private_folder, write_private


def require_free(directory: Path) -> None:
    """Refuse a place where something is."""
    if directory.is_symlink() or directory.exists():
        raise SetupError(f"{directory} exists; choose another folder: a federation is never replaced")


def take_free_place(draft: Path, directory: Path) -> None:
    """A rename, which fails where somebody else was faster."""
    try:
        draft.rename(directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            require_free(directory)
        raise


def command(*words: object) -> str:
    """A command of ours, to be copied into a shell."""
    return shlex.join(["fedhip", "federation", *map(str, words)])


@dataclass(frozen=True)
class StatePaths:
    """The folder `state` beside the settings: all that changes while processes run."""

    path: Path

    @property
    def pids(self) -> Path:
        """Records of the processes we started."""
        return self.path / "pids"

    @property
    def home(self) -> Path:
        """The engine's home."""
        return self.path / "flwr"

    @property
    def secret(self) -> Path:
        """What the engine's parts know each other by."""
        return self.path / "superexec.secret"

    @property
    def lock(self) -> Path:
        """Held while processes run."""
        return self.path / "running.lock"

    @property
    def ready(self) -> Path:
        """Written when everything runs."""
        return self.path / "ready.json"

    def log(self, name: str) -> Path:
        """A log."""
        return self.path / "logs" / f"{name}.log"

    def prepare(self) -> None:
        """Make the folders, and a fresh secret."""
        if self.path.is_dir():
            self.path.chmod(0o700)  # a copy of a site's folder may have left it open
        for folder in (self.path, self.home, self.pids, self.path / "logs"):
            private_folder(folder)
        write_private(self.secret, secrets.token_bytes(32))


@dataclass(frozen=True)
class ServerPaths:
    """The coordinator's folder, as `init` makes it."""

    path: Path

    @classmethod
    def open(cls, folder: str | Path) -> ServerPaths:
        """The folder, if it is one of a coordinator."""
        path = Path(folder).absolute()
        if (path / "connection.toml").is_file():
            raise FederationError(f"{path} is the folder of a site; give the coordinator's, which init made")
        if not (path / "server" / "server.pem").is_file():
            raise FederationError(f"{path} is no folder of a federation; make one: {command('init', folder)}")
        return cls(path)

    def agreement(self) -> Agreement:
        """What all agreed on."""
        return Agreement.read(self.path / agreement_file.FILE)

    def roster(self) -> Roster:
        """The sites and their keys; there is none before the sites have replied."""
        path = self.path / roster_file.FILE
        if not path.is_file():
            raise SetupError(f"{self.path} has no keys of the sites yet; run: {command('enroll', self.path)} REPLY…")
        return Roster.read(path)

    @property
    def state(self) -> StatePaths:
        """The server's state."""
        return StatePaths(self.path / "state")

    @property
    def authority(self) -> Path:
        """The authority's certificate."""
        return self.path / "ca" / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.path / "server" / "server.pem"

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.path / "server" / "server.key"

    @property
    def database(self) -> Path:
        """What the engine remembers."""
        return self.state.path / "superlink.db"

    @property
    def callers(self) -> Path:
        """The registered keys, for the proxy."""
        return self.state.path / "callers.json"

    @property
    def nodes(self) -> Path:
        """The engine's number of each site's node."""
        return self.state.path / "nodes.json"

    @property
    def progress(self) -> Path:
        """What the server app says while it runs."""
        return self.state.path / "progress.jsonl"

    @property
    def door(self) -> Path:
        """Where the sites reach the server, and the port behind it."""
        return self.state.path / "door.json"

    def control_port(self) -> int:
        """The engine's port on loopback; there is one only while the server runs."""
        try:
            port: int = json.loads(self.state.ready.read_text(encoding="utf-8"))["control_port"]
        except (OSError, ValueError, KeyError):
            raise EngineError(f"no server runs for {self.path}; start it: {command('serve', self.path)}") from None
        return port
