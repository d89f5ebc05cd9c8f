"""Logistic regressions of several sets of one client's rows at once, each with penalty ½‖θ‖².

    θ_p = argmin_θ  α · (−Σ_{i of set p} log softmax(o_ip + S_i θ R / T)[y_i]) + ½ ‖θ‖²

S (N, r) are the client's rows in coordinates in which SᵀS = diag(λ), R (d, d) spreads a change over the classes. The
sets, p of them, are fitted in one program of large matrix products.

**Coordinates.** The curvature is α Σ_i S_iᵀS_i ⊗ R W_i Rᵀ/T² + I with W_i = diag(p_i) − p_iᵀp_i. With the mean W̄ of the
rows at the start in place of each W_i it is diagonal: R W̄ Rᵀ/T² = V diag(b) Vᵀ gives 1 + α λ_j b_c. That knows which
classes a client has, and how sure it is of them. Of the quasi-Newton steps in these coordinates a third is needed that
one curvature for all classes takes, and what is left of the gradient says more of how far the optimum is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedhip.core.logistic.lbfgs import Point, best_of, propose

_MEMORY = 12


class Solved(NamedTuple):
    """θ (r, p, d), and for the set that is furthest from its optimum its slope and what was wanted."""

    theta: Tensor
    slope: float
    wanted: float

    @property
    def converged(self) -> bool:
        """Whether all sets are near enough."""
        return self.slope <= self.wanted


@dataclass(frozen=True)
class Steps:
    """Rows S (N, r) with λ (r,), labels y (N, 1), R (d, d) and T; sets as rows kept (N, p) and offsets o (N, p, d)."""

    S: Tensor
    values: Tensor
    y: Tensor
    spread: Tensor
    temperature: float
    kept: Tensor
    offsets: Tensor

    def to(self, dtype: torch.dtype) -> Steps:
        """In another precision."""
        S, values, spread, offsets = (given.to(dtype) for given in (self.S, self.values, self.spread, self.offsets))
        return Steps(S, values, self.y, spread, self.temperature, self.kept, offsets)

    def evaluate(self, alpha: float, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Values (p,) and gradients (r, p, d) at θ (r, p, d)."""
        return self._evaluate(alpha, theta, self.spread)

    def solve(self, alpha: float, start: Tensor, tolerance: float, most: int) -> Solved:
        """From θ = `start`, until every set's slope is `tolerance` of √value, or after `most` evaluations."""
        b, V = self._curvature(start)
        scale = (1.0 + alpha * torch.outer(self.values, b)).sqrt()[:, None]
        spread = V.mT @ self.spread
        history: list[Point] = []
        point, known = scale * (start @ V), {}
        for _ in range(most):
            values, gradient = self._evaluate(alpha, point / scale, spread)
            history.append(Point(point, float(values.sum()), gradient / scale))
            known[id(history[-1])] = values
            best = best_of(history)
            if best in history[-_MEMORY:]:
                history = history[-_MEMORY:]
            slopes = best.gradient.square().sum(dim=(0, 2)).sqrt().double()
            wanted = tolerance * known[id(best)].clamp(min=1.0).sqrt()
            furthest = int((slopes / wanted).argmax())
            slope, enough = float(slopes[furthest]), float(wanted[furthest])
            if slope <= enough:
                break
            point = propose(history)
        return Solved((best.point / scale) @ V.mT, slope, enough)

    def _logits(self, theta: Tensor, spread: Tensor) -> Tensor:
        """(N, p, d)."""
        r, p, d = theta.shape
        change = (theta.reshape(r * p, d) @ spread).reshape(r, p * d)
        return self.offsets + (self.S @ change).div_(self.temperature).reshape(-1, p, d)

    def _evaluate(self, alpha: float, theta: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        r, p, d = theta.shape
        logs = torch.log_softmax(self._logits(theta, spread), dim=2)
        at = self.y[:, None].expand(-1, p, 1)
        losses = -(logs.gather(2, at)[:, :, 0].double() * self.kept).sum(dim=0)
        values = alpha * losses + 0.5 * theta.square().sum(dim=(0, 2)).double()
        residuals = logs.exp_().scatter_add_(2, at, -torch.ones_like(logs[:, :, :1])).mul_(self.kept[:, :, None])
        pulls = (self.S.mT @ residuals.reshape(-1, p * d)).reshape(r * p, d) @ spread.mT
        return values, pulls.reshape(r, p, d).mul_(alpha / self.temperature) + theta

    def _curvature(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """b (d,) and V (d, d) of the rows of all sets."""
        P = torch.softmax(self._logits(theta, self.spread), dim=2)[self.kept]
        mean = (torch.diag(P.sum(dim=0)) - P.mT @ P) / max(len(P), 1)
        b, V = torch.linalg.eigh((self.spread @ mean @ self.spread.mT).double() / self.temperature**2)
        return b.clamp(min=0.0).to(theta), V.to(theta)


def extrapolated(known: dict[float, Tensor], alpha: float) -> Tensor | None:
    """θ at α along log α, from the two nearest smaller ones; from one as it is; None without any."""
    smaller = sorted(at for at in known if at < alpha)
    if not smaller:
        return None
    last = known[smaller[-1]]
    if len(smaller) == 1:
        return last
    a, b = smaller[-2:]
    return last + min(math.log(alpha / b) / math.log(b / a), 1.0) * (last - known[a])
