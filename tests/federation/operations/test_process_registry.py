"""Processes that we started are ended; others never are."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedhip.federation.errors import EngineError
from fedhip.federation.operations import process_registry
from tests.waiting import PATIENCE, until

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]
PARENT = [
    sys.executable,
    "-S",
    "-c",
    f"import subprocess,time; p = subprocess.Popen({SLEEP!r}); print(p.pid, flush=True); time.sleep(600)",
]


def launch(tmp_path: Path, command: list[str], name: str = "program") -> subprocess.Popen[bytes]:
    return process_registry.start(
        name, command, records=tmp_path / "pids", log=tmp_path / f"{name}.log", env=os.environ
    )


def text_of(tmp_path: Path) -> str:
    log = tmp_path / "program.log"
    until(lambda: log.read_text().strip())
    return log.read_text()


def test_a_process_is_found_again_and_ended(tmp_path: Path) -> None:
    process = launch(tmp_path, SLEEP)
    found = process_registry.find(tmp_path / "pids", "program")
    assert found is not None
    assert found.pid == process.pid
    assert process_registry.end([found], tmp_path / "pids") == ["program"]
    assert process.wait(PATIENCE) == -15
    assert process_registry.recorded(tmp_path / "pids") == []
    assert not process_registry.is_alive(found)


def test_one_that_does_not_listen_is_ended_by_force(tmp_path: Path) -> None:
    process = launch(tmp_path, STUBBORN)
    text_of(tmp_path)
    process_registry.end(process_registry.recorded(tmp_path / "pids"), tmp_path / "pids", grace=0.3)
    assert process.wait(PATIENCE) == -9


def test_what_it_started_ends_with_it_even_after_its_own_death(tmp_path: Path) -> None:
    process = launch(tmp_path, PARENT)
    child = int(text_of(tmp_path))
    process.kill()
    process.wait()
    assert Path(f"/proc/{child}").exists()
    assert process_registry.end(process_registry.recorded(tmp_path / "pids"), tmp_path / "pids", grace=2) == ["program"]
    until(lambda: not runs(child))


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:  # it may go between two looks
        return False


@pytest.mark.parametrize("change", [{"start": 1}, {"boot": "another"}])
def test_a_number_that_was_used_again_is_left_alone(tmp_path: Path, change: dict[str, object]) -> None:
    process = launch(tmp_path, SLEEP)
    (record,) = process_registry.recorded(tmp_path / "pids")
    other = dataclasses.replace(record, **change)  # type: ignore[arg-type]
    assert not process_registry.is_alive(other)
    assert process_registry.end([other], tmp_path / "pids") == []
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "y.json").write_text(json.dumps({"pid": 1}))
    assert process_registry.recorded(tmp_path) == []


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="/nowhere/x cannot be started"):
        launch(tmp_path, ["/nowhere/x"])
    with pytest.raises(EngineError, match="ended as it started"):
        process_registry.record(tmp_path, "gone", 2**22 + 5)


def test_folders_of_records_and_logs_are_for_their_owner(tmp_path: Path) -> None:
    state = tmp_path / "site" / "state"
    process = process_registry.start(
        "quick", ["true"], records=state / "pids", log=state / "logs" / "quick.log", env=os.environ
    )
    process.wait()
    for folder in (state.parent, state, state / "pids", state / "logs"):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
