"""The columns' units from plain sums, where all rows are at hand: those of the survey, to the last bit.

A survey (`fedhip.core.exact.columns`) is exact so that it may be added up over a network. Its units are two whole
numbers for each column, and nearly always far from where rounding could change them: then sums in float64 tell as much.
What may lie between the two is bounded here, and a column whose units the bound leaves open is surveyed.

With x_i what a column holds and x_i + e_i what the survey makes of it, 30 bits of each order of magnitude: |e_i| ≤ u/2,
u the step at the column's largest. So

    |mean − mean'| ≤ u/2      |deviation − deviation'| ≤ u/2      |√Σ(x − c)² − √Σ(x' − c)²| ≤ √N u/2

since a deviation and a root of squares are norms. Sums of N terms in float64 lie within (N + 8) ε of Σ|x|, Σx².
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.exact.columns import (
    LIMIT,
    Columns,
    allowed_outliers,
    coarser_by,
    is_full,
    least_of,
    magnitude_of,
    octave_of,
    offset_near,
    step_of,
)
from fedhip.core.rows import ArrayLike, Rows
from fedhip.errors import InputError

_ROWS_AT_ONCE = 256
_EPS = float(np.finfo(np.float64).eps)
#: More than any rounding of the few operations after the sums, and of a logarithm.
_MARGIN = 1e-9

Column = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ColumnSums:
    """For each column of somebody's rows (m,): Σx, Σx², the largest |x|, and how many lie in its order of magnitude."""

    rows: int
    sums: Column
    squares: Column
    largest: Column
    as_large: Column

    @classmethod
    def of(cls, features: ArrayLike, *, client: str | None = None) -> Self:
        """Of rows (N, m) in any units; the values are checked here."""
        rows = Rows.checked(features, np.zeros(len(features)), 1, client)
        return reduce(add, (cls._of_block(F.cpu()) for F, _ in rows.blocks(_ROWS_AT_ONCE)))

    @classmethod
    def _of_block(cls, F: Tensor) -> Self:
        # Sums are products with a row of ones: the fastest way down the columns, and other threads go on meanwhile.
        one, sizes = F.new_ones((1, len(F))), F.abs()
        largest = sizes.amax(dim=0)
        least = torch.from_numpy(least_of(magnitude_of(largest.numpy())))
        as_large = one @ torch.ge(sizes, least, out=torch.empty_like(sizes))
        sums, squares = one @ F, one @ sizes.square_()
        return cls(len(F), sums[0].numpy(), squares[0].numpy(), largest.numpy(), as_large[0].numpy())

    def __add__(self, other: ColumnSums) -> Self:
        if self.sums.shape != other.sums.shape:
            raise InputError(f"a survey of {len(other.sums)} columns does not add to one of {len(self.sums)}")
        mine, theirs = magnitude_of(self.largest), magnitude_of(other.largest)
        return type(self)(
            self.rows + other.rows,
            self.sums + other.sums,
            self.squares + other.squares,
            np.maximum(self.largest, other.largest),
            self.as_large * (mine >= theirs) + other.as_large * (theirs >= mine),
        )

    def columns(self, *, centred: bool = True) -> tuple[Columns, NDArray[np.bool_]]:
        """Units, and of which columns (m,) they are for certain those of the survey."""
        with np.errstate(all="ignore"):  # what overflows is nothing for certain
            return self._columns(centred)

    def _columns(self, centred: bool) -> tuple[Columns, NDArray[np.bool_]]:
        N, at = self.rows, magnitude_of(self.largest)
        # Nothing counts as a stray, nothing is too small or too large for the survey.
        certain = (self.as_large > allowed_outliers(N)) & (at > 0) & (self.largest < LIMIT)
        half = step_of(at) / 2.0
        rounding, second = (N + 8) * _EPS, self.squares / N
        mean, mean_error = self.sums / N, rounding * np.sqrt(second) + half  # Σ|x| ≤ √(N Σx²)
        variance, variance_error = second - mean * mean, 4.0 * rounding * second
        low, high = (
            np.sqrt(np.maximum(variance + sign * variance_error, 0.0)) * (1.0 + sign * _MARGIN) + sign * half
            for sign in (-1.0, 1.0)
        )
        certain &= low > 0.0
        exponent = octave_of(np.where(certain, high, 1.0))
        certain &= (octave_of(np.where(certain, low, 1.0)) == exponent) & (exponent > -60)
        offset = np.zeros_like(mean)
        if centred:
            bound = mean_error + _MARGIN * np.abs(mean)
            offset = offset_near(mean, exponent)
            certain &= (offset_near(mean - bound, exponent) == offset) & (offset_near(mean + bound, exponent) == offset)
        away = np.abs(mean - offset)
        coarser = []
        for sign in (-1.0, 1.0):  # at least, and at most
            around = np.maximum(away + sign * mean_error, 0.0) ** 2 + np.maximum(variance + sign * variance_error, 0.0)
            root = np.sqrt(N) * np.maximum(np.sqrt(around) + sign * half, 0.0)
            squares = root * root * (1.0 + sign * _MARGIN)
            coarser.append(coarser_by(np.where(certain, squares, 0.0), exponent))
            certain &= ~is_full(squares, exponent + coarser[-1])
        certain &= coarser[0] == coarser[1]
        return Columns(torch.from_numpy(offset), torch.from_numpy(exponent + coarser[1])), certain
