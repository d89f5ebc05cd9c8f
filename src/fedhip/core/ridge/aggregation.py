"""Phase 2: the sum of the clients' statistics, and the global model from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedhip.core.solvers import Factor, factorize, rank_tolerance, require_beta
from fedhip.core.statistics import Statistics
from fedhip.errors import InputError


def aggregate(clients: Iterable[Statistics] | Mapping[str, Statistics]) -> Statistics:
    """(A, B, n) = Σ_k (A_k, B_k, n_k), one client at a time.

    Takes any iterable, a generator too: one client's statistics and the sum are held, whatever their number. A
    mapping from client names gives error messages the name.
    """
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    total: Statistics | None = None
    for client, statistics in named:
        if total is None:
            total = statistics + Statistics.zeros(statistics.num_features, statistics.num_classes)  # a copy
            continue
        total.require_same_shape(statistics, who=f"client {client!r}: ")
        term = statistics.to(total.device)
        total.gram.add_(term.gram)
        total.cross.add_(term.cross)
        total.counts.add_(term.counts)
    if total is None:
        raise InputError("no client took part, so there is nothing to sum")
    return total


@dataclass(frozen=True)
class GlobalSystem:
    """(A + βI) Ĝ = B, factored: what every client's personalization starts from.

    With A + βI = R Rᵀ: U = R⁻¹B, Ĝ = R⁻ᵀU.
    """

    factor: Factor
    U: Tensor

    @classmethod
    def of(cls, factor: Factor, B: Tensor) -> GlobalSystem:
        """From a factor of A + βI."""
        return cls(factor, factor.whiten(B.mT).mT)

    @cached_property
    def G(self) -> Tensor:  # noqa: N802
        """Ĝ (m, d)."""
        return self.factor.unwhiten(self.U)

    def left_out(self, F: Tensor, Y: Tensor, weight: float = 1.0) -> Tensor:
        """Scores (n, d) of rows that are in the equations with this weight, each by the model without it, exactly.

        A row that alone determines its own prediction gets zeros: the others say nothing of it.
        """
        W = self.factor.whiten(F)
        remainder = 1.0 - weight * W.square().sum(dim=1)
        known = remainder > rank_tolerance(max(W.shape))
        scores = Y - (Y - W @ self.U) / torch.where(known, remainder, 1.0)[:, None]
        return scores.masked_fill_(~known[:, None], 0.0)


def global_system(total: Statistics, beta: float) -> GlobalSystem:
    """Factor A + βI once for the federation: the last one is remembered with the statistics."""
    beta = require_beta(beta)
    if total.num_samples == 0:
        raise InputError("the sum holds no rows; add at least one client's statistics")
    remembered: tuple[float, GlobalSystem] | None = total._memo.get("system")
    if remembered is None or remembered[0] != beta:
        remembered = beta, GlobalSystem.of(factorize(total.gram.clone, total.penalty(beta)), total.cross)
        total._memo["system"] = remembered  # one assignment: another thread finds this pair or the other
    return remembered[1]


def solve_global(total: Statistics, beta: float = 1.0) -> Tensor:
    """Ĝ = argmin_G ‖Y − FG‖² + β‖G‖² = (A + βI)⁻¹ B over all clients' rows (equation 3, Theorem 1).

    Parameters
    ----------
    total : Statistics
        The sum over clients.
    beta : float
        The ridge penalty, at least 0; none is on the intercept of standardised statistics. At β = 0 with a singular sum
        the solution of minimum norm is returned, with a `NumericalWarning` that names the smallest β that helps.

    Returns
    -------
    (m, d) float64 tensor on the statistics' device; scores of rows F are `F @ Ĝ`.
    """
    return global_system(total, beta).G.clone()
