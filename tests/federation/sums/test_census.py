"""Rows are counted before anything else is summed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.federation.errors import RoundError
from fedhip.federation.secure_sum import Collector
from fedhip.federation.server import aggregation
from fedhip.federation.server.cohort import SiteCohort
from fedhip.federation.sums.vector import Vector
from tests.federation.grid import ServerKilled
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, ROWS, WIDTH, Trial, clients, rows_of, sum_of

pytestmark = pytest.mark.usefixtures("sums_only")


def counted(tmp_path: Path, **settings: Any) -> Trial:
    return Trial.make(tmp_path, few_rows=False, **settings)


@pytest.mark.parametrize("settings", [{}, ONE_SUM])
def test_the_sum_after_a_census_is_that_of_fedhip_run(tmp_path: Path, settings: dict[str, Any]) -> None:
    trial = counted(tmp_path, **settings)
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    said = [line["text"] for line in trial.events() if line["step"] == "census"]
    train = [len(client.train[1]) for client in clients(FOUR)]
    assert said == [f"{sum(train)} rows, of 4 sites, and {WIDTH} features"]
    told = f"by the census the others have {sum(train[1:])} training rows, and with this site's all have {sum(train)}"
    assert told in trial.log("a")


def test_it_costs_a_sum_of_a_number_for_each_class(tmp_path: Path) -> None:
    trial = counted(tmp_path, **ONE_SUM)
    row = trial.run().results["methods"]["fedhip"]
    steps = [step for node, step in trial.grid.asked if node == trial.node("a")]
    assert steps == ["hello", "share", "mask", "unmask", "keys", "share", "mask", "unmask", "personalize"]
    assert row["rounds"] == 2
    assert row["upload_bytes_per_client"] == 8 * (trial.agreement.layout.size + len(CLASSES))


@pytest.mark.parametrize("step", ["keys", "share", "mask"])
@pytest.mark.sampled(3)
def test_a_site_that_dies_in_the_census_is_left_out(tmp_path: Path, step: str) -> None:
    trial = counted(tmp_path, quorum=3, threshold=3)
    trial.fault("silent", "c", step, round=0)
    left = tuple(site for site in FOUR if site != "c")
    assert trial.run().total() == sum_of(left, trial.agreement)


@pytest.mark.parametrize("settings", [{}, ONE_SUM])
def test_a_site_that_left_after_the_census_stops_the_round_until_it_is_back(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    trial = counted(tmp_path, quorum=3, threshold=3, **settings)
    trial.fault("silent", "c", "keys", round=1)
    with pytest.raises(RoundError):
        trial.run()
    assert "c was in the sum before and is not in this one" in trial.log("a")
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)


def test_too_few_are_left_after_the_census(tmp_path: Path) -> None:
    """The site with nearly all rows is in the census, and not in what follows; sites that let it leave count again."""
    trial = counted(tmp_path, quorum=3, threshold=3)
    for site in ("a", "b", "d"):
        features, labels = rows_of(site, 5)
        split = np.array([0, 0, 1, 1, 1], np.int8)
        labels[:2] = 0
        np.savez(trial.data(site), features=features, labels=labels, split=split, class_names=np.array(CLASSES))
        trial.policy(site, "allow_leavers = true")
    trial.fault("silent", "c", "keys", round=1)
    with pytest.raises(RoundError, match="few-rows"):
        trial.run()
    assert "the other sites have 4 training rows together" in trial.log("a")


@pytest.mark.parametrize(("step", "number"), [("keys", 2), ("mask", 3), ("unmask", 2), ("keys", 6)])
@pytest.mark.sampled(3)
def test_killed_in_the_census_or_after_it(tmp_path: Path, step: str, number: int) -> None:
    trial = counted(tmp_path, **ONE_SUM)
    trial.grid.stop_at = (step, number)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)


def test_killed_in_a_census_that_a_site_missed(tmp_path: Path) -> None:
    """The others go on without it in a new session; a census with it would tell of its rows alone."""
    trial = counted(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("silent", "d", "hello")
    trial.grid.stop_at = ("keys", 5)  # of the sum after it
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    trial.fault("silent", "d", "hello")
    assert trial.run().total() == sum_of(("a", "b", "c"), trial.agreement)


def test_a_site_that_missed_a_census_is_not_in_the_next(tmp_path: Path) -> None:
    trial = counted(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("silent", "d", "hello")
    trial.grid.stop_at = ("keys", 5)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    with pytest.raises(RoundError, match="difference"):
        trial.run()


def test_a_census_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = counted(tmp_path, **ONE_SUM)
    trial.lie(monkeypatch, "b", lambda vector: vector.__setitem__(0, np.uint64(2**60)), round=0)
    with pytest.raises(RoundError, match="wrong numbers under its mask"):
        trial.run()


def test_a_false_census_is_in_the_log_of_each_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that have too few rows are told of more, and go on; all are told the same, so that adding up shows it."""
    trial = counted(tmp_path, columns="plain", beta=1.0)
    for site in FOUR:
        features, labels = rows_of(site, 4)
        split = np.array([0, 1, 1, 1], np.int8)
        np.savez(trial.data(site), features=features, labels=labels, split=split, class_names=np.array(CLASSES))
        trial.policy(site, "smallest_class = 1")
    honest = aggregation.unmasked

    def false(cohort: SiteCohort, collector: Collector) -> Vector:
        return honest(cohort, collector) + np.uint64(500 if cohort.envelope.round == 0 else 0)

    monkeypatch.setattr("fedhip.federation.server.sums.unmasked", false)
    assert trial.run().total().num_samples == len(FOUR) < WIDTH
    for site in FOUR:
        assert f"by the census the others have {500 * len(CLASSES) + 3} training rows" in trial.log(site)


def test_classes_of_too_few_rows_are_left_out_at_the_site(tmp_path: Path) -> None:
    trial = counted(tmp_path, **ONE_SUM)
    features, labels = rows_of("b")
    labels[:] = 0
    labels[0] = 3  # the only dog of all
    split = np.zeros(ROWS, np.int8)
    np.savez(trial.data("b"), features=features, labels=labels, split=split, class_names=np.array(CLASSES))
    total = trial.run().total()
    assert total.counts.tolist()[3] == 0
    assert not total.cross[:, 3].any()
    assert "1 training rows are left out: their classes have fewer than 2 here" in trial.log("b")


def test_an_agreement_without_a_census_is_refused_by_default(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    for site in FOUR:
        (trial.site_folder(site) / "site.toml").write_text("")
    with pytest.raises(RoundError, match="policy"):
        trial.run()
    assert "no census of rows before the sums" in trial.log("a")
