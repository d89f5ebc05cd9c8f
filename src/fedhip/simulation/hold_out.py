"""Training rows of a client that are held out to judge by. Nobody's draw depends on another client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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

    One with a single row trains on it. Where rows have groups, a fifth of these.
    """
    apart = []
    for client in clients:
        groups = client.group_tensor
        rows = len(client.train[1]) if groups is None else int(groups.max()) + 1 if len(groups) else 0
        number = min(int(HELD_OUT * rows + 0.5), max(rows - 1, 0))
        apart.append(with_test_rows(client, order(client.name, rows, seed)[:number], groups))
    return apart


def hold_out_fold(client: Client, fold: int, seed: int) -> Client:
    """The client with one of five folds of its training rows to be tested on, and without its test rows.

    A class's rows are spread over the folds as evenly as can be. The draw depends on the client's name, its labels and
    the seed. Groups of rows are spread so by the label of their first row.
    """
    labels, groups = client.train[1], client.group_tensor
    if groups is not None:
        labels = labels[np.unique(groups.numpy(), return_index=True)[1]]
    order = hold_out_order(client.name, len(labels), seed)
    by_class = order[labels[order].argsort(kind="stable")]
    return with_test_rows(client, by_class[(fold + client_number(client.name)) % FOLDS :: FOLDS], groups)


def with_test_rows(client: Client, rows: NDArray[np.int64], groups: Tensor | None = None) -> Client:
    """The client with these training rows, or groups of them, to be tested on, and without its test rows."""
    held = np.zeros(len(client.train[1]), dtype=bool)
    if groups is None:
        held[rows] = True
    else:
        held = np.isin(groups.numpy(), rows)
    return client.testing(held)
