"""Zero-concentrated differential privacy (zCDP): what noise costs, and what (ε, δ) that is.

    ρ = Δ² / 2σ²        noise of deviation σ on numbers that one row changes by at most Δ, in Euclidean length

Costs ρ of several releases add. A mechanism of cost ρ is (ε, δ)-differentially private for every ε with

    δ(ε) = min over a > 1 of  exp((a − 1)(aρ − ε)) / (a − 1) · (1 − 1/a)^a        (Canonne, Kamath and Steinke, 2020)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real

from fedhip.errors import InputError

#: ρ found by bisection is taken this much smaller, so that rounding never spends more than was agreed.
_MARGIN = 1e-9


def require_epsilon(epsilon: object) -> float:
    """ε as a number above 0."""
    if not 0.0 < (found := _real(epsilon)) < math.inf:
        raise InputError(f"epsilon is {epsilon!r}; give a number above 0, such as 1 (less is more private)")
    return found


def require_delta(delta: object, rows: int | None = None) -> float:
    """δ as a number between 0 and 1, and below 1/rows where these are known."""
    if not 0.0 < (found := _real(delta)) < 1.0:
        raise InputError(f"delta is {delta!r}; give a number above 0 and below 1/rows, such as 1e-5")
    if rows is not None and found * rows >= 1.0:
        raise InputError(
            f"delta is {found:g}, and there are {rows:,} rows to protect: at 1/{rows:,} = {1.0 / rows:.1e} or more, "
            f"one may be published whole; give a smaller one, such as {10.0 ** -math.ceil(math.log10(10 * rows)):g}"
        )
    return found


def _real(value: object) -> float:
    """A number of any type, NumPy's too; what is none is not a number."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def cost(sensitivity: float, sigma: float) -> float:
    """ρ of noise σ on what one row changes by at most `sensitivity`."""
    return sensitivity**2 / (2.0 * sigma**2)


def delta_of(rho: float, epsilon: float) -> float:
    """The least δ for this ε."""

    def log_delta(a: float) -> float:
        return (a - 1.0) * (a * rho - epsilon) - math.log(a - 1.0) + a * math.log1p(-1.0 / a)

    return min(1.0, math.exp(_least(log_delta)))


def epsilon_of(rho: float, delta: float) -> float:
    """The least ε for this δ."""
    delta = require_delta(delta)

    def epsilon(a: float) -> float:
        return a * rho + (-math.log(delta) + a * math.log1p(-1.0 / a) - math.log(a - 1.0)) / (a - 1.0)

    return max(0.0, _least(epsilon))


def rho_of(epsilon: float, delta: float) -> float:
    """The largest ρ that is (ε, δ)-differentially private."""
    return _rho_of(require_epsilon(epsilon), require_delta(delta))


@lru_cache(maxsize=256)
def _rho_of(epsilon: float, delta: float) -> float:
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low * (1.0 - _MARGIN)


def noise_multiplier(epsilon: float, delta: float) -> float:
    """σ/Δ of noise that is (ε, δ)-differentially private."""
    return math.sqrt(0.5 / rho_of(epsilon, delta))


def _least(function: Callable[[float], float]) -> float:
    """The least value over orders a > 1 of a function that falls and then rises, by golden sections of log(a − 1)."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    low, high = math.log(1e-9), math.log(1e12)
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [function(1.0 + math.exp(x)) for x in inner]
    for _ in range(200):
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - ratio * (high - low)
            values[0] = function(1.0 + math.exp(inner[0]))
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + ratio * (high - low)
            values[1] = function(1.0 + math.exp(inner[1]))
    return min(values)
