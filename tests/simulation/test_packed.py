"""Sums of projected rows: whole numbers of few bits, of which nothing is lost, whatever the rows are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.features.lifts.budget import packed_bits, packed_bytes
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.encoding import encoding_of
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


def packed(values: torch.Tensor, bits: int) -> Array:
    """The lowest bits of whole numbers: what is sent."""
    found: Array = values.numpy().astype(object).reshape(-1) % 2**bits
    return found


@pytest.mark.filterwarnings("ignore::fedhip.errors.ColumnWarning")  # rows out of all proportion, on purpose
@pytest.mark.parametrize("kind", ["usual", "tails", "one row", "two values", "far off", "one value"])
def test_a_sum_of_so_few_bits_is_the_sum(kind: str) -> None:
    """Added modulo 2^bits, as under masks, and read with its sign: what the whole numbers add up to."""
    rng = np.random.default_rng(17)
    plain = clients_with(odd_rows(kind, rng), rng.integers(0, 7, ROWS), rng)
    lift = LiftSettings("project", DIRECTIONS).plan(WIDTH, CLASSES).draw(plain)
    clients = lift_clients(lift, plain)
    grid = lifted_grid(clients, kind="project")
    encoding = encoding_of(clients, CLASSES, grid)
    own = [encoding.statistics(client, CLASSES) for client in clients]
    federation = federate(clients, CLASSES, 1.0, grid)
    bits = grid.number_bits
    assert bits == packed_bits(ROWS)
    assert grid.fraction_bits is not None
    half = grid.fraction_bits // 2
    # A class's sums are of rows in steps of 2^-half, and nothing stands below.
    pairs = [(part.gram, part.cross >> half, part.counts) for part in (*own, federation.grid)]
    assert all(bool((part.cross >> half << half == part.cross).all()) for part in own)
    for *parts, total in zip(*pairs, strict=True):
        together = sum(packed(part, bits) for part in parts) % 2**bits
        read = np.where(together >= 2 ** (bits - 1), together - 2**bits, together)
        assert (read == total.numpy().reshape(-1)).all()
    numbers = DIRECTIONS * (DIRECTIONS + 1) // 2 + DIRECTIONS * CLASSES + CLASSES
    assert federation.statistics_bytes == packed_bytes(numbers, bits) == -(-numbers * bits // 8)


def test_the_bits_are_hardly_more_than_the_sum_takes() -> None:
    rng = np.random.default_rng(17)
    plain = clients_with(rng.normal(size=(ROWS, WIDTH)), np.zeros(ROWS), rng)
    lift = LiftSettings("project", DIRECTIONS).plan(WIDTH, CLASSES).draw(plain)
    clients = lift_clients(lift, plain)
    grid = lifted_grid(clients, kind="project")
    largest = int(federate(clients, CLASSES, 1.0, grid).grid.gram.abs().max())
    assert 1 + largest.bit_length() <= grid.number_bits <= 3 + largest.bit_length()


def test_the_grid_is_the_same_for_any_division() -> None:
    """And of units by which every direction deviates, to within a factor of √2."""
    rng = np.random.default_rng(17)
    rows = odd_rows("usual", rng) + 3.0
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
