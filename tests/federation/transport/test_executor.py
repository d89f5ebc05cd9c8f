"""The engine's SuperExec has a warm process fork for an app; where that is gone, and for all else, it starts others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supercore.superexec.executor.types import ExecutionSpec
from flwr.superlink.cli.flwr_serverapp import _parse_args_run_flwr_serverapp
from flwr.supernode.cli.flwr_clientapp import _parse_args_run_flwr_clientapp

from fedhip.federation.errors import EngineError
from fedhip.federation.transport import executor


class Warm:
    """Takes down what it is to fork for; once it is gone, nothing."""

    asked: list[list[str]]
    is_gone: bool

    def __init__(self, *_: Any, **__: Any) -> None:
        Warm.asked, Warm.is_gone = [], False

    def start(self, words: Sequence[str]) -> bool:
        if not self.is_gone:
            self.asked.append(list(words))
        return not self.is_gone


@pytest.fixture
def popened(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is started as a program; it is not, here."""
    found: list[list[str]] = []
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)  # restored at the end
    monkeypatch.setattr(run_superexec, "time", time)
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
@pytest.mark.parametrize(
    ("program", "task", "parser"),
    [
        ("flwr-clientapp", TaskType.CLIENT_APP, _parse_args_run_flwr_clientapp),
        ("flwr-serverapp", TaskType.SERVER_APP, _parse_args_run_flwr_serverapp),
    ],
)
def test_an_app_is_forked_with_the_engine_s_options(
    popened: list[list[str]], program: str, task: TaskType, parser: Callable[[], Any], quiet: bool
) -> None:
    executor.main([program, "--insecure"])
    assert sys.argv == ["flower-superexec", "--insecure"]
    launch(task, quiet=quiet)
    (words,) = Warm.asked
    assert words[:2] == ["quiet" if quiet else "", program]
    args = parser().parse_args(words[2:])
    assert (args.runtime_api_address, args.token, args.parent_pid) == ("127.0.0.1:5", "of-this-task", 7)
    assert args.insecure
    assert not args.runtime_dependency_install
    assert popened == []

    Warm.is_gone = True
    launch(task, quiet=quiet)
    (command,) = popened
    assert command[:5] == [sys.executable, "-P", "-m", "fedhip.federation.transport.executor", "app"]
    assert command[5:] == words[1:]


def test_another_s_app_is_the_engine_s_own_program(popened: list[list[str]]) -> None:
    executor.main(["flwr-clientapp"])
    launch(TaskType.SERVER_APP)
    (command,) = popened
    assert command[0] == "flwr-serverapp"
    assert Warm.asked == []


def run(code: str) -> str:
    words = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout  # noqa: S603


def test_the_app_loads_neither_database_nor_torch() -> None:
    shown = run("""if True:
        import sys
        from fedhip.federation.transport import executor
        try:
            executor.main(["app", "flwr-clientapp", "--help"])
        except SystemExit as end:
            assert end.code == 0
        import fedhip.federation.client_app
        assert {"sqlalchemy", "alembic", "torch"}.isdisjoint(sys.modules)
    """)
    assert "--runtime-api-address" in shown


def test_a_site_s_superexec_loads_neither_database_nor_torch_and_forks_an_app() -> None:
    """With nothing but the engine's loop taken out."""
    run("""if True:
        import os, sys
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        from fedhip.federation.transport import executor
        from flwr.supercore.superexec.executor import subprocess_executor
        executor._leave_out(executor._NEIGHBOURS)
        import flwr.supercore.cli as cli
        def loop():
            assert sys.argv == ["flower-superexec", "--insecure"]
            assert {"sqlalchemy", "alembic", "torch"}.isdisjoint(sys.modules)
            assert "fedhip.federation.client_app" in sys.modules
            subprocess_executor.subprocess.Popen(["flwr-clientapp", "--help"])
        cli.flower_superexec = loop
        executor.main(["flwr-clientapp", "--insecure"])
        assert b"--runtime-api-address" in os.read(reading, 1 << 16)  # what the app says
    """)


@pytest.mark.parametrize("program", ["flwr-clientapp", "flwr-serverapp"])
def test_an_engine_that_was_rebuilt_inside_is_refused(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.delattr(subprocess_executor, "subprocess")
    with pytest.raises(EngineError, match="this Flower has no subprocess; install the version that fedhip names"):
        executor.main([program])


def test_what_is_loaded_beforehand_is_there() -> None:
    """A name that is gone would end the warm process, and every app would be a new interpreter again."""
    from importlib.util import find_spec

    for place, neighbours, own, computing in executor._APPS.values():
        for name in (place, *neighbours, *executor._NEIGHBOURS, own, *computing):
            assert find_spec(name) is not None
