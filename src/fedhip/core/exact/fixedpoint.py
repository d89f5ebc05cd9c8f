"""Rows rounded to a grid, and their statistics as whole numbers: sums that are the same bits in any order.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from operator import index
from os import PathLike
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.statistics import AdditiveStatistics, Statistics, mirror_upper, pack, unpack
from fedhip.core.tensor_file import TensorFile, require_digest
from fedhip.errors import FileError, GridOverflowError, InputError

#: Steps of 2^-28 (3.7e-9), sums up to 2^35 (3.4e10); features in steps of 2^-14.
DEFAULT_FRACTION_BITS = 28

_FILE = TensorFile("fedhip.grid", 1, "grid statistics", dict.fromkeys(("gram", "cross", "counts"), torch.int64))

#: Rows of a wide matrix that are worked on at a time, where all of them would take another such matrix.
_ROWS_AT_ONCE = 256

_LIMIT = 2.0**63
_EXACT_FLOAT = 2.0**53
_EPS = torch.finfo(torch.float64).eps

#: Rows with a feature of more steps than this are multiplied in two parts, so that one such row does not make the
#: others of its block go a few at a time: of those, 32 and more have products that add up to no more than 2^53.
_LARGE = 2.0**24
#: Where the two parts are cut: below are 16 bits, and above are 16, for rows that fit have features below 2^32 steps.
_LOW_BITS = 16
#: Products of either part are at most 2^32, those of both together twice as many: less than 2^53 in all.
_LARGE_ROWS = 2**19


@dataclass(frozen=True, eq=False, repr=False)
class GridStatistics(AdditiveStatistics):
    """Sufficient statistics in int64 steps of 2^-fraction_bits; `+`, `-` and `==` are exact.

    Make one with `encode` or `from_data`, and turn a sum into `Statistics` with `decode`.
    """

    fraction_bits: int

    _kind: ClassVar[str] = "fedhip.grid/1"

    def __post_init__(self) -> None:
        tensors = (self.gram, self.cross, self.counts)
        if any(tensor.dtype != torch.int64 for tensor in tensors):
            raise InputError("statistics on the grid are int64; make them with encode or from_data")
        m, d = self.gram.shape[0], self.counts.shape[0]
        if self.gram.shape != (m, m) or self.cross.shape != (m, d):
            raise InputError(f"gram {tuple(self.gram.shape)} and cross {tuple(self.cross.shape)} do not fit")
        object.__setattr__(self, "fraction_bits", _checked_bits(self.fraction_bits))

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
        through the ordinary matrix product, and int64 adds the blocks. Rows of large features do so in two parts.
        """
        fraction_bits = _checked_bits(fraction_bits)
        rows = Rows.checked(features, labels, num_classes, client, block_rows)
        m, d = rows.width, rows.num_classes
        feature_bits = fraction_bits // 2
        gram = torch.zeros((m, m), dtype=torch.int64, device=rows.device)
        cross = torch.zeros((m, d), dtype=torch.int64, device=rows.device)
        squares = absolutes = 0.0
        fits = False
        for F, block_labels in rows.blocks(block_rows):
            Q = _feature_steps(F, fraction_bits)
            sizes = Q.amax(dim=1).maximum(-Q.amin(dim=1))
            if not fits:  # the largest value of each block mostly tells that all will; else it is measured, once
                largest = float(sizes.max())
                squares, absolutes = squares + len(Q) * largest * largest, absolutes + len(Q) * largest
                if _grid_steps(squares, absolutes, len(rows), fraction_bits, fraction_bits) >= _LIMIT:
                    _require_room(rows, fraction_bits, block_rows)
                    fits = True
            for q, y, large in _exact_parts(Q, block_labels, sizes):
                _add_upper_gram(gram, q, large)
                by_class = torch.zeros((d, m), dtype=torch.float64, device=rows.device).index_add_(0, y, q)
                cross += by_class.mT.to(torch.int64)
        mirror_upper(gram)  # symmetric, since exact
        return cls(
            gram.bitwise_left_shift_(fraction_bits - 2 * feature_bits),
            cross.bitwise_left_shift_(fraction_bits - feature_bits),
            torch.bincount(rows.labels, minlength=d).to(rows.device),
            fraction_bits,
        )

    def __add__(self, other: GridStatistics) -> Self:
        if not isinstance(other, GridStatistics):
            return NotImplemented
        self.require_same_shape(other)
        return self._with(*(_exact_sum(a, b, self.fraction_bits) for a, b in self._pairs(other)))

    def __sub__(self, other: GridStatistics) -> Self:
        if not isinstance(other, GridStatistics):
            return NotImplemented
        self.require_same_shape(other)
        self.require_contains(other.counts)
        return self._with(*(_exact_difference(a, b, self.fraction_bits) for a, b in self._pairs(other)))

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
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return f"{self.fraction_bits}-{super().digest()}"

    def to_file(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file (gram as its packed upper triangle), whole or not at all."""
        tensors = {"gram": pack(self.gram), "cross": self.cross, "counts": self.counts}
        _FILE.write(path, tensors, digest=self.digest(), fraction_bits=str(self.fraction_bits))

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Read what `to_file` wrote, and check version and digest."""
        tensors, metadata = _FILE.read(path)
        try:
            grid = cls(unpack(tensors["gram"]), tensors["cross"], tensors["counts"], int(metadata["fraction_bits"]))
        except (IndexError, KeyError, ValueError) as error:
            raise FileError(f"{path} does not hold statistics on a grid ({error}); write it again") from None
        require_digest(path, stored=metadata["digest"], computed=grid.digest())
        return grid

    def _pairs(self, other: GridStatistics) -> list[tuple[Tensor, Tensor]]:
        names = ("gram", "cross", "counts")
        return [(getattr(self, name), getattr(other, name).to(self.device)) for name in names]

    def _with(self, gram: Tensor, cross: Tensor, counts: Tensor) -> Self:
        return type(self)(gram, cross, counts, self.fraction_bits)

    def require_same_shape(self, other: AdditiveStatistics, who: str = "") -> None:
        """Raise `InputError` unless the two can be added: as wide, of as many classes, and of the same scale."""
        super().require_same_shape(other, who)
        if isinstance(other, GridStatistics) and self.fraction_bits != other.fraction_bits:
            raise InputError(
                f"{who}statistics with {other.fraction_bits} fraction bits do not add to those with "
                f"{self.fraction_bits}; every client must encode at the same scale"
            )


def fraction_bits_for(largest: float) -> int:
    """A scale for features up to `largest` in absolute value: 16 to 20 bits for them, room for a million rows.

    In steps of eight, so that data a little larger or smaller has the same scale: 2^-40 up to 1, 2^-32 up to 16,
    2^-24 up to 256, and so on. Features below 1/16 get fewer bits, for their sums by class lie on the same grid.
    """
    if not (math.isfinite(largest) and largest > 0.0):
        return DEFAULT_FRACTION_BITS
    magnitude = math.log2(largest)
    by_precision, by_room = 20 - 4 * math.ceil(magnitude / 4), 4 * math.floor((43 - magnitude) / 8)
    return 2 * min(max(min(by_precision, by_room), 0), 31)


def encode(
    statistics: Statistics, fraction_bits: int = DEFAULT_FRACTION_BITS, *, num_clients: int = 1
) -> GridStatistics:
    """round(x · 2^fraction_bits) in int64.

    `num_clients` leaves room for a sum of that many such terms: with it, addition modulo 2^64 (as under masks)
    cannot wrap round.
    """
    fraction_bits = _checked_bits(fraction_bits)
    if isinstance(num_clients, bool) or not isinstance(num_clients, Integral) or num_clients < 1:
        raise InputError(f"num_clients is {num_clients!r}; give a whole number of at least 1")
    largest = max(float(statistics.gram.abs().max()), float(statistics.cross.abs().max()))

    def steps(at: int) -> float:
        most = largest * 2.0**at
        # In whole numbers: the rounding of a term counts as often as there are terms.
        return round(most) * int(num_clients) if math.isfinite(most) else math.inf

    _require_fit(steps, fraction_bits, "")
    gram, cross = (
        torch.round(values * 2.0**fraction_bits).to(torch.int64) for values in (statistics.gram, statistics.cross)
    )
    return GridStatistics(gram, cross, statistics.counts, fraction_bits)


def round_features(features: Tensor, fraction_bits: int = DEFAULT_FRACTION_BITS) -> Tensor:
    """Features as `GridStatistics.from_data` sees them, float64: for personalization that is exact on the grid."""
    steps = _feature_steps(features.to(torch.float64), fraction_bits)
    return steps.mul_(2.0 ** -(_checked_bits(fraction_bits) // 2))


def _feature_steps(F: Tensor, fraction_bits: int) -> Tensor:
    return (F * 2.0 ** (fraction_bits // 2)).round_()


def decode(grid: GridStatistics) -> Statistics:
    """The float64 statistics nearest to those on the grid: the same bits from the same integers."""
    step = 2.0**-grid.fraction_bits
    return Statistics._of(
        grid.gram.to(torch.float64).mul_(step), grid.cross.to(torch.float64).mul_(step), grid.counts.clone()
    )


def decode_weighted(total: Tensor, own: Tensor, alpha: float, fraction_bits: int, out: Tensor | None = None) -> Tensor:
    """total + α·own in float64 of matrices on the grid: the bits of the sum of both decoded, in the memory of one."""
    step, own = 2.0**-fraction_bits, own.to(total.device)
    weighted = torch.empty(total.shape, dtype=torch.float64, device=total.device) if out is None else out
    parts = (torch.split(matrix, _ROWS_AT_ONCE) for matrix in (weighted, total, own))
    for rows, ours, mine in zip(*parts, strict=True):
        rows.copy_(mine).mul_(step).mul_(alpha).add_(ours.to(torch.float64).mul_(step))
    return weighted


def _require_room(rows: Rows, fraction_bits: int, block_rows: int | None) -> None:
    """Raise `GridOverflowError` unless the statistics of all rows fit."""
    squares = absolutes = torch.zeros(rows.width, dtype=torch.float64, device=rows.device)
    for F, _ in rows.blocks(block_rows):
        Q = _feature_steps(F, fraction_bits)
        squares, absolutes = squares + Q.square().sum(dim=0), absolutes + Q.abs().sum(dim=0)
    most = float(squares.max()), float(absolutes.max())
    _require_fit(lambda at: _grid_steps(*most, len(rows), fraction_bits, at), fraction_bits, rows.who)


def _grid_steps(squares: float, absolutes: float, rows: int, fraction_bits: int, at: int) -> float:
    """The largest entry that rows of these sums of squares and absolute values may reach, in steps of 2^-at.

    Sums of squares bound the entries of gram, sums of absolute values those of cross, partial sums included. They are
    those of feature steps at `fraction_bits`, and `at` is that or less. With c bits less for features these are rounded
    anew, to at most |q|/2^c + 1 steps.
    """
    coarser, feature_bits = fraction_bits // 2 - at // 2, at // 2
    squares, absolutes = squares * 4.0**-coarser, absolutes * 2.0**-coarser
    if coarser:
        squares, absolutes = squares + 2.0 * absolutes + rows, absolutes + rows
    in_gram, in_cross = 2.0 ** (at - 2 * feature_bits), 2.0 ** (at - feature_bits)
    steps = max(squares * in_gram, absolutes * in_cross)
    # The sums are rounded themselves. Every term was rounded when squared and goes through at most one addition for
    # each row and five more operations, each of which takes at most the part u = ε/2 of it, in whatever order. So what
    # was to be found is at most 1/(1 − u)^(rows + 6), and less than 1 + (rows + 8) ε, times what was, for rows < 2^50.
    return steps * (1.0 + (rows + 8) * _EPS)


def _exact_parts(Q: Tensor, labels: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Rows in parts of which all are small, or all large; products of small ones add up to no more than 2^53.

    `sizes` (n,) are the largest absolute values of the rows.
    """
    large = sizes > _LARGE
    if bool(large.any()):
        for part in torch.split(large.nonzero()[:, 0], _LARGE_ROWS):
            yield Q[part], labels[part], True
        Q, labels, sizes = Q[~large], labels[~large], sizes[~large]
    if len(Q) == 0:
        return
    largest = max(float(sizes.max()), 1.0)
    rows = int(_EXACT_FLOAT // (largest * largest))
    for start in range(0, len(Q), rows):
        yield Q[start : start + rows], labels[start : start + rows], False


def _add_upper_gram(gram: Tensor, q: Tensor, large: bool) -> None:
    """gram += qᵀq in int64, in the upper triangle at least, for a part that `_exact_parts` made."""
    if not large:
        _add_upper_product(gram, q, q, 0)
        return
    # q = 2^16 h + l, |l| <= 2^15, |h| <= 2^16. What overflows when shifted wraps round, and back in the sum: that fits.
    high = torch.round(q * 2.0**-_LOW_BITS)
    low = q - high * 2.0**_LOW_BITS
    _add_upper_product(gram, low, low, 0)
    _add_upper_product(gram, torch.cat((high, low)), torch.cat((low, high)), _LOW_BITS)
    _add_upper_product(gram, high, high, 2 * _LOW_BITS)


def _add_upper_product(gram: Tensor, a: Tensor, b: Tensor, bits: int) -> None:
    """gram += 2^bits aᵀb, which is symmetric, in int64 and in the upper triangle at least."""
    for start in range(0, len(gram), _ROWS_AT_ONCE):
        end = start + _ROWS_AT_ONCE
        product = (a[:, start:end].mT @ b[:, start:]).to(torch.int64)
        gram[start:end, start:] += product.bitwise_left_shift_(bits) if bits else product


def _exact_sum(a: Tensor, b: Tensor, fraction_bits: int) -> Tensor:
    total = torch.empty_like(a)
    for x, y, sum_ in zip(*(torch.split(t, _ROWS_AT_ONCE) for t in (a, b, total)), strict=True):
        torch.add(x, y, out=sum_)
        # Overflow has happened where both terms have the sign that their sum lacks.
        _require_none((x ^ sum_).bitwise_and_(y ^ sum_), a, b, fraction_bits)
    return total


def _exact_difference(a: Tensor, b: Tensor, fraction_bits: int) -> Tensor:
    difference = a - b
    _require_none((a ^ b) & (a ^ difference), a, b, fraction_bits)
    return difference


def _require_none(overflow: Tensor, a: Tensor, b: Tensor, fraction_bits: int) -> None:
    """Raise where a number is negative, which says that this entry of a ± b has overflowed."""
    if overflow.numel() and int(overflow.min()) < 0:
        largest = float(a.to(torch.float64).abs().max()) + float(b.to(torch.float64).abs().max())
        # Two terms rounded anew: at most a step more.
        _require_fit(lambda at: max(largest, _LIMIT) * 2.0 ** (at - fraction_bits) + 1.0, fraction_bits, "")


def _require_fit(steps: Callable[[int], float], fraction_bits: int, who: str) -> None:
    """`steps` bounds the largest entry, counted in grid steps at a given scale."""
    largest = steps(fraction_bits)
    if largest < _LIMIT:
        return
    value = f"{who}values of {largest * 2.0**-fraction_bits:.2g}"
    fits = next((at for at in reversed(range(fraction_bits)) if steps(at) < _LIMIT), None)
    if fits is None:
        raise GridOverflowError(f"{value} fit the int64 grid at no scale; rescale the features")
    raise GridOverflowError(
        f"{value} overflow the int64 grid at fraction_bits={fraction_bits}; fraction_bits={fits} fits"
    )


def _checked_bits(fraction_bits: object) -> int:
    whole = isinstance(fraction_bits, Integral) and not isinstance(fraction_bits, bool)
    if not whole or not 0 <= (bits := index(fraction_bits)) <= 62:  # type: ignore[arg-type]
        raise InputError(f"fraction_bits is {fraction_bits!r}; give a whole number from 0 to 62")
    return bits
