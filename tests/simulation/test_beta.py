"""β is chosen for the models that clients are given, and not for the global one."""

from __future__ import annotations

import numpy as np
import pytest

from fedhip.heads.round import simulate
from fedhip.simulation.beta import SCORING_ALPHAS
from fedhip.simulation.client import Client

CLASSES, SITES, ROWS, WIDTH = 3, 3, 18, 6


def federation(seed: int) -> list[Client]:
    """Sites that see classes in ways of their own, so that a personalized model gains."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, WIDTH))
    clients = []
    for k in range(SITES):
        y = rng.integers(0, CLASSES, ROWS)
        F = (centres + 1.5 * rng.normal(size=(CLASSES, WIDTH)))[y] + rng.normal(size=(ROWS, WIDTH))
        clients.append(Client(f"site-{k}", (F, y), (F[:0], y[:0])))
    return clients


def best_beta(clients: list[Client], alphas: tuple[float, ...]) -> float:
    """By refits without each row: summed over clients what each counts at its best α; of those nearly as good, β."""
    F = np.concatenate([client.train[0] for client in clients])
    y = np.concatenate([client.train[1] for client in clients])
    Z = np.column_stack(((F - F.mean(axis=0)) / F.std(axis=0), np.ones(len(F))))
    whose = np.repeat(np.arange(SITES), ROWS)
    counted = []
    betas = [len(F) * 10.0**power for power in range(1, -7, -1)]  # the features' mean square is 1 for a row
    for beta in betas:
        penalty = np.diag([beta] * WIDTH + [0.0])
        sums = 0.0
        for k in range(SITES):
            by_alpha = []
            for alpha in alphas:
                credit = 0.0
                for i in np.flatnonzero(whose == k):
                    w = (1.0 + alpha * (whose == k)) * (np.arange(len(y)) != i)
                    scores = Z[i] @ np.linalg.solve((Z.T * w) @ Z + penalty, (Z.T * w) @ np.eye(CLASSES)[y])
                    margin = scores[y[i]] - np.delete(scores, y[i]).max()
                    credit += 1.0 / (1.0 + np.exp(-margin / 0.08))
                by_alpha.append(credit)
            sums += max(by_alpha)
        counted.append(sums)
    return next(beta for beta, sums in zip(betas, counted, strict=True) if sums >= max(counted) * (1.0 - 5e-4))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_that_of_the_models_that_clients_are_given(seed: int) -> None:
    clients = federation(seed)
    expected, of_the_global_model = best_beta(clients, SCORING_ALPHAS), best_beta(clients, (0.0,))
    assert expected != of_the_global_model
    assert simulate(clients, CLASSES).beta == pytest.approx(expected, rel=1e-3)
    assert simulate(clients, CLASSES, alpha=0.0).beta == pytest.approx(of_the_global_model, rel=1e-3)
