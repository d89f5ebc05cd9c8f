"""Scales and losses over priors as vectors: there and back, and refused where no rows have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip.core.choice.prior import SMOOTHINGS, TEMPERATURES, PriorLosses, deviations, scale_of
from fedhip.errors import LossError, StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.priors import (
    prior_losses_of,
    prior_vector,
    require_possible_losses,
    scale_of_sum,
    scale_vector,
    scales_of,
)
from fedhip.federation.sums.table import PRIOR
from fedhip.federation.sums.traffic import traffic_of
from fedhip.simulation.priors import PRIOR_ALPHAS

PLACES = len(TEMPERATURES) * len(SMOOTHINGS)


def agreement(**settings: Any) -> Agreement:
    usual: dict[str, Any] = {"name": "x", "sites": ("a", "b", "c"), "classes": ("x", "y"), "width": 3}
    return Agreement(
        **usual, fraction_bits=32, quorum=3, threshold=3, max_rows=9, few_rows=True, prior="client", **settings
    )


@given(st.lists(st.tuples(st.floats(1e-12, 1e18), st.integers(1, 1000)), min_size=1, max_size=20))
def test_the_scale_of_a_sum_is_that_of_the_numbers(parts: list[tuple[float, int]]) -> None:
    total = np.stack([scale_vector(*part) for part in parts]).sum(axis=0, dtype=np.uint64)
    squares, number = (sum(column) for column in zip(*parts, strict=True))
    assert scale_of_sum(total, 10**6, 10**3) == pytest.approx(
        (squares / number) ** 0.5, rel=1e-7 if squares < 1e-6 else 1e-13
    )


def test_the_scale_of_scores_is_that_of_fedhip_run() -> None:
    scores = [torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (3, 8, 5)]
    scores[0][:, 1] = -torch.inf
    total = np.stack([scale_vector(*deviations(part)) for part in scores]).sum(axis=0, dtype=np.uint64)
    assert scale_of_sum(total, 16, 4) == pytest.approx(scale_of(scores), rel=1e-14)


def test_scores_that_are_none() -> None:
    for squares in (2.0**64, float("inf"), float("nan")):
        with pytest.raises(LossError, match="deviate by"):
            scale_vector(squares, 4)
    for number in (0, 41):
        with pytest.raises(StatisticsError, match=f"there are {number} scores, of 10 rows and 4 classes"):
            scale_of_sum(scale_vector(1.0, number), 10, 4)


def losses_of_rows(models: int, scale: float, seed: int) -> PriorLosses:
    rng = np.random.default_rng(seed)
    shape = (models, len(TEMPERATURES), len(SMOOTHINGS))
    right = torch.from_numpy(rng.integers(0, 8, shape).astype(np.float64))
    return PriorLosses(torch.from_numpy(rng.exponential(size=shape)), right, 7, scale)


def losses_of_site(agreed: Agreement, scale: float | None, seed: int) -> dict[str, PriorLosses]:
    scales = scales_of(agreed, scale)
    models = {"fedhip": len(PRIOR_ALPHAS)}
    return {name: losses_of_rows(models.get(name, 1), scales[name], seed) for name in agreed.methods}


@pytest.mark.parametrize(("head", "scale"), [("ridge", None), ("lda", 3.5)])
def test_the_sum_of_vectors_is_that_of_losses(head: Any, scale: float | None) -> None:
    agreed = agreement(head=head)
    parts = [losses_of_site(agreed, scale, seed) for seed in range(3)]
    vectors = [prior_vector(part.values(), 3) for part in parts]
    assert vectors[0].shape == (PRIOR.length(agreed),)
    found = prior_losses_of(np.stack(vectors).sum(axis=0, dtype=np.uint64), agreed, scale)
    for name in agreed.methods:
        expected = parts[0][name] + parts[1][name] + parts[2][name]
        torch.testing.assert_close(found[name].losses, expected.losses, rtol=0.0, atol=3 * 2.0**-33)
        assert torch.equal(found[name].right, expected.right)
        assert (found[name].rows, found[name].scale) == (expected.rows, expected.scale)
    require_possible_losses(found, 21)
    with pytest.raises(StatisticsError, match="'local'"):
        require_possible_losses(found, 20)


def test_a_given_alpha_is_one_model() -> None:
    sizes = [PRIOR.length(agreement(**settings)) for settings in ({}, {"alpha": 2.0}, {"head": "lda"})]
    assert sizes == [2 * PLACES * (2 + len(PRIOR_ALPHAS)) + 3, 2 * PLACES * 3 + 3, 2 * PLACES * 3 + 3]


def test_what_priors_cost_a_site() -> None:
    agreed, statistics = agreement(columns="plain", beta=1.0), 8 * (6 + 6 + 2)
    losses = 8 * (2 * PLACES * (2 + len(PRIOR_ALPHAS)) + 3)
    assert traffic_of(agreed, "fedhip", ["statistics", "prior"]) == {
        "rounds": 2,
        "upload_bytes_per_client": statistics + losses,
        "download_bytes_per_client": statistics + losses,
    }
    agreed, losses, head = agreement(head="logistic", columns="plain"), 8 * (2 * PLACES * 3 + 3), 8 * 4 * 2
    found = traffic_of(agreed, "fedhip-logistic", ["statistics", "temperature", "gradient", "scale", "prior"])
    gradient = 8 * (4 * 2 + 2 + 2 + 2)
    assert found == {
        "rounds": 5,
        "upload_bytes_per_client": statistics + 8 * 16 + gradient + 8 * 5 + losses,
        "download_bytes_per_client": statistics + 4 * 8 + 3 * head + losses,
    }
