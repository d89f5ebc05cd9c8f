"""The rows of very many clients, where they lie: nobody's are copied before they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.data import FeatureSet, Partition, split_of
from fedhip.simulation.client import Client, LabelledRows

#: Clients whose models are computed, and written, together.
PACK = 1000
#: Bytes of features, as float64, that are worked on at a time.
_BLOCK_BYTES = 2**25

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ManyClients:
    """Clients 0, 1, … by number: their names, and which rows are whose.

    `order` are the places of all rows, client after client, each one's training rows first; those of client k begin at
    `starts[k]`, and `train[k]` of them are to train on.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    order: Ints
    starts: Ints
    train: Ints
    num_classes: int

    @classmethod
    def of(cls, data: FeatureSet, partition: Partition) -> ManyClients:
        """By the data's split, or eight of ten rows of each client."""
        split = split_of(data.split, partition)
        key = 2 * partition.assignment + split
        order = np.argsort(key, kind="stable")
        sizes = np.bincount(key, minlength=2 * partition.num_clients).reshape(-1, 2)
        starts = np.concatenate(([0], np.cumsum(sizes.sum(axis=1))))
        return cls(data.features, data.labels, partition.clients, order, starts, sizes[:, 0], data.num_classes)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def training(self) -> Ints:
        """Who has training rows."""
        return np.flatnonzero(self.train)

    @property
    def packs(self) -> list[Ints]:
        """All clients, a thousand at a time."""
        return [np.arange(start, min(start + PACK, len(self))) for start in range(0, len(self), PACK)]

    def train_rows(self, clients: Ints) -> Ints:
        """The places of clients' training rows, of clients with equally many (c, n)."""
        return self.order[self.starts[clients][:, None] + np.arange(self.train[clients[0]])]

    def test_rows(self, clients: Ints) -> tuple[Ints, Ints]:
        """The places of their test rows, and how many each has."""
        begins, ends = self.starts[clients] + self.train[clients], self.starts[clients + 1]
        numbers = ends - begins
        at = np.repeat(begins - np.cumsum(numbers) + numbers, numbers) + np.arange(int(numbers.sum()))
        return self.order[at], numbers

    def blocks(self) -> list[Ints]:
        """Clients with training rows, so many at a time that their rows fit in a block."""
        rows = max(1, _BLOCK_BYTES // (8 * self.features.shape[1]))
        ends = np.cumsum(self.train)
        cuts = np.searchsorted(ends, np.arange(rows, int(ends[-1]), rows), side="left") + 1
        return [part for part in np.split(np.arange(len(self)), np.unique(cuts)) if self.train[part].any()]

    def block(self, clients: Ints) -> LabelledRows:
        """Training rows of some clients in a row, one below the other."""
        first, last = int(clients[0]), int(clients[-1])
        numbers = self.train[first : last + 1]
        at = np.repeat(self.starts[first : last + 1] - np.cumsum(numbers) + numbers, numbers)
        rows = self.order[at + np.arange(int(numbers.sum()))]
        return self.features[rows], self.labels[rows]

    def by_size(self, clients: Ints, most: int) -> Iterator[Ints]:
        """Those with training rows, equally many in each part and no more than `most` clients."""
        clients = clients[self.train[clients] > 0]
        sizes = self.train[clients]
        for size in np.unique(sizes):
            same = clients[sizes == size]
            for start in range(0, len(same), most):
                yield same[start : start + most]

    def client(self, number: int) -> Client:
        """One of them with its rows."""
        start, middle, end = (
            int(self.starts[number]), int(self.starts[number] + self.train[number]), int(self.starts[number + 1]),
        )  # fmt: skip
        train, test = self.order[start:middle], self.order[middle:end]
        return Client(
            self.names[number], (self.features[train], self.labels[train]), (self.features[test], self.labels[test])
        )

    def clients(self, numbers: Sequence[int]) -> list[Client]:
        """Some of them with their rows."""
        return [self.client(int(number)) for number in numbers]
