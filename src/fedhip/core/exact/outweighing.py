"""Whether one client's rows alone decide how far a column spreads: in another unit there, or out of all proportion.

A ridge, a discriminant and a logistic regression all see a column in units of its deviation over everybody's rows. One
client with values a thousand times the others' sets that deviation, and nobody's model can tell the others' values
apart any more. Nothing is changed for it: it is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhip.core.exact.column_sums import ColumnSums
from fedhip.core.exact.columns import Survey
from fedhip.core.rows import ArrayLike, Rows

Column = NDArray[np.float64]

#: So many times less would the column deviate without the client.
_TIMES = 5.0
#: So many deviations of the others is a value of the client's away from their mean, at least. An indicator that is 1 in
#: a single one of the others' n rows deviates by 1/√n there, which is why √n counts too.
_FAR = 100.0
_FEWEST_ROWS = 10
#: What a variance of n rows may lose to rounding, in squares of the mean over n.
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Spread:
    """Mean and variance of every column (m,) over so many rows: of one client, or (K, m) and (K, 1) of several."""

    rows: NDArray[np.float64]
    mean: Column
    variance: Column

    @classmethod
    def of(cls, sums: Sequence[ColumnSums]) -> Spread:
        """Of the clients' sums."""
        rows = np.array([[float(part.rows)] for part in sums])
        mean = np.array([part.sums for part in sums]) / rows
        return cls(rows, mean, np.maximum(np.array([part.squares for part in sums]) / rows - np.square(mean), 0.0))

    @classmethod
    def of_survey(cls, survey: Survey) -> Spread:
        """Of the rows behind a survey; a column that is mostly 0 has little to tell apart, and counts as one value."""
        seen = survey.standardization()
        scale = seen.scale.numpy()
        sparse = 2 * survey.table[:, 0].sum(axis=0) < survey.rows
        variance = np.where(np.isinf(scale) | sparse, 0.0, np.square(scale))
        return cls(np.array([float(survey.rows)]), seen.mean.numpy(), variance)

    def of_all(self, weights: NDArray[np.float64]) -> Spread:
        """Of several clients together, each with so much of its rows (K, m)."""
        counted = weights * self.rows
        rows = np.maximum(counted.sum(axis=0), 1.0)
        mean = (counted * self.mean).sum(axis=0) / rows
        around = self.variance + np.square(self.mean - mean)
        return Spread(counted.sum(axis=0), mean, (counted * around).sum(axis=0) / rows)


def outweighing(clients: Spread) -> tuple[NDArray[np.int64], Spread]:
    """For each column the client that adds most to its variance, and the spread of all others; those that may matter.

    Of a column that no client outweighs, the others' variance is given as 0.
    """
    whole = clients.of_all(np.ones_like(clients.mean))
    parts = clients.rows * (clients.variance + np.square(clients.mean - whole.mean))
    who = parts.argmax(axis=0)
    others = clients.of_all((np.arange(len(parts))[:, None] != who).astype(np.float64))
    matters = whole.variance > _TIMES**2 * others.variance
    return who, Spread(others.rows, others.mean, np.where(matters, others.variance, 0.0))


def outweighed(features: ArrayLike, others: Spread) -> str | None:
    """A column that a client's rows (N, m) outweigh all others in, in words; None where there is none."""
    rounding = _ROUNDING * others.rows * np.square(others.mean)
    enough = (others.rows >= _FEWEST_ROWS) & (others.variance > rounding)
    if not enough.any():
        return None
    rows = Rows.checked(features, np.zeros(len(features)), 1)
    low, high, squares = np.full(rows.width, np.inf), np.full(rows.width, -np.inf), np.zeros(rows.width)
    for block, _ in rows.blocks():
        F = block.cpu().numpy()
        low, high = np.minimum(low, F.min(axis=0)), np.maximum(high, F.max(axis=0))
        squares += np.square(F - others.mean).sum(axis=0)
    value = np.where(high - others.mean > others.mean - low, high, low)
    deviation, number = np.sqrt(others.variance), np.maximum(others.rows, 1.0)
    share = number / (number + len(rows))
    least = share * (others.variance + squares / (number + len(rows)))  # of everybody's variance
    found = enough & (least > _TIMES**2 * others.variance)
    found &= np.abs(value - others.mean) > np.maximum(_FAR, _TIMES * np.sqrt(number)) * deviation
    if not found.any():
        return None
    j = int(found.argmax())
    return (
        f"column {j} goes to {value[j]:.4g}, and with all others it deviates by {deviation[j]:.2g} around "
        f"{others.mean[j]:.4g}: everybody's models see the column in the unit that such values set, and hardly tell "
        "the others' apart; is it in another unit here? put it in the others', or repair or clip the value"
    )
