"""The engine's SuperExec, whose app is here a fork of a warm process (`fedhip.federation.transport.warm`).

The engine starts a program for each round, which loads torch while all sites wait. Here it is loaded before.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from fedhip.federation import logs
from fedhip.federation.transport.bounds import of_engine
from fedhip.federation.transport.engine import SERVER_APP
from fedhip.federation.transport.warm import WarmProcess

_PLACE = "flwr.superlink.cli.flwr_serverapp"
#: What the app runs, and what it computes with.
_LOADED = (
    *(_PLACE, "torch"),
    *(f"fedhip.{name}" for name in ("federation.server_app", "simulation.personalization", "heads.auto", "runs.draft")),
)
#: Neighbours of it in the engine's packages, which load a database and are never called here.
_NEIGHBOURS = (
    "flwr.superlink.cli.flower_superlink",
    *(f"flwr.supercore.cli.{name}" for name in ("flwr_agentapp", "flwr_connector", "flwr_model")),
)
_LARGEST = 1 << 16


def app(stream: socket.socket) -> None:
    """Run the server's app for one round, with the words of the engine's command, which a stream brings."""
    with stream:
        given = json.loads(stream.recv(_LARGEST))
    if given["quiet"]:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    sys.argv = given["command"]
    import_module(_PLACE).flwr_serverapp()


def superexec(options: Sequence[str]) -> None:
    """Run the engine's SuperExec with its options."""
    _leave_out(_NEIGHBOURS)
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    of_engine(subprocess_executor, "subprocess")
    warm = WarmProcess(app, _LOADED)

    def start(command: Sequence[str], **given: Any) -> subprocess.Popen[Any] | None:
        """What the engine starts; the server's app by the warm process or, where that is gone, anew."""
        if command[0] == SERVER_APP and (stream := warm.start()) is not None:
            with stream:
                quiet = given.get("stdout") == subprocess.DEVNULL
                stream.sendall(json.dumps({"command": list(command), "quiet": quiet}).encode())
            return None
        return subprocess.Popen(command, **given)  # noqa: S603 - commands are the engine's

    vars(subprocess_executor)["subprocess"] = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    sys.argv = ["flower-superexec", *options]
    flower_superexec()


def _leave_out(modules: Sequence[str]) -> None:
    """From here on, these modules of the engine are empty; each has one function, which its package asks for."""
    for name in modules:
        if name not in sys.modules:
            empty = ModuleType(name)
            setattr(empty, name.rpartition(".")[2], None)
            sys.modules[name] = empty


def main(words: Sequence[str]) -> int:
    """`OPTION…`: run the SuperExec."""
    logs.begin("superexec")
    superexec(words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
