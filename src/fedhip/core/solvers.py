"""Positive definite systems H X = B, and what is done when H is singular.

A factor gives H⁻¹ through whitening: `whiten(X) whiten(X)ᵀ = X H⁻¹ Xᵀ`. Everything after that is written once,
in whitened coordinates, whichever way H was factored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedhip.core.errors import AlphaError, BetaError, SingularSystemWarning

_EPS = torch.finfo(torch.float64).eps

#: A Cholesky pivot below this part of its diagonal entry may be the rounding of a zero: what it was computed from may
#: have been divided by pivots as small as this.
_SUSPICIOUS = 1e-6


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
    """H⁺ = V diag(1/values) Vᵀ over the eigenvalues that were kept: V (m, r), values (r,)."""

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
    m, helpful = len(singular), smallest_helpful_beta(singular)
    factor = truncated(*torch.linalg.eigh(singular))
    warnings.warn(
        f"the equations are singular to working precision at beta = {float(torch.as_tensor(beta).max()):g}: "
        f"rank {len(factor.values)} of {m} "
        f"(eigenvalues below {rank_tolerance(m):.1e} of the largest count as zero); the solution of minimum norm "
        f"was taken. beta >= {helpful:.0e} makes the solution unique",
        SingularSystemWarning,
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
    if bool((R.diagonal().square() > _SUSPICIOUS * diagonal).all()):
        return R
    del R  # the eigenvalues take as much memory again, and are four times the work of factoring anew
    if _smallest_scaled_eigenvalue(_regularized(H, beta)) <= rank_tolerance(len(diagonal)):
        return None
    R = _regularized(H, beta)
    _cholesky_in_place(R)
    return R


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


def truncated(values: Tensor, V: Tensor) -> EigenFactor:
    """The eigenpairs above the cut-off; the rest is the null space, to rounding."""
    kept = values > rank_tolerance(len(values)) * values[-1].clamp(min=0.0)
    return EigenFactor(V[:, kept], values[kept])


def rank_tolerance(m: int) -> float:
    """The relative size below which a pivot or an eigenvalue of an (m, m) matrix is rounding."""
    return 16 * m * _EPS


def smallest_helpful_beta(H: Tensor) -> float:
    """The smallest β, to one digit, with which `factorize` has no objection to a semi-definite H."""
    needed = 2 * rank_tolerance(len(H)) * float(H.diagonal().max())
    if needed <= 0.0:
        return _EPS
    digit = 10.0 ** math.floor(math.log10(needed))
    return math.ceil(needed / digit) * digit


def require_beta(beta: float) -> float:
    """β as a float, if it is one that makes sense."""
    if not _is_finite_number(beta) or beta < 0:
        raise BetaError(f"beta is {beta!r}; give a finite number of at least 0 (0 means no regularization)")
    return float(beta)


def require_alpha(alpha: float) -> float:
    """α as a float, if it is one that makes sense."""
    if not _is_finite_number(alpha) or alpha < 0:
        raise AlphaError(f"alpha is {alpha!r}; give a finite number of at least 0 (0 is the global model)")
    return float(alpha)


def _is_finite_number(value: object) -> bool:
    try:
        return not isinstance(value, str | bytes | bool) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
