"""Every α from one factorisation, with exact leave-one-out; and every β from one eigendecomposition.

In whitened coordinates (A + βI = R Rᵀ, W = F_k R⁻ᵀ, U = R⁻¹B) the client's problem is a ridge path over α:

    W Wᵀ = E Λ Eᵀ, all eigenvalues in [0, 1]
    fit(α) = W U + E diag(αλ/(1 + αλ)) Eᵀ (Y_k − W U)
    h_i(α) = (1 + α) Σ_j E_ij² λ_j/(1 + αλ_j)                            the weight of row i in its own prediction
    loo_i(α) = (fit_i − h_i y_i)/(1 − h_i)                               the prediction without row i, exactly

Leaving row i out takes it from both places it counts in: once in the sum over clients, α times on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedhip.core.aggregation import GlobalSystem, global_system
from fedhip.core.errors import AlphaError, BetaError, NotInTotalError
from fedhip.core.personalization import client_rows
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import EigenFactor, require_alpha, require_beta, truncated
from fedhip.core.statistics import Statistics

#: 0 to 1000: zero, four to the decade from 0.1, and the values of the paper's Table II.
DEFAULT_ALPHAS: tuple[float, ...] = tuple(
    sorted({0.0, *(10.0 ** (i / 4) for i in range(-4, 13)), *(5.0 * i for i in range(13))})
)

#: A row with 1 − h_i below this determines its own prediction: without it there is none.
_NO_EVIDENCE = 1e-12


class PersonalizationPath:
    """All of one client's personalized models P̂_k(α), and how each does on rows it has not seen.

    Parameters
    ----------
    total : Statistics
        The sum over clients, this client included.
    features : (N_k, m), labels : (N_k,)
        The client's own rows.
    beta : float
        The federation's ridge penalty.
    client : str, optional
        Named in error messages.

    Notes
    -----
    Cost: the federation's factorisation, O(m³), once for all clients; then O(N_k m² + r³) with
    r = min(N_k, m) for the client; then O(N_k r d) for each α.
    """

    def __init__(
        self,
        total: Statistics,
        features: ArrayLike,
        labels: ArrayLike,
        beta: float = 1.0,
        *,
        client: str | None = None,
    ) -> None:
        F, Y = client_rows(total, features, labels, client)
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
        self._base = W @ system.U

    @cached_property
    def _spectrum(self) -> _Spectrum:
        return _Spectrum.of(self._W, self._Y - self._base)

    def weights(self, alpha: float) -> Tensor:
        """P̂_k(α), (m, d) float64."""
        alpha = require_alpha(alpha)
        if alpha == 0.0:
            return self._system.G.clone()
        return self._system.G + self._system.factor.unwhiten(self._spectrum.basis @ self._spectrum.shrunk(alpha))

    def loo_scores(self, alpha: float) -> Tensor:
        """For each of the client's rows the scores (N_k, d) of the model fitted without that row.

        A row that alone determines its own prediction (β = 0 and a direction no other row has) gets zeros:
        the others say nothing of it.
        """
        return self._leave_one_out(require_alpha(alpha))[0]

    def loo_accuracy(self, alphas: Sequence[float] = DEFAULT_ALPHAS) -> Tensor:
        """For each α the share of the client's rows that the models fitted without them classify right."""
        return self._loo(alphas)[0] / len(self._W)

    def loo_error(self, alphas: Sequence[float] = DEFAULT_ALPHAS) -> Tensor:
        """For each α the mean over rows of ‖loo_i − y_i‖²."""
        return self._loo(alphas)[1] / len(self._W)

    def select(self, alphas: Sequence[float] = DEFAULT_ALPHAS) -> float:
        """The α of highest leave-one-out accuracy; of several, the smallest."""
        ordered = sorted(_checked_alphas(alphas))
        return ordered[int(self._loo(ordered)[0].argmax())]

    def _loo(self, alphas: Sequence[float]) -> tuple[Tensor, Tensor]:
        """For each α: rows classified right, and the sum of squared errors."""
        right, error = [], []
        for alpha in _checked_alphas(alphas):
            scores, known = self._leave_one_out(alpha)
            right.append(((scores.argmax(dim=1) == self._labels) & known).sum())
            error.append((scores - self._Y).square().sum())
        return torch.stack(right).to(torch.float64), torch.stack(error)

    def _leave_one_out(self, alpha: float) -> tuple[Tensor, Tensor]:
        """Scores without the row itself, and which rows have any."""
        if alpha == 0.0:  # the global model needs no spectrum
            fit, leverage = self._base, self._W.square().sum(dim=1)
        else:
            fit = self._base + self._spectrum.scores @ self._spectrum.shrunk(alpha)
            leverage = self._spectrum.leverage(alpha)
        remainder = (1.0 - leverage)[:, None]
        known = remainder > _NO_EVIDENCE
        scores = torch.where(known, (fit - leverage[:, None] * self._Y) / remainder, 0.0)
        return scores, known[:, 0]


@dataclass(frozen=True)
class _Spectrum:
    """The eigenvalues λ (r,) of WᵀW, r = min(N_k, m), and what turns them into scores and weights.

    correction of the scores = scores · diag(α/(1 + αλ)) · coefficients, of the whitened weights the same with
    `basis` for `scores`; squares (N_k, r) = E_ij² λ_j.
    """

    values: Tensor
    basis: Tensor
    scores: Tensor
    squares: Tensor
    coefficients: Tensor

    @classmethod
    def of(cls, W: Tensor, residuals: Tensor) -> _Spectrum:
        if len(W) <= W.shape[1]:
            values, E = torch.linalg.eigh(W @ W.mT)
            values = _in_unit_interval(values)
            return cls(values, W.mT @ E, E * values, E.square() * values, E.mT @ residuals)
        values, Q = torch.linalg.eigh(W.mT @ W)
        T = W @ Q
        return cls(_in_unit_interval(values), Q, T, T.square(), T.mT @ residuals)

    def shrunk(self, alpha: float) -> Tensor:
        return self.coefficients * (alpha / (1.0 + alpha * self.values))[:, None]

    def leverage(self, alpha: float) -> Tensor:
        return self.squares @ ((1.0 + alpha) / (1.0 + alpha * self.values))


def _in_unit_interval(values: Tensor) -> Tensor:
    """The eigenvalues of F_k (A + βI)⁻¹ F_kᵀ; they exceed 1 only if the rows are not part of A."""
    if float(values[-1]) > 1.0 + 1e-6:
        raise NotInTotalError(
            f"these rows are not in the sum (eigenvalue {float(values[-1]):.6g} of their share, which is at most 1);"
            " add the client's statistics to the total first"
        )
    return values.clamp(0.0, 1.0)


def _checked_alphas(alphas: Sequence[float]) -> list[float]:
    checked = [require_alpha(alpha) for alpha in alphas]
    if not checked:
        raise AlphaError("there is no alpha to choose from; give at least one")
    return checked


@dataclass(frozen=True)
class LooScore:
    """How the models over a grid of β do on a client's rows, each left out in turn. Scores of clients add."""

    right: Tensor
    squared_error: Tensor
    rows: int

    def __add__(self, other: LooScore) -> LooScore:
        return LooScore(self.right + other.right, self.squared_error + other.squared_error, self.rows + other.rows)

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
    leave-one-out, and only the scores, two numbers for each β, are summed.

        path = RegularizationPath(total)
        score = sum(path.score(F_k, y_k) for F_k, y_k in clients)
        beta = path.select(score)
    """

    def __init__(self, total: Statistics, betas: Sequence[float] | None = None) -> None:
        self._total = total
        self._values, self._V = torch.linalg.eigh(total.gram)
        self._values = self._values.clamp(min=0.0)
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
        F, Y = client_rows(self._total, features, labels, client)
        rotated = F @ self._V
        right, error = [], []
        for beta in self.betas:
            factor = self._factor(beta)
            W = rotated[:, -len(factor.values) :] / factor.values.sqrt()
            path = PersonalizationPath._whitened(self._system(factor), W, Y)
            rights, errors = path._loo(sorted(_checked_alphas(alphas)))
            best = int(rights.argmax())
            right.append(rights[best])
            error.append(errors[best])
        return LooScore(torch.stack(right), torch.stack(error), len(F))

    def gcv(self) -> Tensor:
        """Generalized cross-validation for each β, from the summed statistics alone; smaller is better.

        N·RSS/(N − df)², with RSS = N − 2 tr(ĜᵀB) + tr(ĜᵀAĜ) since every one-hot row has norm 1, and
        df = Σ λ/(λ + β).
        """
        N, values = self._total.num_samples, self._values
        power = self._rotated_cross.square().sum(dim=1)
        scores = []
        for beta in self.betas:
            kept = self._factor(beta).values
            inverse = torch.zeros_like(values)
            inverse[-len(kept) :] = 1.0 / kept
            residual = N - (power * (2.0 * inverse - values * inverse.square())).sum()
            freedom = (values * inverse).sum()
            scores.append(N * residual.clamp(min=0.0) / (N - freedom).clamp(min=1e-9).square())
        return torch.stack(scores)

    def select(self, score: LooScore) -> float:
        """The β of highest leave-one-out accuracy over all clients' rows; of several, the largest."""
        best = (score.right == score.right.max()).nonzero()[-1]
        return self.betas[int(best)]

    def _factor(self, beta: float) -> EigenFactor:
        return truncated(self._values + beta, self._V)

    def _system(self, factor: EigenFactor) -> GlobalSystem:
        return GlobalSystem(factor, self._rotated_cross[-len(factor.values) :] / factor.values.sqrt()[:, None])


def default_betas(total: Statistics) -> tuple[float, ...]:
    """Two to the decade, from 1e-6 to 10 times the mean square of the features summed over rows."""
    scale = float(total.gram.diagonal().mean())
    return tuple(scale * 10.0 ** (i / 2) for i in range(-12, 3))
