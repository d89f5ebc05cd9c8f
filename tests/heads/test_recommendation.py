"""The head that leave-one-out recommends: within half a point of the other in hindsight, and no test row looked at."""

from __future__ import annotations

import numpy as np
import pytest

from fedhip.core.errors import EmptyClientError
from fedhip.methods import Protocol, run_method
from fedhip.methods.recommendation import recommend_head
from fedhip.simulation import Client, Rows
from tests.methods.problems import CLASSES, federation


def gaussian(clients: int, rows: int, classes: int, concentration: float, seed: int, deviations: float) -> list[Client]:
    """Clients with few rows of many classes, whose features deviate by very different amounts and together."""
    rng = np.random.default_rng(seed)
    width = 24
    means = 0.6 * rng.normal(size=(classes, width))
    mix = rng.normal(size=(width, width)) * np.geomspace(1.0, deviations, width)

    def drawn(number: int, shares: np.ndarray) -> Rows:
        labels = rng.choice(classes, number, p=shares)
        return means[labels] + 0.15 * rng.normal(size=(number, width)) @ mix, labels

    found = []
    for k in range(clients):
        shares = rng.dirichlet([concentration] * classes)
        found.append(Client(f"client-{k}", drawn(rows, shares), drawn(400, shares)))
    return found


def accuracy(name: str, clients: list[Client], classes: int) -> float:
    run = run_method(name, clients, classes, Protocol(prior="client"))
    return 100 * float(np.mean([value for value in run.accuracy if value is not None]))


@pytest.mark.parametrize("concentration", [0.1, 1.0])
def test_the_recommended_head_is_within_half_a_point_of_the_better_in_hindsight(concentration: float) -> None:
    shortfalls = []
    for seed in range(2):
        clients = gaussian(12, 30, 30, concentration, seed, deviations=6.0)
        recommended = recommend_head(clients, 30)
        found = {name: accuracy(name, clients, 30) for name in recommended.right}
        shortfalls.append(max(found.values()) - found[recommended.head])
    assert np.mean(shortfalls) <= 0.5


def test_the_head_of_most_rows_right_is_recommended() -> None:
    found = recommend_head(federation((40, 50, 70), test=5), CLASSES)
    assert set(found.right) == {"fedhip", "fedhip-lda"}
    assert found.right[found.head] == max(found.right.values())
    assert str(found).startswith(f"recommended head: {found.head} (training rows right")


def test_no_test_row_is_looked_at() -> None:
    clients = federation((40, 50), test=20)
    shuffled = [Client(c.name, c.train, (c.test[0], np.roll(c.test[1], 1))) for c in clients]
    assert recommend_head(clients, CLASSES) == recommend_head(shuffled, CLASSES)


def test_no_training_row_is_an_error() -> None:
    nobody = [Client("empty", (np.zeros((0, 3)), np.zeros(0, np.int64)), (np.zeros((2, 3)), np.zeros(2, np.int64)))]
    with pytest.raises(EmptyClientError, match="nothing to judge"):
        recommend_head(nobody, 2)
