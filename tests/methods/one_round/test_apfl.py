"""The dual-stream reconstruction: its algebra against solves and refits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.methods.one_round.apfl import Refinement
from fedhip.simulation.client import Client
from tests.methods.one_round.rounds import divided_anew, fitted
from tests.methods.problems import CLASSES, federation

RNG = np.random.default_rng(3)
PSI, TARGETS = torch.from_numpy(RNG.normal(size=(12, 5))), torch.from_numpy(RNG.normal(size=(12, 3)))


def solved(psi: torch.Tensor, targets: torch.Tensor, gamma: float) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.solve(psi.mT @ psi + gamma * torch.eye(psi.shape[1]).double(), psi.mT @ targets)
    return found


def test_a_refinement_is_closed_form_ditto() -> None:
    """W + Z = argmin ‖Y − FV‖² + γ‖V − W‖²."""
    W = torch.from_numpy(RNG.normal(size=(5, 3)))
    Z = Refinement.of(PSI).weights(TARGETS - PSI @ W, 0.7)
    expected = torch.linalg.solve(PSI.mT @ PSI + 0.7 * torch.eye(5).double(), PSI.mT @ TARGETS + 0.7 * W)
    assert (W + Z).numpy() == pytest.approx(expected.numpy(), abs=1e-10)
    near = Refinement.of(PSI).weights(TARGETS - PSI @ W, 1e-9) + W
    assert near.numpy() == pytest.approx(np.linalg.lstsq(PSI, TARGETS, rcond=None)[0], abs=1e-6)
    assert float(Refinement.of(PSI).weights(TARGETS, 1e12).abs().max()) < 1e-9


def test_left_out_is_a_refit() -> None:
    found = Refinement.of(PSI).left_out(TARGETS, 0.3)
    for i in range(12):
        kept = torch.arange(12) != i
        assert found[i].numpy() == pytest.approx((PSI[i] @ solved(PSI[kept], TARGETS[kept], 0.3)).numpy(), abs=1e-10)
    groups = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 5, 5])
    found = Refinement.of(PSI).left_out(TARGETS, 0.3, groups)
    for i in range(12):
        kept = groups != groups[i]
        assert found[i].numpy() == pytest.approx((PSI[i] @ solved(PSI[kept], TARGETS[kept], 0.3)).numpy(), abs=1e-10)


@pytest.mark.parametrize("width", [0, 30])
def test_without_a_share_it_is_the_global_stream(width: int) -> None:
    clients, x = federation((60, 70)), torch.from_numpy(federation((20,), seed=8)[0].train[0])
    found = fitted("apfl", clients, CLASSES, share=0.0, width=width, beta=2.0)
    for client in clients:
        assert torch.equal(found.own[client.name](x), found.scores(x))
    whole = fitted("apfl", clients, CLASSES, share=1.0, gamma=1.0, width=width, beta=2.0)
    assert not torch.allclose(whole.own[clients[0].name](x), whole.scores(x))
    strict = fitted("apfl", clients, CLASSES, share=1.0, gamma=1e12, width=width, beta=2.0)
    assert strict.own[clients[0].name](x).numpy() == pytest.approx(strict.scores(x).numpy(), abs=1e-6)


def test_a_clients_model_is_the_same_however_the_others_are_divided() -> None:
    first, *others = federation((60, 70, 50))
    x, options = torch.from_numpy(first.test[0]), {"beta": 2.0}
    one = fitted("apfl", [first, *others], CLASSES, **options)
    other = fitted("apfl", [first, *divided_anew(others, 3)], CLASSES, **options)
    assert one.own[first.name](x).numpy() == pytest.approx(other.own[first.name](x).numpy(), abs=1e-5)


def test_one_client_without_penalties_is_least_squares() -> None:
    (client,) = federation((80,))
    x, y = client.train
    found = fitted("apfl", [client], CLASSES, beta=1e3, gamma=1e-9, share=1.0)
    design = np.column_stack((x, np.ones(len(x))))
    expected = design @ np.linalg.lstsq(design, np.eye(CLASSES)[y], rcond=None)[0]
    assert found.own[client.name](torch.from_numpy(x)).numpy() == pytest.approx(expected, abs=1e-4)


def test_scores_left_out_have_not_seen_the_row_in_either_stream() -> None:
    """Labels that are noise: rows seem right where a model has seen them, and by chance where it has not."""
    rng = np.random.default_rng(0)
    clients = [
        Client(str(k), (rng.normal(size=(40, 30)), rng.integers(0, 2, 40)), (np.zeros((0, 30)), np.zeros(0, np.int64)))
        for k in range(8)
    ]
    found = fitted("apfl", clients, 2, beta=0.1, gamma=0.01, share=1.0)
    assert found.left_out is not None
    unseen = np.mean([(found.left_out(c).argmax(1).numpy() == c.train[1]).mean() for c in clients])
    seen = np.mean(
        [(found.own[c.name](torch.from_numpy(c.train[0])).argmax(1).numpy() == c.train[1]).mean() for c in clients]
    )
    assert seen > 0.9 > 0.6 > unseen
