"""A client's statistics as a square: a matrix A with AᵀA = FᵀF, rounded as finely as it fits in so many bytes.

    A = [ S_c/√n_c for each class c that the client has ]     S_c the sum of its n_c rows of class c
        [ R                                             ]     RᵀR = Σ (f − S_c/n_c)(f − S_c/n_c)ᵀ over its rows

R is triangular, and A has no more rows than the client has: where these are fewer than half the columns, it is smaller
than the triangle of FᵀF. Rounded, AᵀA stays a square, so that no direction of the sum is lost to noise as it is where
products themselves are rounded. A follows from FᵀF and the class sums up to signs: it tells no more than they do.

All rows of A are rounded to the same step, a power of two, and each is sent in the bits that its largest number takes.
The step is the finest with which all of it fits. What is made of it is on the grid and of whole numbers: sums are exact
and in any order. They depend on how rows are divided among clients, by as much as the rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.rows import Rows
from fedhip.errors import GridOverflowError, InputError

#: A count of each class; the step; and how many bits the numbers of a row take.
_COUNT_BYTES, _STEP_BYTES, _ROW_BYTES = 4, 2, 1
#: Whole numbers up to 2^20 in absolute value: their products are exact in float64, over 2^13 rows.
MOST_BITS = 21
#: An eigenvalue that is smaller than the largest by this is rounding.
_NO_LENGTH = 1e-12


def root_numbers(rows: int, width: int, classes: int) -> int:
    """How many numbers A is at most, of a client with so many rows of so many classes."""
    classes = min(classes, rows)
    height = min(rows - classes, width)
    return classes * width + height * width - height * (height - 1) // 2


def root_bytes(rows: int, width: int, classes: int, bits: int) -> int:
    """What it takes to send A with numbers of so many bits."""
    numbers, height = root_numbers(rows, width, classes), min(rows, width + classes)
    return _COUNT_BYTES * classes + _STEP_BYTES + _ROW_BYTES * height + (numbers * bits + 7) // 8


def root_statistics(
    F: Tensor, labels: Tensor, num_classes: int, room: int, *, fraction_bits: int, client: str | None = None
) -> GridStatistics:
    """The statistics of rows F (N, m), float64, as they arrive when A is sent in no more than `room` bytes."""
    checked = Rows.checked(F, labels, num_classes, client)
    ((F, labels),) = checked.blocks(len(checked))
    counts = torch.bincount(labels, minlength=num_classes)
    own = counts.nonzero()[:, 0]
    n = counts[own].to(torch.float64)
    sums = F.new_zeros((num_classes, F.shape[1])).index_add_(0, labels, F)[own]
    means = F.new_zeros((num_classes, F.shape[1]))
    means[own] = sums / n[:, None]
    A = torch.cat((sums / n.sqrt()[:, None], _triangle(F - means[labels])))
    lengths = torch.cat((torch.full((len(own),), F.shape[1]), F.shape[1] - torch.arange(len(A) - len(own))))
    free = 8 * (room - _COUNT_BYTES * num_classes - _STEP_BYTES - _ROW_BYTES * len(A))
    largest = A.abs().amax(dim=1) if len(A) else A.new_zeros(0)
    bits = _finest(largest, lengths, free, fraction_bits // 2)
    q = torch.round(A * 2.0**bits)
    gram, scale = q.mT @ q, fraction_bits - 2 * bits
    if float(gram.abs().amax()) * 2.0**scale >= 2.0**62:
        who = "" if client is None else f"client {client!r}: "
        raise GridOverflowError(f"{who}its rows are too large for a grid of {fraction_bits} fraction bits; scale them")
    cross = torch.zeros((F.shape[1], num_classes), dtype=torch.int64, device=F.device)
    cross[:, own] = torch.round(q[: len(own)] * n.sqrt()[:, None] * 2.0 ** (fraction_bits - bits)).to(torch.int64).mT
    return GridStatistics(gram.to(torch.int64) << scale, cross, counts, fraction_bits)


def _triangle(U: Tensor) -> Tensor:
    """R, upper triangular with RᵀR = UᵀU, of as many rows as U has directions."""
    if len(U) <= U.shape[1]:
        values, V = torch.linalg.eigh(U @ U.mT)
        U = V[:, values > _NO_LENGTH * values[-1:].clamp(min=0.0)].mT @ U
    R: Tensor = torch.linalg.qr(U, mode="r").R
    return R


def _finest(largest: Tensor, lengths: Tensor, free: int, most: int) -> int:
    """b of the finest step 2^-b with which all rows fit in so many bits."""
    for bits in range(most, -64, -1):
        tops = [round(value * 2.0**bits) for value in largest.tolist()]
        widths = torch.tensor([top.bit_length() + 1 if top else 0 for top in tops])
        if max(tops, default=0) < 2 ** (MOST_BITS - 1) and int((widths * lengths).sum()) <= free:
            return bits
    raise InputError(f"{max(free, 0) // 8} bytes hold nothing of {len(lengths)} rows of statistics; give more")
