"""Rows of one client that are nearly the same, where nobody has said that they belong together.

Two images of one patient on both sides of a split, or of leave-one-out, make a model look better than it is. It is a
cheap look: up to 2,048 rows of a client are standardised and projected on two directions; rows that are the same lie
side by side on both. Of few columns only rows that agree in all of them count, and only if they are more than chance
makes of columns that have nothing to do with each other.
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
#: Columns that take many values: of fewer, or of columns with few values, rows are nearly the same by chance.
_FEWEST_COLUMNS = 8
#: Rows that agree in all columns: so many pairs, so many times what chance makes, and no copies of one column.
_FEWEST_PAIRS, _BEYOND_CHANCE, _COPY = 3, 10.0, 0.99
#: Features may be no larger (`fedhip.core.exact`), and none that is can be compared.
_LARGEST = 2.0**64
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
    # What no square holds is refused elsewhere, with its column.
    if len(F) < 2 or float(np.abs(F).max()) > _LARGEST:
        return []
    # Of the columns' first values a few dozen tell whether they take many.
    some = F[:64]
    many = np.array([len(np.unique(column)) > len(some) / 2 for column in some.T])
    varied = F[:, many]
    varied = varied / np.abs(varied).max(axis=0, initial=0.0)  # not 0, or else of one value
    if many.sum() < _FEWEST_COLUMNS:
        return _same_pairs(F, varied)
    F = varied
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


def _same_pairs(rows: NDArray[np.float64], many: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs of rows that agree in all columns; none if chance may make as many of the columns with `many` values.

    Of two rows drawn by chance the share that agrees in a column is known; in all, it is their product.
    """
    apart: list[NDArray[np.float64]] = []
    for column in (column for column in many.T if np.ptp(column) > 0.0):
        if not any(abs(float(np.corrcoef(column, other)[0, 1])) > _COPY for other in apart):
            apart.append(column)
    if len(apart) < 2:
        return []
    pairs = len(rows) * (len(rows) - 1)
    counts = (np.unique(column, return_counts=True)[1] for column in apart)
    by_chance = 0.5 * pairs * float(np.prod([(c * (c - 1)).sum() / pairs for c in counts]))
    _, which = np.unique(rows, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    at = np.flatnonzero(np.diff(which.reshape(-1)[order]) == 0)
    found = sorted((int(order[i]), int(order[i + 1])) for i in at)
    return found if len(found) >= max(_FEWEST_PAIRS, _BEYOND_CHANCE * by_chance) else []
