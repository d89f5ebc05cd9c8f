"""95 % intervals in closed form: of a share, of a mean, and of a mean over clients.

    share   Wilson's interval of v with n_eff = v(1 − v)/se² rows; of independent rows that is Wilson's own
    mean    v ± t se; of one client's error, which is never below 0, v · exp(± t se/v)
    units   se² = Σ_g (Σ_{i in g} u_i)²,   u_i: how the value moves with row i; g: a group, or else a row

Over clients each client is one unit, whatever its rows: se² = s²/K, with s the deviation of the clients' values. Rows
of one client that hang together, and whatever else clients have of their own, are part of s. Nothing is drawn, so the
same values have the same interval everywhere. Intervals by a bootstrap over clients and their rows are too short for
few clients: of 4 they cover 80 to 90 % where 95 % are meant (docs/metrics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

#: The normal quantile of a 95 % interval.
Z = 1.959963984540054
#: Above so many degrees of freedom Student's quantile is that of the expansion in 1/ν, to 1e-10.
_MANY = 500


@dataclass(frozen=True)
class Scale:
    """Where a metric can lie, whether it is a share, and whether more is better."""

    bottom: float = 0.0
    top: float = math.inf
    share: bool = False
    more_is_better: bool = False


SHARE = Scale(top=1.0, share=True, more_is_better=True)
ERROR = Scale()
CALIBRATION = Scale(top=1.0)
EXPLAINED = Scale(bottom=-math.inf, top=1.0, more_is_better=True)


@dataclass(frozen=True, eq=False)
class Measure:
    """A metric of some rows: its value, and how it moves with each of them.

    `influence` (n,) sums to 0, and the sum of its squares is the value's variance over independent rows. `least` is a
    variance that classes of few rows have at least; `rows` are the rows' worth of a share of which all is right, or
    nothing, where no variance is to be seen.
    """

    value: float
    influence: NDArray[np.float64]
    rows: float
    least: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; without one where the rows say nothing of it."""

    value: float
    low: float | None = None
    high: float | None = None


def estimate(measure: Measure, scale: Scale, groups: NDArray[np.int64] | None = None) -> Estimate:
    """The value of a client's rows with its interval; rows of one group (n,) count together."""
    value, single = measure.value, float(measure.influence @ measure.influence)
    units, inflation = len(measure.influence), 1.0
    if groups is not None:
        sums = np.bincount(np.unique(groups, return_inverse=True)[1].reshape(-1), weights=measure.influence)
        if len(sums) < 2:
            return Estimate(value)  # of one group nothing follows for another
        inflation = units / len(sums)  # where all rows are right, a group may be worth one row
        if single > 0.0 and units > 1:
            # By chance rows of a group can seem less alike than others: that makes nothing more certain.
            together = float(sums @ sums) * len(sums) / (len(sums) - 1)
            inflation = max(1.0, together / (single * units / (units - 1)))
        units = len(sums)
    quantile = Z if groups is None else student(units - 1)
    if scale.share:
        variance = max(single, measure.least) * inflation
        seen = variance > 0.0 and 0.0 < value < 1.0
        rows = value * (1.0 - value) / variance if seen else measure.rows / inflation
        return Estimate(value, *wilson(value, rows, quantile))
    if units < 2:
        return Estimate(value)
    rows = len(measure.influence)
    deviation = math.sqrt(single * inflation * rows / (rows - 1))
    if scale is ERROR and value > 0.0:  # a few rows have most of it: its logarithm is nearer to the normal
        factor = math.exp(min(student(units - 1) * deviation / value, 700.0))
        return Estimate(value, value / factor, value * factor)
    return Estimate(value, *around(value, deviation, student(units - 1), scale))


def over_clients(estimates: Sequence[Estimate], scale: Scale) -> dict[str, float | None]:
    """The unweighted mean over clients, with the interval of such a mean over clients like these.

    One client's interval is its own. The mean is never more certain than the clients' own intervals allow (of errors,
    that of the middle client): clients that agree by chance prove nothing.
    """
    if not estimates:
        return {"mean": None, "low": None, "high": None}
    values = np.array([found.value for found in estimates])
    mean, number = float(values.mean()), len(values)
    if number == 1:
        return {"mean": mean, "low": estimates[0].low, "high": estimates[0].high}
    quantile, between = student(number - 1), float(values.var(ddof=1)) / number
    known = [found for found in estimates if found.low is not None and found.high is not None]
    if scale.share:
        worth = [mean * (1.0 - mean) / between] if between > 0.0 else []
        if known:
            worth.append(number * len(known) / sum(1.0 / rows_of(found) for found in known))
        low, high = wilson(mean, min(worth), quantile) if worth else (None, None)
    else:
        halves = np.array([(f.high - f.low) / (2.0 * Z) for f in known if f.low is not None and f.high is not None])
        # Of the middle client: two rows give an interval of any width, and say nothing of the other clients.
        within = float(np.median(halves)) ** 2 / number if len(halves) else 0.0
        if between == 0.0 and len(known) < number:
            return {"mean": mean, "low": None, "high": None}
        low, high = around(mean, math.sqrt(max(between, within)), quantile, scale)
    return {"mean": mean, "low": low, "high": high}


def rows_of(share: Estimate) -> float:
    """How many rows Wilson's interval of a share is of: its ends are where (v − x)² = Z² x(1 − x)/n."""
    end = share.low if share.value >= 0.5 else share.high
    if end is None or end == share.value:
        return math.inf
    return Z**2 * end * (1.0 - end) / (share.value - end) ** 2


def wilson(share: float, rows: float, quantile: float = Z) -> tuple[float, float]:
    """Wilson's interval of a share of so many rows."""
    square = quantile**2
    middle = (share + square / (2.0 * rows)) / (1.0 + square / rows)
    half = quantile / (1.0 + square / rows) * math.sqrt(share * (1.0 - share) / rows + square / (4.0 * rows**2))
    # The ends are 0 and 1 where all is wrong or right; rounding must not lose that.
    low = 0.0 if share == 0.0 else max(0.0, middle - half)
    return low, 1.0 if share == 1.0 else min(1.0, middle + half)


def around(value: float, deviation: float, quantile: float, scale: Scale) -> tuple[float, float]:
    """value ± quantile · deviation, within the scale."""
    half = quantile * deviation
    return max(scale.bottom, value - half), min(scale.top, value + half)


@cache
def student(freedom: int) -> float:
    """Student's quantile of a 95 % interval with so many degrees of freedom."""
    if freedom < 1:
        raise ValueError(f"Student's distribution with {freedom} degrees of freedom does not exist; give at least 1")
    if freedom > _MANY:
        z, v = Z, float(freedom)
        return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|t| < √ν tan angle), the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2.0 / math.pi * (angle + sine * total) if odd else sine * total
