"""The server's one factorisation is remembered, for its own β and no other."""

from __future__ import annotations

import numpy as np

from fedhip import Statistics, solve_global
from fedhip.core.ridge.aggregation import global_system


def statistics() -> Statistics:
    rng = np.random.default_rng(0)
    return Statistics.from_data(rng.normal(size=(30, 4)), rng.integers(0, 3, 30), 3)


def test_another_beta_is_another_model() -> None:
    total = statistics()
    for beta in (1.0, 5.0, 0.1):
        expected = np.linalg.solve(total.gram.numpy() + beta * np.eye(4), total.cross.numpy())
        np.testing.assert_allclose(solve_global(total, beta).numpy(), expected, rtol=1e-10)


def test_the_same_beta_is_factored_once() -> None:
    total = statistics()
    assert global_system(total, 2.0) is global_system(total, 2.0)
