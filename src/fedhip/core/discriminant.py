"""The shared-covariance discriminant (LDA) from summed statistics, and a client's own means in it.

    μ_c = B_c / n_c,   S = A − Σ_c n_c μ_c μ_cᵀ,   Σ = ((1 − s) S + s (tr S / m) I) / N
    score_c(x) = x·Σ⁻¹μ_c − ½ μ_c·Σ⁻¹μ_c + log(n_c / N)

One eigendecomposition S = V diag(λ) Vᵀ serves every shrinkage s, and leave-one-out. Without row x of class c,
u = x − μ_c:

    n_c' = n_c − 1,   μ_c' = μ_c − u/(n_c − 1),   S' = S − κ u uᵀ,   κ = n_c/(n_c − 1)

and the shrinkage's target tr S'/m moves with it: a shift of the spectrum for each row, and an update of rank one. The
shrinkage itself, where it is "oas", is chosen without the row too, from tr S' and tr S'² = tr S² − 2κ u·Su + κ² (u·u)².
So the scores are those of a discriminant fitted without the row, exactly, *of the features as they are*: where these
were standardised, mean and scale are of all rows, the row among them.

**Personal means.** Client k's features may be shifted, all of them (its camera) or class by class. They are shifted
from the others' means μ°_c = (B_c − B_kc)/(n_c − n_kc): the mean of all rows of a class holds its own, and where it
alone has the class it is its own. With d_c, the mean of its rows of class c less μ°_c, in units of Σ,

    var d_c = τ₀² + τ² + 1/v_c,   1/v_c = 1/n_kc + 1/(n_c − n_kc)

if shifts have the variance τ₀² and classes τ² on top; both are from moments of the d_c. v_c is the number of rows that
tell of a difference: 0 for a class that the client alone has, or has not. With V = Σ v_c and b = Σ v_c d_c / V,

    w₀ = τ₀²/(τ₀² + τ² Σ(v_c/V)² + 1/V),   w_c = τ²/(τ² + 1/v_c),   p_c = n_kc/n_c
    μ_kc = μ_c + (1 − p_c) (w_c d_c + (1 − w_c) w₀ b)

are the empirical Bayes means: the others' of a class, moved by w₀ b, and the client's, each weighed by how well it says
where the client's are. Large τ² gives its own means. Where both variances are 0, no more than chance, all rows count
alike: the federation's. A class that the client alone has keeps its mean, for its rows are shifted already. Neither
μ°_c nor d_c need be computed: (1 − p_c) d_c is the mean of the residuals x − μ_c, and v_c d_c their sum.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.groups import checked_groups, members
from fedhip.core.ridge.personalization import client_rows
from fedhip.core.rows import ArrayLike, one_hot
from fedhip.core.solvers import rank_tolerance
from fedhip.core.statistics import Statistics
from fedhip.errors import InputError


def oas_shrinkage(trace: Tensor, trace_of_square: Tensor, rows: Tensor, width: int) -> Tensor:
    """The oracle approximating shrinkage (Chen et al., 2010) of covariance matrices, from two traces of each.

    Parameters
    ----------
    trace, trace_of_square : Tensor (n,)
        tr S and tr S² of scatter matrices S (m, m), sums over centred Gaussian rows.
    rows : Tensor (n,)
        Their number: for the scatter within classes, rows less classes. Without any, 1.
    """
    mean_square, squared_mean = trace_of_square / width**2, (trace / width).square()
    spread = (rows + 1.0) * (mean_square - squared_mean / width)
    chosen = ((mean_square + squared_mean) / spread).clamp(max=1.0)
    return torch.where((spread > 0.0) & (rows >= 1.0), chosen, 1.0)


class Discriminant:
    """LDA of all clients' rows, from their summed statistics.

    Parameters
    ----------
    total : Statistics
        The sum over clients, of features in comparable units (see `Standardization`).
    shrinkage : float or "oas"
        s, from 0 (the covariance as it is) to 1 (the nearest mean); "oas" takes the one of least expected error for
        Gaussian rows, from the sum alone, and leave-one-out from the sum without the row.

    Notes
    -----
    Cost: O(m³) once; O(N_k m (m + d)) for the leave-one-out scores of a client.
    A class without rows has the score −∞. A feature that is 0 in every row has the weight 0 and is no part of m: the
    shrinkage is the same with and without it.
    """

    def __init__(self, total: Statistics, shrinkage: float | Literal["oas"] = "oas") -> None:
        if total.num_samples == 0:
            raise InputError("the sum holds no rows; add at least one client's statistics")
        self.total = total
        self._counts = n = total.counts.to(torch.float64)
        self._means = total.cross / n.clamp(min=1.0)
        scatter = total.gram - (self._means * n) @ self._means.mT
        live = total.gram.diagonal() > 0.0
        self._live = live if bool(live.any()) else torch.ones_like(live)
        values, self._V = self._eigenpairs(scatter)
        # Below this, the difference of two sums is their rounding.
        self._rounding = rank_tolerance(len(values)) * float(total.gram.diagonal().max())
        self._values = torch.where(values > self._rounding, values, 0.0)
        self._rotated = self._V.mT @ self._means
        self.shrinkage, self._chosen_anew = self._chosen(shrinkage), shrinkage == "oas"

    def _eigenpairs(self, scatter: Tensor) -> tuple[Tensor, Tensor]:
        """λ (m',) and V (m, m') of the m' features that are not 0 in every row, with rows of 0 for the others."""
        if bool(self._live.all()):
            values, V = torch.linalg.eigh(scatter)
            return values, V
        values, of_live = torch.linalg.eigh(scatter[self._live][:, self._live])
        V = of_live.new_zeros((len(scatter), len(values)))
        V[self._live] = of_live
        return values, V

    @cached_property
    def model(self) -> AffineModel:
        """Weights Σ⁻¹μ_c and the scores' constants."""
        return self._affine(self._rotated)

    @property
    def covariance(self) -> Tensor:
        """Σ (m, m), the shrunk covariance within classes; features that are 0 in every row have the mean variance."""
        covariance: Tensor = (self._V * self._scaled) @ self._V.mT
        covariance.diagonal()[~self._live] = self._scaled.mean()
        return covariance

    def scores(self, features: ArrayLike) -> Tensor:
        """(n, d)."""
        return self.model.scores(features)

    def loo_scores(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        client: str | None = None,
        groups: ArrayLike | None = None,
    ) -> Tensor:
        """For each row of a client the scores (N_k, d) of the discriminant fitted without it, exactly.

        Of `groups` (N_k,), without all rows of the row's group.

        A shrinkage that was given stays, "oas" is chosen without the row. The features are taken as they are: if they
        were standardised by all rows, the row had its part in that, and a refit from raw features may differ. A row
        that is alone in its class leaves that class without rows, and its score −∞.
        """
        rows = self.rows(features, labels, client=client)
        together = checked_groups(groups, len(rows.X))
        return rows.left_out(self, None) if together is None else without_groups(self, rows, None, together)

    def rows(self, features: ArrayLike, labels: ArrayLike, *, client: str | None = None) -> RotatedRows:
        """A client's rows as the discriminant sees them, for whoever asks more than once."""
        return self._rows(*client_rows(self.total, features, labels, client))

    def moves_without(self, rows: RotatedRows, gone: Tensor) -> tuple[Tensor, Tensor]:
        """What leaving out the rows `gone` (N_k,) bool does to all of a client's scores (N_k, d), by classes' means.

        And beside it (N_k,), what leaving out a row alone does so to the score of its own class. The covariance, to
        which a row matters as one of N, stays as it is. A class with no other row keeps its mean and counts as one.
        """
        n = self._counts.clamp(min=1.0)
        Y = one_hot(rows.labels, len(n))
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
        return PersonalDiscriminant(self, self.rows(features, labels, client=client))

    def personal_affine(self, own: Statistics) -> AffineModel:
        """The model with the client's means, from its statistics (see `Standardization`) instead of its rows."""
        n = own.counts.to(torch.float64)
        sums = self._V.mT @ own.cross - self._rotated * n
        return self._with_means(_Weights.of(sums.mT, n, self._counts, self._scaled))

    def _with_means(self, own: _Weights) -> AffineModel:
        """Weights and constants with a client's means."""
        shift = own.shift_per_sum(own.v.sum(), own.v.square().sum()) * own.sum
        return self._affine(self._rotated + own.class_means * own.class_weights(own.v) + own.spread(shift))

    def _chosen(self, shrinkage: float | Literal["oas"]) -> float:
        if shrinkage == "oas":
            rows = self._counts.sum() - (self._counts > 0.0).sum()
            return float(oas_shrinkage(self._values.sum(), self._values.square().sum(), rows, len(self._values)))
        if not 0.0 <= float(shrinkage) <= 1.0:
            raise InputError(f"shrinkage is {shrinkage!r}; give a number from 0 to 1, or 'oas'")
        if shrinkage == 0.0 and bool((self._values == 0.0).any()):
            rank = int((self._values > 0.0).sum())
            raise InputError(
                f"the covariance within classes has rank {rank} of {len(self._values)}; give a shrinkage above 0"
            )
        return float(shrinkage)

    def _spectrum(self, trace: Tensor, shrinkage: Tensor, rows: float) -> Tensor:
        """Eigenvalues of Σ for traces (n,) of S, shrinkages (n,) and a number of rows: (n, m)."""
        target = trace / len(self._values)
        # Rows that are all alike have no covariance; any multiple of the identity then gives the nearest mean.
        target = torch.where(target > 0.0, target, 1.0)
        return ((1.0 - shrinkage)[:, None] * self._values + (shrinkage * target)[:, None]) / rows

    def _shrinkage_without(self, trace: Tensor, U: Tensor, labels: Tensor, kappa: Tensor) -> Tensor:
        """s without each of the rows of residuals U (n, m); `trace` (n,) are those of S'."""
        if not self._chosen_anew:
            return torch.full_like(trace, self.shrinkage)
        squares = U.square()
        along, length = squares @ self._values, squares.sum(dim=1)
        of_square = self._values.square().sum() - 2.0 * kappa * along + (kappa * length).square()
        # No matrix of this trace has less, and none at all has any.
        of_square = torch.maximum(of_square, trace.square() / len(self._values)) * (trace > 0.0)
        alone = self._counts[labels] == 1.0
        rows = self._counts.sum() - (self._counts > 0.0).sum() - 1.0 + alone.to(trace)
        return oas_shrinkage(trace, of_square, rows, len(self._values))

    @property
    def _scaled(self) -> Tensor:
        """The eigenvalues of Σ (m,)."""
        given = torch.full_like(self._values[:1], self.shrinkage)
        return self._spectrum(self._values.sum()[None], given, float(self.total.num_samples))[0]

    def _affine(self, rotated_means: Tensor) -> AffineModel:
        n = self._counts
        whitened = rotated_means / self._scaled[:, None]
        bias = (n / n.sum()).log() - (rotated_means * whitened).sum(dim=0) / 2
        return AffineModel(self._V @ whitened, bias)

    def _rows(self, F: Tensor, Y: Tensor) -> RotatedRows:
        labels = Y.argmax(dim=1)
        X = F @ self._V
        return RotatedRows(X, labels, X - self._rotated.mT[labels], Y.sum(dim=0))


@dataclass(frozen=True)
class RotatedRows:
    """A client's rows in the basis V: X (N_k, m), their residuals U = X − μ_y, and its rows of each class (d,)."""

    X: Tensor
    labels: Tensor
    U: Tensor
    counts: Tensor

    @property
    def sums(self) -> Tensor:
        """Of the residuals, by class (d, m)."""
        return torch.zeros((len(self.counts), self.X.shape[1])).to(self.X).index_add_(0, self.labels, self.U)

    def some(self, at: Tensor) -> RotatedRows:
        """Those of the rows `at` (N_k,) bool; the counts are still the client's."""
        return RotatedRows(self.X[at], self.labels[at], self.U[at], self.counts)

    def left_out(self, of: Discriminant, personal: _Weights | None) -> Tensor:
        """Scores (N_k, d) of each row without itself."""
        X, U, c, n = self.X, self.U, self.labels, of._counts
        rest = (n[c] - 1.0).clamp(min=1.0)  # alone in its class, u = 0: any number will do
        kappa = n[c] / rest
        N = float(of.total.num_samples)
        trace = of._values.sum() - kappa * U.square().sum(dim=1)
        # A row may be all that strays from its class's mean: without it there is no covariance, to rounding.
        trace = torch.where(trace > of._rounding, trace, 0.0)
        # G = (N − 1)⁻¹ times the inverse of Σ' before its update of rank one, diagonal in V, for each row.
        shrinkage = of._shrinkage_without(trace, U, c, kappa)
        G = 1.0 / of._spectrum(trace, shrinkage, N - 1.0 if N > 1 else 1.0)
        others = _LeftOut.of(self, rest)
        M, own = of._rotated, of._rotated.mT[c] - U / rest[:, None]
        if personal is not None:
            M = M + personal.class_means * personal.class_weights(personal.v)
            own = own + others.own_means(self, personal)
        XG, UG = X * G, U * G
        h, g = (UG * U).sum(dim=1, keepdim=True), (XG * U).sum(dim=1, keepdim=True)
        xGM, uGM, mGM = XG @ M, UG @ M, G @ M.square()
        if personal is not None:
            # Means M_c + along_ic s + slide_ic u_i: the shift is another without the row.
            s, along = personal.sum[:, None], personal.spread(others.shift_per_sum(self, personal))
            slide = -others.gone * along
            sGs, uGs = G @ s.square(), UG @ s
            mGM = mGM + along * (2.0 * (G @ (M * s)) + along * sGs) + slide * (2.0 * (uGM + along * uGs) + slide * h)
            xGM = xGM + along * (XG @ s) + slide * g
            uGM = uGM + along * uGs + slide * h
        at = c[:, None]
        xGM.scatter_(1, at, (XG * own).sum(dim=1, keepdim=True))
        mGM.scatter_(1, at, (G * own.square()).sum(dim=1, keepdim=True))
        uGM.scatter_(1, at, (UG * own).sum(dim=1, keepdim=True))
        share = ((1.0 - shrinkage) * kappa / max(N - 1.0, 1.0))[:, None]
        left = 1.0 - share * h
        # A row that alone spans a direction leaves a singular covariance: without shrinkage nothing is known there.
        phi = share / torch.where(left > rank_tolerance(X.shape[1]), left, torch.inf)
        scores: Tensor = xGM + phi * g * uGM - (mGM + phi * uGM.square()) / 2
        counts = n.expand(len(c), -1).scatter(1, at, (n[c] - 1.0)[:, None])
        return scores + (counts / max(N - 1.0, 1.0)).log()


@dataclass(frozen=True)
class _LeftOut:
    """A row's own class without it: the client's other rows of it, 1 − p_c and v_c, each (N_k, 1).

    Without row i, the residuals of these rows grow by u/(n_c − 1); of their sum, (1 − p_c) u is gone.
    """

    rows: Tensor
    gone: Tensor
    v: Tensor

    @classmethod
    def of(cls, rows: RotatedRows, rest: Tensor) -> _LeftOut:
        left = (rows.counts[rows.labels] - 1.0)[:, None]
        gone = 1.0 - left / rest[:, None]
        return cls(left, gone, left * gone)

    def shift_per_sum(self, rows: RotatedRows, personal: _Weights) -> Tensor:
        """w₀/V without each row (N_k,)."""
        v, own, left = personal.v, personal.v[rows.labels], self.v[:, 0]
        return personal.shift_per_sum(v.sum() - own + left, v.square().sum() - own.square() + left.square())

    def own_means(self, rows: RotatedRows, personal: _Weights) -> Tensor:
        """What the client adds to the mean of the row's own class, without the row (N_k, m)."""
        c, w, gone = rows.labels, personal.class_weights(self.v), self.gone * rows.U
        sums = rows.counts[c][:, None] * personal.class_means.mT[c] - gone
        shift = self.shift_per_sum(rows, personal)[:, None] * (personal.sum - gone)
        return w * sums / self.rows.clamp(min=1.0) + (1.0 - w) * self.gone * shift


@dataclass(frozen=True)
class _Weights:
    """Residuals of a client's rows from the federation's means, in the basis V, and the variances τ₀² and τ².

    Their sum (m,) and their means by class (m, d); v_c and 1 − p_c of the classes (d,).
    """

    sum: Tensor
    class_means: Tensor
    v: Tensor
    others: Tensor
    shift_variance: float
    class_variance: float

    @classmethod
    def of(cls, sums: Tensor, n: Tensor, total: Tensor, spectrum: Tensor) -> _Weights:
        """From the client's sums of residuals (d, m) and rows (d,) by class; `total` (d,) are everybody's rows.

        By moments, in units of Σ and with q_c = v_c/V, of the C classes that the client and others have:

            E Σ_c ‖d_c − b‖²/m = τ² (C − 2 + C Σ q_c²) + Σ_c 1/v_c − C/V,   E ‖b‖²/m = τ₀² + τ² Σ q_c² + 1/V
        """
        others = (total - n) / total.clamp(min=1.0)
        v = n * others
        shared = v > 0.0
        sums = torch.where(shared[:, None], sums, 0.0)  # others are 0 but for rounding
        of_classes = sums.sum(dim=0), (sums / n.clamp(min=1.0)[:, None]).mT, v, others
        if not bool(shared.any()):
            return cls(*of_classes, 0.0, 0.0)
        v, C = v[shared], float(shared.sum())
        V, squares = float(v.sum()), float((v / v.sum()).square().sum())
        d, b = sums[shared] / v[:, None], sums.sum(dim=0) / V
        size = float(((d - b).square() / spectrum).mean(dim=1).sum())
        by_chance = float((1.0 / v).sum()) - C / V
        tau = max((size - by_chance) / (C - 2.0 + C * squares), 0.0) if C > 1.0 else 0.0
        drift = float((b.square() / spectrum).mean())
        return cls(*of_classes, max(drift - tau * squares - 1.0 / V, 0.0), tau)

    def shift_per_sum(self, V: Tensor, squares: Tensor) -> Tensor:
        """w₀/V, from V and Σ v_c²: w₀ b is that times the sum of residuals. Without any that tell, V = 0, that is 0."""
        of_classes = self.class_variance * squares / V.clamp(min=0.5)  # no v_c but 0 is less
        return self.shift_variance / (1.0 + self.shift_variance * V + of_classes)

    def class_weights(self, v: Tensor) -> Tensor:
        """w_c of classes of which so many rows tell."""
        return self.class_variance * v / (1.0 + self.class_variance * v)

    def spread(self, shifts: Tensor) -> Tensor:
        """(1 − p_c) (1 − w_c) times each of the shifts (n,): what is of them in the classes' means (n, d)."""
        return torch.outer(shifts, self.others * (1.0 - self.class_weights(self.v)))


class PersonalDiscriminant:
    """The federation's covariance with the client's means; see `Discriminant.personal`."""

    def __init__(self, federation: Discriminant, rows: RotatedRows) -> None:
        self._federation, self._rows = federation, rows
        self._weights = _Weights.of(rows.sums, rows.counts, federation._counts, federation._scaled)

    @property
    def shift_weight(self) -> float:
        """w₀, of the shift that all the client's rows share."""
        v = self._weights.v
        return float(v.sum() * self._weights.shift_per_sum(v.sum(), v.square().sum()))

    @property
    def class_weights(self) -> Tensor:
        """w_c (d,), of the client's own class means; 0 for classes it has no rows of, and for those it alone has."""
        return self._weights.class_weights(self._weights.v)

    @cached_property
    def model(self) -> AffineModel:
        """Weights and constants with the client's means."""
        return self._federation._with_means(self._weights)

    def scores(self, features: ArrayLike) -> Tensor:
        """(n, d)."""
        return self.model.scores(features)

    def loo_scores(self, groups: ArrayLike | None = None) -> Tensor:
        """For each of the client's rows the scores (N_k, d) without it, exactly but for the variances τ₀² and τ².

        Of `groups` (N_k,), without all rows of the row's group. These are as they are, and so is the standardisation of
        the features (see `Discriminant.loo_scores`). A class that the row is alone in, in the whole federation, has the
        score −∞.
        """
        return self._left_out(self._weights, groups)

    def fold_scores(self, fold: Tensor, groups: ArrayLike | None = None) -> Tensor:
        """The same with variances that know nothing of a row's fold (N_k,) either; a group is in one fold.

        With few rows the variances follow chance, and what a row gives to them speaks for the row itself.
        """
        together = checked_groups(groups, len(fold))
        scores = torch.empty((len(fold), len(self._rows.counts))).to(self._rows.X)
        for number in set(fold.tolist()):
            at = fold == number
            others = self.without(at)._weights
            own = replace(self._weights, shift_variance=others.shift_variance, class_variance=others.class_variance)
            if together is None:
                scores[at] = self._rows.some(at).left_out(self._federation, own)
                continue
            places = at.nonzero()[:, 0]
            for mates in members(together[at.cpu()]):
                S = places[mates.to(places.device)]
                scores[S] = _without(self._federation, self._rows, own, S)
        return scores

    def without(self, gone: Tensor) -> PersonalDiscriminant:
        """As if there had never been the rows `gone` (N_k,) bool; but for the covariance, which stays."""
        federation, inside = copy(self._federation), self._rows.some(gone)
        federation.__dict__.pop("model", None)
        lost = torch.bincount(inside.labels, minlength=len(inside.counts)).to(inside.counts)
        federation._counts = self._federation._counts - lost
        federation._rotated = self._federation._rotated - inside.sums.mT / federation._counts.clamp(min=1.0)
        X, labels = self._rows.X[~gone], self._rows.labels[~gone]
        rows = RotatedRows(X, labels, X - federation._rotated.mT[labels], self._rows.counts - lost)
        return PersonalDiscriminant(federation, rows)

    def common_scores(self, groups: ArrayLike | None = None) -> Tensor:
        """`loo_scores` by the federation's means."""
        return self._left_out(None, groups)

    def _left_out(self, personal: _Weights | None, groups: ArrayLike | None) -> Tensor:
        together = checked_groups(groups, len(self._rows.X))
        if together is None:
            return self._rows.left_out(self._federation, personal)
        return without_groups(self._federation, self._rows, personal, together)


def without_groups(of: Discriminant, rows: RotatedRows, personal: _Weights | None, groups: Tensor) -> Tensor:
    """Scores (N_k, d) of each row without its group; with a client's own means, exactly but for τ₀² and τ².

    With j_c rows of class c in the group, u their residuals and t_c the sum of these,

        μ_c' = μ_c − t_c/(n_c − j_c),   S' = S − Σ u uᵀ − Σ_c t_c t_cᵀ/(n_c − j_c) = S − P Pᵀ

    an update of low rank, and the spectrum's shift with the shrinkage as for one row.
    """
    scores = torch.empty((len(rows.X), len(of._counts))).to(rows.X)
    for at in members(groups):
        S = at.to(rows.X.device)
        scores[S] = _without(of, rows, personal, S)
    return scores


def _without(of: Discriminant, rows: RotatedRows, personal: _Weights | None, S: Tensor) -> Tensor:
    """Scores (s, d) of the rows S by the discriminant without them."""
    U, c, d = rows.U[S], rows.labels[S], len(of._counts)
    gone = torch.bincount(c, minlength=d).to(U)
    n = of._counts - gone
    sums = torch.zeros((d, U.shape[1])).to(U).index_add_(0, c, U)
    slides = -sums / n.clamp(min=1.0)[:, None]  # of the means; of a class without rows it counts for nothing
    hit = (gone > 0.0) & (n > 0.0)
    P = torch.cat((U, sums[hit] / n[hit].sqrt()[:, None]))  # (r, m)
    N = max(float(of.total.num_samples - gone.sum()), 1.0)
    product = P @ P.mT
    trace = of._values.sum() - product.diagonal().sum()
    trace = torch.where(trace > of._rounding, trace, 0.0)
    shrinkage = torch.full_like(trace, of.shrinkage)
    if of._chosen_anew:
        # tr (S − PPᵀ)² = tr S² − 2 tr PᵀSP + tr (PᵀP)²
        of_square = of._values.square().sum() - 2.0 * (P.square() @ of._values).sum() + product.square().sum()
        of_square = torch.maximum(of_square, trace.square() / len(of._values)) * (trace > 0.0)
        shrinkage = oas_shrinkage(trace, of_square, n.sum() - (n > 0.0).sum(), len(of._values))
    G = 1.0 / of._spectrum(trace[None], shrinkage[None], N)[0]
    means = of._rotated + slides.mT
    if personal is not None:
        own = rows.counts - gone
        others = (n - own) / n.clamp(min=1.0)
        v = own * others
        # Residuals of the client's other rows, from the means that moved.
        left = torch.where((v > 0.0)[:, None], rows.sums - sums - own[:, None] * slides, 0.0)
        weights = _Weights(
            left.sum(dim=0),
            (left / own.clamp(min=1.0)[:, None]).mT,
            v,
            others,
            personal.shift_variance,
            personal.class_variance,
        )
        shift = weights.shift_per_sum(v.sum(), v.square().sum()) * weights.sum
        means = means + weights.class_means * weights.class_weights(v) + weights.spread(shift)
    share = (1.0 - shrinkage) / N
    PG = P * G
    inner = torch.eye(len(P)).to(P) - share * PG @ P.mT
    # A group that alone spans a direction leaves a singular covariance: without shrinkage nothing is known there.
    update = share * torch.linalg.pinv(inner, rtol=rank_tolerance(P.shape[1]), hermitian=True)
    XP, MP = rows.X[S] @ PG.mT, means.mT @ PG.mT
    linear = (rows.X[S] * G) @ means + XP @ update @ MP.mT
    square = G @ means.square() + ((MP @ update) * MP).sum(dim=1)
    scores: Tensor = linear - square / 2 + (n / N).log()
    return scores
