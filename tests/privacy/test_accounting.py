"""zCDP against published values, against 40 digits, and against the exact curve of continuous Gaussian noise."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedhip.errors import InputError
from fedhip.privacy.accounting import (
    cost,
    delta_of,
    epsilon_of,
    noise_multiplier,
    require_delta,
    require_epsilon,
    rho_of,
)
from tests.drawing import examples


@pytest.mark.parametrize(
    ("epsilon", "delta", "rho", "multiplier"),
    [
        (1.0, 1e-4, 0.040633, 3.5079),
        (1.0, 1e-5, 0.030557, 4.0451),
        (1.0, 1e-6, 0.024356, 4.5309),
        (0.1, 1e-5, 0.000433, 33.982),
        (8.0, 1e-5, 1.22972, 0.6377),
    ],
)
def test_reference_values(epsilon: float, delta: float, rho: float, multiplier: float) -> None:
    assert rho_of(epsilon, delta) == pytest.approx(rho, rel=5e-4)
    assert noise_multiplier(epsilon, delta) == pytest.approx(multiplier, rel=2e-4)


@given(rho=st.floats(1e-4, 5.0), epsilon=st.floats(0.05, 15.0))
@examples(12)
def test_delta_is_the_least_over_orders_in_forty_digits(rho: float, epsilon: float) -> None:
    mpmath.mp.dps = 40

    def at(a: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp((a - 1) * (a * rho - epsilon)) / (a - 1) * (1 - 1 / a) ** a

    def order(x: float) -> mpmath.mpf:
        return 1 + mpmath.mpf(10) ** x

    coarse = min(np.arange(-4.0, 6.0, 0.1), key=lambda x: at(order(x)))
    least = min(at(order(x)) for x in np.linspace(coarse - 0.1, coarse + 0.1, 101))
    assert delta_of(rho, epsilon) == pytest.approx(min(float(least), 1.0), rel=1e-2, abs=0.0)
    assert delta_of(rho, epsilon) <= min(float(least) * (1 + 1e-9), 1.0)


@given(epsilon=st.floats(0.01, 20.0), delta=st.floats(1e-10, 1e-2))
@examples(20)
def test_there_and_back(epsilon: float, delta: float) -> None:
    rho = rho_of(epsilon, delta)
    assert epsilon * (1 - 1e-6) <= epsilon_of(rho, delta) <= epsilon
    assert delta_of(rho, epsilon) <= delta * (1 + 1e-9)
    assert epsilon_of(2 * rho, delta) > epsilon  # two releases cost more than one


@given(epsilon=st.floats(0.05, 10.0), delta=st.floats(1e-9, 1e-3))
@examples(20)
def test_never_below_what_gaussian_noise_costs_exactly(epsilon: float, delta: float) -> None:
    """δ of continuous noise, exactly (Balle and Wang): zCDP is an upper bound, and at most a sixth more noise."""
    s = noise_multiplier(epsilon, delta)

    def exact(s: float) -> float:
        second = math.exp(epsilon + stats.norm.logcdf(-0.5 / s - epsilon * s))
        return float(stats.norm.cdf(0.5 / s - epsilon * s) - second)

    assert exact(s) <= delta
    assert exact(0.8 * s) > delta


def test_cost_is_half_the_square_of_the_ratio() -> None:
    assert cost(3.0, 6.0) == 0.125


@pytest.mark.parametrize("epsilon", [0, -1.0, math.inf, math.nan, "1", True])
def test_an_epsilon_that_says_nothing_is_refused(epsilon: object) -> None:
    with pytest.raises(InputError, match="epsilon is"):
        require_epsilon(epsilon)


def test_a_delta_of_one_row_or_more_is_refused() -> None:
    assert require_delta(1e-5, 99_999) == 1e-5
    with pytest.raises(InputError, match=r"delta is 0\.01, and there are 100 rows.*such as 0\.001"):
        require_delta(0.01, 100)
    for delta in (0.0, 1.0, -1e-5, math.nan):
        with pytest.raises(InputError, match="delta is"):
            require_delta(delta)


GOOGLE = json.loads((Path(__file__).parent / "dp_accounting.json").read_text())["lines"]


@pytest.mark.parametrize("line", GOOGLE, ids=lambda line: f"{line.get('noise', line.get('rho'))} at {line['delta']:g}")
def test_the_same_as_googles_accountant(line: dict[str, Any]) -> None:
    """To 1e-6, of one release and of several; `dp_accounting_numbers.py` says how the numbers were made."""
    rho = line["rho"] if "rho" in line else sum(cost(1.0, multiplier) for multiplier in line["noise"])
    assert epsilon_of(rho, line["delta"]) == pytest.approx(line["epsilon"], abs=1e-6)
