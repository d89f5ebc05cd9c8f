"""Other heads than the ridge, to the end: the sites' models are those of `fedhip run` on the same clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedhip.cli.main import main
from fedhip.heads.model import Model
from fedhip.runs import Run, verify
from tests.federation.samples import FOUR, ONE_SUM, Trial
from tests.federation.server.test_round import fedhip_run


def assert_same(own: Model, other: Model) -> None:
    assert (own.head, own.alpha, own.own, own.total, own.beta) == (
        *(other.head, other.alpha, other.own, other.total),
        None,
    )
    torch.testing.assert_close(own.weights, other.weights, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own.intercept, other.intercept, rtol=1e-9, atol=1e-9)
    assert own.settings.keys() == other.settings.keys()
    for name, value in own.settings.items():
        assert value == pytest.approx(other.settings[name], rel=1e-9)


@pytest.mark.parametrize("columns", ["sum", "plain"])
@pytest.mark.parametrize("head", ["lda", "logistic"])
@pytest.mark.sampled(2)
def test_models_are_those_of_fedhip_run(
    tmp_path: Path, head: str, columns: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial.make(tmp_path, head=head, columns=columns)
    for site in FOUR:
        trial.policy(site, "tell_accuracy = true")
    result, expected = trial.run(), fedhip_run(tmp_path / "run", FOUR, trial.agreement, head=head)
    assert result.total() == expected.total()
    assert_same(result.model(None), expected.model(None))
    method = f"fedhip-{head}"
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        assert_same(own.model(site), expected.model(site))
        assert not [check for check in verify(own) if check.problem]
        assert own.results["methods"].keys() == {"majority", "local", "global", method}
    assert not [check for check in verify(result) if check.problem]
    accuracy = {e["client"]: e["accuracy"] for e in expected.results["methods"][method]["per_client"]}
    assert {e["client"]: e["accuracy"] for e in result.results["methods"][method]["per_client"]} == accuracy
    assert result.results["methods"][method]["rounds"] == {"lda": 1, "logistic": 8}[head] + (columns == "sum")
    own_folder = trial.site_folder("a") / "result"
    assert main(["predict", str(own_folder), "--client", "a", "--features", str(trial.data("a"))]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert not (trial.site_folder("a") / "state" / "total.bin").exists()


def test_a_ridge_asks_for_three_sums_and_says_nothing_of_heads(tmp_path: Path) -> None:
    result = Trial.make(tmp_path / "three").run()
    assert [s["ask"] for s in result.results["sums"]] == ["moments", "statistics", "beta"]
    assert not {"head", "settings"} & result.results.keys()
    assert "head" not in result.config


def test_a_ridge_of_known_columns_and_beta_asks_for_one_sum(tmp_path: Path) -> None:
    result = Trial.make(tmp_path / "one", **ONE_SUM).run()
    assert not {"head", "settings", "sums", "notes"} & result.results.keys()
