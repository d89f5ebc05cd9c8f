"""What an upload gives away, found by the attacks themselves: each sees only what the receiver of the upload would.

An upload is `GridStatistics`: gram = QᵀQ, cross = QᵀY and counts, Q the features in whole steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.statistics import Statistics
from fedhip.privacy.lattice import Whole, factor, rank_of
from fedhip.utils.parallel import one_thread

#: Lattices of more rows than this are not tried: they ask for stronger reduction than LLL, and for patience.
MOST_ROWS = 128


@dataclass(frozen=True)
class Upload:
    """An upload in whole feature steps: gram (m, m), cross (m, d), counts (d,), and what one step is worth."""

    gram: Whole
    cross: Whole
    counts: Whole
    step: float

    @classmethod
    def of(cls, grid: GridStatistics) -> Upload:
        """The grid's shifts undone."""
        bits = grid.fraction_bits // 2
        gram, cross, counts = (part.cpu().numpy() for part in (grid.gram, grid.cross, grid.counts))
        return cls(
            gram >> (grid.fraction_bits - 2 * bits), cross >> (grid.fraction_bits - bits), counts, 2.0**-bits
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """How many rows: the sum of the counts."""
        return int(self.counts.sum())

    @property
    def width(self) -> int:
        """How many features."""
        return len(self.gram)

    def without(self, rows: Whole, labels: Whole) -> Upload:
        """What is left when these rows are taken out."""
        Y = np.eye(len(self.counts), dtype=np.int64)[labels]
        return Upload(self.gram - rows.T @ rows, self.cross - rows.T @ Y, self.counts - Y.sum(axis=0), self.step)


@dataclass(frozen=True)
class RecoveredRows:
    """Rows that an attack found, in feature steps, each with its class."""

    rows: Whole
    labels: Whole

    def __len__(self) -> int:
        return len(self.rows)


def single_rows(upload: Upload) -> RecoveredRows:
    """Classes with one row: the column of cross is that row."""
    labels = np.flatnonzero(upload.counts == 1)
    return RecoveredRows(upload.cross[:, labels].T, labels)


def class_means(upload: Upload, most: int) -> dict[int, NDArray[np.float64]]:
    """The mean feature of each class with 2 to `most` rows."""
    few = np.flatnonzero((upload.counts >= 2) & (upload.counts <= most))
    return {int(c): upload.cross[:, c] * upload.step / upload.counts[c] for c in few}


def recover_rows(upload: Upload, *, seed: int = 0, go_on: Callable[[], bool] = lambda: True) -> RecoveredRows | None:
    """Every row with its class, where there are fewer rows than features; None where they were not found.

    Rows of classes with a single row are taken out first, then the rest is factored; cross tells the sign of each
    row, and its class.
    """
    known = single_rows(upload)
    rest = upload.without(known.rows, known.labels)
    if rest.rows == 0:
        return known
    rank = rank_of(rest.gram)
    if not 0 < rank < upload.width or rank > MOST_ROWS:
        return None
    found = factor(rest.gram, rank, seed=seed, go_on=go_on)
    if found is None:
        return None
    # cross = rowsᵀ · signs · (how often in each class): whole numbers again.
    rows = torch.from_numpy(found.rows.astype(np.float64))
    with one_thread():
        solved = torch.linalg.lstsq(rows.T, torch.from_numpy(rest.cross.astype(np.float64))).solution.numpy()
    often = np.rint(solved).astype(np.int64)
    if not np.array_equal(found.rows.T @ often, rest.cross):
        return None
    signs = np.where(often.sum(axis=1) < 0, -1, 1)
    often = often * signs[:, None]
    # c rows k q are c k² times q in gram and c k times in cross.
    scale = found.times // np.maximum(often.sum(axis=1), 1)
    if (often < 0).any() or (often % scale[:, None]).any() or (often.sum(axis=1) * scale != found.times).any():
        return None
    often = often // scale[:, None]
    which, labels = (np.repeat(index, often[often > 0]) for index in np.nonzero(often > 0))
    signed = (found.rows * (signs * scale)[:, None])[which]
    return RecoveredRows(np.concatenate((known.rows, signed)), np.concatenate((known.labels, labels)))


def trace_of_model(total: Statistics, beta: float, G: Tensor, P: Tensor) -> NDArray[np.float64]:
    """(A + βI)(P − G) = α F_kᵀ(Y_k − F_k P): combinations of the client's own rows, from its model and the sum.

    Returns an orthonormal basis (m, r) of their span.
    """
    moved = total.gram @ (P - G) + beta * (P - G)
    with one_thread():
        left, values, _ = torch.linalg.svd(moved, full_matrices=False)
    return np.asarray(left[:, values > 1e-7 * values[0]].numpy())


def share_inside(span: NDArray[np.float64], features: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of each row's squared length lies in the span."""
    return np.asarray(((features @ span) ** 2).sum(axis=1) / np.maximum((features**2).sum(axis=1), 1e-300))
