"""A run takes its place whole or not at all, whatever stops it; the next version leaves the last one's files alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedhip.errors import FileError, InputError, RunChangedError, RunExistsError
from fedhip.runs import Run, changed_run, life, new_run, require_place
from tests.runs.samples import NAMES, contents, digest, make_run, the_client


class Fault:
    """Stops the n-th time a file is about to be flushed to the disk; counts how often that would be."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error, self.count = at, error, 0

    def __call__(self, descriptor: int) -> None:
        self.count += 1
        if self.count == self.at:
            raise self.error


FAULTS: list[BaseException] = [KeyboardInterrupt(), RuntimeError("a fault"), OSError(errno.ENOSPC, "full")]


def replaced(path: Path) -> Any:
    return make_run(path, NAMES[:2])


def forgotten(path: Path) -> Any:
    return life.forget(Run.open(path), "west")


def joined(path: Path) -> Any:
    return life.join(Run.open(path), the_client("east"))


@pytest.mark.parametrize("fault", FAULTS, ids=["interrupt", "exception", "full disk"])
@pytest.mark.sampled(3)
def test_a_fault_at_any_write_of_a_new_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    counting = Fault(-1, fault)
    monkeypatch.setattr("os.fsync", counting)
    make_run(tmp_path / "count")
    shutil.rmtree(tmp_path / "count")
    assert counting.count >= 14  # three models, three statistics, global, total, and the rest
    for at in range(1, counting.count + 1):
        monkeypatch.setattr("os.fsync", Fault(at, fault))
        with pytest.raises(
            FileError if (full := isinstance(fault, OSError)) else type(fault), match="no space" if full else None
        ):
            make_run(tmp_path / "deep" / "er" / "run")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", FAULTS, ids=["interrupt", "exception", "full disk"])
@pytest.mark.parametrize("change", [forgotten, joined])
@pytest.mark.sampled(3)
def test_a_fault_at_any_write_of_a_change_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any], fault: BaseException
) -> None:
    place = tmp_path / "here"
    make_run(place / "run")
    before = digest(place)
    shutil.copytree(place / "run", tmp_path / "copy")
    counting = Fault(-1, fault)
    monkeypatch.setattr("os.fsync", counting)
    change(tmp_path / "copy")
    for at in range(1, counting.count + 1):
        monkeypatch.setattr("os.fsync", Fault(at, fault))
        with pytest.raises(
            FileError if (full := isinstance(fault, OSError)) else type(fault), match="no space" if full else None
        ):
            change(place / "run")
        assert digest(place) == before


def test_a_fault_while_a_run_is_replaced_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run")
    before = digest(tmp_path)
    rename, count = Path.rename, 0

    def failing(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == 2:  # the old one has stepped aside, the new one comes
            raise OSError(errno.EIO, "input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="input/output"), new_run(tmp_path / "run", force=True) as draft:
        draft.write_text("results.json", "{}")
    assert digest(tmp_path) == before


def test_a_full_disk_while_files_are_linked_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run")
    before = digest(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.link", full)
    with pytest.raises(FileError, match=r"no space left .*nothing was changed"):
        forgotten(tmp_path / "run")
    assert digest(tmp_path) == before


def test_where_there_are_no_hard_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        make_run(tmp_path / name)
    forgotten(tmp_path / "one")

    def unable(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", unable)
    forgotten(tmp_path / "two")
    exact = ("models", "statistics", "global.safetensors", "total.safetensors", "details.json", "partition.json")
    assert contents(tmp_path / "one", exact) == contents(tmp_path / "two", exact)


@pytest.mark.parametrize("change", [forgotten, joined])
def test_the_next_version_writes_to_no_file_of_the_last(tmp_path: Path, change: Callable[[Path], Any]) -> None:
    """A copy by hard links shares every byte with the run: it must not see the change."""
    make_run(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "snapshot", copy_function=os.link)
    before = digest(tmp_path / "snapshot")
    change(tmp_path / "run")
    assert digest(tmp_path / "snapshot") == before != digest(tmp_path / "run")


def test_force_replaces_a_run_and_only_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run)
    with pytest.raises(RunExistsError, match="exists; choose another --out, or replace the run there with --force"):
        require_place(run, force=False)
    require_place(run, force=True)
    with new_run(run, force=True) as draft:
        draft.write_text("results.json", "{}")
    assert set(contents(run)) == {"results.json"}
    for name, files in {"papers": ["thesis.tex"], "another": ["results.json", "weights.pt"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("years of work")
        with pytest.raises(RunExistsError, match="not a run folder, and --force replaces runs only"):
            require_place(tmp_path / name, force=True)
    (tmp_path / "file").write_text("")
    for force in (False, True):
        with pytest.raises(RunExistsError):
            require_place(tmp_path / "file", force=force)


def test_an_empty_folder_is_a_place(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    make_run(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_place_taken_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def write() -> None:
        with new_run(tmp_path / "run") as draft:
            draft.write_text("results.json", "{}")
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "mine").write_text("x")

    with pytest.raises(RunExistsError):
        write()
    assert contents(tmp_path) == {"run/mine": b"x"}


@pytest.mark.parametrize("link_first", [True, False], ids=["to a run", "to nothing yet"])
def test_a_link_stays_a_link_to_the_run(tmp_path: Path, link_first: bool) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run")
    make_run((tmp_path / "disk" / "run") if link_first else (tmp_path / "link"))
    forgotten(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["run"]
    assert Run.open(tmp_path / "disk" / "run").clients == ["north", "south"]
    with new_run(tmp_path / "link", force=True) as draft:
        draft.write_text("results.json", "{}")
    assert contents(tmp_path / "disk" / "run") == {"results.json": b"{}"}


def test_the_folder_one_is_in_is_not_pulled_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run")
    for inside in (tmp_path / "run", tmp_path / "run" / "models"):
        monkeypatch.chdir(inside)
        with pytest.raises(RunExistsError, match=r"the folder you are in.*go out of it"):
            forgotten(tmp_path / "run")
        with pytest.raises(RunExistsError, match="the folder you are in"):
            require_place(Path(), force=True)
    monkeypatch.chdir(tmp_path)
    forgotten(Path("run"))


def test_who_is_in_a_folder_that_is_gone_can_still_change_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    forgotten(tmp_path / "run")
    assert Run.open(tmp_path / "run").clients == ["north", "south"]
    monkeypatch.chdir(tmp_path)


def test_a_change_by_somebody_else_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run").path

    def change() -> None:
        with changed_run(Run.open(run)) as draft:
            draft.write_text("config.toml", "mine")
            forgotten(run)

    with pytest.raises(RunChangedError, match="changed by somebody else"):
        change()
    assert Run.open(run).clients == ["north", "south"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(RunChangedError), changed_run(Run.open(run)):
        shutil.rmtree(run)
    assert list(tmp_path.iterdir()) == []


def test_of_changes_at_the_same_time_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes through, and is in the ledger, or is told that it did not."""
    names = [f"site-{i}" for i in range(6)]
    run = make_run(tmp_path / "run", names).path
    barrier, told = threading.Barrier(4), []

    def forget(client: str) -> None:
        opened = Run.open(run)
        _ = opened.ledger, opened.details
        barrier.wait()
        try:
            life.forget(opened, client)
            told.append((client, True))
        except (FileError, OSError):
            told.append((client, False))

    threads = [threading.Thread(target=forget, args=(name,)) for name in names[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = Run.open(run)
    gone = {client for client, done in told if done}
    assert len(told) == 4
    assert gone
    assert set(left.clients) == set(names) - gone
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_ctrl_c_between_the_two_renames_waits_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run")
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        signal.raise_signal(signal.SIGINT)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        forgotten(tmp_path / "run")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert Run.open(tmp_path / "run").clients == ["north", "south"]


def test_a_second_ctrl_c_does_not_stop_the_tidying_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree

    def interrupted(path: Path, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(path, **options)

    monkeypatch.setattr("shutil.rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), new_run(tmp_path / "run"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.slow
def test_a_folder_that_may_not_be_written_to_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stops root: another user tries."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # who could not write down what he ran either
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        make_run(place / "run")
        for path in (place, *place.rglob("*")):
            os.chown(path, 65534, 65534)
        for path in (place / "run", *(path for path in (place / "run").rglob("*") if path.is_dir())):
            path.chmod(0o555)
        before = digest(place)
        code = (
            "import os, sys; from fedhip.cli.main import build_parser, main\n"
            "build_parser()  # imports every command, while Python's own files can be read\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"sys.exit(main(['forget', {str(place / 'run')!r}, '--client', 'west']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)  # noqa: S603
        assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
        assert "cannot be written to, so the run cannot change" in done.stderr
        assert digest(place) == before


def test_a_private_run_stays_private(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run").path
    run.chmod(0o700)
    (run / "models").chmod(0o750)
    forgotten(run)
    assert (run.stat().st_mode & 0o777, (run / "models").stat().st_mode & 0o777) == (0o700, 0o750)


def test_files_that_people_put_into_a_run_stay(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run").path
    (run / "notes").mkdir()
    (run / "notes" / "a.txt").write_text("mine")
    forgotten(run)
    assert (run / "notes" / "a.txt").read_text() == "mine"


@pytest.mark.parametrize("schema", [0, 2, "1", None, True, [1]])
def test_a_run_of_another_schema_is_refused(tmp_path: Path, schema: Any) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "results.json").write_text(json.dumps({**run.results, "schema": schema}))
    with pytest.raises(FileError, match=r"schema version .* this fedhip reads 1; use the version that wrote it"):
        Run.open(run.path)


def test_whatever_is_missing_from_the_json_files_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for file, content in (("results.json", run.results), ("details.json", run.details)):
        needed = 0
        for key in content:
            for broken in ({k: v for k, v in content.items() if k != key}, {**content, key: 2.5j.__class__.__name__}):
                (run.path / file).write_text(json.dumps(broken))
                with pytest.raises((FileError, InputError)) as error:
                    life.forget(Run.open(run.path), "nobody")
                if "no client 'nobody'" not in str(error.value):  # it was missed
                    assert key in str(error.value)
                    needed += 1
            (run.path / file).write_text(json.dumps(content))
        assert needed >= 8
    client = run.details["clients"]["north"]
    for key in ("alpha", "own", "log_losses", "global_log_losses", "loo_accuracy", "loo_chosen"):
        broken = {**client, key: {}}
        (run.path / "details.json").write_text(json.dumps({**run.details, "clients": {"north": broken}}))
        with pytest.raises(FileError, match=f"client 'north': '{key}' is missing or malformed"):
            _ = Run.open(run.path).clients


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no run folder"):
        Run.open(tmp_path / "none")
    with pytest.raises(FileError, match=r"not a run folder: it has no results\.json"):
        Run.open(tmp_path)
    for text in ("", "[]", "nonsense", "[" * 100_000, "\udcff"):
        (tmp_path / "results.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(FileError, match=r"results\.json"):
            Run.open(tmp_path)


def test_each_missing_file_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in ("total.safetensors", "global.safetensors", "details.json", "ledger.jsonl", "config.toml"):
        (run.path / name).rename(tmp_path / name)
        with pytest.raises(FileError, match=f"{name} is missing"):
            forgotten(run.path)
        (tmp_path / name).rename(run.path / name)
    forgotten(run.path)
