"""The engine's SuperExec has a warm process fork for the server's app; where that is gone, it starts the program."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supercore.superexec.executor.types import ExecutionSpec
from flwr.superlink.cli.flwr_serverapp import _parse_args_run_flwr_serverapp

from fedhip.federation.errors import EngineError
from fedhip.federation.transport import executor


class Warm:
    """Takes down what it is to fork for; once it is gone, nothing."""

    streams: list[socket.socket]
    is_gone: bool

    def __init__(self, *_: Any, **__: Any) -> None:
        Warm.streams, Warm.is_gone = [], False

    def start(self) -> socket.socket | None:
        if self.is_gone:
            return None
        ours, theirs = socket.socketpair()
        self.streams.append(theirs)
        return ours


@pytest.fixture
def popened(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is started as a program; it is not, here."""
    found: list[list[str]] = []
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)  # restored at the end
    monkeypatch.setattr("flwr.supercore.cli.flower_superexec", lambda: None)
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(executor, "WarmProcess", Warm)

    def popen(command: list[str], **_: Any) -> None:
        found.append(command)

    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


def launch(task: TaskType, *, quiet: bool = False) -> None:
    spec = ExecutionSpec(
        task_type=task,
        runtime_api_address="127.0.0.1:5",
        token="of-this-task",  # noqa: S106
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=7,
        suppress_output=quiet,
        task_id=1,
    )
    subprocess_executor.SubprocessExecutor().launch(spec)


@pytest.mark.parametrize("quiet", [False, True])
def test_the_app_is_forked_with_the_engine_s_options(
    popened: list[list[str]], quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.main(["--insecure"])
    assert sys.argv == ["flower-superexec", "--insecure"]
    launch(TaskType.SERVER_APP, quiet=quiet)
    (stream,) = Warm.streams
    with stream:
        given = json.loads(stream.recv(1 << 16))
    assert given["quiet"] == quiet
    assert given["command"][0] == "flwr-serverapp"
    args = _parse_args_run_flwr_serverapp().parse_args(given["command"][1:])
    assert (args.runtime_api_address, args.token, args.parent_pid) == ("127.0.0.1:5", "of-this-task", 7)
    assert not args.runtime_dependency_install
    assert popened == []

    Warm.is_gone = True
    launch(TaskType.SERVER_APP, quiet=quiet)
    assert popened == [given["command"]]


def test_another_s_app_is_the_engine_s_own_program(popened: list[list[str]]) -> None:
    executor.main([])
    launch(TaskType.CLIENT_APP)
    (command,) = popened
    assert command[0] == "flwr-clientapp"
    assert Warm.streams == []


def test_a_fork_runs_the_app_with_the_words_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    place = SimpleNamespace(flwr_serverapp=lambda: seen.append(list(sys.argv)))
    monkeypatch.setitem(sys.modules, executor._PLACE, place)
    monkeypatch.setattr("sys.argv", [])
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(json.dumps({"command": ["flwr-serverapp", "--token", "t"], "quiet": False}).encode())
        executor.app(theirs)
    assert seen == [["flwr-serverapp", "--token", "t"]]


def test_an_engine_that_was_rebuilt_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(subprocess_executor, "subprocess")
    with pytest.raises(EngineError, match="this Flower has no subprocess; install the version that fedhip names"):
        executor.main([])


def test_what_is_loaded_beforehand_is_there() -> None:
    """A name that is gone would end the warm process, and every app would be a new interpreter again."""
    from fedhip.federation.transport import node

    for name in (*executor._LOADED, *executor._NEIGHBOURS, *node._COMPUTING):
        assert find_spec(name) is not None
