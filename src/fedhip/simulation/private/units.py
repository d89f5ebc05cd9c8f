"""What is protected, and which rows of it count in the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhip.core.exact.columns import LIMIT
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.privacy.accounting import require_delta, require_epsilon
from fedhip.privacy.mechanism import DEFAULT_DELTA, UNITS, Mechanism, Unit
from fedhip.privacy.public import PublicMap
from fedhip.simulation.client import Client

#: What a unit's rows are drawn by where it has too many.
_ORDER = 0


@dataclass(frozen=True)
class PrivacyOptions:
    """What was asked for: ε, δ, what is protected, how many rows of it count, and what is public of rows."""

    epsilon: float
    public: PublicMap
    delta: float = DEFAULT_DELTA
    unit: Unit = "row"
    unit_rows: int | None = None

    def mechanism(self, clients: Sequence[Client]) -> Mechanism:
        """The noise for these clients' sum."""
        require_epsilon(self.epsilon)
        # A rule that everybody can check beforehand; in a simulation all rows are here to check it by.
        require_delta(self.delta, sum(len(client.train[1]) for client in clients))
        if self.unit not in UNITS:
            raise InputError(f"unit is {self.unit!r}; give one of {', '.join(UNITS)}")
        if self.unit == "row" and self.unit_rows not in (None, 1):
            raise InputError(
                f"unit_rows is {self.unit_rows}, and the unit is a row; leave it out, or take another unit"
            )
        if self.unit != "row" and self.unit_rows is None:
            raise InputError(
                f"the unit is a {self.unit}, which may have any number of rows; say how many of one count at most "
                "(--unit-rows N): noise grows with them"
            )
        if self.unit == "group" and any(client.groups is None for client in clients):
            raise InputError("the unit is a group, and rows have none; name the groups (--group), or protect rows")
        # One of the others may look: its share is no secret to it. That of a client that is a unit is not counted on.
        lost = 2 if self.unit == "client" else 1
        rows = 1 if self.unit_rows is None else self.unit_rows
        return Mechanism(float(self.epsilon), float(self.delta), self.unit, rows, self.public.width, len(clients), lost)


def require_own_groups(clients: Sequence[Client]) -> None:
    """Refuse a group that several clients have rows of, where groups have the same numbers at all of them."""
    owner: dict[int, str] = {}
    for client in clients:
        for group in [] if client.groups is None else np.unique(client.groups).tolist():
            if owner.setdefault(group, client.name) != client.name:
                raise shared_group(owner[group], client.name)


def shared_group(first: str, second: str) -> InputError:
    """Nobody knows what the two add of it together."""
    return InputError(
        f"the unit is a group, and clients {first!r} and {second!r} have rows of the same one: neither knows what the "
        "other adds of it; give each client groups of its own, or protect rows"
    )


def counted_rows(client: Client, mechanism: Mechanism) -> NDArray[np.intp]:
    """The places of the training rows that go into the sum: of each unit as many as are agreed.

    Which ones depends on the unit alone: were it on other rows, one unit more would change what is there of the others.
    """
    rows = len(client.train[1])
    if mechanism.unit == "row":
        return np.arange(rows)
    unit = np.zeros(rows, np.int64) if mechanism.unit == "client" or client.groups is None else client.groups
    order = np.argsort(unit, kind="stable")
    ends = np.flatnonzero(np.diff(unit[order], append=unit[order[-1:]] + 1)) + 1
    of_units = np.split(order, ends[:-1])
    # At random, for rows may be sorted by class.
    drawn = (np.random.default_rng(_ORDER).permutation(at)[: mechanism.unit_rows] for at in of_units)
    return np.sort(np.concatenate(list(drawn)))


def part_of(client: Client, mechanism: Mechanism, public: PublicMap, num_classes: int) -> GridStatistics:
    """A client's part of the sum, without noise: of its training rows, of each unit as many as are agreed on."""
    require_size(client)
    at = counted_rows(client, mechanism)
    features, labels = (np.asarray(part)[at] for part in client.train)
    return mechanism.encoded(public, features, labels, num_classes, client.name)


def require_size(client: Client) -> None:
    """Refuse numbers that no model of the client's own could be made of, before anything leaves."""
    features = np.asarray(client.train[0])
    too_large = np.argwhere(np.abs(features.astype(np.float64, copy=False)) >= LIMIT)
    if len(too_large):
        row, column = too_large[0]
        raise InputError(
            f"client {client.name!r}: the feature in row {row}, column {column} is {features[row, column]:g}; features "
            f"may be up to {LIMIT:.1g} in size: rescale the column at all clients, or repair the value"
        )
