"""One client's logistic head: the federation's, corrected by the client's own rows.

    P̂_k(α) = argmin_P  α · (−Σ_{i of k} log softmax(x_i P / T + shift)[y_i]) + ½ ‖P − Ĝ‖²_H,    H = κA + ρM

the client's rows weigh 1 + α, as in FedHiP, and the others' stand in by the curvature of the federation's objective.
The shift is the client's prior, so that the correction need not learn what the class frequencies say; T is the
temperature that goes with it.

In whitened coordinates of the client's rows (x_i H^-½ = S_i, SᵀS = diag(Λ)) this is a logistic regression of size
min(N_k, m + 1) with penalty ½‖·‖², solved by the quasi-Newton steps of `fedhip.core.lbfgs`, each α from the one before.

Leave-one-out, to first order: with a_i = Σ_j S_ij²/(1 + ακΛ_j) and the row gone from both places it counts in,

    z_i without i ≈ z_i + (1 + α) a_i/(1 − (1 + α) κ a_i) δ_i + (what the centre W₀ has seen of it)

α is the one of least leave-one-out log-loss; 0, the federation's head, is among them and wins ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.errors import DimensionError
from fedhip.core.lbfgs import Evaluation, best_of, propose
from fedhip.core.logistic_fit import LogisticHead, TemperatureError
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import rank_tolerance, require_alpha

#: Two to the decade and none.
LOGISTIC_ALPHAS: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(-2, 7)))

_STEPS = 60
_TOLERANCE = 1e-5


class PersonalLogistic:
    """A client's heads over α, and how each does on rows it has not seen.

    Parameters
    ----------
    head : LogisticHead
        The federation's, whose objective these rows are part of.
    features : (N_k, m), labels : (N_k,)
        The client's own rows, raw.
    temperature, shift : float, Tensor (d,), optional
        The client's prior: scores are divided by the one and the other is added.
    loo_shift : Tensor (N_k, d), optional
        The shift as it would be without each row; `shift` if not given.
    client : str, optional
        Named in error messages.
    """

    def __init__(
        self,
        head: LogisticHead,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        temperature: float = 1.0,
        shift: Tensor | None = None,
        loo_shift: Tensor | None = None,
        client: str | None = None,
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0.0):
            raise TemperatureError(f"temperature is {temperature!r}; give a number above 0")
        self._head, self._T = head, temperature
        self._rows = head.fit._client(features, labels, client)
        F, y = self._rows.F, self._rows.labels
        d = head.weights.shape[1]
        self._shift = torch.zeros(d).to(F) if shift is None else shift.to(F)
        self._loo_shift = self._shift if loo_shift is None else loo_shift.to(F)
        if self._shift.shape != (d,) or self._loo_shift.shape not in ((d,), (len(F), d)):
            raise DimensionError(
                f"shifts have shapes {tuple(self._shift.shape)} and {tuple(self._loo_shift.shape)}; "
                f"give ({d},) and ({len(F)}, {d})"
            )
        self._Z = F @ head.weights
        self._y = y[:, None]
        self._found: dict[float, Tensor] = {}

    @cached_property
    def _basis(self) -> tuple[Tensor, Tensor, Tensor]:
        """S (N_k, r), Λ (r,) and what takes coordinates back to weights (m + 1, r)."""
        root = self._head.inverse_curvature.sqrt()
        back = self._head.fit.geometry.B * root
        Phi = self._rows.F @ back
        if len(Phi) <= Phi.shape[1]:
            values, E = torch.linalg.eigh(Phi @ Phi.mT)
            kept = values > rank_tolerance(Phi.shape[1]) * values[-1]
            values, E = values[kept], E[:, kept]
            return E * values.sqrt(), values, back @ (Phi.mT @ (E / values.sqrt()))
        values, Q = torch.linalg.eigh(Phi.mT @ Phi)
        return Phi @ Q, values.clamp(min=0.0), back @ Q

    def weights(self, alpha: float) -> Tensor:
        """P̂_k(α) of standardised features, the intercept last (m + 1, d)."""
        alpha = require_alpha(alpha)
        return self._head.weights if alpha == 0.0 else self._head.weights + self._basis[2] @ self._solve(alpha)

    def model(self, alpha: float) -> AffineModel:
        """On raw features, without prior: that is added to its scores."""
        return AffineModel.of_standardized(self.weights(alpha), self._head.fit.standardization)

    def loo_scores(self, alpha: float) -> Tensor:
        """For each of the client's rows its scores without it, to first order and without prior: (N_k, d)."""
        alpha, kappa = require_alpha(alpha), self._head.curvature
        S, values, _ = self._basis
        Z = self._Z if alpha == 0.0 else self._Z + S @ self._solve(alpha)
        P = torch.softmax(Z / self._T + self._shift, dim=1)
        # κ of the federation's own softmax; the prior makes the client's rows surer.
        own = float((P * (1.0 - P)).mean()) / self._T**2
        P.scatter_add_(1, self._y, -torch.ones_like(P[:, :1]))
        plain = torch.softmax(Z, dim=1).scatter_add_(1, self._y, -torch.ones_like(P[:, :1]))
        squares = S.square()
        a = (squares @ (1.0 / (1.0 + alpha * own * values)))[:, None]
        left = (1.0 - (kappa + alpha * own) * a).clamp(min=1e-3)
        # The row's part in the federation's objective is without prior, its part in the client's with.
        scores = Z + a / left * (plain + alpha / self._T * P)
        moved = self._head.centre_share * self._head.fit._centre_moves(self._rows)
        return scores + moved * a / squares.sum(dim=1, keepdim=True).clamp(min=1e-300)

    def loo_loss(self, alpha: float) -> float:
        """The log-loss of the client's rows left out, with its prior."""
        logits = self.loo_scores(alpha) / self._T + self._loo_shift
        return float(-torch.log_softmax(logits, dim=1).gather(1, self._y).sum())

    def select(self, alphas: Sequence[float] = LOGISTIC_ALPHAS) -> float:
        """The α of least leave-one-out loss, never worse than 0 by that; of several, the smallest."""
        ordered = sorted({0.0, *(require_alpha(alpha) for alpha in alphas)})
        losses = [self.loo_loss(alpha) for alpha in ordered]
        return ordered[losses.index(min(losses))]

    def objective(self, alpha: float, theta: Tensor) -> tuple[float, Tensor]:
        """Value and gradient in whitened coordinates θ (r, d)."""
        S, _, _ = self._basis
        logs = torch.log_softmax((self._Z + S @ theta) / self._T + self._shift, dim=1)
        value = -alpha * float(logs.gather(1, self._y).sum()) + 0.5 * float(theta.square().sum())
        residuals = logs.exp().scatter_add_(1, self._y, -torch.ones_like(logs[:, :1]))
        return value, (alpha / self._T) * (S.mT @ residuals) + theta

    def _solve(self, alpha: float) -> Tensor:
        """θ at the optimum, from that of the nearest smaller α."""
        if alpha in self._found:
            return self._found[alpha]
        S, values, _ = self._basis
        smaller = [known for known in self._found if known < alpha]
        theta = self._found[max(smaller)] if smaller else torch.zeros((len(values), self._Z.shape[1])).to(S)
        scale = (1.0 + alpha * self._head.curvature * values).sqrt()[:, None]
        history: list[Evaluation] = []
        point = scale * theta
        for _ in range(_STEPS):
            value, gradient = self.objective(alpha, point / scale)
            history.append(Evaluation(point, value, gradient / scale))
            history = history[-12:] if best_of(history) in history[-12:] else history
            best = best_of(history)
            if float(best.gradient.norm()) <= _TOLERANCE * max(1.0, math.sqrt(max(best.value, 0.0))):
                break
            point = propose(history)
        self._found[alpha] = best_of(history).point / scale
        return self._found[alpha]
