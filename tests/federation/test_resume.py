"""The server app killed anywhere and started again: the same result, and nothing asked of a site that it refuses."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from fedhip.federation.checkpoint import Checkpoint, LaterSum, Progress, Stage
from fedhip.federation.errors import CheckpointError
from tests.federation.grid import ServerKilled
from tests.federation.samples import FOUR, Trial, sum_of

pytestmark = pytest.mark.usefixtures("sums_only")

STEPS = ("hello", "keys", "share", "mask", "unmask", "personalize")


@pytest.mark.parametrize("number", [1, 3, 4])
@pytest.mark.parametrize("step", STEPS)
def test_killed_in_any_step(tmp_path: Path, step: str, number: int) -> None:
    trial = Trial.make(tmp_path)
    trial.grid.stop_at = (step, number)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.bits)
    assert trial.codes() == {}
    late = step in ("unmask", "personalize")
    assert ("keys" in {asked for _, asked in trial.grid.asked}) != late
    assert not (trial.folder / "state" / "checkpoint").exists()


@pytest.mark.parametrize("step", ["agree", "unmask", "personalize"])
def test_killed_with_a_site_gone(tmp_path: Path, step: str) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    trial.fault("silent", "b", "mask")
    trial.grid.stop_at = (step, 2)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(("a", "c", "d"), trial.bits)
    assert trial.codes()["b"] == "late"


def test_killed_again_and_again(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    trial.fault("silent", "b", "mask")
    for step in ("agree", "agree", "unmask", "unmask", "personalize", "personalize"):
        trial.grid.stop_at = (step, 1)
        with pytest.raises(ServerKilled):
            trial.run()
        trial.again()
    assert trial.run().total() == sum_of(("a", "c", "d"), trial.bits)


def test_sites_that_answered_are_not_asked_for_a_model_again(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path)
    trial.grid.faults = []
    trial.grid.stop_at = ("personalize", 4)
    with pytest.raises(ServerKilled):
        trial.run()
    progress = trial.folder / "state" / "checkpoint" / "round.json"
    content = json.loads(progress.read_text())
    content["answers"] = {"a": {}, "b": {}}
    progress.write_text(json.dumps(content))
    trial.again()
    trial.run()
    asked = [node for node, step in trial.grid.asked if step == "personalize"]
    assert asked == [trial.node("c"), trial.node("d")]


def test_killed_when_all_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial.make(tmp_path)

    def killed(_: Checkpoint) -> None:
        raise ServerKilled

    clear = Checkpoint.clear
    monkeypatch.setattr(Checkpoint, "clear", killed)
    with pytest.raises(ServerKilled):
        trial.run()
    monkeypatch.setattr(Checkpoint, "clear", clear)
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.bits)
    assert trial.grid.asked == []


def test_a_site_that_is_gone_when_the_server_is_back(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    trial.grid.stop_at = ("unmask", 1)
    with pytest.raises(ServerKilled):
        trial.run()
    del trial.grid.nodes[trial.node("c")]
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.bits)
    assert trial.codes() == {"c": "never-came"}


def killed_trial(tmp_path: Path) -> tuple[Trial, Path]:
    trial = Trial.make(tmp_path)
    trial.grid.stop_at = ("unmask", 2)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    return trial, trial.folder / "state" / "checkpoint"


def test_a_checkpoint_is_for_its_owner(tmp_path: Path) -> None:
    _, folder = killed_trial(tmp_path)
    for path in (folder, *folder.iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"schema": 9}', b"\xff"])
def test_a_damaged_checkpoint(tmp_path: Path, damage: bytes) -> None:
    trial, folder = killed_trial(tmp_path)
    (folder / "round.json").write_bytes(damage)
    with pytest.raises(CheckpointError, match="remove the folder"):
        trial.run()
    assert not trial.result.exists()


def test_damaged_data_of_a_checkpoint(tmp_path: Path) -> None:
    trial, folder = killed_trial(tmp_path)
    (data,) = folder.glob("*.bin")
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    with pytest.raises(CheckpointError, match="is damaged"):
        trial.run()
    data.unlink()
    with pytest.raises(CheckpointError, match="lacks its data"):
        trial.run()


def test_a_checkpoint_of_another_agreement(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.write(Progress("a", "r", "00", 1, Stage.SUMMED, ["x"]), total=b"data")
    found = checkpoint.read("a", "r")
    assert found is not None
    assert (found.stage, found.sites, checkpoint.data("total")) == (Stage.SUMMED, ["x"], b"data")
    for other in (("b", "r"), ("a", "s")):
        with pytest.raises(CheckpointError, match="another agreement"):
            checkpoint.read(*other)


def test_a_checkpoint_keeps_what_is_not_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    progress = Progress("a", "r", "00", 1, Stage.MASKED, ["x"], later=[LaterSum("gradient", ["x"], 20)])
    checkpoint.write(progress, collector=b"first", total=b"sum")
    checkpoint.write(progress)
    assert (checkpoint.data("collector"), checkpoint.data("total")) == (b"first", b"sum")
    assert checkpoint.read("a", "r") == progress
    checkpoint.write(progress, collector=b"second")
    assert checkpoint.data("collector") == b"second"
    checkpoint.write(progress, collector=None)
    with pytest.raises(CheckpointError, match="lacks its data"):
        checkpoint.data("collector")
    assert checkpoint.data("total") == b"sum"
    assert len(list((tmp_path / "checkpoint").iterdir())) == 2
