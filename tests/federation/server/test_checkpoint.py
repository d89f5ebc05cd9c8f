"""The server app killed anywhere and started again: the same result, and nothing asked of a site that it refuses."""

from __future__ import annotations

import json
import stat
from functools import cache
from pathlib import Path

import pytest

from fedhip.federation.errors import SetupError
from fedhip.federation.server.checkpoint import RoundCheckpoint, RoundProgress, SumRecord, SumState
from fedhip.heads.round import simulate
from tests.federation.grid import ServerKilled
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, Trial, clients, sum_of, survey_of

pytestmark = pytest.mark.usefixtures("sums_only")

STEPS = ("hello", "keys", "share", "mask", "unmask", "personalize")


@pytest.mark.parametrize("number", [1, 3, 4])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.sampled(3)
def test_killed_in_any_step(tmp_path: Path, step: str, number: int) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    trial.grid.stop_at = (step, number)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {}
    late = step in ("unmask", "personalize")
    assert ("share" in {asked for _, asked in trial.grid.asked}) != late
    assert not (trial.folder / "state" / "checkpoint").exists()


@cache
def beta_of_fedhip_run() -> float:
    return simulate(clients(FOUR), len(CLASSES), methods=["fedhip"]).beta


@pytest.mark.parametrize(
    ("sum_number", "step", "number"),
    [
        *((1, "hello", 3), (1, "keys", 4), (1, "mask", 4), (1, "unmask", 1), (1, "unmask", 4)),
        *((2, "keys", 1), (2, "share", 3), (2, "mask", 4), (2, "unmask", 2), (2, "unmask", 4)),
        *((3, "keys", 4), (3, "share", 1), (3, "mask", 2), (3, "unmask", 1), (3, "unmask", 4)),
        *((1, "personalize", 1), (1, "personalize", 4)),
    ],
)
@pytest.mark.sampled(3)
def test_killed_in_any_of_three_sums(tmp_path: Path, sum_number: int, step: str, number: int) -> None:
    """The first, which says what columns are like, the statistics, and that which β is chosen by."""
    trial = Trial.make(tmp_path)
    trial.grid.stop_at = (step, 4 * (sum_number - 1) + number)
    with pytest.raises(ServerKilled):
        trial.run()
    checkpoint = RoundCheckpoint(trial.folder / "state" / "checkpoint")
    if sum_number > 1 or step == "personalize":
        assert checkpoint.data("moments") == survey_of(FOUR).tobytes()
    else:
        assert checkpoint.folder.exists() == (step == "unmask")
    trial.again()
    result = trial.run()
    assert result.total() == sum_of(FOUR, trial.agreement)
    assert result.results["beta"] == beta_of_fedhip_run()
    assert [s["ask"] for s in result.results["sums"]] == ["moments", "statistics", "beta"]
    assert trial.codes() == {}
    left = {"unmask": 3 - sum_number, "personalize": 0}.get(step, 4 - sum_number)
    assert [asked for _, asked in trial.grid.asked].count("share") == 4 * left
    assert not checkpoint.folder.exists()


def test_killed_in_every_sum_in_turn(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path)
    for stop_at in (("mask", 2), ("unmask", 3), ("keys", 2), ("mask", 1), ("unmask", 1), ("mask", 4), ("unmask", 4)):
        trial.grid.stop_at = stop_at
        with pytest.raises(ServerKilled):
            trial.run()
        trial.again()
    result = trial.run()
    assert (result.total(), result.results["beta"]) == (sum_of(FOUR, trial.agreement), beta_of_fedhip_run())


@pytest.mark.parametrize("step", ["agree", "unmask", "personalize"])
def test_killed_with_a_site_gone(tmp_path: Path, step: str) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("silent", "b", "mask")
    trial.grid.stop_at = (step, 2)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(("a", "c", "d"), trial.agreement)
    assert trial.codes()["b"] == "late"


def test_killed_again_and_again(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("silent", "b", "mask")
    for step in ("agree", "agree", "unmask", "unmask", "personalize", "personalize"):
        trial.grid.stop_at = (step, 1)
        with pytest.raises(ServerKilled):
            trial.run()
        trial.again()
    assert trial.run().total() == sum_of(("a", "c", "d"), trial.agreement)


def test_sites_that_answered_are_not_asked_for_a_model_again(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
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
    trial = Trial.make(tmp_path, **ONE_SUM)

    def killed(_: RoundCheckpoint) -> None:
        raise ServerKilled

    clear = RoundCheckpoint.clear
    monkeypatch.setattr(RoundCheckpoint, "clear", killed)
    with pytest.raises(ServerKilled):
        trial.run()
    monkeypatch.setattr(RoundCheckpoint, "clear", clear)
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.grid.asked == []


def test_a_site_that_is_gone_when_the_server_is_back(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.grid.stop_at = ("unmask", 1)
    with pytest.raises(ServerKilled):
        trial.run()
    del trial.grid.nodes[trial.node("c")]
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {"c": "never-came"}


def killed_trial(tmp_path: Path) -> tuple[Trial, Path]:
    trial = Trial.make(tmp_path, **ONE_SUM)
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
    with pytest.raises(SetupError, match="remove the folder"):
        trial.run()
    assert not trial.result.exists()


def test_damaged_data_of_a_checkpoint(tmp_path: Path) -> None:
    trial, folder = killed_trial(tmp_path)
    (data,) = folder.glob("*.bin")
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    with pytest.raises(SetupError, match="is damaged"):
        trial.run()
    data.unlink()
    with pytest.raises(SetupError, match="lacks its data"):
        trial.run()


def test_a_first_sum_that_is_lost(tmp_path: Path) -> None:
    """Without it nobody knows what the columns of the statistics are."""
    trial = Trial.make(tmp_path)
    trial.grid.stop_at = ("personalize", 1)
    with pytest.raises(ServerKilled):
        trial.run()
    folder = trial.folder / "state" / "checkpoint"
    files = json.loads((folder / "round.json").read_text())["files"]
    assert files.keys() == {"moments", "total", "sum-3"}
    (folder / files["moments"]).unlink()
    trial.again()
    with pytest.raises(SetupError, match="lacks its data"):
        trial.run()
    assert not trial.result.exists()


def test_a_checkpoint_of_another_agreement(tmp_path: Path) -> None:
    checkpoint = RoundCheckpoint(tmp_path / "checkpoint")
    checkpoint.write(RoundProgress("a", "r", "00", 1, SumState.SUMMED, [SumRecord("statistics", ["x"])]), total=b"data")
    found = checkpoint.read("a", "r")
    assert found is not None
    assert (found.stage, found.summed, checkpoint.data("total")) == (SumState.SUMMED, ["x"], b"data")
    for other in (("b", "r"), ("a", "s")):
        with pytest.raises(SetupError, match="another agreement"):
            checkpoint.read(*other)


def test_a_checkpoint_keeps_what_is_not_named(tmp_path: Path) -> None:
    checkpoint = RoundCheckpoint(tmp_path / "checkpoint")
    progress = RoundProgress(
        "a", "r", "00", 1, SumState.MASKED, [SumRecord("statistics", ["x"]), SumRecord("gradient", ["x"], 20)]
    )
    checkpoint.write(progress, collector=b"first", total=b"sum")
    checkpoint.write(progress)
    assert (checkpoint.data("collector"), checkpoint.data("total")) == (b"first", b"sum")
    assert checkpoint.read("a", "r") == progress
    checkpoint.write(progress, collector=b"second")
    assert checkpoint.data("collector") == b"second"
    checkpoint.write(progress, collector=None)
    with pytest.raises(SetupError, match="lacks its data"):
        checkpoint.data("collector")
    assert checkpoint.data("total") == b"sum"
    assert len(list((tmp_path / "checkpoint").iterdir())) == 2


#: As the version before there was a table of sums wrote it: the first sum stands apart.
OLD_ROUND = {
    **{"schema": 2, "files": {}, "agreement": "a", "roster": "r", "session": "00", "attempt": 3, "stage": "summed"},
    **{"sites": ["x", "y"], "dropped": {"z": "late"}, "answers": {}, "first": "moments", "again": [], "proofs": {}},
    "later": [{"ask": "statistics", "sites": ["x", "y"], "bits": 0}, {"ask": "gradient", "sites": ["x"], "bits": 20}],
}


def test_a_checkpoint_of_before_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    checkpoint = RoundCheckpoint(tmp_path)
    (tmp_path / "round.json").write_text(json.dumps(OLD_ROUND))
    progress = checkpoint.read("a", "r")
    assert progress is not None
    assert progress.asks == ["moments", "statistics", "gradient"]
    assert (progress.summed, progress.latest, progress.sums[2].bits) == (["x", "y"], ["x"], 20)
    assert [progress.file_of(number) for number in (1, 2, 3)] == ["moments", "total", "sum-3"]
    checkpoint.write(progress)
    assert json.loads((tmp_path / "round.json").read_text()) == OLD_ROUND
    (tmp_path / "round.json").write_text(json.dumps({**OLD_ROUND, "first": "rows"}))
    with pytest.raises(SetupError, match="is damaged"):
        checkpoint.read("a", "r")
