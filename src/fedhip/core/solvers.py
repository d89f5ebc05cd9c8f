"""Positive definite systems H X = B, and what is done when H is singular.

A factor gives H⁻¹ through whitening: `whiten(X) whiten(X)ᵀ = X H⁻¹ Xᵀ`. Everything after that is written once,
in whitened coordinates, whichever way H was factored.

**Singular** is what has, scaled to a diagonal of ones, an eigenvalue that may be the rounding of a zero: then some
feature is a combination of others, whatever their units. The rank is counted there too, so that no feature is dropped
for being in small units. **The solution** is that of minimum norm, H⁺B with Moore and Penrose's inverse, the norm in
the features' own units: it is the limit of (H + βI)⁻¹B as β goes to 0, and so the same by every route to a model.
Rows like those behind H have the same scores by every solution; those in directions that H has not depend on units.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedhip.errors import InputError, NumericalWarning
from fedhip.utils.bounds import LARGEST

_EPS = torch.finfo(torch.float64).eps

#: A Cholesky pivot below this part of its diagonal entry may be the rounding of a zero: what it was computed from may
#: have been divided by pivots as small as this.
_SUSPICIOUS = 1e-6

#: A β that is this part of a feature's sum of squares hardly moves its weights.
_SMALL = 1e-3

#: H, or what makes it: in memory that may be written into, so that a wide H is there once, and then its factor. What
#: is made must be symmetric to the last bit.
Matrix = Tensor | Callable[[], Tensor]


class Factor(Protocol):
    """H = R Rᵀ for some R, used through R⁻¹ alone."""

    def whiten(self, X: Tensor) -> Tensor:
        """X R⁻ᵀ for rows X (n, m)."""

    def unwhiten(self, T: Tensor) -> Tensor:
        """R⁻ᵀ T: back from whitened coordinates to weights."""


@dataclass(frozen=True)
class CholeskyFactor:
    """H = R Rᵀ with R (m, m) lower triangular."""

    R: Tensor

    def whiten(self, X: Tensor) -> Tensor:
        """X R⁻ᵀ."""
        whitened: Tensor = torch.linalg.solve_triangular(self.R.mT, X, upper=True, left=False)
        return whitened

    def unwhiten(self, T: Tensor) -> Tensor:
        """R⁻ᵀ T."""
        weights: Tensor = torch.linalg.solve_triangular(self.R.mT, T, upper=True)
        return weights


@dataclass(frozen=True)
class EigenFactor:
    """H⁺ = V diag(1/values) Vᵀ over the eigenvalues that were kept: V (m, r), values (r,).

    V holds eigenvectors of H (`truncated`), or those of H scaled to a diagonal of ones, taken back (`pseudo_inverse`).
    """

    V: Tensor
    values: Tensor

    def whiten(self, X: Tensor) -> Tensor:
        """X V diag(values)^-½."""
        return (X @ self.V) / self.values.sqrt()

    def unwhiten(self, T: Tensor) -> Tensor:
        """V diag(values)^-½ T."""
        return self.V @ (T / self.values.sqrt()[:, None])


def factorize(H: Matrix, beta: Tensor | float = 0.0) -> Factor:
    """Factor H + βI, or H + diag(β), by Cholesky; where that is singular to rounding, by eigenvalues, and warn."""
    R = cholesky_if_regular(H, beta)
    if R is not None:
        return CholeskyFactor(R)
    singular = _regularized(H, beta)
    m, diagonal = len(singular), singular.diagonal().clone()
    factor, null = _pseudo_inverse(singular)
    del singular
    given = float(torch.as_tensor(beta).max())
    helpful = _rounded_up(given + smallest_helpful_beta(diagonal, null))
    if cholesky_if_regular(H, helpful) is None:  # to first order it was enough; this is in any case
        helpful = _rounded_up(given + smallest_helpful_beta(diagonal))
    smallest = float(diagonal.where(diagonal > 0.0, torch.inf).min())
    warnings.warn(
        f"the equations are singular to working precision at beta = {given:g}: rank {len(factor.values)} of {m} "
        f"(scaled to a diagonal of ones, eigenvalues below {rank_tolerance(m):.1e} count as zero); the solution of "
        f"minimum norm was taken. beta >= {helpful:.0e} makes the solution unique"
        + (
            f", but is not small beside the smallest features, whose squares sum to {smallest:.0e}: bring features to "
            "comparable units, or leave out those that others determine"
            if math.isfinite(smallest) and helpful > _SMALL * smallest
            else ""
        ),
        NumericalWarning,
        stacklevel=3,
    )
    return factor


def cholesky_if_regular(H: Matrix, beta: Tensor | float = 0.0) -> Tensor | None:
    """R with H + βI = R Rᵀ; None where H + βI is singular to working precision.

    That is when, scaled to a diagonal of ones, it has an eigenvalue below `rank_tolerance(m)`: some feature is a
    combination of others to all but rounding, whatever their units. The eigenvalues are computed only when a Cholesky
    pivot is small enough to be the rounding of a zero.
    """
    R = _regularized(H, beta)
    diagonal = R.diagonal().clone()
    if not _cholesky_in_place(R):
        return None
    if bool(_pivots_are_large(R, diagonal)):
        return R
    del R  # the eigenvalues take as much memory again, and are four times the work of factoring anew
    if _smallest_scaled_eigenvalue(_regularized(H, beta)) <= rank_tolerance(len(diagonal)):
        return None
    R = _regularized(H, beta)
    _cholesky_in_place(R)
    return R


def is_regular(R: Tensor, H: Tensor) -> Tensor:
    """Of which of many H = R Rᵀ (…, m, m) the pivots alone tell that it is not singular; the others may be either."""
    return _pivots_are_large(R, H.diagonal(dim1=-2, dim2=-1))


def _pivots_are_large(R: Tensor, diagonal: Tensor) -> Tensor:
    return (R.diagonal(dim1=-2, dim2=-1).square() > _SUSPICIOUS * diagonal).all(dim=-1)


def _regularized(H: Matrix, beta: Tensor | float) -> Tensor:
    """H + βI in memory of its own, column after column, as a factorisation in place wants it."""
    own: Tensor = H.new_empty(H.shape).mT.copy_(H) if isinstance(H, Tensor) else H().mT
    own.diagonal().add_(beta)
    return own


def _cholesky_in_place(H: Tensor) -> bool:
    """Write R with H = R Rᵀ over H; False where H is not positive definite."""
    info = torch.empty((), dtype=torch.int32, device=H.device)
    torch.linalg.cholesky_ex(H, out=(H, info))
    return int(info) == 0


def _smallest_scaled_eigenvalue(H: Tensor) -> float:
    """The smallest eigenvalue of D^-½ H D^-½ with D = diag(H), which must be positive; H is written over."""
    root = H.diagonal().sqrt()
    return float(torch.linalg.eigvalsh(H.div_(root).div_(root[:, None]))[0])


def pseudo_inverse(H: Tensor) -> EigenFactor:
    """H⁺ of a semi-definite H, its rank counted with a diagonal of ones (see the module)."""
    return _pseudo_inverse(H.clone())[0]


def _pseudo_inverse(H: Tensor) -> tuple[EigenFactor, Tensor]:
    """H⁺, and vectors (m', k) that span the null space of its m' features that are not always zero; H is written over.

    With D = diag(H), D^-½ H D^-½ = Q diag(values) Qᵀ and the eigenvalues that are zero to rounding left out,
    G = D^-½ Q diag(1/values) Qᵀ D^-½ is one of the inverses of H. Of all solutions G B the one of minimum norm has no
    part in the null space, which D^-½ and the eigenvectors left out span: H⁺ = P G P with P the projection off it.
    """
    m, live = len(H), H.diagonal() > 0.0  # below zero by rounding, where rows were taken out of a sum
    H = H if bool(live.all()) else H[live][:, live]
    inverse = H.diagonal().rsqrt()
    values, Q = torch.linalg.eigh(H.mul_(inverse).mul_(inverse[:, None]))
    kept = values > rank_tolerance(m)
    within, outside = Q[:, kept], Q[:, ~kept]
    # A feature that is no part of a dependency is no part of it in any units: small ones would lift the rounding.
    outside = outside.where(outside.abs() > rank_tolerance(m), 0.0)
    null = outside * inverse[:, None]
    Z, T = torch.linalg.qr(null)
    # Taken off before the units come in: whatever the rounding of these coefficients, it stays in the null space.
    within -= outside @ torch.linalg.solve_triangular(T, Z.mT @ (within * inverse[:, None]), upper=True)
    V = within.new_zeros((m, within.shape[1]))
    V[live] = within * inverse[:, None]
    return EigenFactor(V, values[kept]), null


def truncated(values: Tensor, V: Tensor) -> EigenFactor:
    """The eigenpairs above the cut-off; the rest is the null space, to rounding. For features of one scale.

    The values ascend, so that what is kept is the end of V: a view, for a wide one is 200 MB.
    """
    lost = int((values <= rank_tolerance(len(values)) * values[-1].clamp(min=0.0)).sum())
    return EigenFactor(V[:, lost:], values[lost:])


def rank_tolerance(m: int) -> float:
    """The relative size below which a pivot or an eigenvalue of an (m, m) matrix is rounding."""
    return 16 * m * _EPS


def smallest_helpful_beta(diagonal: Tensor, null: Tensor | None = None) -> float:
    """What must be added to a diagonal (m,) for `factorize` to have no objection to a semi-definite H.

    Scaled to a diagonal of ones, H + βI has no eigenvalue below β/(β + max diagonal): with twice the tolerance times
    that maximum there is room for rounding. With vectors that span the null space (`_pseudo_inverse`), the smallest
    that does, to first order: an eigenvalue 0 becomes at least β σ², σ the smallest singular value of these. Features
    that are always zero need any β at all.
    """
    live = diagonal[diagonal > 0.0]
    if len(live) == 0:
        return _EPS
    weight = float(live.max())
    if null is not None:
        least = float(torch.linalg.svdvals(null)[-1]) if null.shape[1] else torch.inf
        weight = max(float(live.min()), weight / max(1.0, weight * least**2))
    return 2 * rank_tolerance(len(diagonal)) * weight


def _rounded_up(beta: float) -> float:
    """To one digit."""
    digit = 10.0 ** math.floor(math.log10(beta))
    return math.ceil(beta / digit) * digit


def require_beta(beta: float) -> float:
    """β as a float, if it is one that makes sense."""
    if not _is_finite_number(beta) or not 0 <= beta <= LARGEST:
        raise InputError(f"beta is {beta!r}; give a number from 0 to {LARGEST:g} (0 means no regularization)")
    return float(beta)


def require_alpha(alpha: float) -> float:
    """α as a float, if it is one that makes sense."""
    if not _is_finite_number(alpha) or not 0 <= alpha <= LARGEST:
        raise InputError(f"alpha is {alpha!r}; give a number from 0 to {LARGEST:g} (0 is the global model)")
    return float(alpha)


def _is_finite_number(value: object) -> bool:
    try:
        return not isinstance(value, str | bytes | bool) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
