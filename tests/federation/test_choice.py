"""The choice over the network: a site's candidate, prior and model are those of `fedhip run` on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedhip.data import FeatureSet, make_partition
from fedhip.federation.agreement.agreement import Agreement
from fedhip.runs import Run, verify
from fedhip.runs.run import RoundSettings, run_round
from tests.federation.samples import CLASSES, FOUR, Trial, ridge_options
from tests.federation.test_priors import ROWS, assert_same_answers, skewed_rows


def choosing(tmp_path: Path, **settings: Any) -> Trial:
    trial = Trial.make(tmp_path, **settings)
    for site in FOUR:
        features, labels = skewed_rows(site)
        np.savez(trial.data(site), features=features, labels=labels, class_names=np.array(CLASSES))
        trial.policy(site, "smallest_class = 1")
    return trial


def fedhip_run(path: Path, agreement: Agreement, **settings: Any) -> Run:
    """The run of the same clients in one process, on the features as they are."""
    parts = [skewed_rows(site) for site in FOUR]
    clients = np.repeat(np.array(FOUR), ROWS)
    data = FeatureSet(np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), CLASSES, clients)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    told = RoundSettings(ridge=ridge_options(agreement), head="auto", **settings)
    config = {
        "alpha": told.alpha, "beta": told.beta, "seed": 0, "only_local_classes": told.only_local_classes,
        "statistics": True,
    }  # fmt: skip
    return run_round(path, data, partition, told, title="", config=config)[0]


def test_models_choices_and_results_are_those_of_fedhip_run(tmp_path: Path) -> None:
    trial = choosing(tmp_path)
    assert trial.agreement.head == "auto"
    result, expected = trial.run(), fedhip_run(tmp_path / "run", trial.agreement)
    assert result.total() == expected.total()
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        print(own.details["clients"][site]["choice"], expected.details["clients"][site]["choice"])
        assert own.details["clients"][site]["choice"] == expected.details["clients"][site]["choice"]
        assert_same_answers(own.model(site), expected.model(site))
        assert not [check for check in verify(own) if check.problem]
