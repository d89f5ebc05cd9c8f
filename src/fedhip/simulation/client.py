"""A client whose rows are here: its name, what it trains and is tested on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.exact.columns import Survey
from fedhip.data import FeatureSet, Partition, client_parts, split_of
from fedhip.errors import FedHiPWarning
from fedhip.utils.groups import group_numbers

#: Features (N, m), and labels (N,) or real targets (N, t).
LabelledRows = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Client:
    """One client's name and its rows (features, labels) to train and to test on.

    `groups` (N,) say which of its training rows belong together, where that is known: they are left out, folded and
    held out together. `test_groups` are those of its test rows. `weights` (N,) are what its training rows weigh, above
    0; None where all weigh 1. `multilabel` says that targets are labels of 0 and 1.
    """

    name: str
    train: LabelledRows
    test: LabelledRows
    groups: NDArray[np.int64] | None = None
    test_groups: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None
    multilabel: bool = False

    @property
    def group_tensor(self) -> Tensor | None:
        """The groups of its training rows, from 0 in the order in which they appear."""
        return None if self.groups is None else torch.from_numpy(group_numbers(self.groups))

    @property
    def group_counts(self) -> dict[str, int]:
        """How many groups there are to train and to test on; nothing where rows have none."""
        if self.groups is None or self.test_groups is None:
            return {}
        return {"train_groups": len(np.unique(self.groups)), "test_groups": len(np.unique(self.test_groups))}

    def testing(self, held: NDArray[np.bool_]) -> Client:
        """The client with some (N,) of its training rows to be tested on, and without its test rows."""
        features, labels = self.train
        return Client(
            self.name,
            (features[~held], labels[~held]),
            (features[held], labels[held]),
            None if self.groups is None else self.groups[~held],
            None if self.groups is None else self.groups[held],
            None if self.weights is None else self.weights[~held],
            self.multilabel,
        )

    def survey(self) -> Survey:
        """Phase 0: what its columns look like."""
        return Survey.of(self.train[0], client=self.name)


def clients_of(data: FeatureSet, partition: Partition, split: NDArray[np.int8] | None = None) -> list[Client]:
    """Each client's rows to train and to test on: by this split, by the data's own, or eight of ten."""
    numbers = None if data.groups is None else group_numbers(data.groups)
    if numbers is not None and data.groups is not None:
        _warn_of_shared_groups(data.groups, numbers, partition)
    clients = []
    for name, (train, test) in zip(partition.clients, places_of(data, partition, split), strict=True):
        clients.append(
            Client(
                name,
                (data.features[train], data.labels[train]),
                (data.features[test], data.labels[test]),
                None if numbers is None else numbers[train],
                None if numbers is None else numbers[test],
                None if data.weights is None else data.weights[train],
                data.task == "multilabel",
            )
        )
    return clients


def places_of(
    data: FeatureSet, partition: Partition, split: NDArray[np.int8] | None = None
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Of each client the places of its rows among all: those to train on, and those to test on."""
    places = client_parts(partition, split_of(data.split if split is None else split, partition))
    if data.weights is None:
        return places
    return [(train[data.weights[train] > 0.0], test) for train, test in places]


def _warn_of_shared_groups(names: NDArray[np.str_], numbers: NDArray[np.int64], partition: Partition) -> None:
    """Warn of a group that several clients have rows of: leaving it out of one leaves its rows in the others'."""
    pairs = np.unique(np.stack((numbers, partition.assignment)), axis=1)
    shared = np.flatnonzero(np.bincount(pairs[0]) > 1)
    if len(shared):
        group = int(shared[0])
        first, second = (partition.clients[at] for at in pairs[1][pairs[0] == group][:2])
        also = f", and so are {len(shared) - 1} other groups" if len(shared) > 1 else ""
        warnings.warn(
            f"group {str(names[numbers == group][0])!r} is at client {first!r} and at client {second!r}{also}: a "
            "client leaves out its own rows of a group, and those elsewhere stay in the sum",
            FedHiPWarning,
            stacklevel=3,
        )
