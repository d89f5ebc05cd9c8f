"""The engine's SuperExec, whose apps here are forks of a warm process (`fedhip.federation.transport.warm`).

The engine starts a program for each message to a site, and most of them compute little: loading it takes a hundred
times as long. The engine's programs lie in packages with others, which load a database first; what is never called is
left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from fedhip.federation.transport.bounds import of_engine
from fedhip.federation.transport.engine import CLIENT_APP, EXECUTOR, SERVER_APP, module
from fedhip.federation.transport.pace import Pace, keep_pace
from fedhip.federation.transport.warm import WarmProcess

#: By the engine's name for it: the program of an app, the neighbours in its package that it does not need, our app,
#: and what our app computes with.
_APPS = {
    CLIENT_APP: (
        "flwr.supernode.cli.flwr_clientapp",
        ("flwr.supernode.cli.flower_supernode",),
        "fedhip.federation.client_app",
        ("torch", "fedhip.simulation.personalization", "fedhip.federation.sums.priors", "fedhip.runs"),
    ),
    SERVER_APP: (
        "flwr.superlink.cli.flwr_serverapp",
        ("flwr.superlink.cli.flower_superlink",),
        "fedhip.federation.server_app",
        ("torch", "fedhip.simulation.personalization", "fedhip.federation.sums.priors", "fedhip.runs"),
    ),
}
_NEIGHBOURS = tuple(f"flwr.supercore.cli.{name}" for name in ("flwr_agentapp", "flwr_connector", "flwr_model"))
#: The word by which this program is an app.
_APP = "app"


def app(words: Sequence[str]) -> None:
    """Run an app, for one message or one round: `PROGRAM OPTION…`."""
    program, *options = words
    place, neighbours, _, _ = _APPS[program]
    _leave_out(neighbours)
    sys.argv = [program, *options]
    getattr(import_module(place), program.replace("-", "_"))()


def _quiet(words: Sequence[str]) -> None:
    """As the engine wants an app whose output goes elsewhere."""
    if words[0] == "quiet":
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    app(words[1:])


def superexec(program: str, options: Sequence[str]) -> None:
    """Run the engine's SuperExec with its options, for the app that `program` runs."""
    place, neighbours, own, computing = _APPS[program]
    _leave_out([*neighbours, *_NEIGHBOURS])
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec import run_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    of_engine(subprocess_executor, "subprocess")
    if program == CLIENT_APP:  # loaded here, so that both processes share its pages
        import_module(place), import_module(own)
        warm = WarmProcess(_quiet, later=computing)
    else:
        warm = WarmProcess(_quiet, [place, own, *computing])

    pace = Pace(longest=0.5)  # it asks a process on this machine
    keep_pace(run_superexec, pace)

    def start(command: Sequence[str], **given: Any) -> subprocess.Popen[Any] | None:
        """What the engine starts; of an app that is known, by the warm process or, where that is gone, anew."""
        pace.came()
        if command[0] != program:
            return subprocess.Popen(command, **given)  # noqa: S603 - commands are the engine's
        if warm.start(["quiet" if given.get("stdout") == subprocess.DEVNULL else "", *command]):
            return None
        return subprocess.Popen(module(EXECUTOR, _APP, *command), **given)  # noqa: S603

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
    """`PROGRAM OPTION…` of the SuperExec for the app that PROGRAM runs, or `app PROGRAM OPTION…` of an app."""
    if words[0] == _APP:
        app(words[1:])
    else:
        superexec(words[0], words[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
