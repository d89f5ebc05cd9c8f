"""Multinomial logistic regression as sums: what the server sends, what a client answers.

    loss = −Σ_i log softmax(x_i W)[y_i]     gradient = Xᵀ(softmax(XW) − Y)     curvature_c = Σ_i p_ic (1 − p_ic)

with x the standardised features and a 1. All three are sums over rows. To be the same bits however the rows are divided
among clients, a row's part must be the same bits in any company. So everything that a matrix product touches is a whole
number small enough for the product to be exact in float64:

- features in steps of 2^-16 after standardisation, weights in steps that leave them 24 bits,
- residuals softmax(xW) − y in steps of 2^-24 (fewer bits for very many rows, so that sums fit int64),

and what is between, exponentials and a quotient, goes row by row, in blocks of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.exact.fixedpoint import _exact_sum
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.standardization import Standardization
from fedhip.errors import GridOverflowError, InputError, LossError

#: Fraction bits of standardised features.
FEATURE_BITS = 16
#: Bits of the largest weight: no more than float32 has, so that a weight travels in four bytes.
WEIGHT_BITS = 23

_RESIDUAL_BITS = 24
_EXPONENTIAL_BITS = 40
_SUM_BITS = 32
_BLOCK_ROWS = 256
_EXACT = 2.0**53


@dataclass(frozen=True)
class GridModel:
    """Weights of standardised features, the intercept last: `steps` (m + 1, d) int32, times 2^-bits.

    A value that every client reads alike. The server goes on from the rounded weights, so nothing is lost by it.
    """

    steps: Tensor
    bits: int

    @classmethod
    def of(cls, weights: Tensor) -> Self:
        """Rounded to 23 bits and a sign, relative to the largest weight."""
        if not bool(torch.isfinite(weights).all()):
            raise LossError("a weight is not a finite number; the step was too long")
        largest = float(weights.abs().max())
        bits = 0 if largest == 0.0 else WEIGHT_BITS - math.frexp(largest)[1]
        return cls(torch.round(torch.ldexp(weights, torch.tensor(bits, device=weights.device))).to(torch.int32), bits)

    @property
    def weights(self) -> Tensor:
        """(m + 1, d) float64, exactly."""
        return torch.ldexp(self.steps.to(torch.float64), torch.tensor(-self.bits, device=self.steps.device))

    def affine(self, standardization: Standardization) -> AffineModel:
        """On raw features."""
        return AffineModel.of_standardized(self.weights, standardization)


@dataclass(frozen=True, eq=False)
class LogisticTerm:
    """A client's answer to a model, in whole numbers: `+` and `==` are exact.

    gradient (m + 1, d), curvature (d,) and loss (1,) are int64 on grids of 2^-gradient_bits and 2^-32; `counts` (d,)
    the rows by class, `right` (1,) those whose class has the highest score.
    """

    gradient: Tensor
    curvature: Tensor
    loss: Tensor
    right: Tensor
    counts: Tensor
    gradient_bits: int

    def __add__(self, other: LogisticTerm) -> LogisticTerm:
        if not isinstance(other, LogisticTerm):
            return NotImplemented
        if self.gradient.shape != other.gradient.shape:
            raise InputError(
                f"a gradient of shape {tuple(other.gradient.shape)} does not add to one of "
                f"{tuple(self.gradient.shape)}; every client must use the same backbone and the same list of classes"
            )
        if self.gradient_bits != other.gradient_bits:
            raise InputError("gradients on grids of different scale do not add")
        gradient, curvature, loss, right, counts = (
            _exact_sum(a, b.to(a.device), self.gradient_bits)
            for a, b in zip(self._tensors(), other._tensors(), strict=True)
        )
        return LogisticTerm(gradient, curvature, loss, right, counts, self.gradient_bits)

    def __radd__(self, other: object) -> LogisticTerm:
        return self if other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogisticTerm):
            return NotImplemented
        return (
            self.gradient.shape == other.gradient.shape
            and self.gradient_bits == other.gradient_bits
            and all(torch.equal(a, b.to(a.device)) for a, b in zip(self._tensors(), other._tensors(), strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> int:
        """Rows behind the sums."""
        return int(self.counts.sum())

    @property
    def value(self) -> float:
        """The loss."""
        return float(self.loss) * 2.0**-_SUM_BITS

    @property
    def slopes(self) -> Tensor:
        """The gradient (m + 1, d) in float64."""
        return self.gradient.to(torch.float64) * 2.0**-self.gradient_bits

    @property
    def mean_curvature(self) -> float:
        """The mean of p (1 − p) over rows and classes; of rows that are all certain, one step of the grid."""
        return max(float(self.curvature.to(torch.float64).mean()) / max(self.rows, 1), 1.0) * 2.0**-_SUM_BITS

    @property
    def nbytes(self) -> int:
        """What travels."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.gradient, self.curvature, self.loss, self.right, self.counts


def residual_bits(rows: int) -> int:
    """Bits of residuals for a federation of so many rows: sums of features up to 32 deviations fit int64."""
    return min(_RESIDUAL_BITS, 62 - FEATURE_BITS - 5 - max(rows, 1).bit_length())


def logistic_term(
    features: ArrayLike,
    labels: ArrayLike,
    model: GridModel,
    standardization: Standardization,
    *,
    rows: int,
    client: str | None = None,
) -> LogisticTerm:
    """One client's loss, gradient and curvature at `model`.

    Parameters
    ----------
    features : (N_k, m)
    labels : (N_k,)
        The client's own rows, as they are.
    standardization : Standardization
        The federation's, with the intercept.
    rows : int
        Of the whole federation in round one, which sets the scale of the residuals.
    client : str, optional
        Named in error messages.
    """
    d = int(model.steps.shape[1])
    given = Rows.checked(features, labels, d, client)
    m1, device, bits = given.width + 1, given.device, residual_bits(rows)
    if model.steps.shape[0] != m1:
        raise InputError(f"{given.who}features are {given.width} wide, the model's {len(model.steps) - 1}")
    if bits < 8:
        raise GridOverflowError(f"gradients of {rows} rows do not fit the int64 grid")
    weights = model.steps.to(device, torch.float64)
    gradient = torch.zeros((m1, d), dtype=torch.int64, device=device)
    curvature, loss, right = (torch.zeros(n, dtype=torch.int64, device=device) for n in (d, 1, 1))
    most = torch.zeros(m1, dtype=torch.float64, device=device)
    for F, y in given.blocks(_BLOCK_ROWS):
        Q = feature_steps(F, standardization)
        most += Q.abs().sum(dim=0)
        _require_room(most, bits, given.who)
        Z, P, row_losses = _probabilities(_exact_product(Q, weights), model.bits, y, given.who)
        correct = Z.argmax(dim=1) == y
        spread = torch.round(P * (1.0 - P) * 2.0**_SUM_BITS)
        P[torch.arange(len(y), device=device), y] -= 1.0
        gradient += _exact_product(Q.mT, torch.round(P * 2.0**bits))
        curvature += spread.to(torch.int64).sum(dim=0)
        loss += row_losses.sum()
        right += correct.sum()
    counts = torch.bincount(given.labels, minlength=d).to(device)
    return LogisticTerm(gradient, curvature, loss, right, counts, FEATURE_BITS + bits)


def feature_steps(F: Tensor, standardization: Standardization) -> Tensor:
    """Standardised features with a 1, in whole steps of 2^-16, float64. Each is rounded by itself."""
    return torch.round(standardization.features(F) * 2.0**FEATURE_BITS)


def rounded_features(F: ArrayLike, standardization: Standardization) -> Tensor:
    """What `logistic_term` makes of features: standardised, with a 1, in steps of 2^-16."""
    return feature_steps(torch.as_tensor(F), standardization) * 2.0**-FEATURE_BITS


def _probabilities(products: Tensor, bits: int, y: Tensor, who: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, softmax and losses on the grid for a block, the same for a row in any block."""
    rows = len(y)
    Z = torch.zeros((_BLOCK_ROWS, products.shape[1]), dtype=torch.float64, device=products.device)
    Z[:rows] = torch.ldexp(products.to(torch.float64), torch.tensor(-bits - FEATURE_BITS, device=products.device))
    Z -= Z.amax(dim=1, keepdim=True)
    # Whole numbers, so that their sum is the same in any order.
    E = torch.round(torch.exp(Z) * 2.0**_EXPONENTIAL_BITS)
    total = E.to(torch.int64).sum(dim=1, keepdim=True).to(torch.float64)
    logs = torch.log(total) - _EXPONENTIAL_BITS * math.log(2.0)
    Z, E, total, logs = Z[:rows], E[:rows], total[:rows], logs[:rows]
    losses = (logs - Z.gather(1, y[:, None]))[:, 0]
    if not bool((losses < 2.0**24).all()):
        raise LossError(
            f"{who}the loss of a row is {float(losses.max()):.3g}, which is beyond all measure; "
            "its features are not of the federation's scale, or the step was too long"
        )
    return Z, E / total, torch.round(losses * 2.0**_SUM_BITS).to(torch.int64)


def _exact_product(A: Tensor, B: Tensor) -> Tensor:
    """A B for matrices of whole numbers, in int64, without any rounding: in parts that stay below 2^53."""
    product = torch.zeros((A.shape[0], B.shape[1]), dtype=torch.int64, device=A.device)
    for a, b in _exact_parts(A, B):
        product += (a @ b).to(torch.int64)
    return product


def _exact_parts(A: Tensor, B: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Halves of the inner dimension, until no partial sum can reach 2^53."""
    largest, sums = A.abs(), B.abs().amax(dim=1)
    # Σ_j |a_ij| max_c |b_jc| bounds every partial sum of row i.
    if A.shape[1] == 1 or float((largest @ sums).max()) < _EXACT:
        yield A, B
        return
    half = A.shape[1] // 2
    yield from _exact_parts(A[:, :half], B[:half])
    yield from _exact_parts(A[:, half:], B[half:])


def _require_room(most: Tensor, bits: int, who: str) -> None:
    """Residuals are at most 1: Σ_i |x_ij| bounds column j of the gradient."""
    if float(most.max()) * 2.0**bits >= 2.0**63:
        raise GridOverflowError(
            f"{who}gradients of features up to {float(most.max()) * 2.0**-FEATURE_BITS:.2g} in all overflow the int64 "
            "grid; are these features of the federation's scale?"
        )
