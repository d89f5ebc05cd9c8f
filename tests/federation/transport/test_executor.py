"""The engine's SuperExec starts a site's app with our program, which loads less, and all else as it would."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supercore.superexec.executor.types import ExecutionSpec
from flwr.supernode.cli.flwr_clientapp import _parse_args_run_flwr_clientapp

from fedhip.federation.errors import EngineError
from fedhip.federation.transport import executor


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What a SuperExec inside our program starts; it starts nothing here."""
    found: list[list[str]] = []
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)  # restored at the end
    monkeypatch.setattr("flwr.supercore.cli.flower_superexec", lambda: None)
    monkeypatch.setattr("sys.argv", [])
    executor.main(["--insecure"])
    assert sys.argv == ["flower-superexec", "--insecure"]

    def popen(command: list[str], **_: Any) -> None:
        found.append(command)

    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


def launch(task: TaskType) -> None:
    spec = ExecutionSpec(
        task_type=task,
        runtime_api_address="127.0.0.1:5",
        token="of-this-task",  # noqa: S106
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=7,
        suppress_output=False,
        task_id=1,
    )
    subprocess_executor.SubprocessExecutor().launch(spec)


def test_a_site_s_app_is_our_program_with_the_engine_s_options(launched: list[list[str]]) -> None:
    launch(TaskType.CLIENT_APP)
    (command,) = launched
    assert command[:5] == [sys.executable, "-P", "-m", "fedhip.federation.transport.executor", "app"]
    args = _parse_args_run_flwr_clientapp().parse_args(command[5:])
    assert (args.runtime_api_address, args.token, args.parent_pid) == ("127.0.0.1:5", "of-this-task", 7)
    assert args.insecure
    assert not args.runtime_dependency_install


def test_the_server_s_app_is_the_engine_s_own_program(launched: list[list[str]]) -> None:
    launch(TaskType.SERVER_APP)
    (command,) = launched
    assert command[0] == "flwr-serverapp"


def test_the_app_loads_neither_database_nor_torch() -> None:
    code = """if True:
        import sys
        from fedhip.federation.transport import executor
        try:
            executor.main(["app", "--help"])
        except SystemExit as end:
            assert end.code == 0
        import fedhip.federation.client_app
        assert {"sqlalchemy", "alembic", "torch"}.isdisjoint(sys.modules)
    """
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert "--runtime-api-address" in done.stdout


def test_an_engine_that_was_rebuilt_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(subprocess_executor, "subprocess")
    with pytest.raises(EngineError, match="this Flower has no subprocess; install the version that fedhip names"):
        executor.main([])
