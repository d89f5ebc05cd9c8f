"""Influence by subtraction, against refits without the client and without each row."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.runs.influence import Influence, influences, left_out_hits
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate

CLASSES, WIDTH, BETA = 3, 5, 2.0


def client_of(name: str, rows: int, *, seed: int, flipped: bool = False, groups: int = 0) -> Client:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, rows)
    features = 1.5 * np.eye(CLASSES, WIDTH)[labels] + rng.normal(size=(rows, WIDTH))
    if flipped:
        labels = (labels + 1) % CLASSES
    together = np.arange(rows) // groups if groups else None
    return Client(name, (features, labels), (features[:0], labels[:0]), together, together)


def measured(clients: list[Client]) -> dict[str, Influence]:
    uploads: dict[str, GridStatistics] = {}
    federation = federate(clients, CLASSES, BETA, uploads=uploads)
    found = influences(federation, clients, {name: partial(uploads.__getitem__, name) for name in uploads})
    return {each.client: each for each in found}


def refitted_hits(judge: Client, others: list[Client], units: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """By one ridge for each group of the judge's rows, fitted without it; mean and deviation stay, as documented."""
    mean, deviation = units
    F, y = judge.train
    groups = np.arange(len(y)) if judge.groups is None else judge.groups
    right = np.zeros(len(y), bool)
    for group in np.unique(groups):
        kept = groups != group
        X = np.concatenate([F[kept], *(client.train[0] for client in others)])
        labels = np.concatenate([y[kept], *(client.train[1] for client in others)])
        X = np.column_stack(((X - mean) / deviation, np.ones(len(X))))
        penalty = BETA * np.eye(WIDTH + 1)
        penalty[-1, -1] = 0.0
        weights = np.linalg.solve(X.T @ X + penalty, X.T @ np.eye(CLASSES)[labels])
        Z = np.column_stack(((F[~kept] - mean) / deviation, np.ones((~kept).sum())))
        right[~kept] = (Z @ weights).argmax(1) == y[~kept]
    return right


@pytest.mark.parametrize("groups", [0, 3])
def test_influence_is_that_of_refits_without_the_client(groups: int) -> None:
    clients = [client_of(name, 24, seed=at, flipped=name == "c", groups=groups) for at, name in enumerate("abcd")]
    found = measured(clients)
    for left in clients:
        others = [client for client in clients if client is not left]
        right = []
        for present in (clients, others):
            X = np.concatenate([client.train[0] for client in present])
            units = X.mean(0), X.std(0)
            right.append(
                sum(refitted_hits(judge, [c for c in present if c is not judge], units).sum() for judge in others)
            )
        rows = sum(len(client.train[1]) for client in others)
        assert found[left.name].difference == pytest.approx((right[0] - right[1]) / rows, abs=1e-12)
        assert found[left.name].rows == rows


def test_a_client_of_flipped_labels_is_the_one_that_harms() -> None:
    clients = [client_of(name, 60, seed=10 + at) for at, name in enumerate("abcde")]
    found = measured([*clients, client_of("liar", 200, seed=99, flipped=True)])
    assert [name for name, each in found.items() if each.verdict == "harms"] == ["liar"]
    assert found["liar"].high is not None
    assert found["liar"].high < 0.0


def test_honest_clients_seldom_harm() -> None:
    named = sum(
        any(each.verdict == "harms" for each in measured(
            [client_of(str(k), 15, seed=1000 * seed + k) for k in range(5)]
        ).values())
        for seed in range(1, 61)
    )  # fmt: skip
    assert named <= 6  # 5 % of 60, and three deviations of chance more would be 8


def test_a_clients_own_rows_do_not_speak_for_it() -> None:
    clients = [client_of(name, 20, seed=at) for at, name in enumerate("ab")]
    federation = federate(clients, CLASSES, BETA)
    own = federation.encoding.statistics(clients[0], CLASSES)
    with pytest.raises(InputError, match="nobody's rows but those of client 'a'"):
        influences(federation, clients[:1], {"a": lambda: own, "b": lambda: own})


def test_one_client_has_nobody_to_influence() -> None:
    clients = [client_of("a", 20, seed=1)]
    federation = federate(clients, CLASSES, BETA)
    assert len(left_out_hits(federation, clients[0])) == 20
    with pytest.raises(InputError, match="there are none"):
        influences(federation, clients, {"a": lambda: federation.grid})
