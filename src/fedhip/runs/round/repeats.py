"""Rows of one client that are nearly the same, where nobody has said that they belong together.

Two images of one patient on both sides of a split, or of leave-one-out, make a model look better than it is. It is a
cheap look: up to 2,048 rows of a client are standardised and projected on two directions; rows that are the same lie
side by side on both.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import FedHiPWarning
from fedhip.simulation.client import Client

#: Rows of a client, and clients, that are looked at.
_ROWS, _CLIENTS = 2048, 64
#: Root mean square of the differences, in deviations of the columns, that is nearly none.
_NEAR = 0.01
#: Columns that take many values: of a few columns, or of columns with few values, rows are the same by chance.
_FEWEST_COLUMNS = 8
#: Neighbours that are compared.
_NEIGHBOURS = 2


def warn_of_repeats(clients: Sequence[Client]) -> None:
    """Warn of a client with rows that are nearly the same and no groups."""
    found: list[tuple[str, int, tuple[int, int], int]] = []
    for client in clients[:_CLIENTS]:
        if client.groups is not None:
            return
        pairs = near_pairs(client.train[0][:_ROWS])
        if pairs:
            rows = len({row for pair in pairs for row in pair})
            found.append((client.name, rows, pairs[0], len(client.train[1])))
    if found:
        name, rows, (one, other), number = found[0]
        others = f", and {len(found) - 1} other clients have such rows" if len(found) > 1 else ""
        warnings.warn(
            f"client {name!r}: {rows} of {number} training rows are nearly the same as another, such as {one} and "
            f"{other}{others}; if they belong together (one patient, one session), give groups: else what is left out "
            "is still there, and numbers are too good",
            FedHiPWarning,
            stacklevel=3,
        )


def near_pairs(features: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Pairs of rows that are nearly the same."""
    F = np.asarray(features, np.float64)
    if len(F) < 2:
        return []
    # Of the columns' first values a few dozen tell whether they take many.
    some = F[:64]
    many = np.array([len(np.unique(column)) > len(some) / 2 for column in some.T])
    if many.sum() < _FEWEST_COLUMNS:
        return []
    F = F[:, many]
    scale = F.std(axis=0)
    F = (F - F.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)
    limit = _NEAR**2 * F.shape[1]
    pairs: set[tuple[int, int]] = set()
    steps = np.arange(1.0, F.shape[1] + 1.0)
    for direction in (np.cos(steps), np.cos(2.3 * steps)):
        order = np.argsort(F @ direction, kind="stable")
        for apart in range(1, _NEIGHBOURS + 1):
            gaps = np.square(F[order[apart:]] - F[order[:-apart]]).sum(axis=1)
            near = np.flatnonzero(gaps <= limit)
            both = ((int(order[at]), int(order[at + apart])) for at in near)
            pairs |= {(min(pair), max(pair)) for pair in both}
    return sorted(pairs)
