"""Centred, scaled features with an intercept, without another round.

Each row of Y sums to one, so `cross · 1 = Fᵀ1` is the sum of the features; with the diagonal of `gram` that gives
their mean and deviation over the whole federation, and the statistics of the transformed features follow from
the statistics alone:

    F' = [(F − 1μᵀ) D⁻¹, 1]
    gram' = [[D⁻¹(A − sμᵀ − μsᵀ + Nμμᵀ)D⁻¹, D⁻¹(s − Nμ)], [·, N]]        s = Fᵀ1
    cross' = [D⁻¹(B − μnᵀ); nᵀ]                                          n = counts
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core.errors import DimensionError, EmptyClientError
from fedhip.core.rows import ArrayLike
from fedhip.core.statistics import Statistics


@dataclass(frozen=True)
class Standardization:
    """An affine map of features that every client of a federation shares: mean (m,), scale (m,)."""

    mean: Tensor
    scale: Tensor
    intercept: bool = True

    @classmethod
    def of(cls, total: Statistics, *, intercept: bool = True) -> Standardization:
        """Mean and deviation over all rows behind `total`; a constant feature keeps its scale."""
        return cls.of_sums(total.num_samples, total.cross.sum(dim=1), total.gram.diagonal(), intercept=intercept)

    @classmethod
    def of_sums(cls, N: int, sums: Tensor, squares: Tensor, *, intercept: bool = True) -> Standardization:
        """The same from Σ x and Σ x² over N rows (m,): all that it takes of the statistics."""
        if N == 0:
            raise EmptyClientError("the sum holds no rows; add at least one client's statistics")
        mean, second = sums / N, squares / N
        variance = second - mean.square()
        constant = variance <= 1e-12 * second
        return cls(mean, torch.where(constant, 1.0, variance.clamp(min=0.0).sqrt()), intercept)

    def features(self, F: ArrayLike) -> Tensor:
        """F' for rows F (n, m)."""
        rows = torch.as_tensor(F).to(self.mean)
        self._require_width(rows.shape[-1])
        standardized = (rows - self.mean) / self.scale
        if not self.intercept:
            return standardized
        return torch.cat((standardized, torch.ones_like(standardized[:, :1])), dim=1)

    def statistics(self, statistics: Statistics) -> Statistics:
        """The statistics of F' from those of F; for a client's as for the sum's.

        The same to rounding as standardising the rows, but the rounding is of the raw squares: with features
        whose mean is 1000 times their deviation, about six digits are lost.
        """
        self._require_width(statistics.num_features)
        N, n = statistics.num_samples, statistics.counts.to(torch.float64)
        mean, scale = self.mean.to(statistics.device), self.scale.to(statistics.device)
        s = statistics.cross.sum(dim=1)
        outer = torch.outer(s, mean)
        gram = statistics.gram - outer - outer.mT + N * torch.outer(mean, mean)
        gram = gram / torch.outer(scale, scale)
        cross = (statistics.cross - torch.outer(mean, n)) / scale[:, None]
        if self.intercept:
            last = ((s - N * mean) / scale)[:, None]
            gram = torch.cat((torch.cat((gram, last), 1), torch.cat((last.mT, last.new_tensor([[float(N)]])), 1)))
            cross = torch.cat((cross, n[None, :]))
        return Statistics(gram, cross, statistics.counts)

    def _require_width(self, width: int) -> None:
        if width != len(self.mean):
            raise DimensionError(f"features are {width} wide, the standardization {len(self.mean)}")
