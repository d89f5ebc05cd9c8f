"""Several processes share the cells of a folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedhip.cli.main import main
from fedhip.data import write_features
from fedhip.reproduce.helpers import helper_processes, part_of
from fedhip.utils.files import write_text
from tests.reproduce.fakes import rows
from tests.waiting import PATIENCE, until


def note_cores(folder: Path) -> None:
    """Work for helpers: which cores, and how many threads, each has."""
    told = {"cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}
    write_text(folder / f"{os.getpid()}.json", json.dumps(told))  # under its name when it is whole


def fail(folder: Path) -> None:
    (folder / "began").touch()
    raise ValueError("broken")


def fail_and_dawdle(folder: Path) -> None:
    """Takes a second to exit, as with a tracer that saves what it saw, and so is told to end on its way out."""
    leave = os._exit

    def slowly(status: int) -> None:
        time.sleep(1.0)
        leave(status)

    setattr(os, "_exit", slowly)  # noqa: B010
    fail(folder)


def wait_for_ever(folder: Path) -> None:
    (folder / "began").touch()
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        (folder / "ended").touch()
        raise


def test_cores_are_shared_out() -> None:
    assert [part_of({0, 1, 2, 3, 7}, place, 2) for place in range(2)] == [{0, 2, 7}, {1, 3}]
    assert [part_of({4, 5}, place, 3) for place in range(3)] == [{4}, {5}, {4}]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
@pytest.mark.slow
def test_everybody_has_a_part_and_the_cores_come_back(tmp_path: Path) -> None:
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    with helper_processes(2, note_cores, tmp_path):
        mine = os.sched_getaffinity(0)
        until(lambda: list(tmp_path.glob("[0-9]*.json")))
    (file,) = tmp_path.glob("*.json")
    theirs = json.loads(file.read_text())
    assert theirs["threads"] == len(theirs["cores"])
    assert mine | set(theirs["cores"]) == cores
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, threads)


def test_one_job_starts_nobody(tmp_path: Path) -> None:
    with helper_processes(1, note_cores, tmp_path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("work", [fail, fail_and_dawdle])
@pytest.mark.sampled(2)
def test_a_helper_that_fails_says_nothing(
    work: Callable[[Path], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with helper_processes(2, work, tmp_path):
        until((tmp_path / "began").exists)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_helpers_end_with_the_block_as_if_interrupted(tmp_path: Path) -> None:
    with helper_processes(2, wait_for_ever, tmp_path):
        until((tmp_path / "began").exists)
    assert (tmp_path / "ended").exists()


def words(folder: Path, out: str, *more: str) -> list[str]:
    """Table I of a few rows."""
    write_features(folder / "mine.npz", rows())
    return [
        "reproduce", "table1", "--features", str(folder / "mine.npz"), "--clients", "4",
        "--concentrations", "0.5", "--seeds", "0", "1", "--methods", "fedavg,ditto,local,fedhip", "--rounds", "4",
        "--protocol", "both", "--out", str(folder / out), *more,
    ]  # fmt: skip


def reproduce(folder: Path, out: str, *more: str) -> subprocess.Popen[str]:
    """It in a process of its own that an interrupt reaches."""
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "fedhip", *words(folder, out, *more)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def anybody_in(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def locked(cells: Path) -> int:
    """How many lock files somebody holds; one that was just made is held by nobody yet."""
    made = {entry.inode() for entry in os.scandir(cells) if entry.name.endswith(".lock")} if cells.exists() else set()
    held = re.findall(r"FLOCK .*:(\d+) 0 EOF", Path("/proc/locks").read_text())
    return len(made & set(map(int, held)))


def accuracies(out: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text())["result"]["accuracy"] for path in out.glob("cells/tuning*.json")}


@pytest.mark.slow
def test_the_same_tables_with_more_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    assert main(words(tmp_path, "one", "--jobs", "1")) == 0
    said["one"] = capsys.readouterr().out
    said["two"], _ = reproduce(tmp_path, "two", "--jobs", "2").communicate(timeout=PATIENCE)
    one, two = tmp_path / "one", tmp_path / "two"
    assert accuracies(one) == accuracies(two) != {}
    for name in ("table1-paper.csv", "table1-tuned.csv"):
        texts = [[line.split(",") for line in (out / name).read_text().splitlines()] for out in (one, two)]
        seconds = texts[0][0].index("seconds")
        for line in texts[0] + texts[1]:
            line[seconds] = ""
        assert texts[0] == texts[1]
    assert not list(two.glob("cells/*.lock"))
    assert said["one"].replace(str(one), "") == said["two"].replace(str(two), "")


@pytest.mark.slow
def test_an_interrupt_ends_all_of_them(tmp_path: Path) -> None:
    process = reproduce(tmp_path, "out", "--jobs", "3", "--rounds", "100000")
    cells = tmp_path / "out" / "cells"
    until(lambda: locked(cells) == 3)
    time.sleep(0.3)  # they are at work, and not on the way to it: that is a test of its own
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert {path.suffix for path in cells.iterdir()} <= {".json", ".safetensors"}
    until(lambda: not anybody_in(process.pid))


def test_no_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(tmp_path, "out", "--jobs", "0")) == 3
    assert "the number of jobs must be at least 1, not 0" in capsys.readouterr().err
