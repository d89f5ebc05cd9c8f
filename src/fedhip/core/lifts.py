"""Wider features from a shared seed: the seed travels, not the matrix.

    relu        φ(x) = √(2/w) max(0, u Ω + b)                         Ω ~ N(0, 1), b ~ N(0, 1)
    fourier     φ(x) = √(2/w) cos(u Ω / σ + b)                        φφᵀ ≈ exp(−‖u − v‖²/2σ²), b ~ U(0, 2π)
    nystroem    φ(x) = k(u, Z) k(Z, Z)^-½,  k as above                Z drawn, never a client's rows

with u the standardised features divided by √m, so that a typical ‖u‖ is 1. The landmarks Z of Nyström's are drawn from
the Gaussian that the federation's sum describes (mean and covariance), so they need that sum and nothing else.

The upload grows with the square of the width: `upload_bytes` says by how much before it is paid, `width_for` the width
that a budget allows. The random numbers are made of the generator's raw bits, which numpy promises never to change, and
rounded, so that every site draws the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedhip.core.errors import DimensionError, FedHiPError
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import truncated
from fedhip.core.standardization import Standardization
from fedhip.core.statistics import Statistics

LiftKind = Literal["relu", "fourier", "nystroem"]
KINDS: tuple[LiftKind, ...] = get_args(LiftKind)

_DRAWN_BITS = 16
_BLOCK_ENTRIES = 2**22
#: Gram matrices of the lifted features that are in memory at once: the sum, a client's, a factor, a copy.
_COPIES = 4


class LiftError(FedHiPError, ValueError):
    """There is no such lift, or it does not fit the budget or the memory."""


def upload_bytes(width: int, num_classes: int) -> int:
    """What one client sends in round one: a triangle, class sums and counts, 8 bytes each."""
    return 8 * (width * (width + 1) // 2 + width * num_classes + num_classes)


def width_for(megabytes: float, num_classes: int) -> int:
    """The widest features whose upload stays within a budget."""
    if not (math.isfinite(megabytes) and megabytes > 0):
        raise LiftError(f"the budget is {megabytes!r} MB; give a number above 0")
    entries = megabytes * 1e6 / 8 - num_classes
    half = num_classes + 0.5
    width = int(math.sqrt(half * half + 2.0 * max(entries, 0.0)) - half)
    while upload_bytes(width + 1, num_classes) <= megabytes * 1e6:  # the root is rounded
        width += 1
    while width > 0 and upload_bytes(width, num_classes) > megabytes * 1e6:
        width -= 1
    if width < 1:
        least = upload_bytes(1, num_classes) / 1e6
        raise LiftError(f"{megabytes:g} MB do not hold the statistics of one feature; give at least {least:.3g}")
    return width


def require_memory(width: int, memory: int) -> None:
    """Raise `LiftError`, with the width that fits, if the matrices of a lift so wide exceed `memory` bytes."""
    needed = _COPIES * 8 * width * width
    if needed > memory:
        fits = math.isqrt(memory // (8 * _COPIES))
        raise LiftError(
            f"a lift of width {width} takes {needed / 2**30:.1f} GiB and there are {memory / 2**30:.1f}; "
            f"width {fits} fits"
        )


@dataclass(frozen=True)
class Lift:
    """φ: features (n, m) → (n, width), the same at every site that knows seed and standardisation.

    Parameters
    ----------
    kind : "relu", "fourier" or "nystroem"
    width : int
    seed : int
    standardization : Standardization
        The federation's, from a first sum.
    bandwidth : float
        σ of the kernels.
    landmarks_from : Statistics, optional
        The sum of the raw features' statistics, for Nyström's landmarks.
    """

    kind: LiftKind
    width: int
    seed: int
    standardization: Standardization
    bandwidth: float = 1.0
    landmarks_from: Statistics | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LiftError(f"there is no lift {self.kind!r}; there are {', '.join(KINDS)}")
        if self.width < 1:
            raise LiftError(f"width is {self.width!r}; give a whole number of at least 1")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise LiftError(f"bandwidth is {self.bandwidth!r}; give a number above 0")
        if self.kind == "nystroem" and self.landmarks_from is None:
            raise LiftError("Nyström's landmarks are drawn from the federation's sum; give landmarks_from")

    def __call__(self, features: ArrayLike) -> Tensor:
        """(n, width) float64, in blocks of rows."""
        F = torch.as_tensor(features).to(self._mean)
        if F.ndim != 2 or F.shape[1] != len(self._mean):
            raise DimensionError(f"features have shape {tuple(F.shape)}; this lift takes rows {len(self._mean)} wide")
        step = max(1, _BLOCK_ENTRIES // max(self.width, F.shape[1]))
        lifted = torch.empty((len(F), self.width), dtype=torch.float64, device=F.device)
        for start in range(0, len(F), step):
            lifted[start : start + step] = self._block(self._units(F[start : start + step]))
        return lifted

    def _block(self, U: Tensor) -> Tensor:
        if self.kind == "nystroem":
            Z, whitening = self._landmarks
            return self._kernel(U, Z) @ whitening
        Omega, b = self._projection
        if self.kind == "relu":
            return math.sqrt(2.0 / self.width) * torch.relu(U @ Omega + b)
        return math.sqrt(2.0 / self.width) * torch.cos(U @ Omega / self.bandwidth + b)

    @property
    def _mean(self) -> Tensor:
        return self.standardization.mean

    def _units(self, F: Tensor) -> Tensor:
        return (F - self._mean) / (self.standardization.scale * math.sqrt(len(self._mean)))

    @cached_property
    def _projection(self) -> tuple[Tensor, Tensor]:
        """Ω (m, w) and b (w,)."""
        m = len(self._mean)
        drawn = _Draw(self.seed)
        Omega = drawn.normal((m, self.width)).to(self._mean)
        if self.kind == "relu":
            return Omega, drawn.normal((self.width,)).to(self._mean)
        return Omega, (2.0 * math.pi * drawn.uniform((self.width,))).to(self._mean)

    @cached_property
    def _landmarks(self) -> tuple[Tensor, Tensor]:
        """Z (w, m) and k(Z, Z)^-½ (w, w); directions that the landmarks do not tell apart are left out."""
        total = self.landmarks_from
        assert total is not None  # noqa: S101  (checked when made)
        m = len(self._mean)
        plain = Standardization(self._mean, self.standardization.scale, intercept=False)
        covariance = plain.statistics(total).gram / (total.num_samples * m)
        values, V = torch.linalg.eigh(covariance)
        Z = (_Draw(self.seed).normal((self.width, m)).to(values) * values.clamp(min=0.0).sqrt()) @ V.mT
        factor = truncated(*torch.linalg.eigh(self._kernel(Z, Z)))
        return Z, (factor.V / factor.values.sqrt()) @ factor.V.mT

    def _kernel(self, U: Tensor, Z: Tensor) -> Tensor:
        squares = U.square().sum(dim=1, keepdim=True) + Z.square().sum(dim=1) - 2.0 * (U @ Z.mT)
        return torch.exp(-squares.clamp(min=0.0) / (2.0 * self.bandwidth**2))


class _Draw:
    """Random numbers from a seed, the same on every machine and with every version of numpy."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """In (0, 1), in steps of 2^-53."""
        raw = self._bits.random_raw(math.prod(shape))
        return torch.from_numpy(((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal by Box and Muller, in steps of 2^-16: machines differ in the last bits of a logarithm."""
        radius = torch.sqrt(-2.0 * torch.log(self.uniform(shape)))
        angle = 2.0 * math.pi * self.uniform(shape)
        return torch.round(radius * torch.cos(angle) * 2.0**_DRAWN_BITS) * 2.0**-_DRAWN_BITS
