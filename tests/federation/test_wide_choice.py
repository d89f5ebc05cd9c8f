"""A lift that competes over the network: the same features, candidates and models as `fedhip run` on the same rows."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.data import FeatureSet, make_partition
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.table import PLAIN, PRODUCTS, WIDE
from fedhip.runs import Run, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from tests.cli.samples import done
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial, ridge_options
from tests.federation.test_choice import accuracies
from tests.federation.test_priors import assert_same_answers

#: As wide as it is agreed on, and `fedhip run` is told.
W = 40
ROWS = 60


def rings(site: str) -> tuple[Any, Any]:
    """Rows whose class is how far out they are: no linear model of the features has them right."""
    rng = np.random.default_rng(list(f"ring {site}".encode()))
    features = rng.normal(size=(ROWS, WIDTH))
    return features * [5.0, 0.1, 1.0, 1.0, 1.0, 1.0] + 3.0, np.digitize((features**2).sum(axis=1), (4.0, 7.0))


def alone(site: str) -> tuple[Any, Any]:
    """Rows whose classes lie apart, and are other ones at every site: its own rows alone do best, without a lift."""
    rng, classes = np.random.default_rng(list(f"alone {site}".encode())), np.arange(ROWS) % 3
    means = np.random.default_rng(3).normal(size=(3, WIDTH))
    return 0.5 * means[classes] + rng.normal(size=(ROWS, WIDTH)), (classes + FOUR.index(site)) % 3


ROWS_OF = {"rings": rings, "alone": alone}


def competing(tmp_path: Path, rows: str = "rings", **settings: Any) -> Trial:
    trial = Trial.make(tmp_path, **{"head": "auto", "competing_width": W, **settings})
    for site in trial.sites:
        features, labels = ROWS_OF[rows](site)
        np.savez(trial.data(site), features=features, labels=labels, class_names=np.array(CLASSES))
        trial.policy(site, "smallest_class = 1")
    return trial


@lru_cache
def rows_of_all(rows: str) -> FeatureSet:
    parts = [ROWS_OF[rows](site) for site in FOUR]
    clients = np.concatenate([np.repeat(site, len(labels)) for site, (_, labels) in zip(FOUR, parts, strict=True)])
    return FeatureSet(np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), CLASSES, clients)


def fedhip_run(path: Path, agreement: Agreement, rows: str, **settings: Any) -> Run:
    """The run of the same clients in one process."""
    data = rows_of_all(rows)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    told = RoundSettings(ridge=ridge_options(agreement), head="auto", **settings)
    config = {
        "alpha": told.alpha, "beta": told.beta, "seed": 0, "only_local_classes": told.only_local_classes,
        "statistics": True,
    }  # fmt: skip
    return run_round(path, data, partition, told, title="", config=config)[0]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [("rings", {}), ("rings", {"prior": "none", "alpha": 2.0}), ("alone", {})],
    ids=["lift", "lift without prior", "features alone"],
)
def test_models_choices_and_results_are_those_of_fedhip_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, settings: dict[str, Any]
) -> None:
    trial = competing(tmp_path, rows, **settings)
    trial.grid.carry = True  # through the engine's own bytes
    monkeypatch.setattr("fedhip.heads.choice.HALVED", 0)
    monkeypatch.setattr("fedhip.heads.choice.COMPETING_WIDTH", W)
    result, expected = trial.run(), fedhip_run(tmp_path / "run", trial.agreement, rows, **settings)
    told = expected.results["choice"]
    lifted = rows == "rings"
    assert told["features"] == (f"nystroem-axes {W}" if lifted else "as they are"), "or the test is of the other"
    assert result.total() == expected.total()
    made = [found["ask"] for found in result.results["sums"]]
    both = [kind.name for sums in (WIDE, PLAIN)[: 1 if lifted else 2] for kind in sums.all]
    given = [name for name in both if trial.agreement.prior == "client" or not name.endswith(("scales", "priors"))]
    assert made == ["moments", PRODUCTS.name, *given]
    assert result.results.get("lift") == expected.results.get("lift")
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        assert own.details["clients"][site]["choice"] == expected.details["clients"][site]["choice"]
        assert_same_answers(own.model(site), expected.model(site))
        assert_same_answers(own.model(None), expected.model(None))
        assert own.model(site).settings.keys() == expected.model(site).settings.keys()
        for name, value in own.model(site).settings.items():
            assert value == pytest.approx(expected.model(site).settings[name], rel=1e-9), name
        assert accuracies(own, site) == accuracies(expected, site)
        mine, theirs = (run.details["clients"][site]["loo_chosen"] for run in (own, expected))
        assert mine == theirs
        mine, theirs = (run.priors(site).get("auto") for run in (own, expected))
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.smoothing == theirs.smoothing
            assert mine.temperature == pytest.approx(theirs.temperature, rel=1e-9)
        chosen = own.results["choice"]
        assert (chosen["model"], chosen["features"]) == (told["model"], told["features"])
        assert chosen["taken"] == own.details["clients"][site]["choice"]["model"]
        for entry, other in zip(chosen["candidates"], told["candidates"], strict=True):
            assert (entry["features"], entry["model"]) == (other["features"], other["model"])
            assert entry["held_out"] == pytest.approx(other["held_out"], rel=1e-12)
            assert entry.get("usual") == other.get("usual")
        assert own.results["lift"] == expected.results["lift"] if lifted else "lift" not in own.results
        assert not [check for check in verify(own) if check.problem]
        assert not list((trial.site_folder(site) / "state").glob("*al.bin"))  # no sum is left there
    assert_same_answers(result.model(None), expected.model(None))
    assert result.results["choice"]["candidates"] == chosen["candidates"], "the same sums at the server"
    assert not [check for check in verify(result) if check.problem]
    done("predict", trial.site_folder("a") / "result", "--client", "a", "--features", trial.data("a"))
