"""Columns in units of their own, so that the grid's step is small for each of them.

    x' = (x − c_j) 2^-e_j          c_j, e_j of column j, the same for everybody

One power of two for each column, and a constant near its mean: x' then deviates by 1 to 2, whatever the units of x, and
its steps of 2^-16 are less than 2^-16 of that. Nothing else is done to a value before it is rounded, so that sums stay
exact whole numbers, the same bits for any division of the rows.

What the columns need is found by one sum over clients, the survey: for each column and each of 13 orders of magnitude,
2^-40 to 2^64 in steps of 2^8, how many values there are, their sum and the sum of their squares, as whole numbers. It
is exact for any division of the rows, in any units, and tells a few values out of all proportion from the rest: these
decide what the grid must hold, the rest how fine it must be.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.standardization import Standardization
from fedhip.errors import ColumnError, ColumnWarning, InputError, StatisticsError

#: Steps of x' are 2^-16: this is the grid's scale for features in units of their own.
COLUMN_BITS = 32

_BIN_SHIFT = 3
_BIN = 1 << _BIN_SHIFT  # octaves
_LEAST, _MOST = -5, 8  # bins: |x| from 2^-40 up to 2^64
_BINS = _MOST - _LEAST
#: What a feature must be smaller than.
LIMIT = 2.0 ** (_BIN * _MOST)
_DIGITS = 30
#: What x is multiplied by in each order of magnitude, to be a number of 30 bits.
_TO_STEPS = np.append(2.0 ** (_DIGITS - _BIN * np.arange(_LEAST + 1.0, _MOST + 1.0)), 0.0)
_ROWS_AT_ONCE = 256
_PARTS = 4  # numbers of a bin: values, their sum, their squares in two parts
#: A deviation is this many steps at least, or the column is refused.
_FEWEST_STEPS = 2.0**10
#: Σ x'² that is aimed for: with steps of 2^-16 it leaves room on the grid for 64 times as many rows.
_ROOMY, _FULL = 2.0**24, 2.0**29
#: Numbers in float64 that differ by less of their size may be one value that was computed in two ways.
_NUMBERS_STEP = 2.0**-48
#: Of the rows, those that may lie out of all proportion and not count for how fine the grid must be.
_STRAY = 2.0**-10


@dataclass(frozen=True, eq=False)
class Survey:
    """What the columns of somebody's rows look like; surveys of several add, exactly.

    Parameters
    ----------
    table : (13, 4, m) int64
        For each order of magnitude: values, Σ q, Σ (q² >> 30), Σ (q² mod 2^30), with q = round(x · 2^30 / 2^(8b)).
    rows : int
    """

    table: NDArray[np.int64]
    rows: int

    @classmethod
    def of(cls, features: ArrayLike, *, client: str | None = None, only: NDArray[np.int64] | None = None) -> Self:
        """Of rows (N, m) in any units, or of some of their columns; the values are checked here."""
        rows = Rows.checked(features, np.zeros(len(features)), 1, client)
        table = np.zeros((_BINS, _PARTS, rows.width if only is None else len(only)), np.int64)
        for number, (F, _) in enumerate(rows.blocks(_ROWS_AT_ONCE)):
            x = F.cpu().numpy()
            _add(table, x if only is None else x[:, only], number * _ROWS_AT_ONCE, rows.who)
        return cls(table, len(rows))

    def __add__(self, other: Survey) -> Survey:
        if self.table.shape != other.table.shape:
            raise InputError(f"a survey of {other.width} columns does not add to one of {self.width}")
        return Survey(self.table + other.table, self.rows + other.rows)

    def __radd__(self, other: object) -> Survey:
        return self if other == 0 else NotImplemented

    @property
    def width(self) -> int:
        """m, the number of columns."""
        return int(self.table.shape[2])

    def to_vector(self) -> NDArray[np.int64]:
        """All numbers in one row."""
        return np.concatenate((self.table.reshape(-1), [self.rows]))

    @classmethod
    def from_vector(cls, vector: NDArray[np.int64], width: int) -> Self:
        """What `to_vector` gave."""
        return cls(vector[:-1].reshape(_BINS, _PARTS, width), int(vector[-1]))

    def require_possible(self, most_rows: int) -> None:
        """Raise `StatisticsError` where no data set of so many rows looks like this."""
        values, sums, high, low = (self.table[:, part] for part in range(_PARTS))
        if not 0 < self.rows <= most_rows:
            raise StatisticsError(f"the survey is of {self.rows} rows, and at most {most_rows} are agreed on")
        if int(self.table[:, (0, 2, 3)].min()) < 0 or int(values.sum(axis=0).max()) > self.rows:
            raise StatisticsError("a column has more values than there are rows, or fewer than none")
        # (Σq)² ≤ n Σq², in whole numbers of any size, for deviations are roots of the difference; |q| is at most 2^30.
        squares = high.astype(object) * (1 << _DIGITS) + low
        few = np.asarray(sums.astype(object) ** 2 > values * squares, dtype=bool)
        if few.any() or (np.abs(sums) > values * 2.0**_DIGITS).any():
            raise StatisticsError("the squares of a column are smaller than its sum allows; no data set has that")

    @staticmethod
    def size(width: int) -> int:
        """How many numbers it is."""
        return _BINS * _PARTS * width + 1

    def standardization(self) -> Standardization:
        """Mean and deviation of every column over all rows; a column of one value has an infinite scale."""
        mean, deviation = self.moments().mean_and_deviation(np.full(self.width, _BINS - 1))
        scale = np.where(deviation > 0.0, deviation, np.inf)
        return Standardization(torch.from_numpy(mean), torch.from_numpy(scale), intercept=False)

    def moments(self) -> Moments:
        """Of the values up to each order of magnitude, zeros among them."""
        # In whole numbers of any size: a mean that is a billion times the deviation takes no digit from it.
        values, sums, high, low = (self.table[:, part].astype(object) for part in range(_PARTS))
        shift = [1 << (_BIN * b) for b in range(_BINS)]
        first = np.cumsum([total * unit for total, unit in zip(sums, shift, strict=True)], axis=0)
        squares = high * (1 << _DIGITS) + low
        second = np.cumsum([total * unit * unit for total, unit in zip(squares, shift, strict=True)], axis=0)
        zeros = self.rows - values.sum(axis=0)
        n = np.cumsum(values, axis=0) + zeros
        return Moments(n, first, second)


@dataclass(frozen=True)
class Moments:
    """(13, m) whole numbers: rows up to an order of magnitude, Σ x and Σ x² over them, in units of 2^-62."""

    rows: NDArray[Any]
    first: NDArray[Any]
    second: NDArray[Any]

    @property
    def unit(self) -> float:
        """What `first` is in."""
        return float(2.0 ** (_BIN * (_LEAST + 1) - _DIGITS))

    def mean_and_deviation(self, level: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each column (m,) at its order of magnitude; a column of one value deviates by 0 exactly."""
        at = level, np.arange(len(level))
        n, first, second = self.rows[at], self.first[at], self.second[at]
        counted = [max(int(rows), 1) for rows in n]
        mean = [self.unit * float(s) / rows for s, rows in zip(first, counted, strict=True)]
        spread = [rows * s2 - s * s for rows, s, s2 in zip(counted, first, second, strict=True)]
        deviation = [self.unit * math.sqrt(found) / rows for found, rows in zip(spread, counted, strict=True)]
        return np.array(mean), np.array(deviation)

    def squares_around(self, centre: NDArray[np.float64]) -> NDArray[np.float64]:
        """Σ (x − centre)² over all rows (m,)."""
        at = [round(float(value) / self.unit) for value in centre]
        last = zip(at, self.rows[-1], self.first[-1], self.second[-1], strict=True)
        found = [s2 - 2 * c * s + n * c * c for c, n, s, s2 in last]
        return np.array([self.unit**2 * float(square) for square in found])


def magnitude_of(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """The order of magnitude of numbers: from 0, of all that are below 2^-32 and of 0, on; past 12 without end."""
    octave = np.where(x == 0.0, _BIN * _LEAST, np.frexp(x)[1].astype(np.int64) - 1)
    return np.asarray(np.maximum((octave - _BIN * _LEAST) >> _BIN_SHIFT, 0))


def least_of(magnitude: NDArray[np.int64]) -> NDArray[np.float64]:
    """The least number of an order of magnitude."""
    return np.asarray(2.0 ** (_BIN * (magnitude + _LEAST)))


def step_of(magnitude: NDArray[np.int64]) -> NDArray[np.float64]:
    """What the survey rounds numbers of an order of magnitude to."""
    return np.asarray(2.0 ** (_BIN * (magnitude + _LEAST + 1) - _DIGITS))


def allowed_outliers(rows: int) -> int:
    """How many of so many rows may lie out of all proportion."""
    return max(1, math.floor(rows * _STRAY)) if rows >= 8 else 0


def octave_of(size: NDArray[np.float64]) -> NDArray[np.int64]:
    """The power of two that a column of this deviation is divided by, if the grid has the room."""
    return np.floor(np.log2(size)).astype(np.int64)


def offset_near(mean: NDArray[np.float64], exponent: NDArray[np.int64]) -> NDArray[np.float64]:
    """The constant near the mean that is taken off a column."""
    return np.asarray(np.rint(mean * 2.0**-exponent) * 2.0**exponent)


def coarser_by(squares: NDArray[np.float64], exponent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Powers of two more for a column whose squares (x − c)² would fill the grid, while its steps stay small enough."""
    coarser = np.ceil(np.log2(np.maximum(squares * 4.0**-exponent / _ROOMY, 1.0)) / 2.0).astype(np.int64)
    return np.minimum(coarser, 16 - round(math.log2(_FEWEST_STEPS)))


def is_full(squares: NDArray[np.float64], exponent: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where the grid has no room for a column in these units."""
    return np.asarray(squares * 4.0**-exponent > _FULL)


def _add(table: NDArray[np.int64], x: NDArray[np.float64], start: int, who: str) -> None:
    """Rows, by the exponents in the numbers' own bits."""
    m = x.shape[1]
    # The exponent less its bias, by orders of magnitude; zeros and numbers too small are below the lowest.
    at = x.view(np.int64) >> 52
    at &= 0x7FF
    at -= 1023 + _BIN * _LEAST
    at >>= _BIN_SHIFT
    if int(at.max()) >= _BINS:
        row, column = np.argwhere(at >= _BINS)[0]
        raise ColumnError(
            f"{who}the feature in row {start + row}, column {column} is {x[row, column]:g}; features may be up to "
            f"{LIMIT:.1g} in size: rescale the column at all clients, or repair the value"
        )
    np.maximum(at, 0, out=at)
    at[x == 0.0] = _BINS  # in no order of magnitude: counted in a place of its own, and left there
    q = _TO_STEPS.take(at)
    q *= x
    np.rint(q, out=q)
    high = q.astype(np.int64)
    high *= high
    low = high & ((1 << _DIGITS) - 1)
    high >>= _DIGITS
    at *= m
    at += np.arange(m)
    for number, part in enumerate((None, q, high, low)):
        weights = None if part is None else part.reshape(-1)
        found = np.bincount(at.reshape(-1), weights, minlength=(_BINS + 1) * m)
        table[:, number] += found[: _BINS * m].astype(np.int64).reshape(_BINS, m)


@dataclass(frozen=True, eq=False)
class Columns:
    """What every column is moved by and divided by: offset (m,) float64, exponent (m,) int."""

    offset: Tensor
    exponent: Tensor

    @classmethod
    def plain(cls, width: int) -> Columns:
        """Columns as they are."""
        return cls(torch.zeros(width, dtype=torch.float64), torch.zeros(width, dtype=torch.int64))

    @classmethod
    def of(cls, survey: Survey, *, centred: bool = True) -> Columns:
        """Those that a survey asks for; `centred` allows for offsets, which a model without an intercept cannot have.

        Raises `ColumnError` where a column has values so large that what the others say would be rounded away.
        """
        if survey.rows == 0:
            raise ColumnError("there are no rows, and so nothing to say of columns; give at least one row")
        moments = survey.moments()
        # The lowest order of magnitude with nearly all rows and any deviation: the rest is out of all proportion.
        level = np.asarray(moments.rows >= survey.rows - allowed_outliers(survey.rows), dtype=bool).argmax(axis=0)
        mean, deviation = moments.mean_and_deviation(level)
        whole = np.where(deviation > 0.0, level, _BINS - 1)
        mean, deviation = moments.mean_and_deviation(whole)
        # A column that is one value everywhere: in units of that value.
        size = np.where(deviation > 0.0, deviation, np.where(mean != 0.0, np.abs(mean), 1.0))
        exponent = octave_of(size)
        offset = offset_near(mean, exponent) if centred else np.zeros_like(mean)
        squares = moments.squares_around(offset)
        exponent += coarser_by(squares, exponent)
        full = is_full(squares, exponent)
        if full.any():
            raise _too_large(survey, int(full.argmax()), mean, deviation)
        small, fewest = survey.table[:, 0], _FEWEST_STEPS * moments.unit
        tiny = (small[0] > 0) & (small[1:].sum(axis=0) == 0)
        # Of one value everywhere, or of values that the survey tells apart, as much is known as of larger ones.
        tiny &= np.where(deviation > 0.0, deviation, np.abs(mean)) < fewest
        if tiny.any():
            raise ColumnError(
                f"column {int(tiny.argmax())} holds nothing but zeros and numbers that differ by less than "
                f"{fewest:.0e}; multiply the column by a constant at all clients, or set it to 0 if it is an output "
                "that its encoder does not use"
            )
        return cls(torch.from_numpy(offset), torch.from_numpy(exponent))

    @classmethod
    def from_dict(cls, content: Mapping[str, Sequence[float]]) -> Columns:
        """What `to_dict` gave."""
        return cls(
            torch.tensor(content["offset"], dtype=torch.float64), torch.tensor(content["exponent"], dtype=torch.int64)
        )

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Columns:
        """From a JSON file that holds what `to_dict` gave, itself or as its "columns" (a run's details.json)."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            content = content.get("columns", content)
            if any(type(exponent) is not int for exponent in content["exponent"]):
                raise ValueError("an exponent is not a whole number")
            found = cls.from_dict(content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ColumnError(
                f"{path} does not say the units of columns ({error}); give a JSON file with the lists 'offset' and "
                "'exponent', a number for each column"
            ) from None
        if found.offset.shape != found.exponent.shape or found.offset.ndim != 1 or not found.offset.isfinite().all():
            raise ColumnError(f"{path}: 'offset' and 'exponent' must be lists of as many finite numbers as columns")
        return found

    def to_dict(self) -> dict[str, list[Any]]:
        """As plain numbers."""
        return {"offset": self.offset.tolist(), "exponent": self.exponent.tolist()}

    @property
    def width(self) -> int:
        """m, the number of columns."""
        return len(self.offset)

    @cached_property
    def standardization(self) -> Standardization:
        """The same as an affine map without an intercept, by which models go back to the units of the rows."""
        return Standardization(self.offset, torch.ldexp(torch.ones_like(self.offset), self.exponent), intercept=False)

    def features(self, F: Tensor) -> Tensor:
        """x' (n, m) in float64."""
        if F.shape[-1] != self.width:
            raise InputError(f"features are {F.shape[-1]} wide, and there are units of {self.width} columns")
        return self.standardization.features(F)


def require_same_constants(
    columns: Columns, features: Any, who: str = "", step: float = 2.0 ** -(COLUMN_BITS // 2)
) -> None:
    """Warn where a column varies, by so little of its size that it counts as one value for everybody."""
    low, high = np.min(features, axis=0).astype(np.float64), np.max(features, axis=0).astype(np.float64)
    lost = (low != high) & (high - low < step * np.ldexp(1.0, columns.exponent.numpy()))
    # What the numbers themselves are rounded to is no loss.
    lost &= high - low > _NUMBERS_STEP * np.maximum(np.abs(low), np.abs(high))
    if lost.any():
        column = int(lost.argmax())
        warnings.warn(
            f"{who}column {column} varies by {high[column] - low[column]:.2g} from {low[column]:.9g} on, by less than "
            "a step of the grid, and counts as one value; if that says something, move or scale the column at all "
            "clients",
            ColumnWarning,
            stacklevel=3,
        )


def _too_large(survey: Survey, column: int, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> ColumnError:
    top = int(np.flatnonzero(survey.table[:, 0, column])[-1])
    values, sums = survey.table[top, 0, column], survey.table[top, 1, column]
    largest = float(sums) * 2.0 ** (_BIN * (top + _LEAST + 1) - _DIGITS) / float(values)
    if abs(largest) < 2.0**10 * abs(mean[column]):
        text = (
            f"column {column} deviates by {deviation[column]:.2g} around {mean[column]:.6g}: the grid cannot hold both "
            "without an intercept; subtract a constant from the column at all clients"
        )
        return ColumnError(text, column)
    text = (
        f"column {column} holds a value of about {largest:.2g}, and nearly all others lie within "
        f"{deviation[column]:.2g} of {mean[column]:.3g}: no grid holds both, and what the others say would be rounded "
        "away; repair or drop the row, or clip the column"
    )
    return ColumnError(text, column, is_value=True)
