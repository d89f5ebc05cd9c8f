"""FedCOF: the hand example, one row a client, brute force, and a covariance that does depend on the division."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.methods import run_method
from fedhip.methods.one_round.fedcof import Means, gram_and_sums, normalised_solution
from fedhip.simulation.client import Client
from tests.methods.one_round.rounds import client, divided_anew, fitted, toy
from tests.methods.problems import CLASSES, WIDTH, federation


def means_of(clients: list[Client], num_classes: int, parts: int = 1) -> Means:
    sent = []
    for c in clients:
        x, y = map(torch.from_numpy, c.train)
        sent.append(Means.of(x, y, torch.arange(len(y)), num_classes, parts))
    return Means(*(torch.cat([getattr(one, name) for one in sent]) for name in ("means", "rows", "classes")))


def test_toy() -> None:
    G, H = gram_and_sums(means_of(toy(), 2), 2, 1.0)
    assert G.numpy() == pytest.approx(np.array([[44.166667, 37.166667], [37.166667, 65.5]]), abs=1e-6)
    W = torch.linalg.solve(G, H)
    assert W.numpy() == pytest.approx(np.array([[0.012901, 0.219090], [0.038481, 0.089422]]), abs=1e-6)
    expected = np.array([[0.317857, 0.925851], [0.948139, 0.377889]])
    assert normalised_solution(G, H).numpy() == pytest.approx(expected, abs=1e-6)
    run = fitted("fedcof", toy(), 2)
    assert run.scores(torch.eye(2, dtype=torch.float64)).numpy() == pytest.approx(expected, abs=1e-6)


def one_each() -> tuple[list[Client], np.ndarray, np.ndarray]:
    whole = federation((60, 70))
    x, y = (np.concatenate([c.train[i] for c in whole]) for i in (0, 1))
    return [client(str(i), x[i : i + 1], [int(y[i])]) for i in range(len(y))], x, y


def test_with_one_row_a_client_the_covariance_is_the_classes_own() -> None:
    """And with what it leaves out on purpose, the scatter between classes, Ĝ is all rows' G."""
    clients, x, y = one_each()
    G, H = gram_and_sums(means_of(clients, CLASSES), CLASSES, 0.0)
    mean, between = x.mean(axis=0), np.zeros((WIDTH, WIDTH))
    within = np.zeros((WIDTH, WIDTH))
    for c in range(CLASSES):
        own = x[y == c]
        between += len(own) * np.outer(own.mean(axis=0) - mean, own.mean(axis=0) - mean)
        within += (len(own) - 1) * np.cov(own.T)
    assert G.numpy() == pytest.approx(within + len(x) * np.outer(mean, mean), abs=1e-9)
    assert G.numpy() + between == pytest.approx(x.T @ x, abs=1e-9)
    assert H.numpy() == pytest.approx(x.T @ np.eye(CLASSES)[y], abs=1e-9)


def test_brute_force() -> None:
    clients = federation((30, 45, 60, 33))
    expected, rows = np.zeros((WIDTH, WIDTH)), sum(len(c.train[1]) for c in clients)
    whole = sum(c.train[0].sum(axis=0) for c in clients)
    for label in range(CLASSES):
        own = [c.train[0][c.train[1] == label] for c in clients if (c.train[1] == label).any()]
        mean = np.concatenate(own).mean(axis=0)
        spread = sum(len(part) * np.outer(part.mean(0) - mean, part.mean(0) - mean) for part in own)
        expected += (sum(map(len, own)) - 1) * (spread / (len(own) - 1) + 0.3 * np.eye(WIDTH))
    G, _ = gram_and_sums(means_of(clients, CLASSES), CLASSES, 0.3)
    assert G.numpy() == pytest.approx(expected + np.outer(whole, whole) / rows, abs=1e-9)


def test_the_order_of_clients_does_not_matter_and_the_division_does() -> None:
    clients, x = federation((30, 45, 60)), torch.from_numpy(federation((50,), seed=8)[0].train[0])
    first, turned = (fitted("fedcof", given, CLASSES).scores(x) for given in (clients, clients[::-1]))
    assert first.numpy() == pytest.approx(turned.numpy(), abs=1e-9)
    dealt = divided_anew(clients)
    assert not np.allclose(fitted("fedcof", dealt, CLASSES).scores(x), first, atol=1e-3)
    sums = [gram_and_sums(means_of(given, CLASSES), CLASSES, 1.0)[1] for given in (clients, dealt)]
    assert sums[0].numpy() == pytest.approx(sums[1].numpy(), abs=1e-9)  # of the means, it does not


def test_parts_have_two_rows_at_least_and_keep_every_row() -> None:
    x = torch.arange(9, dtype=torch.float64)[:, None]
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 2])
    found = Means.of(x, y, torch.arange(8, -1, -1), 4, 4)
    assert found.classes.tolist() == [0, 0, 0, 1, 2]
    assert found.rows.tolist() == [2, 2, 2, 1, 2]
    assert float((found.means[:, 0] * found.rows).sum()) == pytest.approx(36)


def test_bytes_are_of_own_classes_alone() -> None:
    """Three of four classes each: 3 (m + 1) numbers of eight bytes up, the head down."""
    run = run_method("fedcof", federation((60, 70)), CLASSES)
    assert (run.upload_bytes_per_client, run.download_bytes_per_client) == (8 * 3 * (WIDTH + 1), 8 * WIDTH * CLASSES)


def test_no_penalty_and_fewer_means_than_features() -> None:
    alone = client("alone", np.eye(7)[:3] * 4, [0, 1, 1])
    scores = fitted("fedcof", [alone], 2, gamma=0.0).scores(torch.from_numpy(np.eye(7)[:3]))
    assert bool(torch.isfinite(scores).all())
