"""Every α from one factorisation, with exact leave-one-out; and every β from one eigendecomposition.

In whitened coordinates (A + βI = R Rᵀ, W = F_k R⁻ᵀ, U = R⁻¹B) the client's problem is a ridge path over α:

    W Wᵀ = E Λ Eᵀ, all eigenvalues in [0, 1]
    y_i − fit_i(α) = [E diag(1/(1 + αλ)) Eᵀ (Y_k − W U)]_i
    1 − h_i(α) = Σ_j E_ij² (1 − λ_j)/(1 + αλ_j)          h_i: the weight of row i in its own prediction
    y_i − loo_i(α) = (y_i − fit_i)/(1 − h_i)              loo_i: the prediction without row i, exactly

Leaving row i out takes it from both places it counts in: once in the sum over clients, α times on top. Both lines are
sums of terms of one sign, so that nothing cancels however large α is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor

from fedhip.core.aggregation import GlobalSystem, global_system
from fedhip.core.errors import AlphaError, BetaError, EmptyClientError, LeaveOneOutWarning
from fedhip.core.personalization import client_rows
from fedhip.core.ridge import penalty_grid
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import EigenFactor, rank_tolerance, require_alpha, require_beta, truncated
from fedhip.core.statistics import Statistics

#: 0 to 1000: zero, four to the decade from 0.1, and the values of the paper's Table II.
DEFAULT_ALPHAS: tuple[float, ...] = tuple(
    sorted({0.0, *(10.0 ** (i / 4) for i in range(-4, 13)), *(5.0 * i for i in range(13))})
)


#: Leave-one-out looks at as many values of α at a time as give this many scores, or at one.
_LOO_ENTRIES = 2**21


class PersonalizationPath:
    """All of one client's personalized models P̂_k(α), and how each does on rows it has not seen.

    Parameters
    ----------
    total : Statistics
        The sum over clients, this client included.
    features : (N_k, m)
    labels : (N_k,)
        The client's own rows.
    beta : float
        The federation's ridge penalty.
    client : str, optional
        Named in error messages.
    targets : (d,), optional
        What a row's target is in the column of its class, in place of 1. For rows that are weighted by class, the
        features times √w and √w here; scores are those of the rows without their weights.

    Notes
    -----
    Cost: the federation's factorisation, O(m³), once for all clients; then O(N_k m² + r³) with
    r = min(N_k, m) for the client; then O(N_k r d) for each α.
    """

    _warned = False

    def __init__(
        self,
        total: Statistics,
        features: ArrayLike,
        labels: ArrayLike,
        beta: float = 1.0,
        *,
        client: str | None = None,
        targets: Tensor | None = None,
    ) -> None:
        F, Y = client_rows(total, features, labels, client, targets)
        system = global_system(total, beta)
        self._start(system, system.factor.whiten(F), Y)

    @classmethod
    def _whitened(cls, system: GlobalSystem, W: Tensor, Y: Tensor) -> PersonalizationPath:
        self = object.__new__(cls)
        self._start(system, W, Y)
        return self

    def _start(self, system: GlobalSystem, W: Tensor, Y: Tensor) -> None:
        self._system, self._W, self._Y = system, W, Y
        self._labels = Y.argmax(dim=1)
        self._residuals = Y - W @ system.U

    @cached_property
    def _spectrum(self) -> _Spectrum:
        return _Spectrum.of(self._W, self._residuals)

    def weights(self, alpha: float) -> Tensor:
        """P̂_k(α), (m, d) float64."""
        alpha = require_alpha(alpha)
        if alpha == 0.0:
            return self._system.G.clone()
        weight = torch.tensor([alpha], dtype=self._W.dtype, device=self._W.device)
        correction = self._W.mT @ (self._spectrum.E @ self._spectrum.shrunk(weight)[:, 0])
        return self._system.G + alpha * self._system.factor.unwhiten(correction)

    def loo_scores(self, alpha: float) -> Tensor:
        """For each of the client's rows the scores (N_k, d) of the model fitted without that row.

        A row that alone determines its own prediction (a direction no other row has, and β = 0 or lost in
        rounding) gets zeros, counts as wrong, and is warned of: the others say nothing of it.
        """
        scores = self._leave_one_out([require_alpha(alpha)])[0][:, 0]
        return scores / self._Y.amax(dim=1, keepdim=True)

    def loo_accuracy(self, alphas: Sequence[float] = DEFAULT_ALPHAS, *, only_local_classes: bool = False) -> Tensor:
        """For each α the share of the client's rows that the models fitted without them classify right.

        With `only_local_classes` the models choose among the classes of the client's other rows.
        """
        return self._loo(alphas, only_local_classes)[0] / len(self._W)

    def loo_error(self, alphas: Sequence[float] = DEFAULT_ALPHAS) -> Tensor:
        """For each α the mean over rows of ‖loo_i − y_i‖²."""
        return self._loo(alphas)[1] / len(self._W)

    def select(self, alphas: Sequence[float] = DEFAULT_ALPHAS, *, only_local_classes: bool = False) -> float:
        """The α of highest leave-one-out accuracy; of several, the smallest."""
        ordered = sorted(_checked_alphas(alphas))
        return ordered[int(self._loo(ordered, only_local_classes)[0].argmax())]

    def _loo(self, alphas: Sequence[float], only_local_classes: bool = False) -> tuple[Tensor, Tensor]:
        """For each α: rows classified right, and the sum of squared errors."""
        checked = _checked_alphas(alphas)
        counts = (self._Y > 0.0).sum(dim=0)
        # Without its only row a class is not among the client's: no model of the others can name it.
        nameable = counts[self._labels] > 1 if only_local_classes else torch.ones_like(self._labels, dtype=torch.bool)
        at_once = max(1, _LOO_ENTRIES // self._Y.numel())
        right, error = [], []
        for start in range(0, len(checked), at_once):
            scores, known = self._leave_one_out(checked[start : start + at_once])
            error.append((scores - self._Y[:, None]).square().sum(dim=(0, 2)))
            if only_local_classes:
                scores = scores.masked_fill(counts == 0, -torch.inf)
            hit = scores.argmax(dim=2) == self._labels[:, None]
            right.append((hit & known & nameable[:, None]).sum(dim=0))
        return torch.cat(right).to(torch.float64), torch.cat(error)

    def _leave_one_out(self, alphas: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Scores (N_k, a, d) without the row itself, and which rows have any (N_k, a)."""
        rows, classes = self._Y.shape
        if not any(alphas):  # the global model needs no spectrum
            residuals = self._residuals[:, None].expand(rows, len(alphas), classes)
            remainder = (1.0 - self._W.square().sum(dim=1, keepdim=True)).expand(rows, len(alphas))
            most = torch.ones_like(remainder)
        else:
            spectrum, weights = self._spectrum, torch.tensor(alphas, dtype=self._W.dtype, device=self._W.device)
            # One product for all α: E (N_k, r) times (r, a·d).
            shrunk = spectrum.shrunk(weights).flatten(start_dim=1)
            residuals = (spectrum.E @ shrunk).view(rows, len(alphas), classes)
            residuals += spectrum.outside[:, None]
            remainder, most = spectrum.remainder(weights)
        known = remainder > rank_tolerance(max(self._W.shape)) * most
        if not bool(known.all()) and not self._warned:
            self._warned = True
            first = int((~known).any(dim=0).nonzero()[0])
            warnings.warn(
                f"{int((~known[:, first]).sum())} of {rows} rows alone determine their own prediction at alpha = "
                f"{alphas[first]:g}: leave-one-out says nothing of them, and they count as wrong; a larger beta helps",
                LeaveOneOutWarning,
                stacklevel=4,
            )
        scores = self._Y[:, None] - residuals / remainder[:, :, None]
        return scores.masked_fill_(~known[:, :, None], 0.0), known


@dataclass(frozen=True)
class _Spectrum:
    """W Wᵀ = E diag(λ) Eᵀ: E (N_k, r) orthonormal, λ (r,); and what of rows and residuals lies outside of E."""

    E: Tensor
    values: Tensor
    coefficients: Tensor
    outside: Tensor
    share_outside: Tensor

    @classmethod
    def of(cls, W: Tensor, residuals: Tensor) -> _Spectrum:
        rows, width = W.shape
        if rows <= width:  # E is square: nothing lies outside
            values, E = torch.linalg.eigh(W @ W.mT)
            none = torch.zeros((1, 1), dtype=W.dtype, device=W.device)
            return cls(E, values.clamp(0.0, 1.0), E.mT @ residuals, none, none)
        values, Q = torch.linalg.eigh(W.mT @ W)
        kept = values > rank_tolerance(rows)  # the rest is rounding, and outside
        E = (W @ Q[:, kept]) / values[kept].sqrt()
        coefficients = E.mT @ residuals
        share_outside = (1.0 - E.square().sum(dim=1, keepdim=True)).clamp(min=0.0)
        return cls(E, values[kept].clamp(max=1.0), coefficients, residuals - E @ coefficients, share_outside)

    def shrunk(self, alphas: Tensor) -> Tensor:
        """diag(1/(1 + αλ)) Eᵀ (Y_k − W U) for each α (a,): (r, a, d)."""
        return self.coefficients[:, None] / self._shrinkage(alphas)[:, :, None]

    def remainder(self, alphas: Tensor) -> tuple[Tensor, Tensor]:
        """1 − h_i for each α (N_k, a), and the most it could be, all λ in the numerator 0.

        Its rounding is relative to that.
        """
        squares, shrinkage = self.E.square(), self._shrinkage(alphas)
        return (
            self.share_outside + squares @ ((1.0 - self.values)[:, None] / shrinkage),
            self.share_outside + squares @ (1.0 / shrinkage),
        )

    def _shrinkage(self, alphas: Tensor) -> Tensor:
        """1 + αλ (r, a)."""
        return 1.0 + self.values[:, None] * alphas


def _checked_alphas(alphas: Sequence[float] | float) -> list[float]:
    checked = [require_alpha(alpha) for alpha in ([alphas] if isinstance(alphas, float | int) else alphas)]
    if not checked:
        raise AlphaError("there is no alpha to choose from; give at least one")
    return checked


@dataclass(frozen=True)
class LooScore:
    """How the models over a grid of β do on a client's rows, each left out in turn. Scores of clients add."""

    betas: tuple[float, ...]
    right: Tensor
    squared_error: Tensor
    rows: int

    def __add__(self, other: LooScore) -> LooScore:
        if self.betas != other.betas:
            raise BetaError("scores over different grids of beta do not add; every client must score the same grid")
        right, error = self.right + other.right, self.squared_error + other.squared_error
        return LooScore(self.betas, right, error, self.rows + other.rows)

    def __radd__(self, other: object) -> LooScore:
        return self if other == 0 else NotImplemented

    @property
    def accuracy(self) -> Tensor:
        """Share of rows classified right, for each β."""
        return self.right / self.rows

    @property
    def error(self) -> Tensor:
        """Mean squared error over rows, for each β."""
        return self.squared_error / self.rows


class RegularizationPath:
    """Every global model Ĝ(β) from one eigendecomposition A = V diag(λ) Vᵀ of the summed Gram matrix.

    β belongs to the federation, so all clients choose it together: each scores the grid on its own rows by
    leave-one-out, and only the scores, two numbers for each β, are summed. `targets` as in `PersonalizationPath`.

        path = RegularizationPath(total)
        beta = path.select(path.score(F_k, y_k) for F_k, y_k in clients)
    """

    def __init__(
        self, total: Statistics, betas: Sequence[float] | None = None, *, targets: Tensor | None = None
    ) -> None:
        if total.num_samples == 0:
            raise EmptyClientError("the sum holds no rows; add at least one client's statistics")
        self._total, self._targets = total, targets
        self._values, self._V = torch.linalg.eigh(total.gram)
        self._rotated_cross = self._V.mT @ total.cross
        self.betas = tuple(sorted(require_beta(beta) for beta in (default_betas(total) if betas is None else betas)))
        if not self.betas:
            raise BetaError("there is no beta to choose from; give at least one")

    def weights(self, beta: float) -> Tensor:
        """Ĝ(β) = V diag(1/(λ + β)) VᵀB, (m, d) float64."""
        return self._system(self._factor(require_beta(beta))).G

    def score(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        alphas: Sequence[float] = (0.0,),
        *,
        client: str | None = None,
    ) -> LooScore:
        """Score every β on one client's rows by exact leave-one-out.

        With the default α = 0 the global model is scored. With several `alphas` the client is scored at the
        α it would select at that β, which is the personalized model the federation is after; that costs an
        eigendecomposition for each β.
        """
        F, Y = client_rows(self._total, features, labels, client, self._targets)
        rotated = F @ self._V
        right, error = [], []
        for beta in self.betas:
            factor = self._factor(beta)
            W = rotated[:, self._kept(factor)] / factor.values.sqrt()
            path = PersonalizationPath._whitened(self._system(factor), W, Y)
            rights, errors = path._loo(sorted(_checked_alphas(alphas)))
            best = int(rights.argmax())
            right.append(rights[best])
            error.append(errors[best])
        return LooScore(self.betas, torch.stack(right), torch.stack(error), len(F))

    def gcv(self) -> Tensor:
        """Generalized cross-validation for each β, from the summed statistics alone; smaller is better.

        N·RSS/(N − df)², with RSS = ‖Y‖² − 2 tr(ĜᵀB) + tr(ĜᵀAĜ), ‖Y‖² = N since every one-hot row has norm 1, and
        df = Σ λ/(λ + β). Where the model interpolates (df = N) there is nothing to judge it by: infinity.
        """
        N, values = self._total.num_samples, self._values
        counts = self._total.counts.to(values)
        squares = N if self._targets is None else float((counts * self._targets.to(values).square()).sum())
        power = self._rotated_cross.square().sum(dim=1)
        scores = []
        for beta in self.betas:
            factor = self._factor(beta)
            inverse = torch.zeros_like(values)
            inverse[self._kept(factor)] = 1.0 / factor.values
            residual = squares - (power * (2.0 * inverse - values * inverse.square())).sum()
            freedom = (values * inverse).sum()
            left = N - freedom
            interpolates = left <= rank_tolerance(max(N, len(values))) * N
            scores.append(torch.where(interpolates, torch.inf, N * residual.clamp(min=0.0) / left.square()))
        return torch.stack(scores)

    def minimize_gcv(self) -> float:
        """The β of smallest generalized cross-validation, from the sum alone; of several, the largest.

        At an N so small that every β interpolates, the largest.
        """
        scores = self.gcv()
        return self.betas[int((scores == scores.min()).nonzero()[-1])]

    def select(self, scores: LooScore | Iterable[LooScore]) -> float:
        """The β of highest leave-one-out accuracy over all clients' rows; of several, the largest."""
        terms = [scores] if isinstance(scores, LooScore) else list(scores)
        if not terms:
            raise EmptyClientError("no client scored the grid, so there is nothing to choose beta by")
        right = reduce(add, terms).right
        return terms[0].betas[int((right == right.max()).nonzero()[-1])]

    def _factor(self, beta: float) -> EigenFactor:
        return truncated(self._values + beta, self._V)

    def _system(self, factor: EigenFactor) -> GlobalSystem:
        return GlobalSystem(factor, self._rotated_cross[self._kept(factor)] / factor.values.sqrt()[:, None])

    def _kept(self, factor: EigenFactor) -> slice:
        """The eigenvalues ascend: the kept ones are the last."""
        return slice(len(self._values) - len(factor.values), None)


def default_betas(total: Statistics) -> tuple[float, ...]:
    """Two to the decade, from 1e-6 to 10 times the mean square of the features summed over rows."""
    return penalty_grid(float(total.gram.diagonal().mean()))
