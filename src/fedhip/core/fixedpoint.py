"""Statistics as whole numbers on a grid: sums that are the same bits in any order.

A value x becomes the int64 round(x · 2^f), f the number of fraction bits. Integer sums are associative, so any
order of clients, any tree of aggregators, any dropout and return gives identical bits, and forgetting a client
gives the bits of its never having joined. The same grid is what secure aggregation sums.

Two ways onto the grid:

- `encode(statistics)` rounds a client's finished statistics. Exact under any regrouping of *clients*.
- `GridStatistics.from_data(...)` rounds each feature to f/2 fraction bits, then computes without any rounding.
  Exact under any regrouping of *rows* as well: Theorem 3 to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedhip.core.errors import GridOverflowError, GridScaleError
from fedhip.core.rows import ArrayLike, Rows, one_hot
from fedhip.core.statistics import AdditiveStatistics, Statistics, mirror_upper

#: Steps of 2^-28 (3.7e-9), sums up to 2^35 (3.4e10); features in steps of 2^-14.
DEFAULT_FRACTION_BITS = 28

_LIMIT = 2.0**63
_EXACT_FLOAT = 2.0**53


@dataclass(frozen=True, eq=False, repr=False)
class GridStatistics(AdditiveStatistics):
    """Sufficient statistics in int64 steps of 2^-fraction_bits; `+`, `-` and `==` are exact.

    Make one with `encode` or `from_data`, and turn a sum into `Statistics` with `decode`.
    """

    fraction_bits: int

    _kind: ClassVar[str] = "fedhip.grid/1"

    @classmethod
    def from_data(
        cls,
        features: ArrayLike,
        labels: ArrayLike,
        num_classes: int,
        *,
        fraction_bits: int = DEFAULT_FRACTION_BITS,
        client: str | None = None,
        block_rows: int | None = None,
    ) -> Self:
        """gram = QᵀQ, cross = QᵀY for Q = features rounded to fraction_bits/2 bits, without any rounding after.

        Whole numbers in float64 multiply and add exactly below 2^53, so blocks of rows that stay below it go
        through the ordinary matrix product, and int64 adds the blocks.
        """
        fraction_bits = _checked_bits(fraction_bits)
        rows = Rows.checked(features, labels, num_classes, client)
        m, d = rows.width, rows.num_classes
        feature_bits = fraction_bits // 2
        gram = torch.zeros((m, m), dtype=torch.int64, device=rows.device)
        cross = torch.zeros((m, d), dtype=torch.int64, device=rows.device)
        bound = 0.0
        for F, block_labels in rows.blocks(block_rows):
            Q = torch.round(F * 2.0**feature_bits)
            largest = float(Q.abs().max())
            # Σ q² bounds every entry and every partial sum, of gram and of cross (|q| ≤ q²).
            bound += float(Q.square().sum(dim=0).max())
            _require_fit(max(bound, largest**2) * 2.0 ** (fraction_bits - feature_bits), fraction_bits, rows.who)
            step = max(1, int(_EXACT_FLOAT // max(largest**2, 1.0)))
            for start in range(0, len(Q), step):
                q, y = Q[start : start + step], one_hot(block_labels[start : start + step], d)
                gram += (q.mT @ q).to(torch.int64)
                cross += (q.mT @ y).to(torch.int64)
        return cls(
            mirror_upper(gram) << (fraction_bits - 2 * feature_bits),
            cross << (fraction_bits - feature_bits),
            torch.bincount(rows.labels, minlength=d).to(rows.device),
            fraction_bits,
        )

    def __add__(self, other: GridStatistics) -> Self:
        if not isinstance(other, GridStatistics):
            return NotImplemented
        self._require_same_grid(other)
        return self._with(*(_exact_sum(a, b, self.fraction_bits) for a, b in self._pairs(other)))

    def __radd__(self, other: object) -> Self:
        return self if other == 0 else NotImplemented

    def __sub__(self, other: GridStatistics) -> Self:
        if not isinstance(other, GridStatistics):
            return NotImplemented
        self._require_same_grid(other)
        self._require_contains(other.counts)
        return self._with(*(_exact_sum(a, -b, self.fraction_bits) for a, b in self._pairs(other)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GridStatistics):
            return NotImplemented
        return (
            self.fraction_bits == other.fraction_bits
            and self.cross.shape == other.cross.shape
            and all(torch.equal(a, b) for a, b in self._pairs(other))
        )

    def __hash__(self) -> int:
        return hash(self.digest())

    def digest(self) -> str:
        """SHA-256 of scale and values."""
        return f"{self.fraction_bits}-{super().digest()}"

    def _pairs(self, other: GridStatistics) -> list[tuple[Tensor, Tensor]]:
        names = ("gram", "cross", "counts")
        return [(getattr(self, name), getattr(other, name).to(self.device)) for name in names]

    def _with(self, gram: Tensor, cross: Tensor, counts: Tensor) -> Self:
        return type(self)(gram, cross, counts, self.fraction_bits)

    def _require_same_grid(self, other: GridStatistics) -> None:
        self._require_same_shape(other)
        if self.fraction_bits != other.fraction_bits:
            raise GridScaleError(
                f"statistics with {other.fraction_bits} fraction bits do not add to those with "
                f"{self.fraction_bits}; every client must encode at the same scale"
            )


def encode(
    statistics: Statistics, fraction_bits: int = DEFAULT_FRACTION_BITS, *, num_clients: int = 1
) -> GridStatistics:
    """round(x · 2^fraction_bits) in int64.

    `num_clients` leaves room for a sum of that many such terms: with it, addition modulo 2^64 (as under masks)
    cannot wrap round.
    """
    fraction_bits = _checked_bits(fraction_bits)
    largest = max(float(statistics.gram.abs().max()), float(statistics.cross.abs().max()))
    _require_fit(largest * 2.0**fraction_bits * num_clients, fraction_bits, "")
    gram, cross = (
        torch.round(values * 2.0**fraction_bits).to(torch.int64) for values in (statistics.gram, statistics.cross)
    )
    return GridStatistics(gram, cross, statistics.counts, fraction_bits)


def decode(grid: GridStatistics) -> Statistics:
    """The float64 statistics nearest to those on the grid: the same bits from the same integers."""
    step = 2.0**-grid.fraction_bits
    return Statistics(grid.gram.to(torch.float64) * step, grid.cross.to(torch.float64) * step, grid.counts)


def _exact_sum(a: Tensor, b: Tensor, fraction_bits: int) -> Tensor:
    total = a + b
    # Overflow has happened where both terms have the sign that their sum lacks.
    if bool((((a ^ total) & (b ^ total)) < 0).any()):
        largest = float(a.abs().max()) + float(b.abs().max())
        _require_fit(max(largest, _LIMIT), fraction_bits, "")
    return total


def _require_fit(largest: float, fraction_bits: int, who: str) -> None:
    """`largest` counts grid steps at the given scale."""
    if largest < _LIMIT:
        return
    fits = fraction_bits - math.floor(math.log2(largest / _LIMIT)) - 1
    if fits < 0:
        raise GridOverflowError(
            f"{who}values of {largest * 2.0**-fraction_bits:.2g} fit the int64 grid at no scale; rescale the features"
        )
    raise GridOverflowError(
        f"{who}values of {largest * 2.0**-fraction_bits:.2g} overflow the int64 grid at fraction_bits="
        f"{fraction_bits}; fraction_bits={fits} fits"
    )


def _checked_bits(fraction_bits: object) -> int:
    if not isinstance(fraction_bits, int) or not 0 <= fraction_bits <= 62:
        raise GridScaleError(f"fraction_bits is {fraction_bits!r}; give a whole number from 0 to 62")
    return fraction_bits
