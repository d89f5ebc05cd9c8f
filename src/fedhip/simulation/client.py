"""A client whose rows are here: its name, what it trains and is tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.core.exact.columns import Survey
from fedhip.data import FeatureSet, Partition, client_parts, split_of

LabelledRows = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True)
class Client:
    """One client's name and its rows (features, labels) to train and to test on."""

    name: str
    train: LabelledRows
    test: LabelledRows

    def survey(self) -> Survey:
        """Phase 0: what its columns look like."""
        return Survey.of(self.train[0], client=self.name)


def clients_of(data: FeatureSet, partition: Partition, split: NDArray[np.int8] | None = None) -> list[Client]:
    """Each client's rows to train and to test on: by this split, by the data's own, or eight of ten."""
    split = split_of(data.split if split is None else split, partition)
    return [
        Client(name, (data.features[train], data.labels[train]), (data.features[test], data.labels[test]))
        for name, (train, test) in zip(partition.clients, client_parts(partition, split), strict=True)
    ]
