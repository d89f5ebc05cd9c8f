"""The shared-covariance discriminant (LDA) from summed statistics, and a client's own means in it.

    μ_c = B_c / n_c,   S = A − Σ_c n_c μ_c μ_cᵀ,   Σ = ((1 − s) S + s (tr S / m) I) / N
    score_c(x) = x·Σ⁻¹μ_c − ½ μ_c·Σ⁻¹μ_c + log(n_c / N)

One eigendecomposition S = V diag(λ) Vᵀ serves every shrinkage s, and leave-one-out, which is exact. Without row x of
class c, u = x − μ_c:

    n_c' = n_c − 1,   μ_c' = μ_c − u/(n_c − 1),   S' = S − κ u uᵀ,   κ = n_c/(n_c − 1)

and the shrinkage's target tr S'/m moves with it: a shift of the spectrum for each row, and an update of rank one.

**Personal means.** Client k's features may be shifted, all of them (its camera) or class by class. With
r = x − μ_y, in units of Σ, the empirical Bayes means are

    μ_kc = μ_c + w₀ b + w_c (b_c − w₀ b),    b = mean r over the client's rows,  b_c over those of class c
    w₀ = τ₀²/(τ₀² + 1/n_k),   w_c = τ²/(τ² + 1/n_kc)

with the variances τ₀² of shifts and τ² of classes from moments of the client's own residuals. Where these are no larger
than chance, the weights are 0 and the client has the federation's means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.errors import EmptyClientError, FedHiPError
from fedhip.core.personalization import client_rows
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import rank_tolerance
from fedhip.core.statistics import Statistics


class ShrinkageError(FedHiPError, ValueError):
    """The shrinkage is not from 0 to 1, or too small for a covariance that is singular."""


def oas_shrinkage(trace: float, trace_of_square: float, rows: float, width: int) -> float:
    """The oracle approximating shrinkage (Chen et al., 2010) of a covariance matrix, from two of its traces.

    Parameters
    ----------
    trace, trace_of_square : float
        tr S and tr S² of the covariance matrix S (m, m) of centred Gaussian rows.
    rows : float
        Their number: for the covariance within classes, rows less classes.
    """
    mean_square, squared_mean = trace_of_square / width**2, (trace / width) ** 2
    spread = (rows + 1.0) * (mean_square - squared_mean / width)
    return 1.0 if spread <= 0.0 else min(1.0, (mean_square + squared_mean) / spread)


class Discriminant:
    """LDA of all clients' rows, from their summed statistics.

    Parameters
    ----------
    total : Statistics
        The sum over clients, of features in comparable units (see `Standardization`).
    shrinkage : float or "oas"
        s, from 0 (the covariance as it is) to 1 (the nearest mean); "oas" takes the one of least expected error for
        Gaussian rows, from the sum alone.

    Notes
    -----
    Cost: O(m³) once; O(N_k m (m + d)) for the leave-one-out scores of a client.
    A class without rows has the score −∞.
    """

    def __init__(self, total: Statistics, shrinkage: float | Literal["oas"] = "oas") -> None:
        if total.num_samples == 0:
            raise EmptyClientError("the sum holds no rows; add at least one client's statistics")
        self.total = total
        n = total.counts.to(torch.float64)
        self._means = total.cross / n.clamp(min=1.0)
        scatter = total.gram - (self._means * n) @ self._means.mT
        values, self._V = torch.linalg.eigh(scatter)
        # Below this, the difference of two sums is their rounding.
        self._rounding = rank_tolerance(len(values)) * float(total.gram.diagonal().max())
        self._values = torch.where(values > self._rounding, values, 0.0)
        self._rotated = self._V.mT @ self._means
        self.shrinkage = self._chosen(shrinkage)

    def with_shrinkage(self, shrinkage: float) -> Discriminant:
        """The same statistics with another s, without another eigendecomposition."""
        other = object.__new__(Discriminant)
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k != "model"})
        other.shrinkage = self._chosen(shrinkage)
        return other

    @cached_property
    def model(self) -> AffineModel:
        """Weights Σ⁻¹μ_c and the scores' constants."""
        return self._affine(self._rotated)

    @property
    def covariance(self) -> Tensor:
        """Σ (m, m), the shrunk covariance within classes."""
        covariance: Tensor = (self._V * self._scaled) @ self._V.mT
        return covariance

    def scores(self, features: ArrayLike) -> Tensor:
        """(n, d)."""
        return self.model.scores(features)

    def loo_scores(self, features: ArrayLike, labels: ArrayLike, *, client: str | None = None) -> Tensor:
        """For each row of a client the scores (N_k, d) of the discriminant fitted without it, exactly.

        The shrinkage stays. A row that is alone in its class leaves that class without rows, and its score −∞.
        """
        F, Y = client_rows(self.total, features, labels, client)
        return self._rows(F, Y).left_out(self, None)

    def moves_without(self, features: ArrayLike, labels: ArrayLike, gone: Tensor) -> tuple[Tensor, Tensor]:
        """What leaving out the rows `gone` (N_k,) bool does to all of a client's scores (N_k, d), by classes' means.

        And beside it (N_k,), what leaving out a row alone does so to the score of its own class. The covariance, to
        which a row matters as one of N, stays as it is. A class with no other row keeps its mean and counts as one.
        """
        F, Y = client_rows(self.total, features, labels, None)
        rows, n = self._rows(F, Y), self.total.counts.to(torch.float64).clamp(min=1.0)
        left = (n - Y[gone].sum(dim=0)).clamp(min=1.0)
        # Means μ_c + s_c: (x − μ_c)·Σ⁻¹s_c − ½ s_c·Σ⁻¹s_c
        slides = -(rows.U[gone].mT @ Y[gone]) / left
        whitened = slides / self._scaled[:, None]
        moves = rows.X @ whitened - ((self._rotated + slides / 2) * whitened).sum(dim=0) + (left / n).log()
        one, rest = n[rows.labels], (n[rows.labels] - 1.0).clamp(min=1.0)
        distance = (rows.U.square() / self._scaled).sum(dim=1)
        return moves, (rest / one).log() - distance / rest * (1.0 + 0.5 / rest)

    def personal(self, features: ArrayLike, labels: ArrayLike, *, client: str | None = None) -> PersonalDiscriminant:
        """The client's means in it, from its own rows."""
        F, Y = client_rows(self.total, features, labels, client)
        return PersonalDiscriminant(self, self._rows(F, Y))

    def own_model(self, own: Statistics) -> AffineModel:
        """The model with the client's means, from its statistics (see `Standardization`) instead of its rows."""
        n = own.counts.to(torch.float64)
        sums = self._V.mT @ own.cross - self._rotated * n
        return self._with_means(_Weights.of(sums.mT, n, self._scaled, self.total.counts.to(torch.float64)), n)

    def _with_means(self, own: _Weights, counts: Tensor) -> AffineModel:
        """Weights and constants with the means of a client that has so many rows of each class."""
        w = own.class_weights(counts)
        shift = own.shift_weight(int(counts.sum()))
        return self._affine(self._rotated + own.class_means * w + torch.outer(own.b, (1.0 - w) * shift))

    def _chosen(self, shrinkage: float | Literal["oas"]) -> float:
        if shrinkage == "oas":
            rows = self.total.num_samples - int((self.total.counts > 0).sum())
            if rows < 1:
                return 1.0
            values = self._values / rows
            return oas_shrinkage(float(values.sum()), float(values.square().sum()), rows, len(values))
        if not 0.0 <= float(shrinkage) <= 1.0:
            raise ShrinkageError(f"shrinkage is {shrinkage!r}; give a number from 0 to 1, or 'oas'")
        if shrinkage == 0.0 and bool((self._values == 0.0).any()):
            rank = int((self._values > 0.0).sum())
            raise ShrinkageError(
                f"the covariance within classes has rank {rank} of {len(self._values)}; give a shrinkage above 0"
            )
        return float(shrinkage)

    def _spectrum(self, trace: Tensor, rows: Tensor | float) -> Tensor:
        """Eigenvalues of Σ for traces (n,) of S and numbers of rows: (n, m)."""
        target = trace / len(self._values)
        # Rows that are all alike have no covariance; any multiple of the identity then gives the nearest mean.
        target = torch.where(target > 0.0, target, 1.0)
        return ((1.0 - self.shrinkage) * self._values + self.shrinkage * target[:, None]) / rows

    @property
    def _scaled(self) -> Tensor:
        """The eigenvalues of Σ (m,)."""
        return self._spectrum(self._values.sum()[None], float(self.total.num_samples))[0]

    def _affine(self, rotated_means: Tensor) -> AffineModel:
        n = self.total.counts.to(torch.float64)
        whitened = rotated_means / self._scaled[:, None]
        bias = (n / n.sum()).log() - (rotated_means * whitened).sum(dim=0) / 2
        return AffineModel(self._V @ whitened, bias)

    def _rows(self, F: Tensor, Y: Tensor) -> _Rows:
        labels = Y.argmax(dim=1)
        X = F @ self._V
        return _Rows(X, labels, X - self._rotated.mT[labels], Y.sum(dim=0))


@dataclass(frozen=True)
class _Rows:
    """A client's rows in the basis V: X (N_k, m), their residuals U = X − μ_y, and its rows of each class (d,)."""

    X: Tensor
    labels: Tensor
    U: Tensor
    counts: Tensor

    @property
    def sums(self) -> Tensor:
        """Of the residuals, by class (d, m)."""
        return torch.zeros((len(self.counts), self.X.shape[1])).to(self.X).index_add_(0, self.labels, self.U)

    def left_out(self, of: Discriminant, personal: _Weights | None) -> Tensor:
        """Scores (N_k, d) of each row without itself."""
        X, U, c = self.X, self.U, self.labels
        n = of.total.counts.to(torch.float64)
        rest = (n[c] - 1.0).clamp(min=1.0)  # alone in its class, u = 0: any number will do
        kappa = n[c] / rest
        N = float(of.total.num_samples)
        trace = of._values.sum() - kappa * U.square().sum(dim=1)
        # A row may be all that strays from its class's mean: without it there is no covariance, to rounding.
        trace = torch.where(trace > of._rounding, trace, 0.0)
        # G = (N − 1)⁻¹ times the inverse of Σ' before its update of rank one, diagonal in V, for each row.
        G = 1.0 / of._spectrum(trace, N - 1.0 if N > 1 else 1.0)
        M, slide, own = self._means(of, rest, personal)
        XG, UG = X * G, U * G
        h, g = (UG * U).sum(dim=1, keepdim=True), (XG * U).sum(dim=1, keepdim=True)
        R = UG @ M
        xGM = XG @ M + slide * g
        mGM = G @ M.square() + 2.0 * slide * R + slide.square() * h
        uGM = R + slide * h
        at = c[:, None]
        xGM.scatter_(1, at, (XG * own).sum(dim=1, keepdim=True))
        mGM.scatter_(1, at, (G * own.square()).sum(dim=1, keepdim=True))
        uGM.scatter_(1, at, (UG * own).sum(dim=1, keepdim=True))
        share = ((1.0 - of.shrinkage) * kappa / max(N - 1.0, 1.0))[:, None]
        left = 1.0 - share * h
        # A row that alone spans a direction leaves a singular covariance: without shrinkage nothing is known there.
        phi = share / torch.where(left > rank_tolerance(X.shape[1]), left, torch.inf)
        scores = xGM + phi * g * uGM - (mGM + phi * uGM.square()) / 2
        counts = n.expand(len(c), -1).scatter(1, at, (n[c] - 1.0)[:, None])
        return scores + (counts / max(N - 1.0, 1.0)).log()

    def _means(self, of: Discriminant, rest: Tensor, personal: _Weights | None) -> tuple[Tensor, Tensor, Tensor]:
        """Means without row i: M_c + slide_ic u_i for classes (m, d), (N_k, d); and the row's own class's (N_k, m)."""
        if personal is None:
            own = of._rotated.mT[self.labels] - self.U / rest[:, None]
            return of._rotated, torch.zeros((len(self.X), 1)).to(self.X), own
        c, rows = self.labels, len(self.X)
        U, others = self.U, max(rows - 1, 1)
        # Without row i, the residuals of the client's other rows of its class grow by u/(n_c − 1).
        in_class = self.counts[c] - 1.0
        growth = in_class / rest
        shift = rows / others * personal.b[None, :] - ((1.0 - growth) / others)[:, None] * U if rows > 1 else 0.0 * U
        w0 = personal.shift_weight(others if rows > 1 else 0)
        w = personal.class_weights(self.counts)
        M = of._rotated + personal.class_means * w + torch.outer(personal.b, (1.0 - w) * w0 * rows / others)
        slide = -torch.outer((1.0 - growth) / others, (1.0 - w) * w0)
        w_own = personal.class_weights(in_class)[:, None]
        b_own = (self.counts[c][:, None] * personal.class_means.mT[c] - U) / in_class.clamp(min=1.0)[:, None]
        b_own = b_own + U / rest[:, None]
        own = of._rotated.mT[c] - U / rest[:, None] + w_own * b_own + (1.0 - w_own) * w0 * shift
        return M, slide, own


@dataclass(frozen=True)
class _Weights:
    """Mean residuals b (m,) and by class (m, d) in the basis V, and the variances of shifts and of classes."""

    b: Tensor
    class_means: Tensor
    shift_variance: float
    class_variance: float

    @classmethod
    def of(cls, sums: Tensor, n: Tensor, spectrum: Tensor, total: Tensor) -> _Weights:
        """By moments, in units of Σ: E‖b_c − b‖² / m = τ² + what the rows' own scatter gives.

        From the client's sums of residuals (d, m) and rows (d,) by class; `total` (d,) are everybody's rows.
        """
        N = float(n.sum())
        held = n > 0
        means = torch.where(held[:, None], sums / n.clamp(min=1.0)[:, None], 0.0)
        b = sums.sum(dim=0) / N
        # μ_c has seen these rows: a mean of n of its N_c rows strays from it by Σ (1/n − 1/N_c).
        noise = torch.where(held, 1.0 / n.clamp(min=1.0) - 1.0 / total.clamp(min=1.0), 0.0)
        size = ((means - b).square() / spectrum).mean(dim=1)
        classes = float(held.sum())
        if classes > 1:
            # Of equal weight; less the part that fitting b takes.
            expected = noise[held].sum() - (n * noise)[held].sum() / N
            tau = float((size[held].sum() - expected) / (classes - 1.0))
        else:
            tau = 0.0
        tau = max(tau, 0.0)
        drift = float((b.square() / spectrum).mean())
        by_chance = float((n.square() * (noise + tau))[held].sum()) / N**2
        return cls(b, means.mT, max(drift - by_chance, 0.0), tau)

    def shift_weight(self, rows: int) -> float:
        """w₀ of a shift seen in so many rows."""
        return 0.0 if rows < 1 else self.shift_variance / (self.shift_variance + 1.0 / rows)

    def class_weights(self, counts: Tensor) -> Tensor:
        """w_c of classes seen in so many rows."""
        return self.class_variance * counts / (1.0 + self.class_variance * counts)


class PersonalDiscriminant:
    """The federation's covariance with the client's means; see `Discriminant.personal`."""

    def __init__(self, federation: Discriminant, rows: _Rows) -> None:
        self._federation, self._rows = federation, rows
        total = federation.total.counts.to(torch.float64)
        self._weights = _Weights.of(rows.sums, rows.counts, federation._scaled, total)

    @property
    def shift_weight(self) -> float:
        """w₀, of the shift that all the client's rows share."""
        return self._weights.shift_weight(len(self._rows.X))

    @property
    def class_weights(self) -> Tensor:
        """w_c (d,), of the client's own class means; 0 for classes it has no rows of."""
        return self._weights.class_weights(self._rows.counts)

    @cached_property
    def model(self) -> AffineModel:
        """Weights and constants with the client's means."""
        return self._federation._with_means(self._weights, self._rows.counts)

    def scores(self, features: ArrayLike) -> Tensor:
        """(n, d)."""
        return self.model.scores(features)

    def loo_scores(self) -> Tensor:
        """For each of the client's rows the scores (N_k, d) without it, the variances τ² and the shrinkage as they are.

        A class that the row is alone in, in the whole federation, has the score −∞.
        """
        return self._rows.left_out(self._federation, self._weights)
