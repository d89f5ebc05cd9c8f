"""Lifts over the network: the sum before the statistics, and models that are those of `fedhip run --lift`."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.exact.columns import Columns
from fedhip.data import make_partition
from fedhip.errors import StatisticsError
from fedhip.features.lifts.kinds import KINDS, LANDMARKS
from fedhip.features.lifts.lift import Lift
from fedhip.federation.agreement.agreement import LIFTS, Agreement
from fedhip.federation.agreement.init import draft
from fedhip.federation.agreement.limits import largest_lifted
from fedhip.federation.errors import RoundError, SetupError
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.statistics import (
    lift_of,
    moments_vector,
    require_possible_moments,
)
from fedhip.federation.sums.table import MOMENTS
from fedhip.federation.sums.vector import Vector, digest_of
from fedhip.federation.transport.wire import RoundStep
from fedhip.runs import Run, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from fedhip.simulation.lifting import LiftSettings
from fedhip.simulation.options import RidgeOptions
from tests.cli.samples import done
from tests.federation.grid import ServerKilled
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial, clients, feature_set, write_rows
from tests.federation.table import LaterTable
from tests.federation.test_priors import assert_same_answers

W, SEED = 9, 3


def lift_options(kind: str) -> dict[str, Any]:
    bandwidth = {} if kind == "relu" else {"lift_bandwidth": 1.5}
    return {"lift": kind, "lift_width": W, "lift_seed": SEED, **bandwidth}


def columns_of_fedhip_run() -> dict[str, Any]:
    """The units that `fedhip run` finds for these rows: of nystroem a federation must know them before."""
    columns = Columns.of(reduce(add, [client.survey() for client in clients(FOUR)])).to_dict()
    return {
        "columns": "given",
        "column_offsets": tuple(columns["offset"]),
        "column_exponents": tuple(columns["exponent"]),
    }


def lifted(tmp_path: Path, kind: str = "relu", **settings: Any) -> Trial:
    return Trial.make(tmp_path, **lift_options(kind), **settings)


def fedhip_run(path: Path, kind: Any, agreement: Agreement, **settings: Any) -> Run:
    """The run of the same clients in one process."""
    data = feature_set(FOUR)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    lift = LiftSettings(kind, W, None, SEED, None if kind == "relu" else 1.5)
    told = RoundSettings(ridge=RidgeOptions(fraction_bits=agreement.fraction_bits), lift=lift, **settings)
    config = {
        "alpha": "loo", "beta": told.beta, "seed": 0, "only_local_classes": False, "statistics": True,
        "prior": told.prior,
    }  # fmt: skip
    return run_round(path, data, partition, told, title="", config=config)[0]


@pytest.mark.parametrize(
    ("kind", "settings", "sums"),
    [
        *((kind, {}, ["beta"]) for kind in KINDS),
        ("relu", {"beta": "gcv"}, []),
        ("nystroem", {"head": "lda"}, []),
        ("fourier", {"prior": "client"}, ["beta", "prior"]),
        ("relu", {"head": "lda", "prior": "client"}, ["temperature", "scale", "prior"]),
        (
            "relu",
            {"head": "logistic"},
            ["temperature", "gradient", "gradient", "penalty", "gradient", "gradient", "gradient"],
        ),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value if isinstance(value, str) else "",
)
@pytest.mark.sampled(3)
def test_models_are_those_of_fedhip_run(tmp_path: Path, kind: str, settings: dict[str, Any], sums: list[str]) -> None:
    trial = lifted(tmp_path, kind, **settings, **(columns_of_fedhip_run() if kind in LANDMARKS else {}))
    result, expected = trial.run(), fedhip_run(tmp_path / "run", kind, trial.agreement, **settings)
    assert result.total() == expected.total()
    assert [s["ask"] for s in result.results["sums"]] == ["moments", "statistics", *sums]
    assert result.results["lift"] == expected.results["lift"]
    assert result.results["feature_dim"] == expected.results["feature_dim"] == W
    assert_same_lift(result.lift, expected.lift)
    torch.testing.assert_close(result.model(None).weights, expected.model(None).weights, rtol=1e-9, atol=1e-9)
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        assert_same_lift(own.model(site).lift, expected.lift)
        assert_same_answers(own.model(site), expected.model(site))
        assert own.results["lift"] == expected.results["lift"]
        assert own.config["lift_seed"] == SEED
        assert not [check for check in verify(own) if check.problem]
        assert not list((trial.site_folder(site) / "state").glob("*s.bin"))  # no sum is left there
    assert not [check for check in verify(result) if check.problem]
    done("predict", trial.site_folder("a") / "result", "--client", "a", "--features", trial.data("a"))


def assert_same_lift(own: Lift | None, other: Lift | None) -> None:
    assert own is not None
    assert other is not None
    assert own.description == other.description
    assert own.tensors.keys() == other.tensors.keys()
    for name, values in own.tensors.items():
        assert torch.equal(values, other.tensors[name])


def test_a_late_site_is_lifted_like_the_others(tmp_path: Path) -> None:
    trial = lifted(tmp_path)
    trial.run()
    done("join", trial.result, "--client", "late", "--features", write_rows(tmp_path / "late.npz", "late"))
    assert Run.open(trial.result).model("late").weights.shape == (W, len(CLASSES))


def test_plain_sums(tmp_path: Path) -> None:
    masked, plain = lifted(tmp_path / "masked"), lifted(tmp_path / "plain", secure_sum=False)
    for site in FOUR:
        plain.policy(site, "require_secure_sum = false")
    assert masked.run().total() == plain.run().total()


@pytest.mark.parametrize(
    ("step", "number"),
    [("keys", 4), ("mask", 3), ("unmask", 2), ("unmask", 4), ("keys", 6), ("mask", 8), ("unmask", 5)],
)
def test_killed_in_either_sum(tmp_path: Path, step: str, number: int, another_user: Callable[[], None]) -> None:
    trial, other = lifted(tmp_path / "killed", beta="gcv"), lifted(tmp_path / "whole", beta="gcv")
    trial.grid.stop_at = (step, number)
    with pytest.raises(ServerKilled):
        trial.run()
    if number < 4 and step != "unmask":  # nothing was summed: a new session
        for site in FOUR:
            trial.policy(site, "allow_other_sums = true")
    trial.again()
    total = trial.run().total()
    another_user()
    assert total == other.run().total()


def test_who_leaves_after_the_moments(tmp_path: Path) -> None:
    trial = lifted(tmp_path, quorum=3, threshold=3, beta="gcv")
    trial.fault("silent", "c", "keys", round=2)
    with pytest.raises(RoundError, match="goes on from here"):
        trial.run()
    assert "c was in the sum before" in trial.log("a")
    trial.again()
    for site in FOUR:
        trial.policy(site, "allow_leavers = true")
    trial.fault("silent", "c", "keys", round=2)
    result = trial.run()
    assert [s["sites"] for s in result.results["sums"]] == [list(FOUR), ["a", "b", "d"]]
    assert result.results["sites"] == ["a", "b", "d"]
    assert not (trial.site_folder("c") / "result").exists()


def test_wrong_moments_under_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = lifted(tmp_path)

    def more(vector: Vector) -> None:
        vector[-1] += np.uint64(1 << 40)

    trial.lie(monkeypatch, "c", more, round=1)
    with pytest.raises(RoundError, match="wrong numbers under its mask: the survey is of"):
        trial.run()


class LiftTable(LaterTable):
    """Four sites whose moments were summed, as far as they know."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, head="ridge", gradient_rounds=None, beta="gcv", **lift_options("relu"))
        agreement = self.trial.agreement
        parts = [moments_vector(client, agreement) for client in clients(FOUR)]
        self.moments = np.stack(parts).sum(axis=0, dtype=np.uint64)
        self.body = {"ask": "statistics", "sum": digest_of(self.moments)}


def test_what_a_site_refuses(tmp_path: Path) -> None:
    table = LiftTable(tmp_path)
    table.until(RoundStep.HELLO)
    total = {"total": np.zeros(table.trial.agreement.layout.size, np.uint64)}
    table.begin(b"t" * 32)
    table.statistics()  # the first sum, here of moments
    body, arrays = table.body, {"moments": table.moments}
    assert table.code("a", RoundStep.PERSONALIZE, {"sites": list(FOUR), "beta": 1.0}, total) is SiteCode.ORDER
    for ask in ("moments", "gradient", "prior", "temperature"):
        assert table.keys("b", 2, {**body, "ask": ask}, arrays) is SiteCode.ORDER
    assert table.keys("b", 2, body) is SiteCode.TOTAL  # none came
    assert table.keys("b", 2, body, {"moments": table.moments[1:]}) is SiteCode.MALFORMED
    assert table.keys("b", 2, {**body, "sum": "0" * 64}, arrays) is SiteCode.MALFORMED
    assert table.keys("b", 2, body, arrays) is SiteCode.OK
    other = table.moments + np.uint64(1)
    assert table.keys("b", 2, {**body, "sum": digest_of(other)}, {"moments": other}) is SiteCode.TOTAL


def test_a_lift_too_wide_for_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable: 1 kB\n")
    monkeypatch.setattr("fedhip.simulation.lifting.MEMINFO", meminfo)
    table = LiftTable(tmp_path)
    assert table.code("a", RoundStep.HELLO) is SiteCode.DATA
    assert "a lift of width 9 takes" in table.trial.log("a")


def agreement(kind: Any = "relu", **settings: Any) -> Agreement:
    told = {"name": "x", "sites": FOUR, "classes": CLASSES, "width": WIDTH, **lift_options(kind), **settings}
    return draft(**told)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lift_of_a_sum_is_that_of_the_rows(kind: Any) -> None:
    agreed, everybody = agreement(kind), clients(FOUR)
    total = np.stack([moments_vector(client, agreed) for client in everybody]).sum(axis=0, dtype=np.uint64)
    assert total.shape == (MOMENTS.length(agreed),)
    rows = np.concatenate([client.train[0] for client in everybody])
    lift = lift_of(total, agreed)
    exact = 1e-4 if kind in LANDMARKS else 1e-8  # a survey is of values that are not rounded to the grid
    np.testing.assert_allclose(lift.standardization.mean, rows.mean(axis=0), atol=exact)
    np.testing.assert_allclose(lift.standardization.scale, rows.std(axis=0), atol=exact)
    largest = float(lift(rows).abs().max())
    assert largest <= largest_lifted(kind, W) * (1.0 + 1e-6)
    require_possible_moments(total, agreed, len(rows))
    with pytest.raises(StatisticsError, match="rows"):
        require_possible_moments(total, agreed, len(rows) - 1)
    wrong = total.copy()
    # A feature whose squares are 0, and its sum is not.
    wrong[0 if kind in LANDMARKS else (5 * 4 + 2) * WIDTH] = 0
    with pytest.raises(StatisticsError):
        require_possible_moments(wrong, agreed, len(rows))


def test_kinds_and_scales() -> None:
    assert ("none", *KINDS) == LIFTS
    assert [agreement(kind).columns for kind in KINDS] == ["sum", "sum", "plain", "plain"]
    assert [agreement(kind, lift_width=2048).fraction_bits for kind in KINDS] == [40, 48, 40, 40]
    assert agreement().layout.m == W


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lift": "cubic"}, "lift is 'cubic'; give none, relu, fourier, nystroem or nystroem-axes"),
        ({"lift": "none"}, "lift_width is given, and there is no lift"),
        ({"lift_width": 0}, "lift_width is 0; give a whole number from 1"),
        ({"lift_width": None}, "lift_width is None"),
        ({"lift_seed": -1}, "lift_seed is -1; give a whole number of at least 0"),
        ({"lift_bandwidth": 1.0}, "the lift 'relu' has no kernel"),
        ({"lift": "fourier"}, "lift_bandwidth is None; give a finite number above 0"),
        ({"lift": "fourier", "lift_bandwidth": 0.0}, "lift_bandwidth is 0.0"),
    ],
)
def test_lifts_that_are_none(settings: dict[str, Any], message: str) -> None:
    from dataclasses import replace

    with pytest.raises(SetupError, match=message):
        replace(agreement(), **settings)
