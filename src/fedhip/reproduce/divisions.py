"""The clients of a cell: their rows, standardised features, and the training rows that settings are chosen on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core.standardization import Standardization
from fedhip.data import make_partition
from fedhip.data.partitions.partition import client_random
from fedhip.errors import InputError
from fedhip.reproduce.settings import Source
from fedhip.simulation.client import Client, LabelledRows, clients_of
from fedhip.simulation.lifting import lift_clients

#: Ridge regressions have no bias of their own: with standardised features they get a column of ones.
WITH_INTERCEPT = ("fedhip", "global", "global-oll", "local", "knn-per")


@lru_cache(maxsize=2)
def divide(source: Source, num_clients: int, concentration: float, seed: int) -> list[Client]:
    """K clients by Dirichlet(λ), 8:2 for each unless the data brings a split of its own; their rows lifted, if at all.

    The lift's mean and deviation are of all training rows.
    """
    data = source.features
    partition = make_partition(data.labels, "dirichlet", num_clients, seed=seed, concentration=concentration)
    clients = clients_of(data, partition)
    return clients if source.lift is None else lift_clients(source.lift.draw(clients), clients)


@lru_cache(maxsize=2)
def divide_around(
    source: Source, num_clients: int, concentration: float, seed: int, moved: float
) -> tuple[Client, list[Client]]:
    """One client whose rows stay, and K − 1 among which the others' training rows are divided anew by Dirichlet(moved).

    The first is the client with the median number of training rows, among those that have test rows, of the division
    by Dirichlet(λ). The same rows are trained on whatever `moved` is; the others have no test rows.
    """
    clients = divide(source, num_clients, concentration, seed)
    order = sorted(
        (k for k, client in enumerate(clients) if len(client.test[1]) and len(client.train[1])),
        key=lambda k: (len(clients[k].train[1]), k),
    )
    if not order:
        raise InputError(
            f"none of the {num_clients} clients of {source.name} has rows to train and to test on; take fewer clients"
        )
    fixed = order[len(order) // 2]
    others = [client.train for k, client in enumerate(clients) if k != fixed]
    features = np.concatenate([rows[0] for rows in others])
    labels = np.concatenate([rows[1] for rows in others])
    partition = make_partition(labels, "dirichlet", num_clients - 1, seed=seed, concentration=moved)
    nothing = (features[:0], labels[:0])
    again = [
        Client(name, (features[rows], labels[rows]), nothing)
        for name, rows in zip(partition.clients, partition.rows, strict=True)
    ]
    return Client("fixed", clients[fixed].train, clients[fixed].test), again


def validation_order(client: str, rows: int, seed: int) -> NDArray[np.int64]:
    """The order of a client's rows that those to choose settings on are taken from: that of the published tables."""
    return client_random(client, seed, "validation").permutation(rows)


def standardize(clients: Sequence[Client], *, intercept: bool = False) -> list[Client]:
    """Features less mean, over deviation: those of all clients' training rows, from sums over clients."""
    trained = [torch.from_numpy(client.train[0]) for client in clients if len(client.train[1])]
    if not trained:
        return list(clients)
    sums = torch.stack([rows.double().sum(dim=0) for rows in trained]).sum(dim=0)
    squares = torch.stack([rows.double().square().sum(dim=0) for rows in trained]).sum(dim=0)
    shared = Standardization.of_sums(sum(map(len, trained)), sums, squares, intercept=intercept)

    def moved(rows: LabelledRows) -> LabelledRows:
        features = shared.features(torch.tensor(rows[0])).cpu().numpy()
        return features.astype(rows[0].dtype, copy=False), rows[1]

    return [Client(client.name, moved(client.train), moved(client.test)) for client in clients]
