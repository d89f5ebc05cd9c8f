"""Federations to try methods on: clients of uneven sizes whose classes overlap and whose labels are skewed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhip.methods import Protocol
from fedhip.simulation.client import Client, LabelledRows

WIDTH, CLASSES = 7, 4
SIZES = (1, 5, 33, 64, 70)
PROTOCOL = Protocol(rounds=3, epochs=2, batch=32, learning_rate=0.3, hidden=6, seed=11)


def rows(
    number: int, rng: np.random.Generator, classes: Sequence[int] = range(CLASSES), dtype: str = "f8"
) -> LabelledRows:
    means = np.random.default_rng(1).normal(size=(CLASSES, WIDTH))
    labels = rng.choice(list(classes), number)
    return (means[labels] + rng.normal(size=(number, WIDTH))).astype(dtype), labels.astype(np.int64)


def federation(sizes: Sequence[int] = SIZES, test: int = 40, seed: int = 0, dtype: str = "f8") -> list[Client]:
    """Client k misses class k mod d + 1, and so on; a client of five rows has one class."""
    rng = np.random.default_rng(seed)
    clients = []
    for k, size in enumerate(sizes):
        classes = [k % CLASSES] if size <= 5 else [c for c in range(CLASSES) if c != k % CLASSES]
        clients.append(Client(f"client-{k}", rows(size, rng, classes, dtype), rows(test, rng, classes, dtype)))
    return clients
