"""Rows as scikit-learn gives them: whose each is, what belongs together, what it weighs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import unique_labels
from torch import Tensor

from fedhip.core.exact.column_sums import ColumnSums
from fedhip.core.exact.outweighing import Spread
from fedhip.errors import InputError
from fedhip.simulation.client import Client
from fedhip.simulation.private import shared_group
from fedhip.utils.groups import group_numbers

Array = NDArray[Any]
ClientName = int | str

#: The client of all rows where no groups are given.
ONLY_CLIENT = 0


@dataclass(frozen=True, eq=False)
class Part:
    """One client's rows: features, labels or targets, blocks and weights where there are any."""

    X: Array
    y: Array
    blocks: Array | None = None
    weights: NDArray[np.float64] | None = None

    def __add__(self, more: Part) -> Part:
        blocks = weights = None
        if self.blocks is not None or more.blocks is not None:
            # Rows without a block are one each, of a name that nobody gives.
            blocks = np.concatenate([
                np.array([f"\0{at}-{row}" for row in range(len(part.X))]) if part.blocks is None else part.blocks
                for at, part in enumerate((self, more))
            ])  # fmt: skip
        if self.weights is not None or more.weights is not None:
            weights = np.concatenate([np.ones(len(p.X)) if p.weights is None else p.weights for p in (self, more)])
        return Part(np.concatenate((self.X, more.X)), np.concatenate((self.y, more.y)), blocks, weights)


def spread_of(rows: Mapping[ClientName, Part]) -> Spread:
    """Where all clients' rows lie."""
    parts = Spread.of([ColumnSums.of(part.X) for part in rows.values()])
    return parts.of_all(np.ones_like(parts.mean))


def classes_of(y: Array, classes: Any, known: tuple[Array, bool] | None) -> tuple[Array, bool]:
    """All classes once the labels y are there, and whether the caller declared them; `known` are those of before."""
    if classes is None and (known is None or not known[1]):
        return (unique_labels(y) if known is None else unique_labels(known[0], y)), False
    declared = known[0] if classes is None and known is not None else unique_labels(classes)
    if known is not None and not np.array_equal(declared, known[0]):
        raise InputError(
            f"classes are {declared.tolist()}, and the estimator has {known[0].tolist()}; "
            "declare them in the first call of partial_fit"
        )
    unknown = np.setdiff1d(unique_labels(y), declared)
    if len(unknown):
        raise InputError(
            f"y has the label {unknown.tolist()[0]!r}, which is not among the declared classes "
            f"{declared.tolist()}; declare it in the first call of partial_fit"
        )
    return declared, True


def clients_of(groups: Any, num_rows: int) -> Array:
    """The client of each row, as an array of ints or of strings."""
    if groups is None:
        return np.full(num_rows, ONLY_CLIENT)
    # Of a list, numpy would make strings: "nan" of a missing name, "1" of a number beside a name.
    values = np.asarray(groups) if hasattr(groups, "dtype") else np.asarray(groups, dtype=object)
    if values.shape != (num_rows,):
        raise InputError(f"groups has shape {values.shape}, and X has {num_rows} rows; give the client of each row")
    if values.dtype.kind in "iuU":
        return values
    names = [_name(value) for value in values.tolist()]
    if None in names:
        row = names.index(None)
        raise InputError(
            f"groups is {values.tolist()[row]!r} in row {row}; a client is an int or a string, and every row has one"
        )
    if len({isinstance(name, str) for name in names}) > 1:
        raise InputError("groups mixes numbers and strings; name all clients in one way")
    return np.array(names)


def _name(value: object) -> ClientName | None:
    """A client's name; None for what is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return int(value)
    # A table with holes in other rows keeps whole numbers as floats.
    return int(float(value)) if isinstance(value, Real) and float(value).is_integer() else None


def require_same_kind(clients: Array, known: Mapping[ClientName, Any]) -> None:
    """Client "1" beside a client 1 is a mistake, and not a client never seen."""
    strings = clients.dtype.kind == "U"
    if any(isinstance(client, str) != strings for client in known):
        raise InputError(
            f"groups holds {'strings' if strings else 'numbers'} such as {clients.tolist()[0]!r}, and the clients are "
            f"{some(known)}; name them in the same way"
        )


def by_client(X: Array, y: Array, clients: Array, blocks: Any = None, weights: Any = None) -> dict[ClientName, Part]:
    """Each client's rows; those of weight 0 are none."""
    together, counted = _blocks(blocks, len(X)), _weights(weights, len(X))
    kept = np.ones(len(X), bool) if counted is None else counted > 0.0
    if counted is not None and bool((counted[kept] == 1.0).all()):
        counted = None
    found = {}
    for client in np.unique(clients[kept]).tolist():
        at = (clients == client) & kept
        own = None if together is None else together[at]
        found[client] = Part(X[at], y[at], own, None if counted is None else counted[at])
    return found


def _blocks(blocks: Any, rows: int) -> Array | None:
    if blocks is None:
        return None
    names = np.asarray(blocks)
    if names.shape != (rows,):
        raise InputError(f"blocks has shape {names.shape}, and X has {rows} rows; give the block of each row")
    return names.astype(np.str_)


def _weights(weights: Any, rows: int) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    values = np.full(rows, float(weights)) if isinstance(weights, Real) else np.asarray(weights, dtype=np.float64)
    if values.shape != (rows,):
        raise InputError(f"sample_weight has shape {values.shape}, and X has {rows} rows; give a number for each row")
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"sample_weight of row {row} is {values[row]}; give finite numbers of at least 0")
    if not values.any():
        raise InputError("sample_weight is zero for every row; give at least one row a weight above zero")
    return values


def site(name: str, F: Tensor, y: Array, part: Part) -> Client:
    """A client as the heads take it; nothing is tested here."""
    together = None if part.blocks is None else group_numbers(part.blocks)
    return Client(name, (F.numpy(), y), (F[:0].numpy(), y[:0]), together, weights=part.weights)


def some(known: Mapping[ClientName, Any]) -> str:
    """The first few, for an error."""
    return ", ".join(repr(client) for client in list(known)[:5]) + (", …" if len(known) > 5 else "")


def require_own_blocks(rows: Mapping[ClientName, Part]) -> None:
    """Refuse a block that several clients have rows of, where blocks are protected."""
    owner: dict[str, ClientName] = {}
    for client, part in rows.items():
        for block in [] if part.blocks is None else np.unique(part.blocks).tolist():
            if owner.setdefault(block, client) != client:
                raise shared_group(str(owner[block]), str(client))


def class_numbers(y: Array, classes: Array) -> NDArray[np.int64]:
    """Labels as class numbers."""
    return np.searchsorted(classes, y).astype(np.int64)
