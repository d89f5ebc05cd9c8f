"""Training rows of a client that are held out to judge by. Nobody's draw depends on another client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedhip.core.choice.selection import FOLDS
from fedhip.simulation.client import Client
from fedhip.simulation.orders import HOLD_OUT, Order, client_number, client_order

#: The share of a client's training rows that is held out.
HELD_OUT = 0.2


def hold_out_order(client: str, rows: int, seed: int) -> Order:
    """The order of a client's rows, by its name and the seed, that the first are held out of."""
    return client_order(rows, seed, client, 0, 0, HOLD_OUT)


def hold_out(
    clients: Sequence[Client], seed: int, order: Callable[[str, int, int], NDArray[np.int64]] = hold_out_order
) -> list[Client]:
    """The clients with a fifth of their training rows to be tested on, and without their test rows.

    One with a single row trains on it.
    """
    apart = []
    for client in clients:
        rows = len(client.train[1])
        number = min(int(HELD_OUT * rows + 0.5), max(rows - 1, 0))
        apart.append(with_test_rows(client, order(client.name, rows, seed)[:number]))
    return apart


def hold_out_fold(client: Client, fold: int, seed: int) -> Client:
    """The client with one of five folds of its training rows to be tested on, and without its test rows.

    A class's rows are spread over the folds as evenly as can be. The draw depends on the client's name, its labels and
    the seed.
    """
    labels = client.train[1]
    order = hold_out_order(client.name, len(labels), seed)
    by_class = order[labels[order].argsort(kind="stable")]
    return with_test_rows(client, by_class[(fold + client_number(client.name)) % FOLDS :: FOLDS])


def with_test_rows(client: Client, rows: NDArray[np.int64]) -> Client:
    """The client with these training rows to be tested on, and without its test rows."""
    features, labels = client.train
    held = np.zeros(len(labels), dtype=bool)
    held[rows] = True
    return Client(client.name, (features[~held], labels[~held]), (features[held], labels[held]))
