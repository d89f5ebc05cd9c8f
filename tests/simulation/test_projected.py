"""Projected rows: units by which every direction deviates, whatever the rows are and whoever has them."""

from __future__ import annotations

import numpy as np
import pytest

from fedhip.simulation.client import Client
from fedhip.simulation.lifting import LiftSettings, lift_clients, lifted_grid
from tests.core.problems import Array

WIDTH, DIRECTIONS, CLASSES, ROWS = 30, 17, 3, 240


def odd_rows(kind: str, rng: np.random.Generator) -> Array:
    rows = rng.normal(size=(ROWS, WIDTH)) * 10.0 ** rng.uniform(-3, 3, WIDTH)
    match kind:
        case "tails":
            rows = rng.standard_cauchy(size=(ROWS, WIDTH))
        case "one row":
            rows[5] *= 1e6
        case "two values":  # the mean lies halfway between two steps of the units, the deviation halfway between two
            rows = np.where(rng.random((ROWS, 1)) < 0.5, 0.0, 2.8) * rng.normal(size=WIDTH) + 0.5
        case "far off":
            rows += 1e4
        case "one value":
            rows[:] = rows[0]
    return rows


def clients_with(rows: Array, owners: Array, rng: np.random.Generator) -> list[Client]:
    labels = rng.integers(0, CLASSES, len(rows))
    return [
        Client(str(name), (rows[owners == name], labels[owners == name]), (rows[:0], labels[:0]))
        for name in np.unique(owners)
    ]


@pytest.mark.filterwarnings("ignore::fedhip.errors.ColumnWarning")  # rows out of all proportion, on purpose
@pytest.mark.parametrize("kind", ["usual", "tails", "one row", "two values", "far off"])
def test_the_grid_is_the_same_for_any_division(kind: str) -> None:
    """And of units by which every direction deviates, to within a factor of √2."""
    rng = np.random.default_rng(17)
    rows = odd_rows(kind, rng) + 3.0
    found = []
    for owners in (np.zeros(ROWS), rng.integers(0, 9, ROWS)):
        plain = clients_with(rows, owners, rng)
        lift = LiftSettings("project", DIRECTIONS).plan(WIDTH, CLASSES).draw(plain)
        clients = lift_clients(lift, plain)
        columns = lifted_grid(clients, kind="project").columns
        assert columns is not None
        found.append(columns)
    lifted = np.concatenate([client.train[0] for client in clients]).astype(float)
    apart = lifted.std(axis=0) / 2.0 ** found[0].exponent.numpy()
    assert (apart > 0.70).all()
    assert (apart < 1.42).all()
    off = np.abs(lifted.mean(axis=0) - found[0].offset.numpy()) / 2.0 ** found[0].exponent.numpy()
    assert (off < 0.51).all()
    assert found[0].to_dict() == found[1].to_dict()
