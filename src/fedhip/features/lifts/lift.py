"""Wider features from a shared seed: the seed travels, not the matrix.

    relu        φ(x) = √(2/w) max(0, u Ω + b)                         Ω ~ N(0, 1), b ~ N(0, 1)
    fourier     φ(x) = √(2/w) cos(u Ω / σ + b)                        φφᵀ ≈ exp(−‖u − v‖²/2σ²), b ~ U(0, 2π)
    nystroem    φ(x) = k(u, Z) (k(Z, Z) + εI)^-½,  k as above         Z drawn, never a client's rows
    nystroem-axes                                                     the same, whatever the order of the columns
    project     φ(x) = √m u Q                                         Q (m, w) of orthonormal columns, narrower than x

with u the standardised features divided by √m, where m counts those that are not the same in every row. Two rows are
then E‖u − v‖² = 2 apart, and at σ = 1 the kernel of a typical pair is 1/e. Mean and deviation are the federation's,
from one small sum before the round. The landmarks Z of Nyström's are drawn from the Gaussian that the federation's sum
describes, so they need its covariance Σ and nothing else. With g standard normal and Σ = V Λ Vᵀ:

    nystroem        z = Σ^½ g        a number of g for each column, by its place
    nystroem-axes   z = V Λ^½ g      a number of g for each axis, from the longest; Σ_i V_ij > 0

Both are distributed alike. The axes follow the columns to whatever place: the second draws the same landmarks. An axis
of which Σ_i V_ij = 0 points in neither direction, as of two columns that of the longer or shorter one does; there every
landmark has a mirror image, so that both directions are drawn.

A lift that keeps the features has u as its last columns: what is summed of its rows holds what is summed of them.

A lifted row is a function of that row, to the last bit, in whatever company it is lifted: what a matrix product touches
are whole numbers of steps, few enough of them for the product to be exact. The random numbers are made of the
generator's raw bits, which numpy promises never to change, and rounded, so that every site draws the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhip.core.rows import ArrayLike
from fedhip.core.standardization import Standardization
from fedhip.core.statistics import Statistics, pack, unpack
from fedhip.errors import InputError
from fedhip.features.lifts.kinds import KINDS, LANDMARKS, PROJECT, LiftKind

#: The tensors that a lift consists of beside its description; Nyström's alone has a covariance.
TENSORS: Mapping[str, torch.dtype] = dict.fromkeys(("mean", "scale", "covariance"), torch.float64)
_DRAWN_BITS = 16
#: Rows and landmarks in steps of 2^-20: products with numbers in steps of 2^-16 are exact while ‖u‖‖ω‖ < 2^17.
_UNIT_BITS = 20
#: ε of Nyström's: directions that the landmarks hardly tell apart are damped, and not blown up.
_DAMPING = 1e-6
#: An axis, a vector of length 1, whose entries add up to no more points in neither direction.
_NO_DIRECTION = 1e-6
#: One along which rows vary by no more than this part of the longest one's variance is none.
_NO_LENGTH = 1e-9
_BLOCK_ENTRIES = 2**22


def require_lift(kind: str, width: int, seed: int, bandwidth: float, kept: int = 0) -> None:
    """Raise `InputError` unless there is such a lift."""
    if kind not in (*KINDS, PROJECT):
        raise InputError(f"there is no lift {kind!r}; there are {', '.join(KINDS)}")
    for name, value, least in (("width", width, kept + 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"the lift's {name} is {value!r}; give a whole number of at least {least}")
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise InputError(f"the lift's bandwidth is {bandwidth!r}; give a number above 0")


@dataclass(frozen=True, eq=False)
class Lift:
    """φ: features (n, m) → (n, width), the same at every site that knows seed and standardisation.

    Parameters
    ----------
    kind : "relu", "fourier", "nystroem", "nystroem-axes" or "project"
    width : int
    seed : int
    standardization : Standardization
        The federation's, from a first sum.
    bandwidth : float
        σ of the kernels.
    covariance : (m, m), optional
        Of u, over the federation's rows; for Nyström's landmarks.
    keeps : bool
        Whether the last m of the columns are u itself.
    """

    kind: LiftKind
    width: int
    seed: int
    standardization: Standardization
    bandwidth: float = 1.0
    covariance: Tensor | None = None
    keeps: bool = False

    def __post_init__(self) -> None:
        require_lift(self.kind, self.width, self.seed, self.bandwidth, self.kept)
        if self.kind in LANDMARKS and self.covariance is None:
            raise InputError("Nyström's landmarks are drawn from the federation's sum; give its covariance")
        if self.kind == "project" and self.width > self.num_features:
            raise InputError(f"a projection of {self.num_features} features is no wider; give a width of at most that")

    @classmethod
    def of(
        cls,
        kind: LiftKind,
        width: int,
        seed: int,
        total: Statistics,
        bandwidth: float = 1.0,
        *,
        step: float = 0.0,
        keeps: bool = False,
    ) -> Lift:
        """From the sum of the raw features' statistics, of whatever classes; `step` as in `Standardization.of`."""
        standardization = Standardization.of(total, intercept=False, step=step)
        covariance = None
        if kind in LANDMARKS:
            used = max(int(standardization.used.sum()), 1)
            covariance = standardization.statistics(total).gram / (total.num_samples * used)
        return cls(kind, width, seed, standardization, bandwidth, covariance, keeps)

    @classmethod
    def restore(cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Lift:
        """What `description` and `tensors` are of."""
        packed = tensors.get("covariance")
        standardization = Standardization(tensors["mean"], tensors["scale"], intercept=False)
        return cls(
            standardization=standardization, covariance=None if packed is None else unpack(packed), **description
        )

    @property
    def description(self) -> dict[str, Any]:
        """What is drawn, as plain values."""
        drawn = {"kind": self.kind, "width": self.width, "seed": self.seed, "bandwidth": self.bandwidth}
        return {**drawn, "keeps": True} if self.keeps else drawn

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What of the federation's sum it is drawn by; never a matrix that the seed gives."""
        found = {"mean": self._mean, "scale": self.standardization.scale}
        return found if self.covariance is None else {**found, "covariance": pack(self.covariance)}

    @property
    def num_features(self) -> int:
        """m, the width of the features it takes."""
        return len(self._mean)

    @property
    def kept(self) -> int:
        """How many of the last columns are the features themselves, in units of their deviation and divided by √m."""
        return self.num_features if self.keeps else 0

    @property
    def drawn(self) -> int:
        """w, how many of the first columns are drawn."""
        return self.width - self.kept

    @property
    def root_width(self) -> float:
        """√m, over the columns that say something."""
        return math.sqrt(max(int(self.standardization.used.sum()), 1))

    def __call__(self, features: ArrayLike) -> Tensor:
        """(n, width) float32, in blocks of rows."""
        F = torch.as_tensor(features)
        if F.ndim != 2 or F.shape[1] != self.num_features:
            raise InputError(f"features have shape {tuple(F.shape)}; this lift takes rows {self.num_features} wide")
        step = max(1, _BLOCK_ENTRIES // max(self.width, self.num_features))
        lifted = torch.empty((len(F), self.width), dtype=torch.float32, device=F.device)
        for start in range(0, len(F), step):
            U = self._units(F[start : start + step].to(torch.float64))
            lifted[start : start + step, : self.drawn] = self._block(U)
            if self.keeps:
                lifted[start : start + step, self.drawn :] = U
        return lifted

    def draw(self) -> None:
        """Draw what is drawn now, and not when the first row comes: before threads share the lift."""
        _ = self.landmarks if self.kind in LANDMARKS else self.projection

    @cached_property
    def projection(self) -> tuple[Tensor, Tensor]:
        """Ω (m, w) and b (w,), of ReLU and Fourier features, and of a projection, whose b is 0."""
        drawn, used = _Draw(self.seed), self.standardization.used
        # Columns that say nothing draw nothing: with or without them the others have the same numbers.
        Omega = self._mean.new_zeros((self.num_features, self.drawn))
        Omega[used] = drawn.normal((int(used.sum()), self.drawn)).to(self._mean)
        if self.kind == "project":
            Q = torch.linalg.qr(Omega).Q
            # Signs are a library's: taken so that each column leans to the one that was drawn.
            Q = Q * torch.where((Omega * Q).sum(dim=0) < 0.0, -1.0, 1.0)
            return _stepped(self.root_width * Q, _DRAWN_BITS), torch.zeros_like(Omega[0])
        if self.kind == "relu":
            return Omega, drawn.normal((self.drawn,)).to(self._mean)
        return Omega, (2.0 * math.pi * drawn.uniform((self.drawn,))).to(self._mean)

    @cached_property
    def landmarks(self) -> tuple[Tensor, Tensor]:
        """Z (w, m) and (k(Z, Z) + εI)^-½ (w, w), of Nyström features."""
        assert self.covariance is not None  # noqa: S101  (checked when made)
        used = self.standardization.used
        drawn = _Draw(self.seed).normal((self.drawn, int(used.sum()))).to(self.covariance)
        if self.kind == "nystroem-axes":
            Z = self.covariance.new_zeros((self.drawn, self.num_features))
            Z[:, used] = _along_axes(drawn, self.covariance[used][:, used])
        else:
            # Symmetric roots, which are one matrix whatever signs a library gives to eigenvectors.
            root = _symmetric(self.covariance, lambda values: values.clamp(min=0.0).sqrt())
            at_places = root.new_zeros((self.drawn, self.num_features))
            at_places[:, used] = drawn
            Z = at_places @ root
        Z = _stepped(Z, _UNIT_BITS)
        return Z, _symmetric(self._kernel(Z, Z), lambda values: (values.clamp(min=0.0) + _DAMPING).rsqrt())

    def _block(self, U: Tensor) -> Tensor:
        if self.kind in LANDMARKS:
            Z, whitening = self.landmarks
            return _repeatable_product(self._kernel(U, Z.to(U)), whitening.to(U))
        Omega, b = (values.to(U) for values in self.projection)
        if self.kind == "project":
            return U @ Omega
        if self.kind == "relu":
            return math.sqrt(2.0 / self.drawn) * torch.relu(U @ Omega + b)
        return math.sqrt(2.0 / self.drawn) * torch.cos(U @ Omega / self.bandwidth + b)

    @property
    def _mean(self) -> Tensor:
        return self.standardization.mean

    def _units(self, F: Tensor) -> Tensor:
        mean, scale = self._mean.to(F), self.standardization.scale.to(F)
        return _stepped((F - mean) / (scale * self.root_width), _UNIT_BITS)

    def _kernel(self, U: Tensor, Z: Tensor) -> Tensor:
        squares = U.square().sum(dim=1, keepdim=True) + Z.square().sum(dim=1) - 2.0 * (U @ Z.mT)
        return torch.exp(-squares.clamp(min=0.0) / (2.0 * self.bandwidth**2))


def _stepped(values: Tensor, bits: int) -> Tensor:
    """Rounded to steps of 2^-bits."""
    return torch.round(values * 2.0**bits) * 2.0**-bits


def _along_axes(drawn: Tensor, covariance: Tensor) -> Tensor:
    """Z (w, m) = g Λ^½ Vᵀ of drawn numbers g (w, m), the same to rounding in whatever order the columns are."""
    values, V = (found.flip(-1) for found in torch.linalg.eigh(covariance))
    direction = V.sum(dim=0)
    neither = (direction.abs() <= _NO_DIRECTION) & (values > _NO_LENGTH * values[:1])
    if bool(neither.any()):
        half = len(drawn) // 2
        first, odd = drawn[:half], drawn[2 * half :]
        drawn = torch.cat((first, torch.where(neither, -first, first), torch.where(neither, 0.0, odd)))
    found: Tensor = (drawn * values.clamp(min=0.0).sqrt()) @ (V * torch.where(direction < 0.0, -1.0, 1.0)).mT
    return found


def _symmetric(matrix: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """V f(Λ) Vᵀ for a symmetric V Λ Vᵀ."""
    values, V = torch.linalg.eigh(matrix)
    found: Tensor = (V * function(values)) @ V.mT
    return found


def _repeatable_product(A: Tensor, B: Tensor) -> Tensor:
    """A B to about 2^-40 of its largest possible entry, each row the same bits in any company.

    Both are cut in two, so that the products of the parts are exact (Ozaki and others, 2012); A is at most 1.
    """
    bits = (53 - math.ceil(math.log2(len(B)))) // 2
    scale = 2.0 ** math.ceil(math.log2(float(B.abs().max())))
    B = B / scale
    A1, B1 = _stepped(A, bits), _stepped(B, bits)
    A2, B2 = _stepped(A - A1, 2 * bits), _stepped(B - B1, 2 * bits)
    return scale * (A1 @ B1 + (A1 @ B2 + A2 @ B1))


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
