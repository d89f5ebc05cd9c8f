"""DeepAFL: a block against its Kronecker system, an objective that never rises, and the same for any division."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedhip.methods import run_method
from fedhip.methods.engine import network
from fedhip.methods.engine.one_round import standardize
from fedhip.methods.one_round.deepafl import Network, solve_block, solve_head, train_network
from tests.methods.one_round.rounds import divided_anew, scores_of, task_of
from tests.methods.problems import CLASSES, WIDTH, federation

torch.manual_seed(0)


def test_a_block_by_hand() -> None:
    E, R, W = torch.diag(torch.tensor([1.0, 2.0])), torch.ones(2, 1), torch.tensor([[1.0], [0.0]])
    found = solve_block([(E.double(), R.double())], W.double(), 1.0)
    assert found.numpy() == pytest.approx(np.array([[0.5, 0.0], [0.4, 0.0]]))


@pytest.mark.parametrize(("w", "h", "d"), [(4, 3, 2), (3, 5, 7), (6, 6, 1)])
def test_a_block_is_the_solution_of_its_kronecker_system(w: int, h: int, d: int) -> None:
    rng = np.random.default_rng(w)
    E, R, W = rng.normal(size=(7, w)), rng.normal(size=(7, d)), rng.normal(size=(h, d))
    system = np.kron(E.T @ E, W @ W.T) + 0.3 * np.eye(w * h)
    expected = np.linalg.solve(system, (E.T @ R @ W.T).ravel()).reshape(w, h)
    parts = [(torch.from_numpy(E[a:b]), torch.from_numpy(R[a:b])) for a, b in ((0, 3), (3, 7))]
    assert solve_block(parts, torch.from_numpy(W), 0.3).numpy() == pytest.approx(expected, abs=1e-12)


def test_a_head_is_the_ridge() -> None:
    rng = np.random.default_rng(0)
    phi, Y = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    theirs = Ridge(alpha=0.7, fit_intercept=False).fit(phi, Y)
    parts = [(torch.from_numpy(phi[a::2]), torch.from_numpy(Y[a::2])) for a in (0, 1)]
    assert solve_head(parts, 0.7).numpy() == pytest.approx(theirs.coef_.T)


def test_the_objective_never_rises_with_depth() -> None:
    clients = federation((60, 70))
    task = task_of("deepafl", clients, CLASSES)
    drawn = network.initial((WIDTH, 12, 12, 12, 12, 12), 3, torch.float64, torch.device("cpu"))
    first, *layers = zip(drawn[::2], drawn[1::2], strict=True)
    rows = [(torch.from_numpy(c.train[0]), torch.eye(CLASSES).double()[c.train[1]]) for c in clients]
    objectives = []
    for depth in range(5):
        made, W = train_network(Network(standardize(task), first), layers[:depth], rows, (0.5, 0.1), task)
        left = sum(float((Y - made.features(x) @ W).square().sum()) for x, Y in rows)
        objectives.append(left + 0.5 * float(W.square().sum()))
    assert all(later < earlier for earlier, later in pairwise(objectives)), objectives


def test_the_same_however_rows_are_divided_and_in_whatever_units() -> None:
    clients, x = federation((60, 70)), torch.from_numpy(federation((20,), seed=8)[0].train[0])
    options = {"blocks": 3.0, "width": 16.0}
    one, other = (scores_of("deepafl", c, CLASSES, x, **options) for c in (clients, divided_anew(clients)))
    assert one.numpy() == pytest.approx(other.numpy(), abs=1e-8)


def test_bytes_and_rounds_by_hand() -> None:
    """Up: 2m + 1 and d numbers, then 2T + 1 times P(h) + hd; down: 2m, T + 1 heads, T blocks of h × h."""
    run = run_method("deepafl", federation((60, 70)), CLASSES, options={"blocks": 3, "width": 16})
    assert run.rounds == 8
    assert run.upload_bytes_per_client == 8 * (2 * WIDTH + 1 + CLASSES + 7 * (16 * 17 // 2 + 16 * CLASSES))
    assert run.download_bytes_per_client == 8 * (2 * WIDTH + 4 * 16 * CLASSES + 3 * 16 * 16)
