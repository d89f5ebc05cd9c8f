"""Vectors of whole numbers: what a site sends, what is masked and what is summed.

Statistics as one vector are

    upper triangle of gram, row by row ‖ cross, row by row ‖ counts        m(m + 1)/2 + m·d + d values

int64 on the grid, viewed as uint64: the sum of two is taken modulo 2^64, and is the sum of the whole numbers as long as
that fits in 63 bits, which every site makes sure of before it sends anything. Rows are copied one at a time, so that
a vector costs its own memory and no more.

Losses are real numbers, put on a grid of 2^-32: a sum differs by less than 2^-33 for each site, and what is chosen by
it, from a short list, does not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import GridOverflowError, StatisticsError
from fedhip.federation.errors import MessageError
from fedhip.utils.grids import LOSS_BITS

if TYPE_CHECKING:
    from torch import Tensor

    from fedhip.core.exact.fixedpoint import GridStatistics

Vector = NDArray[np.uint64]

#: The sum of all sites must stay below this, in steps of the grid.
LIMIT = 1 << 63


@dataclass(frozen=True)
class Layout:
    """Where the parts of a vector lie, for features of width m and d classes."""

    m: int
    d: int

    @property
    def triangle(self) -> int:
        """Values of gram."""
        return self.m * (self.m + 1) // 2

    @property
    def size(self) -> int:
        """All values."""
        return self.triangle + self.m * self.d + self.d

    def require(self, vector: NDArray[Any]) -> Vector:
        """The vector as uint64, if it is one of this layout."""
        if vector.shape != (self.size,) or vector.dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
            raise MessageError(
                f"a vector of {vector.dtype} and shape {vector.shape} came where {self.size} whole numbers belong "
                f"({self.m} features, {self.d} classes)"
            )
        return vector.view(np.uint64)

    def cross(self, vector: Vector) -> NDArray[np.int64]:
        """FᵀY (m, d), a view."""
        return vector[self.triangle : self.triangle + self.m * self.d].view(np.int64).reshape(self.m, self.d)

    def counts(self, vector: Vector) -> NDArray[np.int64]:
        """Rows of each class (d,), a view."""
        return vector[self.size - self.d :].view(np.int64)


def to_vector(statistics: GridStatistics) -> Vector:
    """The statistics as one vector."""
    layout = Layout(statistics.num_features, statistics.num_classes)
    vector = np.empty(layout.size, np.uint64)
    signed, gram = vector.view(np.int64), statistics.gram.numpy()
    start = 0
    for row in range(layout.m):
        end = start + layout.m - row
        signed[start:end] = gram[row, row:]
        start = end
    layout.cross(vector)[:] = statistics.cross.numpy()
    layout.counts(vector)[:] = statistics.counts.numpy()
    return vector


def from_vector(vector: Vector, layout: Layout, fraction_bits: int) -> GridStatistics:
    """The statistics that a vector holds; the vector can go then."""
    import torch

    from fedhip.core.exact.fixedpoint import GridStatistics

    signed = layout.require(vector).view(np.int64)
    gram = np.empty((layout.m, layout.m), np.int64)
    start = 0
    for row in range(layout.m):
        end = start + layout.m - row
        gram[row, row:] = gram[row:, row] = signed[start:end]
        start = end
    cross, counts = torch.from_numpy(layout.cross(vector).copy()), torch.from_numpy(layout.counts(vector).copy())
    return GridStatistics(torch.from_numpy(gram), cross, counts, fraction_bits)


def require_length(vector: NDArray[Any], size: int) -> Vector:
    """The vector, if it has so many whole numbers."""
    if vector.shape != (size,) or vector.dtype != np.uint64:
        raise MessageError(
            f"a vector of {vector.dtype} and shape {vector.shape} came where {size} whole numbers belong"
        )
    return vector


def as_bytes(vector: Vector) -> memoryview:
    """As a file holds it."""
    return vector.astype("<u8", copy=False).data


def from_bytes(data: bytes) -> Vector:
    """What `as_bytes` gave."""
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


def digest_of(vector: Vector) -> str:
    """Which vector it is."""
    return hashlib.sha256(as_bytes(vector)).hexdigest()


def require_room(vector: Vector, sites: int, fraction_bits: int) -> None:
    """Refuse values that could exceed 63 bits in a sum over so many sites, each of which looks at its own."""
    signed = vector.view(np.int64)
    largest = max(int(signed.max()), -int(signed.min()))
    if largest * sites >= LIMIT:
        raise GridOverflowError(
            f"the largest value, {largest * 2.0**-fraction_bits:.2g}, leaves no room on the grid for a sum over "
            f"{sites} sites at fraction_bits={fraction_bits}; agree on fewer fraction bits, or rescale the features"
        )


def losses_vector(losses: Tensor, sites: int) -> Vector:
    """Losses on the grid. One too large for a sum of so many sites is as large as that allows: nobody chooses it."""
    from fedhip.errors import LossError

    values = losses.numpy().reshape(-1)
    if not np.isfinite(values).all():
        raise LossError("a loss of rows left out is not a finite number")
    largest = 2.0 ** (62 - LOSS_BITS) / sites
    steps: NDArray[np.int64] = np.rint(np.clip(values, 0.0, largest) * 2.0**LOSS_BITS).astype(np.int64)
    return steps.view(np.uint64)


def losses_of(vector: Vector) -> Tensor:
    """Losses in float64."""
    import torch

    return torch.from_numpy(vector.view(np.int64) * 2.0**-LOSS_BITS)


def require_losses(vector: Vector) -> None:
    """Refuse losses below 0, which no rows have."""
    if int(vector.view(np.int64).min()) < 0:
        raise StatisticsError("the losses are those of no rows: some are below 0")


def require_possible_rest(rest: Vector, layout: Layout, fraction_bits: int, others: int, most_rows: int) -> None:
    """Refuse a sum less one's own statistics that no so many other sites have, without a large matrix.

    Counts are those of rows, at least one for each site; and with them, for features i, j and classes c,
    |gram_ij|² ≤ gram_ii gram_jj and Σ_c cross_ic²/n_c ≤ gram_ii.
    """
    from fedhip.core.statistics import PSD_TOLERANCE

    counts, step = layout.counts(rest), 2.0**-fraction_bits
    rows = sum(map(int, counts))
    if int(counts.min()) < 0 or not others <= rows <= most_rows:
        raise StatisticsError(f"it would leave {rows} rows, or fewer than none of a class, to {others} others")
    signed = rest.view(np.int64)
    starts = np.concatenate(([0], np.cumsum(np.arange(layout.m, 0, -1))))
    diagonal = signed[starts[:-1]] * step
    if float(diagonal.min()) < 0.0:
        raise StatisticsError("it would leave squares to the others that are below 0")
    root, slack = np.sqrt(diagonal), PSD_TOLERANCE * float(diagonal.max())
    for row in range(layout.m):
        products = np.abs(signed[starts[row] : starts[row + 1]]) * step
        if (products > root[row] * root[row:] * (1.0 + PSD_TOLERANCE) + slack).any():
            raise StatisticsError(
                "it would leave products of features to the others that are larger than their squares"
            )
    cross = layout.cross(rest) * step
    seen = counts > 0
    if cross[:, ~seen].any() or (np.square(cross[:, seen]) @ (1.0 / counts[seen]) > diagonal + slack).any():
        raise StatisticsError("it would leave class sums to the others that are larger than their squares allow")


def require_possible(vector: Vector, layout: Layout, fraction_bits: int, most_rows: int) -> None:
    """Refuse a vector that no data set of so many rows has.

    [[gram, cross], [crossᵀ, diag(counts)]] must be positive semi-definite, and the counts those of rows.
    """
    import torch

    from fedhip.core.statistics import PSD_TOLERANCE

    m, d, step = layout.m, layout.d, 2.0**-fraction_bits
    counts = layout.counts(vector)
    if int(counts.min()) < 0 or not counts.any():
        raise StatisticsError("the class counts are negative, or all zero; no data set has such statistics")
    if (rows := sum(map(int, counts))) > most_rows:
        raise StatisticsError(f"the class counts add up to {rows} rows, and at most {most_rows} are agreed on")
    joint = np.zeros((m + d, m + d))
    signed, start = vector.view(np.int64), 0
    for row in range(m):
        end = start + m - row
        joint[row, row:m] = signed[start:end]
        start = end
    joint[:m, m:] = layout.cross(vector)
    joint[:m] *= step
    joint[range(m, m + d), range(m, m + d)] = counts
    # In units of its diagonal's largest entries, so that the units of the features do not matter.
    diagonal = joint.diagonal()
    largest_gram, largest_count = float(diagonal[:m].max()), float(diagonal[m:].max())
    if largest_gram <= 0.0:
        if joint[:m].any():
            raise StatisticsError("gram or cross is not zero although the diagonal of gram is; no data set has that")
        return
    scale = np.concatenate((np.full(m, largest_gram**-0.5), np.full(d, largest_count**-0.5)))
    joint *= scale
    joint *= scale[:, None]
    joint[range(m + d), range(m + d)] += PSD_TOLERANCE
    matrix = torch.from_numpy(joint)
    if int(torch.linalg.cholesky_ex(matrix, upper=True).info) == 0:
        return
    smallest = float(torch.linalg.eigvalsh(matrix, UPLO="U")[0]) - PSD_TOLERANCE
    if smallest < -0.5 * PSD_TOLERANCE:
        raise StatisticsError(
            f"the statistics are not positive semi-definite (smallest eigenvalue {smallest:.1e} of the largest "
            "diagonal entry): no data set has them; compute them again"
        )
