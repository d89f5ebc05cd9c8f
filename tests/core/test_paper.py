"""The paper's letters: each against its definition, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core import paper
from fedhip.errors import InputError
from tests.core.problems import relative_error

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 5)), np.eye(3)[RNG.integers(0, 3, n)]) for n in (2, 7, 20)]


def test_phase_1_by_definition() -> None:
    for F, Y in CLIENTS:
        C, L = paper.local_training(F, Y, 0.5)
        assert relative_error(C, F.T @ F + 0.5 * np.eye(5)) <= 1e-14
        assert relative_error(L, np.linalg.inv(F.T @ F + 0.5 * np.eye(5)) @ F.T @ Y) <= 1e-12


def test_phase_1_without_an_inverse_takes_the_pseudo_inverse() -> None:
    F, Y = CLIENTS[0]
    C, L = paper.local_training(F, Y, 0.0)
    assert relative_error(L, np.linalg.pinv(F) @ Y) <= 1e-12
    assert relative_error(C @ L, F.T @ Y) <= 1e-12


def test_phase_2_gives_the_global_model_after_each_client() -> None:
    steps = list(paper.aggregation_steps((paper.local_training(F, Y, 0.5) for F, Y in CLIENTS), 0.5))
    for k, (S, M, G) in enumerate(steps, start=1):
        F, Y = (np.concatenate(part) for part in zip(*CLIENTS[:k], strict=True))
        assert relative_error(S, F.T @ F + k * 0.5 * np.eye(5)) <= 1e-13
        assert relative_error(M, np.linalg.solve(F.T @ F + k * 0.5 * np.eye(5), F.T @ Y)) <= 1e-12
        assert relative_error(G, np.linalg.solve(F.T @ F + 0.5 * np.eye(5), F.T @ Y)) <= 1e-12


def test_dropouts_count_the_clients_that_contributed() -> None:
    """Theorem 2 needs the K of the sum: with the number registered instead, the model is another."""
    S, M, _ = paper.aggregate([paper.local_training(F, Y, 0.5) for F, Y in CLIENTS[:2]], 0.5)
    F, Y = CLIENTS[0]
    all_F, all_Y = (np.concatenate(part) for part in zip(*CLIENTS[:2], strict=True))
    expected = np.linalg.solve(all_F.T @ all_F + 20 * F.T @ F + 0.5 * np.eye(5), all_F.T @ all_Y + 20 * F.T @ Y)
    assert relative_error(paper.personalize(S, M, F, Y, 20.0, 0.5, num_clients=2), expected) <= 1e-12
    assert relative_error(paper.personalize(S, M, F, Y, 20.0, 0.5, num_clients=3), expected) > 1e-3


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        (np.array([0, 1]), r"shape \(2,\); give one-hot rows"),
        (np.array([[0.5, 0.5], [1, 0]]), "one-hot rows"),
        (np.array([[1, 1], [1, 0]]), "exactly one 1"),
        (np.array([[0, 0], [1, 0]]), "exactly one 1"),
        (np.eye(2)[[0, 1, 0]], r"shape \(3,\) for 2 rows"),
        ([["a", "b"], ["c", "d"]], "not a table of numbers"),
    ],
)
def test_labels_that_are_not_one_hot(Y: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        paper.local_training(np.ones((2, 2)), Y, 1.0)


def test_clients_that_do_not_fit_and_no_clients() -> None:
    a, b = paper.local_training(*CLIENTS[0], 1.0), paper.local_training(np.ones((2, 4)), np.eye(2), 1.0)
    with pytest.raises(InputError, match=r"client 2 sent C \(4, 4\)"):
        paper.aggregate([a, b], 1.0)
    with pytest.raises(InputError, match="no client took part"):
        paper.aggregate([], 1.0)


def test_rows_that_do_not_fit_the_sums() -> None:
    S, M, _ = paper.aggregate([paper.local_training(*CLIENTS[0], 1.0)], 1.0)
    with pytest.raises(InputError, match=r"F \(2, 4\) .* do not fit S \(5, 5\)"):
        paper.personalize(S, M, np.ones((2, 4)), np.eye(3)[:2], 1.0, 1.0, 1)


def test_one_hot_rows_may_be_boolean() -> None:
    F, Y = CLIENTS[1]
    assert torch.equal(paper.local_training(F, Y > 0, 1.0)[1], paper.local_training(F, Y, 1.0)[1])


def test_torch_in_torch_out() -> None:
    F, Y = (torch.from_numpy(part).float() for part in CLIENTS[1])
    C, L = paper.local_training(F, Y, 1.0)
    assert C.dtype == L.dtype == torch.float64


def test_a_client_whose_gram_or_model_alone_is_of_another_width_is_refused() -> None:
    C, L = torch.eye(3).double(), torch.ones(3, 2).double()
    for other in ((torch.eye(2).double(), L), (C, torch.ones(3, 4).double())):
        with pytest.raises(InputError, match="client 2 sent"):
            list(paper.aggregation_steps([(C, L), other], 0.5))
