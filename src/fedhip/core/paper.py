"""The paper, letter by letter: C, L, S, M, μ, ν, Ĝ, P̂ and the recursion, with its equation numbers.

This is the readable view, to be held beside the paper. `fedhip.core.statistics`, `aggregation` and
`personalization` compute the same numbers from sums, faster by orders of magnitude. They agree because
C_k − βI = F_kᵀF_k and C_k L_k = F_kᵀY_k.

The paper writes inverses. Where one does not exist (β = 0 and fewer rows than features, for most clients of
the paper's own experiments) the pseudo-inverse stands in, and the result is still exact: C_k C_k⁺ F_kᵀY_k =
F_kᵀY_k, since F_kᵀY_k lies in the range of C_k = F_kᵀF_k.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.solvers import cholesky_if_regular, pseudo_inverse, require_alpha, require_beta
from fedhip.errors import InputError


def local_training(F: ArrayLike, Y: ArrayLike, beta: float) -> tuple[Tensor, Tensor]:
    """Phase 1, eqs. 4-7: C_k = F_kᵀF_k + βI and L̂_k = C_k⁻¹ F_kᵀY_k.

    Parameters
    ----------
    F : (N_k, m)
    Y : (N_k, d), one-hot

    Returns
    -------
    C (m, m), L (m, d), which the client sends to the server.
    """
    F, Y = _matrices(F, Y)
    C = F.mT @ F + require_beta(beta) * _identity(F)  # eq. 6
    L = _solve(C, F.mT @ Y)  # eq. 7
    return C, L


def aggregation_steps(clients: Iterable[tuple[Tensor, Tensor]], beta: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Phase 2, eqs. 9-12, as the server goes: yield (S_k, M_k, Ĝ_k) after each client's (C_k, L_k)."""
    beta = require_beta(beta)
    S = M = None
    for k, (C, L) in enumerate(clients, start=1):
        if S is None or M is None:
            S, M = torch.zeros_like(C), torch.zeros_like(L)
        if C.shape != S.shape or L.shape != M.shape:
            raise InputError(
                f"client {k} sent C {tuple(C.shape)} and L {tuple(L.shape)}; "
                f"those before it {tuple(S.shape)} and {tuple(M.shape)}"
            )
        S_before, S = S, S + C  # eq. 9
        mu, nu = _solve(S, S_before), _solve(S, C)  # eq. 11
        M = mu @ M + nu @ L  # eq. 10
        G = _solve(S - (k - 1) * beta * _identity(S), S @ M)  # eq. 12
        yield S, M, G


def aggregate(clients: Iterable[tuple[Tensor, Tensor]], beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Phase 2, eqs. 9-12: S_K, M_K and Ĝ_K by the paper's recursion over (C_k, L_k)."""
    last = deque(aggregation_steps(clients, beta), maxlen=1)
    if not last:
        raise InputError("no client took part, so there is nothing to aggregate")
    return last[0]


def personalize(
    S: Tensor, M: Tensor, F: ArrayLike, Y: ArrayLike, alpha: float, beta: float, num_clients: int
) -> Tensor:
    """Phase 3, eqs. 13-14: P̂_k = (S_K + C̃_k − KβI)⁻¹ (S_K M_K + αF_kᵀY_k) with C̃_k = αF_kᵀF_k + βI.

    `num_clients` is K, the number of clients that really are in S and M: after dropouts, fewer than registered.
    """
    F, Y = _matrices(F, Y)
    alpha, beta = require_alpha(alpha), require_beta(beta)
    if S.shape != (F.shape[1], F.shape[1]) or M.shape != (F.shape[1], Y.shape[1]):
        raise InputError(
            f"F {tuple(F.shape)} and Y {tuple(Y.shape)} do not fit S {tuple(S.shape)} and M {tuple(M.shape)}"
        )
    C_tilde = alpha * F.mT @ F + beta * _identity(F)  # eq. 13
    return _solve(S + C_tilde - num_clients * beta * _identity(S), S @ M + alpha * F.mT @ Y)  # eq. 14


def _solve(H: Tensor, B: Tensor) -> Tensor:
    """H⁻¹B, or H⁺B where H, symmetric and positive semi-definite, is singular to working precision."""
    R = cholesky_if_regular(H)
    if R is not None:
        return torch.cholesky_solve(B, R)
    pseudo = pseudo_inverse(H)
    return pseudo.unwhiten(pseudo.whiten(B.mT).mT)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=torch.float64, device=like.device)


def _matrices(F: ArrayLike, Y: ArrayLike) -> tuple[Tensor, Tensor]:
    """F and one-hot Y as float64 tensors, checked as everywhere else."""
    try:
        one_hot = torch.as_tensor(Y).to(torch.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"Y is not a table of numbers ({error}); give one-hot rows") from None
    if one_hot.ndim != 2 or not torch.equal(one_hot, (one_hot == 1).to(one_hot.dtype)):
        raise InputError(f"Y has shape {tuple(one_hot.shape)}; give one-hot rows of zeros and a single one")
    if not bool((one_hot.sum(dim=1) == 1).all()):
        raise InputError("Y has a row without exactly one 1; give one-hot rows")
    rows = Rows.checked(F, one_hot.argmax(dim=1), int(one_hot.shape[1]))
    return rows.matrices()
