"""Statistics of many clients with equally many rows, on the grid: those of `GridStatistics.from_data`, all at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.rows import one_hot

_EXACT_FLOAT = 2.0**53


@dataclass(frozen=True, eq=False)
class GridBatch:
    """gram (c, m, m), cross (c, m, d) and counts (c, d) of c clients, int64."""

    gram: Tensor
    cross: Tensor
    counts: Tensor
    fraction_bits: int

    @classmethod
    def of(cls, rounded: Tensor, labels: Tensor, num_classes: int, fraction_bits: int) -> tuple[Self, Tensor]:
        """Of rows (c, n, m) as the grid holds them, and their labels (c, n). Beside them, which are exact (c,) bool.

        What is not has products that a float64 does not hold; `GridStatistics.from_data` takes it in parts.
        """
        c, n, _ = rounded.shape
        bits = fraction_bits // 2
        steps = rounded * 2.0**bits
        exact = n * steps.abs().amax(dim=(1, 2)).square() <= _EXACT_FLOAT
        Y = one_hot(labels.reshape(-1), num_classes).view(c, n, num_classes)
        gram = (steps.mT @ steps).to(torch.int64).bitwise_left_shift_(fraction_bits - 2 * bits)
        cross = (steps.mT @ Y).to(torch.int64).bitwise_left_shift_(fraction_bits - bits)
        return cls(gram, cross, Y.sum(dim=1).to(torch.int64), fraction_bits), exact

    def __len__(self) -> int:
        return len(self.counts)

    def digests(self) -> list[str]:
        """What `GridStatistics.digest` says of each."""
        m, d = self.cross.shape[1:]
        begun = hashlib.sha256(f"{GridStatistics._kind} m={m} d={d}\n".encode())
        upper = torch.ones((m, m), dtype=torch.bool).triu_().reshape(-1).nonzero()[:, 0]
        packed = self.gram.reshape(len(self), -1).index_select(1, upper)
        parts = torch.cat((packed, self.cross.reshape(len(self), -1), self.counts), dim=1).numpy()
        found = []
        for values in parts.astype(parts.dtype.newbyteorder("<"), copy=False):
            sha = begun.copy()
            sha.update(values.data)
            found.append(f"{self.fraction_bits}-{sha.hexdigest()}")
        return found
