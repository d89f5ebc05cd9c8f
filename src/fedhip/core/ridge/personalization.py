"""Phase 3: one client's own model, from its statistics.

    P̂_k = (A + αA_k + βI)⁻¹ (B + αB_k)                                   a weighted ridge: its rows weigh 1 + α
        = Ĝ + Z (I/α + F_k Z)⁻¹ (Y_k − F_k Ĝ),  Z = (A + βI)⁻¹F_kᵀ       the same, by the Woodbury identity

The second form says what personalization is: the global model, plus a correction driven by what that model
gets wrong on the client's own rows. `PersonalizationPath` takes it, for all α at once, where the rows are at hand; here
is the first, which needs none of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedhip.core.ridge.aggregation import GlobalSystem, global_system
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.solvers import factorize, require_alpha, require_beta
from fedhip.core.statistics import AdditiveStatistics, Statistics, add_upper_gram, mirror_upper
from fedhip.errors import InputError


def personalize(
    total: Statistics,
    features: ArrayLike,
    labels: ArrayLike,
    alpha: float = 20.0,
    beta: float = 1.0,
    *,
    client: str | None = None,
) -> Tensor:
    """P̂_k = argmin_P ‖Y − FP‖² + α‖Y_k − F_k P‖² + β‖P‖² (equation 1, Theorem 2).

    Parameters
    ----------
    total : Statistics
        The sum over clients, this client included.
    features : (N_k, m)
    labels : (N_k,)
        The client's own rows.
    alpha, beta : float
        Weight of the client's rows on top of their share in the sum; ridge penalty. Both at least 0.
    client : str, optional
        Named in error messages.

    Returns
    -------
    (m, d) float64 tensor on the statistics' device.

    Notes
    -----
    O(N_k m² + m³). Several α of one client, and how good each is: `PersonalizationPath`.
    """
    F, Y = client_rows(total, features, labels, client)
    A_k = torch.zeros_like(total.gram)
    add_upper_gram(A_k, F)
    own = Statistics._of(mirror_upper(A_k), F.mT @ Y, Y.sum(dim=0).to(torch.int64), total.intercept)
    return personalize_from_statistics(total, own, alpha, beta, client=client)


def personalize_from_statistics(
    total: Statistics, own: Statistics, alpha: float = 20.0, beta: float = 1.0, *, client: str | None = None
) -> Tensor:
    """P̂_k = (A + αA_k + βI)⁻¹ (B + αB_k) from the client's statistics: no row of it is needed.

    One factorisation. Choosing α by leave-one-out does need the rows.
    """
    alpha, beta = require_alpha(alpha), require_beta(beta)
    require_part(total, own, client)
    if alpha == 0.0:
        return global_system(total, beta).G.clone()
    own = own.to(total.device)
    factor = factorize(lambda: (alpha * own.gram).add_(total.gram), total.penalty(beta))
    return GlobalSystem.of(factor, total.cross + alpha * own.cross).G


def require_part(total: AdditiveStatistics, own: AdditiveStatistics, client: str | None = None) -> None:
    """Raise unless a client of these statistics can be in the sum."""
    who = f"client {client!r}: " if client is not None else ""
    total.require_same_shape(own, who)
    total.require_contains(own.counts, who)


def client_rows(
    total: Statistics,
    features: ArrayLike,
    labels: ArrayLike,
    client: str | None = None,
    targets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """F_k and one-hot Y_k on the sum's device, after checking that they can be part of the sum.

    `targets` (d,) stand in the place of the ones, where they are given.
    """
    rows = Rows.checked(features, labels, total.num_classes, client)
    if rows.width != total.num_features:
        raise InputError(
            f"{rows.who}features are {rows.width} wide and the sum's {total.num_features}; "
            "every client must use the same backbone"
        )
    total.require_contains(torch.bincount(rows.labels, minlength=rows.num_classes), rows.who)
    F, Y = (matrix.to(total.device) for matrix in rows.matrices())
    squares, diagonal = F.square().sum(dim=0), total.gram.diagonal()
    # Twice, because a sum on the grid is of rounded features; this is for the wrong rows or the wrong sum.
    if bool((squares > 2.0 * diagonal + 1e-3 * diagonal.max()).any()):
        raise InputError(
            f"{rows.who}the squares of these features exceed the sum's: these rows are not in the sum; "
            "add the client's statistics first"
        )
    return F, Y if targets is None else Y * targets.to(Y)
