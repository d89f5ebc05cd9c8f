"""Centred, scaled features with an intercept, without another round.

Each row of Y sums to one, so `cross · 1 = Fᵀ1` is the sum of the features; with the diagonal of `gram` that gives
their mean and deviation over the whole federation, and the statistics of the transformed features follow from
the statistics alone:

    F' = [(F − 1μᵀ) D⁻¹, 1]
    gram' = [[D⁻¹(A − sμᵀ − μsᵀ + Nμμᵀ)D⁻¹, D⁻¹(s − Nμ)], [·, N]]        s = Fᵀ1
    cross' = [D⁻¹(B − μnᵀ); nᵀ]                                          n = counts

A feature that says nothing of its own has an infinite scale, so that it is 0 in F' and its weight 0: one that is the
same in every row, and one that is a copy of an earlier one, in whatever units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core.rows import ArrayLike
from fedhip.core.statistics import Statistics, mirror_upper
from fedhip.errors import InputError

_ROWS_AT_ONCE = 256

#: A variance below this part of the mean square is the rounding of sums.
_CONSTANT = 1e-12
#: Two features of which one leaves less than this part of the other's variance unexplained are copies.
_COPY = 1e-12


@dataclass(frozen=True)
class Standardization:
    """An affine map of features that every client of a federation shares: mean (m,), scale (m,)."""

    mean: Tensor
    scale: Tensor
    intercept: bool = True

    @classmethod
    def of(
        cls, total: Statistics, *, intercept: bool = True, step: float = 0.0, mass: Tensor | None = None
    ) -> Standardization:
        """Mean and deviation over all rows behind `total`.

        `step` is what features were rounded to: one that deviates by less is the same in every row, and two that differ
        by no more are copies. `mass` (d,) is what the rows of each class weigh together, where they do not weigh 1 each
        (`fedhip.core.balance`).
        """
        N = _mass_of(total, mass)
        found = cls.of_sums(N, total.feature_sums, total.gram.diagonal(), intercept=intercept, step=step)
        scale = found.scale.clone()
        scale[_copies(total.gram, N, found, step)] = torch.inf
        return cls(found.mean, scale, intercept)

    @classmethod
    def of_sums(
        cls, N: float, sums: Tensor, squares: Tensor, *, intercept: bool = True, step: float = 0.0
    ) -> Standardization:
        """The same from Σ x and Σ x² over N rows (m,), which do not tell of copies."""
        if N == 0:
            raise InputError("the sum holds no rows; add at least one client's statistics")
        mean, second = sums / N, squares / N
        variance = second - mean.square()
        # Rows that are weighted by class and then rounded make one value another in each class, within half a step. As
        # a feature that would give the labels away.
        constant = variance <= (_CONSTANT * second).clamp(min=step * step)
        return cls(mean, torch.where(constant, torch.inf, variance.clamp(min=0.0).sqrt()), intercept)

    @property
    def used(self) -> Tensor:
        """The features that say something of their own (m,) bool."""
        return torch.isfinite(self.scale)

    def then(self, other: Standardization) -> Standardization:
        """One map for this and another one after it."""
        mean, scale = other.mean.to(self.mean), other.scale.to(self.scale)
        return Standardization(self.mean + self.scale * mean, self.scale * scale, other.intercept)

    def features(self, F: ArrayLike) -> Tensor:
        """F' for rows F (n, m)."""
        rows = torch.as_tensor(F).to(self.mean.dtype)
        self._require_width(rows.shape[-1])
        standardized = (rows - self.mean.to(rows.device)).div_(self.scale.to(rows.device))
        if not self.intercept:
            return standardized
        return torch.cat((standardized, torch.ones_like(standardized[:, :1])), dim=1)

    def statistics(self, statistics: Statistics, mass: Tensor | None = None) -> Statistics:
        """The statistics of F' from those of F; for a client's as for the sum's. `mass` as in `of`.

        The same to rounding as standardising the rows, but the rounding is of the raw squares: with features
        whose mean is 1000 times their deviation, about six digits are lost.
        """
        self._require_width(statistics.num_features)
        n = (statistics.target_sums if mass is None else mass).to(statistics.device, torch.float64)
        s, m = statistics.feature_sums, statistics.num_features
        gram = self.room(statistics.device)
        gram[:m, :m] = statistics.gram
        cross = self.cross(statistics.cross, n)
        gram = self.gram_in_place(gram, s, _mass_of(statistics, mass))
        return Statistics._of(gram, cross, statistics.counts, self.intercept, statistics.moments)

    def room(self, device: torch.device) -> Tensor:
        """Memory for gram', whose upper left part `gram_in_place` takes to be gram."""
        width = len(self.mean) + self.intercept
        return torch.empty((width, width), dtype=torch.float64, device=device)

    def gram_in_place(self, gram: Tensor, s: Tensor, N: float) -> Tensor:
        """gram' in the memory of gram, from s = Fᵀ1 (m,) and the number of rows."""
        m = len(self.mean)
        mean, scale, inner = self.mean.to(gram), self.scale.to(gram), gram[:m, :m]
        # A − sμᵀ − μsᵀ + Nμμᵀ as two updates of rank one.
        half = s - (N / 2.0) * mean
        inner.addr_(half, mean, alpha=-1.0).addr_(mean, half, alpha=-1.0).div_(scale).div_(scale[:, None])
        if self.intercept:
            gram[:m, m] = gram[m, :m] = (s - N * mean) / scale
            gram[m, m] = N
        return mirror_upper(gram)

    def cross(self, cross: Tensor, n: Tensor) -> Tensor:
        """cross' from cross (m, d) and the rows of each class (d,)."""
        mean, scale = self.mean.to(cross), self.scale.to(cross)
        inner = torch.addr(cross, mean, n, alpha=-1.0).div_(scale[:, None])
        return torch.cat((inner, n[None])) if self.intercept else inner

    def _require_width(self, width: int) -> None:
        if width != len(self.mean):
            raise InputError(f"features are {width} wide, the standardization {len(self.mean)}")


def _mass_of(statistics: Statistics, mass: Tensor | None) -> float:
    """What all rows weigh."""
    if statistics.moments is not None:
        return float(statistics.moments[-1, -1])
    n = statistics.counts.to(torch.float64) if mass is None else mass.to(statistics.device)
    return float(n.sum())


def _copies(gram: Tensor, N: float, of: Standardization, step: float) -> Tensor:
    """Which features (m,) are an earlier one's copy: moved, scaled or turned about, to rounding."""
    found = torch.zeros(len(gram), dtype=torch.bool, device=gram.device)
    # Rounding to steps adds the variance step²/12 to each of the two.
    noise = (step / of.scale).square() / 12.0
    for start in range(0, len(gram), _ROWS_AT_ONCE):  # a wide matrix more would take 200 MB
        at = slice(start, start + _ROWS_AT_ONCE)
        unit = torch.addr(gram[at], of.mean[at], of.mean, alpha=-N) / (N * of.scale[at, None] * of.scale)
        copies = 1.0 - unit.square() <= _COPY + 4.0 * (noise[at, None] + noise)
        found |= (copies & torch.isfinite(unit)).triu_(diagonal=start + 1).any(dim=0)
    return found


def copied_columns(Z: Tensor) -> Tensor:
    """The same of rows Z (N, m) that are standardised: which features (m,) are an earlier one's copy."""
    # Copies have the same product with any vector but for the sign; only neighbours among these are compared.
    probe = (Z.mT @ torch.cos(torch.arange(1.0, len(Z) + 1.0).to(Z))).abs()
    order = probe.argsort(stable=True)
    order = order[Z[:, order].abs().amax(dim=0) > 0.0]  # what is 0 in every row is nothing to be a copy of
    near = probe[order].diff() <= 1e-9 * len(Z)
    copied = torch.zeros(Z.shape[1], dtype=torch.bool, device=Z.device)
    for group in order.tensor_split((~near).nonzero()[:, 0].cpu() + 1):
        if len(group) > 1:
            columns = group.sort().values
            for part in torch.split(columns, _ROWS_AT_ONCE):
                copies = 1.0 - (Z[:, part].mT @ Z[:, columns] / len(Z)).square() <= _COPY
                copied[columns] |= (copies & (part[:, None] < columns)).any(dim=0)
    return copied
