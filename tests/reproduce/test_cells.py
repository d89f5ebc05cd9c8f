"""Finished cells are kept and never computed again."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from fedhip.reproduce import Source, Store, reproduce
from fedhip.reproduce.bench import Setting, method_cell
from fedhip.reproduce.cells import Cell, PlannedCell
from fedhip.utils.candidates import CANDIDATES
from fedhip.utils.progress import ReportProgress, silent
from tests.reproduce.fakes import bench_of, pretend, rows


def counted(key: dict[str, Any], calls: list[Any], result: Any = 1) -> Cell:
    def compute(checkpoint: Path, tell: ReportProgress) -> dict[str, Any]:
        calls.append(key)
        checkpoint.write_bytes(b"x")
        tell("phase", 1, 2)
        return {"value": result}

    return Cell(f"a cell λ={key.get('a')}", "kind", key, compute)


def test_a_cell_is_computed_once_and_its_checkpoint_goes(tmp_path: Path) -> None:
    calls: list[Any] = []
    for _ in range(2):
        assert Store(tmp_path).obtain(counted({"a": 1}, calls)) == {"value": 1}
    assert calls == [{"a": 1}]
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("a-cell-lambda=1-")
    assert json.loads(path.read_text())["key"]["a"] == 1


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"schema": 1, "key": {}, "result": {"value": 7}}', "\x00"])
def test_a_damaged_cell_is_computed_again(tmp_path: Path, damage: str) -> None:
    calls: list[Any] = []
    Store(tmp_path).obtain(counted({"a": 1}, calls))
    next(tmp_path.iterdir()).write_text(damage)
    assert Store(tmp_path).obtain(counted({"a": 1}, calls)) == {"value": 1}
    assert len(calls) == 2


def test_a_cell_that_two_studies_need_counts_once(tmp_path: Path) -> None:
    calls: list[Any] = []
    shown: list[tuple[str, int, int]] = []
    steps = [PlannedCell("kind", (a,), lambda a=a: counted({"a": a}, calls)) for a in (1, 2, 1, 3)]  # type: ignore[misc]
    Store(tmp_path).perform(steps, lambda *where: shown.append(where))
    assert [call["a"] for call in calls] == [1, 2, 3]
    assert list(dict.fromkeys(where[1:] for where in shown)) == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert all((" left" in phase) == (0 < done < 3) for phase, done, _ in shown)  # known after the first
    assert all(phase.startswith("cells") for phase, _, _ in shown)


def test_everything_that_decides_a_number_is_in_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    bench = bench_of(tmp_path)
    (source,) = bench.sources

    def name(**change: Any) -> str:
        changed = replace(bench, settings=replace(bench.settings, **change.pop("settings", {})))
        given: dict[str, Any] = {
            "source": source, "method": "fedavg", "regime": "paper", "num_clients": 4, "concentration": 0.1, "seed": 0,
            "setting": Setting(None),
        }  # fmt: skip
        given |= change
        return method_cell(changed, **given).stem

    other = Source("mine", rows(seed=1))
    changes: list[dict[str, Any]] = [
        {}, {"source": other}, {"source": replace(source, backbone="other")}, {"method": "ditto"}, {"regime": "tuned"},
        {"num_clients": 6}, {"concentration": 0.5}, {"seed": 1}, {"setting": Setting(0.1)},
        {"setting": Setting(None, (("mu", 0.5),))}, {"settings": {"rounds": 11}}, {"settings": {"head": "mlp"}},
        {"settings": {"only_local_classes": True}},
    ]  # fmt: skip
    names = [name(**change) for change in changes]
    assert len(set(names)) == len(changes)
    monkeypatch.setattr("fedhip.reproduce.cells.__version__", "99")
    assert name() not in names
    # A closed form is the same whatever the rounds; a copy of the same rows is the same data.
    monkeypatch.undo()
    pretend(monkeypatch)
    assert name(method="global") == name(method="global", settings={"rounds": 11})
    assert name(source=Source("mine", rows())) == name()


def test_a_choice_among_other_candidates_has_other_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path)
    (source,) = bench.sources

    def name(method: str) -> str:
        return method_cell(bench, source, method, "paper", 4, 0.1, 0).stem

    before = {method: name(method) for method in ("auto", "global")}
    monkeypatch.setattr("fedhip.reproduce.bench.CANDIDATES", CANDIDATES[1:])
    assert name("auto") != before["auto"]
    assert name("global") == before["global"]


def test_resuming_runs_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = pretend(monkeypatch, stop_after=5)
    studies = ("table1", "efficiency", "invariance")
    with pytest.raises(KeyboardInterrupt):
        reproduce(bench_of(tmp_path), studies, tmp_path / "out")
    assert len(methods.calls) == 5
    assert len(list((tmp_path / "cells").glob("*.json"))) >= 5
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    methods.stop_after = None
    reproduce(bench_of(tmp_path), studies, tmp_path / "out")
    whole = [(c["name"], c["protocol"], len(c["clients"]), c["clients"][0].train[1].tobytes()) for c in methods.calls]
    # Two rivals and two closed forms on 2 × 2 × 2 divisions; two rivals on 3 × 2 moved ones.
    assert len(whole) == 4 * 8 + 2 * 6
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    texts = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    size = (again := bench_of(tmp_path)).store.size
    reproduce(again, studies, tmp_path / "out")
    assert len(methods.calls) == len(whole)
    assert again.store.size == size
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == texts
    assert not list((tmp_path / "cells").glob("*.safetensors"))


def locked(folder: Path, cell: Cell) -> IO[str]:
    """A lock on a cell, as another process holds it while it computes."""
    file = (folder / f"{cell.stem}.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_a_cell_that_another_process_is_at_is_left_to_it(tmp_path: Path) -> None:
    calls: list[Any] = []
    steps = [PlannedCell("kind", (a,), lambda a=a: counted({"a": a}, calls)) for a in (1, 2)]  # type: ignore[misc]
    with locked(tmp_path, counted({"a": 1}, calls)):
        Store(tmp_path).perform(steps, wait=False)
        assert [call["a"] for call in calls] == [2]
    Store(tmp_path).perform(steps, wait=False)
    assert [call["a"] for call in calls] == [2, 1]
    assert not list(tmp_path.glob("*.lock"))


def test_lock_files_that_nobody_holds_are_removed_and_held_ones_stay(tmp_path: Path) -> None:
    locked(tmp_path, counted({"a": 1}, [])).close()
    with locked(tmp_path, counted({"a": 2}, [])) as held:
        Store(tmp_path).remove_stale_locks()
        assert [str(path) for path in tmp_path.glob("*.lock")] == [held.name]


def test_an_interrupt_on_the_way_into_a_cell_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    lock = fcntl.flock

    def interrupted(*args: Any) -> None:
        lock(*args)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", interrupted)
    bench = bench_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        reproduce(bench, ["table1"], tmp_path / "out")
    assert bench.store.folder.exists()
    assert not list(bench.store.folder.glob("*.lock"))


def test_it_comes_last_and_is_waited_for(tmp_path: Path) -> None:
    calls: list[Any] = []
    steps = [PlannedCell("kind", (a,), lambda a=a: counted({"a": a}, calls)) for a in (1, 2)]  # type: ignore[misc]
    other = locked(tmp_path, steps[0].make())

    def finish() -> None:
        """What the other process does: it computes its cell, and ends."""
        while not calls:
            time.sleep(0.01)
        Store(tmp_path)._compute(counted({"a": 1}, [], 7), silent)
        other.close()

    helper = threading.Thread(target=finish)
    helper.start()
    store = Store(tmp_path)
    store.perform(steps)
    helper.join()
    assert [call["a"] for call in calls] == [2]  # never computed twice
    assert store.find(steps[0].make()) == {"value": 7}


def test_a_cell_whose_process_died_is_computed_by_the_next(tmp_path: Path) -> None:
    calls: list[Any] = []
    cell = counted({"a": 1}, calls)
    script = f"import fcntl; f = open({str(tmp_path / (cell.stem + '.lock'))!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603
    assert Store(tmp_path).obtain(cell) == {"value": 1}
