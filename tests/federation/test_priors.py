"""Priors over the network: a site's choice is that of `fedhip run --prior client`, and so are its models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.data import FeatureSet, make_partition
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.errors import RoundError
from fedhip.federation.sums.vector import Vector
from fedhip.heads.model import Model
from fedhip.runs import Run, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from tests.cli.samples import done
from tests.core.problems import Array
from tests.federation.grid import ServerKilled
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, WIDTH, Trial, ridge_options

ROWS = 60


def skewed_rows(site: str) -> tuple[Array, Array]:
    """Classes near one another, of which each site has mostly one; nobody has a dog."""
    rng = np.random.default_rng([7, *site.encode()])
    frequencies = np.full(3, 0.1)
    frequencies[ord(site[0]) % 3] = 0.8
    labels = rng.choice(3, ROWS, p=frequencies)
    means = np.random.default_rng(1).normal(size=(3, WIDTH))
    return 0.5 * means[labels] + rng.normal(size=(ROWS, WIDTH)), labels


def skewed(tmp_path: Path, **settings: Any) -> Trial:
    trial = Trial.make(tmp_path, prior="client", **settings)
    for site in FOUR:
        features, labels = skewed_rows(site)
        np.savez(trial.data(site), features=features, labels=labels, class_names=np.array(CLASSES))
        trial.policy(site, "smallest_class = 1")
    return trial


def fedhip_run(path: Path, agreement: Agreement, **settings: Any) -> Run:
    """The run of the same clients in one process."""
    parts = [skewed_rows(site) for site in FOUR]
    clients = np.repeat(np.array(FOUR), ROWS)
    data = FeatureSet(np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), CLASSES, clients)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    told = RoundSettings(ridge=ridge_options(agreement), prior="client", **settings)
    config = {
        "alpha": told.alpha, "beta": told.beta, "seed": 0, "only_local_classes": told.only_local_classes,
        "statistics": True, "prior": "client",
    }  # fmt: skip
    return run_round(path, data, partition, told, title="", config=config)[0]


def assert_same_answers(own: Model, other: Model) -> None:
    assert (own.head, own.alpha, own.own, own.total) == (other.head, other.alpha, other.own, other.total)
    for name in ("weights", "intercept", "bias"):
        mine, theirs = getattr(own, name), getattr(other, name)
        if mine is None or theirs is None:
            assert mine is theirs
        else:
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    if own.bias is not None:
        assert own.temperature == pytest.approx(other.temperature, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "sums"),
    [
        ({}, ["beta", "prior"]),
        ({"alpha": 2.0, "beta": 0.5}, ["prior"]),
        ({"only_local_classes": True, "beta": "gcv"}, ["prior"]),
        ({"head": "lda"}, ["temperature", "scale", "prior"]),
        ({"head": "lda", "only_local_classes": True}, ["temperature", "scale", "prior"]),
        (
            {"head": "logistic"},
            [*("temperature", "gradient", "gradient", "penalty"), *["gradient"] * 3, "scale", "prior"],
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
@pytest.mark.sampled(2)
def test_models_and_priors_are_those_of_fedhip_run(tmp_path: Path, settings: dict[str, Any], sums: list[str]) -> None:
    trial = skewed(tmp_path, **settings)
    result, expected = trial.run(), fedhip_run(tmp_path / "run", trial.agreement, **settings)
    assert result.total() == expected.total()
    assert [s["ask"] for s in result.results["sums"]] == ["moments", "statistics", *sums]
    method = trial.agreement.methods[-1]
    same = ("local", "global", method) if trial.agreement.head == "ridge" else ("local", method)
    chosen = 0
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        assert_same_answers(own.model(site), expected.model(site))
        for name in same:
            mine, theirs = own.priors(site)[name], expected.priors(site)[name]
            assert mine.smoothing == theirs.smoothing
            assert mine.temperature == pytest.approx(theirs.temperature, rel=1e-9)
            chosen += not mine.is_none
            accuracies = [run.results["methods"][name]["per_client"] for run in (own, expected)]
            mine_and_theirs = [next(e for e in found if e["client"] == site)["accuracy"] for found in accuracies]
            assert mine_and_theirs[0] == mine_and_theirs[1]
        mine, theirs = (run.details["clients"][site]["loo_chosen"] for run in (own, expected))
        assert mine is not None
        assert mine == theirs
        assert own.config["prior"] == "client"
        assert not [check for check in verify(own) if check.problem]
    assert chosen >= len(FOUR), "rows as skewed as these have priors"


def test_a_site_answers_with_its_prior(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of the model that is everybody's: one of its own has the site's frequencies in its intercept.
    trial = skewed(tmp_path, alpha=0.0)
    trial.run()
    own = Run.open(trial.site_folder("a") / "result")
    model, features = own.model("a"), skewed_rows("a")[0]
    assert model.bias is not None
    plain = replace(model, bias=None)
    assert (model.scores(features).argmax(dim=1) != plain.scores(features).argmax(dim=1)).any()
    done("predict", own.path, "--client", "a", "--features", trial.data("a"))
    assert "Traceback" not in capsys.readouterr().err


def test_who_joins_the_result_has_no_prior(tmp_path: Path) -> None:
    trial = skewed(tmp_path)
    trial.run()
    features, labels = skewed_rows("late")
    np.savez(tmp_path / "late.npz", features=features, labels=labels, class_names=np.array(CLASSES))
    done("join", trial.result, "--client", "late", "--features", tmp_path / "late.npz")
    joined = Run.open(trial.result)
    assert joined.priors("late") == {}
    assert joined.model("late").bias is None


@pytest.mark.parametrize(("step", "number"), [("keys", 2), ("unmask", 2), ("mask", 3), ("unmask", 4)])
@pytest.mark.sampled(4)
def test_killed_in_a_sum_of_priors(tmp_path: Path, step: str, number: int, another_user: Callable[[], None]) -> None:
    trial, other = (skewed(tmp_path / name, head="lda", columns="plain") for name in ("killed", "whole"))
    trial.grid.stop_at = (step, 4 * (number - 1) + 2)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    sums = trial.run().results["sums"]
    another_user()
    assert other.run().results["sums"] == sums
    for site in FOUR:
        mine, theirs = (Run.open(t.site_folder(site) / "result").priors(site) for t in (trial, other))
        assert mine == theirs


def test_a_leaver_is_in_the_statistics_and_not_in_the_losses(tmp_path: Path) -> None:
    trial = skewed(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    for site in FOUR:
        trial.policy(site, "allow_leavers = true\nsmallest_class = 1")
    trial.fault("late", "c", "mask", round=2)
    result = trial.run()
    assert [s["sites"] for s in result.results["sums"]] == [list(FOUR), ["a", "b", "d"]]
    assert Run.open(trial.site_folder("c") / "result").priors("c")  # it was back at the end


def test_without_consent_nobody_goes_on(tmp_path: Path) -> None:
    trial = skewed(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("silent", "c", "keys", round=2)
    with pytest.raises(RoundError, match="when the sites are back, and it goes on from here"):
        trial.run()
    trial.again()
    assert [s["sites"] for s in trial.run().results["sums"]] == [list(FOUR)] * 2


@pytest.mark.parametrize(("head", "number"), [("ridge", 2), ("lda", 3), ("lda", 4)])
@pytest.mark.sampled(3)
def test_wrong_numbers_under_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, number: int) -> None:
    trial = skewed(tmp_path, **(ONE_SUM if head == "ridge" else {"head": head, "columns": "plain"}))

    def more(vector: Vector) -> None:
        vector[-1] += np.uint64(1_000_000)  # scores, or rows judged

    trial.lie(monkeypatch, "c", more, round=number)
    with pytest.raises(RoundError, match="wrong numbers under its mask"):
        trial.run()
    assert not trial.result.exists()


def test_plain_sums(tmp_path: Path) -> None:
    masked, plain = skewed(tmp_path / "masked", head="lda"), skewed(tmp_path / "plain", head="lda", secure_sum=False)
    for site in FOUR:
        plain.policy(site, "require_secure_sum = false\nsmallest_class = 1")
    masked.run(), plain.run()
    for site in FOUR:
        mine, theirs = (Run.open(t.site_folder(site) / "result").priors(site) for t in (masked, plain))
        assert mine == theirs
