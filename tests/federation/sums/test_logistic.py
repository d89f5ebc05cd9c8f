"""Terms and losses as vectors: there and back, on the grid, and refused where no rows have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip.core.logistic.fit import PENALTY_SHAPE, TEMPERATURES
from fedhip.core.logistic.sums import GridModel, LogisticTerm, residual_bits
from fedhip.errors import LossError, StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.logistic import (
    model_bytes,
    model_digest,
    model_of,
    require_possible_term,
    term_of,
    term_vector,
)
from fedhip.federation.sums.table import GRADIENT, PENALTY, TEMPERATURE
from fedhip.federation.sums.traffic import traffic_of
from fedhip.federation.sums.vector import Layout, losses_of, losses_vector

LAYOUT = Layout(3, 2)
SMALL = Agreement(
    name="x", sites=("a", "b", "c"), classes=("x", "y"), width=3, fraction_bits=32, quorum=3, threshold=3, max_rows=9,
    head="logistic",
)  # fmt: skip
whole = st.integers(-(2**62), 2**62)


def term(gradient: list[int], curvature: list[int], loss: int, right: int, counts: list[int]) -> LogisticTerm:
    bent, lost, hits, rows = (torch.tensor(part) for part in (curvature, [loss], [right], counts))
    return LogisticTerm(torch.tensor(gradient).reshape(4, 2), bent, lost, hits, rows, 16 + residual_bits(10))


@given(st.lists(whole, min_size=8, max_size=8), st.lists(whole, min_size=2, max_size=2), whole)
def test_a_term_is_a_vector_and_back(gradient: list[int], curvature: list[int], loss: int) -> None:
    given_term = term(gradient, curvature, loss, 7, [4, 6])
    vector = term_vector(given_term)
    assert vector.shape == (GRADIENT.length(SMALL),)
    assert term_of(vector, LAYOUT, 10) == given_term


def test_the_sum_of_vectors_is_that_of_terms() -> None:
    terms = [term([k, -5 * k, *[9] * 6], [k, 2], 3 * k, 1, [k, 1]) for k in (1, 2, 3)]
    total = np.stack([term_vector(part) for part in terms]).sum(axis=0, dtype=np.uint64)
    assert term_of(total, LAYOUT, 10) == sum(terms)


@given(st.lists(st.floats(0.0, 1e5), min_size=1, max_size=40))
def test_losses_on_the_grid(values: list[float]) -> None:
    losses = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(losses_of(losses_vector(losses, 1024)), losses, rtol=0.0, atol=2.0**-33)


def test_losses_beyond_the_grid_stay_the_largest_and_cannot_wrap() -> None:
    losses = torch.tensor([1e300, 1e7, 2.0], dtype=torch.float64)
    vector = losses_vector(losses, 1024)
    assert int(vector.max()) * 1024 < 1 << 63
    assert float(losses_of(losses_vector(losses, 4))[1]) == 1e7
    assert losses_of(vector).argmin() == 2
    with pytest.raises(LossError, match="not a finite number"):
        losses_vector(torch.tensor([1.0, float("nan")]), 4)


def test_lengths() -> None:
    assert (TEMPERATURE.length(SMALL), PENALTY.length(SMALL)) == (16, 153)
    assert (len(TEMPERATURES), PENALTY_SHAPE) == (16, (9, 17))


@pytest.mark.parametrize(
    ("change", "all_here"),
    [
        ({"counts": torch.tensor([4, 7])}, True),
        ({"counts": torch.tensor([4, 5])}, True),
        ({"counts": torch.tensor([4, 7])}, False),
        ({"counts": torch.tensor([-1, 6])}, False),
        ({"counts": torch.tensor([0, 0])}, False),
        ({"right": torch.tensor([11])}, True),
        ({"loss": torch.tensor([-1])}, True),
        ({"curvature": torch.tensor([5, -1])}, True),
    ],
)
def test_sums_that_no_rows_have(change: dict[str, torch.Tensor], all_here: bool) -> None:
    good = term([0] * 8, [5, 5], 3, 7, [4, 6])
    require_possible_term(good, torch.tensor([4, 6]), complete=True)
    require_possible_term(good, torch.tensor([5, 6]), complete=False)
    with pytest.raises(StatisticsError):
        require_possible_term(replace(good, **change), torch.tensor([4, 6]), complete=all_here)  # type: ignore[arg-type]


def test_weights_as_a_file_holds_them() -> None:
    model = GridModel.of(torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    again = model_of(model_bytes(model), model.bits, LAYOUT)
    assert torch.equal(again.steps, model.steps)
    assert model_digest(again) == model_digest(model) != model_digest(replace(model, bits=model.bits + 1))


def test_what_the_logistic_head_costs_a_site() -> None:
    usual = {"name": "x", "sites": ("a", "b", "c"), "classes": ("x", "y"), "width": 3, "fraction_bits": 32}
    agreement = Agreement(**usual, quorum=3, threshold=3, max_rows=9, few_rows=True, head="logistic")  # type: ignore[arg-type]
    asks = ["statistics", "temperature", "gradient", "gradient", "penalty"]
    survey, statistics, gradient, weights = 8 * (52 * 3 + 1), 8 * (6 + 6 + 2), 8 * (4 * 2 + 2 + 2 + 2), 4 * 8
    for columns, first in (("sum", survey), ("plain", 0)):
        assert traffic_of(replace(agreement, columns=columns), "fedhip-logistic", asks) == {  # type: ignore[arg-type]
            "rounds": 5 + (columns == "sum"),
            "upload_bytes_per_client": first + statistics + 2 * gradient + 8 * (16 + 153),
            "download_bytes_per_client": first + statistics + 2 * weights + 2 * (weights + gradient) + 8 * 8,
        }


def test_what_a_ridge_costs_a_site() -> None:
    usual = {"name": "x", "sites": ("a", "b", "c"), "classes": ("x", "y"), "width": 3, "fraction_bits": 32}
    three = Agreement(**usual, quorum=3, threshold=3, max_rows=9, few_rows=True)  # type: ignore[arg-type]
    one = replace(three, columns="plain", beta="gcv")
    survey, statistics, beta, model = 8 * (52 * 3 + 1), 8 * (6 + 6 + 2), 8 * 6 * 8, 8 * (3 + 1) * 2

    def told(agreement: Agreement, method: str, *asks: str) -> tuple[int, ...]:
        return tuple(traffic_of(agreement, method, ["statistics", *asks]).values())

    for method in ("global", "fedhip"):
        assert told(three, method, "beta") == (3, survey + statistics + beta, survey + statistics)
    assert told(one, "fedhip") == (1, statistics, statistics)
    assert told(one, "global") == (1, statistics, model)
    assert told(replace(one, intercept=False), "global") == (1, statistics, 8 * 3 * 2)
    assert told(three, "local", "beta") == (0, 0, 0)
    assert told(replace(one, few_rows=False), "fedhip") == (2, 8 * 2 + statistics, 8 * 2 + statistics)  # and a census
    assert told(replace(one, few_rows=False), "local") == (0, 0, 0)
