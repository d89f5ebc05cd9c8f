"""The engine's SuperExec, which here starts a site's app without loading what the app does not need.

A site's app is a process for each message, and most of them compute little. The engine's own program for it,
`flwr-clientapp`, lies in one package with the node, and loads the node's database first: a third of its time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from fedhip.federation.transport.bounds import of_engine
from fedhip.federation.transport.engine import EXECUTOR, module

_NODE = "flwr.supernode.cli.flower_supernode"
#: The word by which this program is a site's app.
_APP = "app"


def start(command: Sequence[str], **given: Any) -> subprocess.Popen[Any]:
    """What the engine starts; a site's app with our program in the place of the engine's."""
    program, *options = command
    if program == "flwr-clientapp":
        command = module(EXECUTOR, _APP, *options)
    return subprocess.Popen(command, **given)  # noqa: S603 - commands are the engine's


def superexec(options: Sequence[str]) -> None:
    """Run the engine's SuperExec with its options."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    of_engine(subprocess_executor, "subprocess")
    vars(subprocess_executor)["subprocess"] = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    sys.argv = ["flower-superexec", *options]
    flower_superexec()


def app(options: Sequence[str]) -> None:
    """Run a site's app, for one message, with the options of `flwr-clientapp`."""
    node = ModuleType(_NODE)
    node.flower_supernode = None  # type: ignore[attr-defined]  # what the package asks for, and an app never calls
    sys.modules[_NODE] = node
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    sys.argv = ["flwr-clientapp", *options]
    flwr_clientapp()


def main(words: Sequence[str]) -> int:
    """`OPTION…` of the SuperExec, or `app OPTION…` of a site's app."""
    if words[:1] == [_APP]:
        app(words[1:])
    else:
        superexec(words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
