"""The engine, Flower: which programs it has, how they are started, and what surrounds them.

Here are command lines and an environment, as lists and dictionaries; `processes` starts them.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedhip.federation.errors import EngineError
from fedhip.federation.logs import text_of

VERSION = "1.41.0"
LOOPBACK = "127.0.0.1"

#: The folder that the engine takes as an app. A site runs this one and no other.
APP = Path(__file__).parents[1] / "app"

#: Our program around the engine's SuperExec.
EXECUTOR = "fedhip.federation.transport.executor"

#: Said in a node's log, for `status` and for people.
OTHER_APP = "the server sent another app than the one installed here; its messages are passed over"
#: Said there once the server has let the node in; and, in the engine's words, while it counts on another process.
CONNECTED, HELD = "the node is connected", "Failed to activate SuperNode"

#: The engine's program for the server's app.
SERVER_APP = "flwr-serverapp"
_PROGRAMS = ("flower-superlink", "flower-superexec", SERVER_APP)


def require_engine() -> None:
    """Refuse to go on without the engine, in the one version whose manners are known."""
    remedy = 'install it: pip install "fedhip[federation]"'
    try:
        found = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise EngineError(f"a federation needs Flower {VERSION}, which is not installed; {remedy}") from None
    if found != VERSION:
        raise EngineError(f"a federation needs Flower {VERSION}, and {found} is installed; {remedy}")
    missing = [name for name in _PROGRAMS if not (programs() / name).is_file()]
    if missing:
        raise EngineError(f"there is no {missing[0]} in {programs()}; {remedy}")


def programs() -> Path:
    """Where the engine's programs lie: beside the Python that runs us, whatever the shell's PATH says."""
    return Path(sys.executable).parent


def environment(home: Path, around: Mapping[str, str] | None = None) -> dict[str, str]:
    """The engine's surroundings: a home of our own, no word to its makers, nothing fetched, no settings but ours."""
    surroundings = dict(os.environ if around is None else around)
    kept = {name: value for name, value in surroundings.items() if not name.startswith("FLWR_")}
    direct = [part for part in kept.get("NO_PROXY", kept.get("no_proxy", "")).split(",") if part]
    no_proxy = ",".join(dict.fromkeys([*direct, LOOPBACK, "localhost"]))
    return kept | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # a round waits for it once; the engine's own is 1 s
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        # The engine starts its own programs by their bare names.
        "PATH": os.pathsep.join([str(programs()), kept.get("PATH", os.defpath)]),
    }


def superlink(
    *, port: int, authority: Path, certificate: Path, key: Path, database: Path, secret: Path, objects: int
) -> list[str]:
    """The server, inside our own program that guards its control interface and bounds answers to so many objects.

    In this isolation its apps are processes of the SuperExec, so that they survive its restart.
    """
    return [
        *module("fedhip.federation.transport.link", str(secret), str(objects)),
        *("--host", LOOPBACK),
        *("--port", str(port)),
        *("--ssl-ca-certfile", str(authority)),
        *("--ssl-certfile", str(certificate)),
        *("--ssl-keyfile", str(key)),
        "--enable-supernode-auth",
        *("--database", str(database)),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(secret)),
        "--disable-runtime-dependency-installation",
    ]


def superexec(*, port: int, secret: Path, authority: Path) -> list[str]:
    """Starts the server's app, for the server, which knows it by a secret.

    It runs inside our own program, by which the app starts in less time.
    """
    return [
        *module(EXECUTOR),
        *("--runtime-api-address", f"{LOOPBACK}:{port}"),
        *("--root-certificates", str(authority)),
        *("--superexec-auth-secret-file", str(secret)),
    ]


def node(*, address: str, authority: Path, key: Path, config: Path, app: Path = APP) -> list[str]:
    """A site's node, our own program, which answers with the app in `app` and no other."""
    return [
        *module("fedhip.federation.transport.node"),
        *("--superlink", address),
        *("--authority", str(authority)),
        *("--key", str(key)),
        *("--config", str(config)),
        *("--app", str(app)),
    ]


def module(name: str, *words: str) -> list[str]:
    """A module of ours as a program; the folder it is started from is no place to import from."""
    return [sys.executable, "-P", "-m", name, *words]


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def plain(lines: Sequence[str]) -> list[str]:
    """Lines of the engine's logs without colours, marks and blanks."""
    cleaned = (_without_colours(text_of(line)).strip() for line in lines)
    return [line for line in cleaned if line]


def _without_colours(line: str) -> str:
    parts = line.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])
