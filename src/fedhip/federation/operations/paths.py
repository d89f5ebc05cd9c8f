"""Where the files of running processes lie, at the server and at a site."""

from __future__ import annotations

import errno
import json
import secrets
import shlex
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


class StatePaths:
    """The folder `state` beside the settings: all that changes while processes run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pids = path / "pids"  # records of the processes we started
        self.home = path / "flwr"  # the engine's
        self.secret = path / "superexec.secret"  # what the engine's parts at a server know each other by
        self.token = path / "status.token"  # what readers of the coordinator's page show
        self.lock = path / "running.lock"  # held while processes run
        self.ready = path / "ready.json"  # written when everything runs

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


class ServerPaths:
    """The coordinator's folder, as `init` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority = path / "ca" / "ca.crt"
        self.certificate, self.key = path / "server" / "server.pem", path / "server" / "server.key"
        self.state = StatePaths(path / "state")
        self.database = self.state.path / "superlink.db"  # what the engine remembers
        self.callers = self.state.path / "callers.json"  # the registered keys, for the proxy
        self.nodes = self.state.path / "nodes.json"  # the engine's number of each site's node
        self.progress = self.state.path / "progress.jsonl"  # what the server app says while it runs
        self.endpoint = self.state.path / "door.json"  # where the sites reach the server, and the port behind it

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

    def control_port(self) -> int:
        """The engine's port on loopback; there is one only while the server runs."""
        try:
            port: int = json.loads(self.state.ready.read_text(encoding="utf-8"))["control_port"]
        except (OSError, ValueError, KeyError):
            raise EngineError(f"no server runs for {self.path}; start it: {command('serve', self.path)}") from None
        return port
