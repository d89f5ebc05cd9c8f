"""Whether a few clients' rows decide how far a column spreads: in another unit there, or out of all proportion.

A ridge, a discriminant and a logistic regression all see a column in units of its deviation over everybody's rows. One
client with values a thousand times the others' sets that deviation, and nobody's model can tell the others' values
apart any more. Nothing is changed for it, but there is a warning that names client, column and value. The clients that
are compared with must be at least half of those to whom the column says anything: where most of them have such values,
that is how the column is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhip.core.exact.column_sums import ColumnSums
from fedhip.core.exact.columns import Columns, Survey, allowed_outliers
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.statistics import Statistics

Column = NDArray[np.float64]

#: So many times less would the column deviate without the client.
_TIMES = 5.0
#: So many deviations of the others is a value of the client's away from their mean, at least. An indicator that is 1 in
#: a single one of the others' n rows deviates by 1/√n there, which is why √n counts too.
_FAR = 100.0
_FEWEST_ROWS = 10
#: So many units from where training rows lie, a value that is asked about is surely none like theirs.
_UNLIKE = 1000.0
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
        """Of the rows behind a survey, without the few values that may lie out of all proportion among them.

        A column that is mostly 0 has little to tell apart, and counts as one value.
        """
        moments = survey.moments()
        nearly_all = np.asarray(moments.rows >= survey.rows - allowed_outliers(survey.rows), dtype=bool)
        mean, deviation = moments.mean_and_deviation(nearly_all.argmax(axis=0))
        sparse = 2 * survey.table[:, 0].sum(axis=0) < survey.rows
        return cls(np.array([float(survey.rows)]), mean, np.where(sparse, 0.0, np.square(deviation)))

    @classmethod
    def of_statistics(cls, sums: Statistics, columns: Columns) -> Spread:
        """Of the rows behind statistics in the columns' own units."""
        N, unit = max(float(sums.num_samples), 1.0), columns.standardization.scale.numpy()
        mean = sums.feature_sums.numpy() / N
        variance = np.maximum(sums.gram.diagonal().numpy() / N - np.square(mean), 0.0)
        return cls(np.array([N]), mean * unit + columns.offset.numpy(), variance * np.square(unit))

    def of_all(self, weights: NDArray[np.float64]) -> Spread:
        """Of several clients together, each with so much of its rows (K, m)."""
        counted = weights * self.rows
        rows = np.maximum(counted.sum(axis=0), 1.0)
        mean = (counted * self.mean).sum(axis=0) / rows
        around = self.variance + np.square(self.mean - mean)
        return Spread(counted.sum(axis=0), mean, (counted * around).sum(axis=0) / rows)


def outweighing(clients: Spread) -> tuple[NDArray[np.bool_], Spread]:
    """For each column the clients (K, m) that spread far more than half of them do, and the spread of all others.

    Of a column whose spread these do not decide, the others' variance is given as 0.
    """
    far = clients.variance + np.square(clients.mean - _lower_median(clients.mean))
    # Half of what is asked of the variance: the lower median is at most twice the mean of the others.
    astray = far > 0.5 * _TIMES**2 * _lower_median(far)
    whole, others = (clients.of_all(weights) for weights in (np.ones_like(far), (~astray).astype(np.float64)))
    matters = whole.variance > _TIMES**2 * others.variance
    return astray & matters, Spread(others.rows, others.mean, np.where(matters, others.variance, 0.0))


def _lower_median(values: NDArray[np.float64]) -> Column:
    """Of each column (K, m): the middle one of its values, or the lower of two."""
    middle = (len(values) - 1) // 2
    return np.asarray(np.partition(values, middle, axis=0)[middle])


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


def unlike_training(features: NDArray[np.float64], centre: Column, unit: Column, used: NDArray[np.bool_]) -> str | None:
    """A value of rows (n, m) that lies far from all that was trained on, in words; None where there is none.

    `centre` and `unit` (m,) say where the training rows lie and how far they spread, about; `used` (m,) are the columns
    that the model's answer depends on.
    """
    away = np.abs(features - centre) / np.where(used & (unit > 0.0), unit, np.inf)
    strange = away > _UNLIKE
    if not strange.any():
        return None
    row, column = np.unravel_index(int(away.argmax()), away.shape)
    rows = int(strange.any(axis=1).sum())
    return (
        f"row {row}: column {column} is {features[row, column]:.4g}, and training rows lie around "
        f"{centre[column]:.4g}, most within {2.0 * unit[column]:.2g}: the answer follows from that value alone"
        + (f" ({rows} of {len(features)} rows have such values)" if rows > 1 else "")
        + "; is it in another unit? bring it to the unit of the training rows, or repair the value"
    )
