"""Targets that are real numbers, and rows that have weights: how they stand on the grid, and how the ridge sees them.

Targets are put in units of their own as features are (`Columns`), y' = (y − c) 2^-e, and rounded to the same steps. The
ridge sees them standardised over all rows, so that several targets count alike and their units decide nothing:

    Y = (y' − ȳ) / σ        with an intercept; without one ȳ = 0, and σ² is the mean square

both from `moments`. A weight stands on the grid as a whole number of units, a power of two that is the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import round_features
from fedhip.core.rows import one_hot
from fedhip.core.standardization import Standardization
from fedhip.core.statistics import Statistics

#: Sums on the grid are below 2^63; so much is left for clients that join.
_ROOM = 2.0**60
#: Weights of all rows together are so many units, where they are not whole numbers.
_UNITS = 2.0**27


@dataclass(frozen=True)
class TargetRows:
    """A client's rows as its ridge sees them: F (N, m) and targets Y (N, d), both times √w.

    `labels` (N,) are the classes of one-hot targets; None of real ones. `scale` (N,) is √w, None where all weigh 1.
    `groups` (N,) are left out together.
    """

    F: Tensor
    Y: Tensor
    labels: Tensor | None = None
    scale: Tensor | None = None
    groups: Tensor | None = None

    def some(self, at: Tensor) -> TargetRows:
        """Those at some places, without their groups, which are whole or nothing."""
        labels, scale = (None if part is None else part[at.to(part.device)] for part in (self.labels, self.scale))
        return TargetRows(self.F[at], self.Y[at], labels, scale)


@dataclass(frozen=True, eq=False)
class Targets:
    """What stands beside the features: real targets in units of their own, or classes; and what weights are in.

    Parameters
    ----------
    columns : Columns or None
        The units of real targets; None for classes, which are here because their rows have weights.
    unit : float
        What a weight of 1 on the grid weighs, a power of two.
    """

    columns: Columns | None = None
    unit: float = 1.0

    def matrix(self, labels: Tensor, num_classes: int, fraction_bits: int) -> Tensor:
        """Targets (N, t) float64 as the grid holds them; of classes one-hot."""
        if self.columns is None:
            return one_hot(labels, num_classes)
        return round_features(self.columns.features(labels.to(torch.float64)), fraction_bits)

    def whole(self, weights: Tensor) -> Tensor:
        """Weights (N,) in units, int64; none that is above 0 vanishes."""
        return torch.round(weights / self.unit).to(torch.int64).clamp(min=1)

    def seen(self, sums: Statistics, intercept: bool, step: float) -> Standardization | None:
        """How the ridge sees real targets in units of their own; None for classes."""
        if self.columns is None or sums.moments is None:
            return None
        moments, t = sums.moments, sums.num_classes
        N, total, squares = moments[-1, -1], moments[-1, :t], moments.diagonal()[:t]
        mean = total / N if intercept else torch.zeros_like(total)
        variance = squares / N - mean.square()
        constant = variance <= (1e-12 * squares / N).clamp(min=step * step)
        # A target that is one value everywhere is predicted by the intercept.
        return Standardization(mean, torch.where(constant, 1.0, variance.clamp(min=0.0).sqrt()), intercept=False)

    def cross(self, cross: Tensor, seen: Standardization | None) -> Tensor:
        """F'ᵀWY (m, t) of the targets that the ridge sees, from F'ᵀWY₊ (m, t + 1)."""
        if seen is None:
            return cross[:, :-1].clone()
        return (cross[:, :-1] - cross[:, -1:] * seen.mean.to(cross)) / seen.scale.to(cross)

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers."""
        return {"columns": None if self.columns is None else self.columns.to_dict(), "unit": self.unit}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Targets:
        """What `to_dict` gave."""
        columns = content["columns"]
        return cls(None if columns is None else Columns.from_dict(columns), float(content["unit"]))


def weight_unit(whole: bool, total: float, heaviest: float, fraction_bits: int) -> float:
    """The power of two that weights are rounded to multiples of.

    Whole numbers stay as they are, where the grid has the room. `total` is the sum of all weights, `heaviest` the
    largest Σ w x² of a column.
    """
    least = heaviest * 2.0**fraction_bits / _ROOM
    if whole and least <= 1.0:
        return 1.0
    return float(2.0 ** math.ceil(math.log2(max(least, total / _UNITS))))
