"""The logistic head over the network: the same sums as `fedhip run` to the last bit, whoever is missing or killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedhip.core.logistic_fit import LogisticFit, LogisticHead
from fedhip.federation.logistic_rounds import LogisticRounds
from fedhip.methods.closed import Task
from fedhip.methods.fedhip_logistic import LogisticRun
from fedhip.methods.protocol import Protocol
from tests.federation.samples import CLASSES, FOUR, Trial, clients, sum_of

pytestmark = pytest.mark.usefixtures("sums_only")


def in_one_process(sites: Sequence[str], gradients: int = 5) -> LogisticFit:
    """The fit of `fedhip run` on these sites' rows."""
    task = Task(clients(sites), len(CLASSES), Protocol(), {}, "cpu", lambda *_: None)
    run = LogisticRun(task)
    fit = run.statistics()
    run.temperature(fit)
    run.gradients(fit, gradients)
    return fit


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[LogisticFit]:
    """The fits that servers made."""
    found: list[LogisticFit] = []
    run = LogisticRounds.run

    def kept(self: LogisticRounds) -> LogisticHead:
        found.append(self.fit)
        return run(self)

    monkeypatch.setattr(LogisticRounds, "run", kept)
    return found


def assert_same(fit: LogisticFit, other: LogisticFit) -> None:
    assert [model.bits for model, _ in fit._terms] == [model.bits for model, _ in other._terms]
    for (model, term), (their_model, their_term) in zip(fit._terms, other._terms, strict=True):
        assert torch.equal(model.steps, their_model.steps)
        assert term == their_term
    assert (fit.temperature, fit.penalty) == (other.temperature, other.penalty)
    torch.testing.assert_close(fit.head().weights, other.head().weights, rtol=0.0, atol=1e-12)


def logistic(tmp_path: Path, sites: Sequence[str] = FOUR, **settings: Any) -> Trial:
    return Trial.make(tmp_path, sites, head="logistic", **settings)


def test_masked_and_plain_sums_are_those_of_fedhip_run(tmp_path: Path, fits: list[LogisticFit]) -> None:
    masked, plain = logistic(tmp_path / "masked"), logistic(tmp_path / "plain", secure_sum=False)
    masked.grid.carry = True
    for site in FOUR:
        plain.policy(site, "require_secure_sum = false")
    expected = in_one_process(FOUR)
    for trial in (masked, plain):
        result = trial.run()
        assert result.total() == sum_of(FOUR, trial.bits)
        assert [s["ask"] for s in result.results["sums"]] == [
            *("statistics", "temperature", "gradient", "gradient", "penalty", "gradient", "gradient", "gradient")
        ]
        assert all(s["sites"] == list(FOUR) for s in result.results["sums"])
        assert_same(fits[-1], expected)
    assert masked.grid.asked.count((101, "unmask")) == 8
