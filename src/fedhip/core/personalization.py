"""Phase 3: one client's own model, the global one corrected by the client's residuals.

    P̂_k = (A + αA_k + βI)⁻¹ (B + αB_k)                                   a weighted ridge: its rows weigh 1 + α
        = Ĝ + Z (I/α + F_k Z)⁻¹ (Y_k − F_k Ĝ),  Z = (A + βI)⁻¹F_kᵀ       the same, by the Woodbury identity

The second form says what personalization is: the global model, plus a correction driven by what that model
gets wrong on the client's own rows.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fedhip.core.aggregation import GlobalSystem, global_system
from fedhip.core.errors import DimensionError, NotInTotalError
from fedhip.core.fixedpoint import GridStatistics, decode_weighted
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.solvers import factorize, require_alpha, require_beta
from fedhip.core.statistics import AdditiveStatistics, Statistics

Route = Literal["auto", "cholesky", "low-rank"]


def personalize(
    total: Statistics,
    features: ArrayLike,
    labels: ArrayLike,
    alpha: float = 20.0,
    beta: float = 1.0,
    *,
    route: Route = "auto",
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
    route : "auto", "cholesky" or "low-rank"
        "cholesky" factors A + αA_k + βI: O(N_k m² + m³) for each client. "low-rank" corrects the global model:
        O(N_k m² + N_k³) after one factorisation that is remembered with `total`. "auto" takes the low-rank
        route up to N_k = m/3 rows.
    client : str, optional
        Named in error messages.

    Returns
    -------
    (m, d) float64 tensor on the statistics' device.
    """
    alpha, beta = require_alpha(alpha), require_beta(beta)
    if route not in get_args(Route):
        raise ValueError(f"route is {route!r}; choose 'auto', 'cholesky' or 'low-rank'")
    F, Y = client_rows(total, features, labels, client)
    if alpha == 0.0:
        return global_system(total, beta).G.clone()
    if route == "auto":
        route = "low-rank" if 3 * len(F) <= total.num_features else "cholesky"
    if route == "low-rank":
        return _corrected(global_system(total, beta), F, Y, alpha)
    A = total.gram + alpha * (F.mT @ F)
    return GlobalSystem.of(factorize(A, beta), total.cross + alpha * (F.mT @ Y)).G


def personalize_from_statistics(
    total: Statistics, own: Statistics, alpha: float = 20.0, beta: float = 1.0, *, client: str | None = None
) -> Tensor:
    """P̂_k = (A + αA_k + βI)⁻¹ (B + αB_k) from the client's statistics: no row of it is needed.

    What `personalize` gives, to rounding, at the price of one factorisation. Choosing α by leave-one-out does need
    the rows.
    """
    alpha, beta = require_alpha(alpha), require_beta(beta)
    require_part(total, own, client)
    if alpha == 0.0:
        return global_system(total, beta).G.clone()
    own = own.to(total.device)
    factor = factorize(lambda: (alpha * own.gram).add_(total.gram), beta)
    return GlobalSystem.of(factor, total.cross + alpha * own.cross).G


def personalize_on_grid(
    total: GridStatistics, own: GridStatistics, alpha: float = 20.0, beta: float = 1.0, *, client: str | None = None
) -> Tensor:
    """`personalize_from_statistics` of statistics on the grid: the same bits, and one matrix of memory beside them."""
    alpha, beta = require_alpha(alpha), require_beta(beta)
    require_part(total, own, client)
    bits = total.fraction_bits
    factor = factorize(lambda: decode_weighted(total.gram, own.gram, alpha, bits), beta)
    return GlobalSystem.of(factor, decode_weighted(total.cross, own.cross, alpha, bits)).G


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
        raise DimensionError(
            f"{rows.who}features are {rows.width} wide and the sum's {total.num_features}; "
            "every client must use the same backbone"
        )
    total.require_contains(torch.bincount(rows.labels, minlength=rows.num_classes), rows.who)
    F, Y = (matrix.to(total.device) for matrix in rows.matrices())
    squares, diagonal = F.square().sum(dim=0), total.gram.diagonal()
    # Twice, because a sum on the grid is of rounded features; this is for the wrong rows or the wrong sum.
    if bool((squares > 2.0 * diagonal + 1e-3 * diagonal.max()).any()):
        raise NotInTotalError(
            f"{rows.who}the squares of these features exceed the sum's: these rows are not in the sum; "
            "add the client's statistics first"
        )
    return F, Y if targets is None else Y * targets.to(Y)


def _corrected(system: GlobalSystem, F: Tensor, Y: Tensor, alpha: float) -> Tensor:
    """Ĝ + Z (I/α + F_k Z)⁻¹ (Y_k − F_k Ĝ), with W = F_k R⁻ᵀ, Z = R⁻ᵀWᵀ and F_k Z = W Wᵀ."""
    W = system.factor.whiten(F)
    core = W @ W.mT
    core.diagonal().add_(1.0 / alpha)
    coefficients = GlobalSystem.of(factorize(core), Y - W @ system.U).G
    return system.G + system.factor.unwhiten(W.mT @ coefficients)
