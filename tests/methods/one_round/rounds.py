"""A rival's round on small federations, and the toy data T6 of the hand examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedhip.heads.options import checked_options
from fedhip.methods import METHODS
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.one_round import Fitted, OneRound
from fedhip.simulation.client import Client

ZERO = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
ONE = np.array([[5.0, 4.0], [4.0, 4.0], [4.0, 6.0]])
#: (2, 2), at which the hand examples are scored.
AT = torch.tensor([[2.0, 2.0]], dtype=torch.float64)
#: Options with which methods of many numbers are small enough for tests, and those of few steps learn.
SMALL = {
    "deepafl": {"blocks": 2.0, "width": 24.0},
    "fedpft": {"rate": 0.02, "epochs": 40.0},
    "safle": {"thresholds": 3.0, "group": 2.0},
}


def client(name: str, features: np.ndarray, labels: Sequence[int], test: np.ndarray | None = None) -> Client:
    y = np.array(labels, np.int64)
    rows = features if test is None else test
    return Client(name, (np.asarray(features, float), y), (np.asarray(rows, float), np.zeros(len(rows), np.int64)))


def toy() -> list[Client]:
    """T6: two clients; A has the first two rows of class 0 and the first of class 1."""
    a = client("A", np.vstack((ZERO[:2], ONE[:1])), [0, 0, 1])
    b = client("B", np.vstack((ZERO[2:], ONE[1:])), [0, 1, 1])
    return [a, b]


def task_of(name: str, clients: Sequence[Client], num_classes: int, **options: float) -> ClosedTask:
    info = METHODS[name]
    return ClosedTask(clients, num_classes, checked_options(info.title, info.options, options))


def fitted(name: str, clients: Sequence[Client], num_classes: int, **options: float) -> Fitted:
    info = METHODS[name]
    assert isinstance(info, OneRound)
    return info.fit(task_of(name, clients, num_classes, **options))


def divided_anew(clients: Sequence[Client], number: int = 4, seed: int = 5) -> list[Client]:
    """The same training rows dealt out to other clients, in another order."""
    x = np.concatenate([c.train[0] for c in clients])
    y = np.concatenate([c.train[1] for c in clients])
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.array_split(order, number)
    return [Client(f"dealt-{k}", (x[part], y[part]), (x[:1], y[:1])) for k, part in enumerate(parts)]


def scores_of(name: str, clients: Sequence[Client], num_classes: int, x: Tensor, **options: float) -> Tensor:
    return fitted(name, clients, num_classes, **options).scores(x)
