"""The temperature of highest likelihood, against a search by brute force; log-losses that add."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from fedhip.core.choice.calibration import TEMPERATURES, choose_temperature, log_losses, probabilities
from tests.core.problems import Array


def loss(scores: Array, labels: Array, temperature: float) -> float:
    return float(-log_softmax(scores / temperature, axis=1)[np.arange(len(labels)), labels].sum())


def problem(rows: int, classes: int, scale: float, seed: int) -> tuple[Array, Array]:
    """Scores of which the labels are drawn with softmax(scores / scale): the best temperature is near `scale`."""
    rng = np.random.default_rng(seed)
    scores = scale * 2.0 * rng.normal(size=(rows, classes))
    chances = softmax(scores / scale, axis=1)
    return scores, np.array([rng.choice(classes, p=row) for row in chances])


def test_the_losses_are_those_of_scipy() -> None:
    scores, labels = problem(50, 4, 0.3, 0)
    found = log_losses(torch.from_numpy(scores), torch.from_numpy(labels))
    np.testing.assert_allclose(found.numpy(), [loss(scores, labels, T) for T in TEMPERATURES], rtol=1e-12)


@pytest.mark.parametrize("scale", [0.004, 0.05, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_temperature_is_that_of_a_fine_search(scale: float, seed: int) -> None:
    """Nearly: a parabola through three of the grid stands for the curve. What is lost is a thousandth of the loss."""
    scores, labels = problem(400, 5, scale, seed)
    found = choose_temperature(log_losses(torch.from_numpy(scores), torch.from_numpy(labels)))
    best = minimize_scalar(lambda t: loss(scores, labels, 10.0**t), bounds=(-3.0, 1.0), method="bounded")
    assert abs(np.log10(found) - best.x) < 0.02  # a tenth of a step
    assert loss(scores, labels, found) <= best.fun * (1.0 + 1e-3)
    assert 0.7 * scale < found < 1.4 * scale


def test_the_grid_alone_would_not_do() -> None:
    """The test above can fail: the nearest of the grid is farther off."""
    scores, labels = problem(4000, 5, TEMPERATURES[8] * 10**0.1, 0)
    losses = log_losses(torch.from_numpy(scores), torch.from_numpy(labels))
    grid, found = TEMPERATURES[int(losses.argmin())], choose_temperature(losses)
    best = minimize_scalar(lambda t: loss(scores, labels, 10.0**t), bounds=(-3.0, 1.0), method="bounded")
    assert abs(np.log10(grid) - best.x) > 5 * abs(np.log10(found) - best.x)


def test_losses_of_clients_add_to_the_temperature_of_all() -> None:
    parts = [problem(rows, 4, scale, seed) for seed, (rows, scale) in enumerate([(30, 0.1), (80, 0.3), (1, 2.0)])]
    summed = torch.stack([log_losses(torch.from_numpy(s), torch.from_numpy(y)) for s, y in parts]).sum(dim=0)
    scores, labels = (torch.from_numpy(np.concatenate(both)) for both in zip(*parts, strict=True))
    np.testing.assert_allclose(summed, log_losses(scores, labels), rtol=1e-12)
    assert choose_temperature(summed) == pytest.approx(choose_temperature(log_losses(scores, labels)), rel=1e-9)


def test_certain_and_useless_scores_are_at_the_ends_of_the_grid() -> None:
    labels = torch.arange(40) % 4
    certain = torch.eye(4, dtype=torch.float64)[labels]
    assert choose_temperature(log_losses(certain, labels)) == TEMPERATURES[0] == pytest.approx(1e-3)
    assert choose_temperature(log_losses(1.0 - certain, labels)) == TEMPERATURES[-1] == pytest.approx(10.0)


def test_the_lowest_point_of_a_parabola_is_found_exactly() -> None:
    steps = np.arange(len(TEMPERATURES))
    for lowest in (3.2, 10.0, 16.49):
        found = choose_temperature(torch.from_numpy(np.square(steps - lowest)))
        assert found == pytest.approx(10 ** ((lowest - 15) / 5), rel=1e-9)
    assert choose_temperature(torch.ones(len(TEMPERATURES))) == TEMPERATURES[0]
    flat = torch.ones(len(TEMPERATURES)).double()
    flat[5:8] = 0.5  # three equal ones: no bend to follow
    assert TEMPERATURES[4] < choose_temperature(flat) < TEMPERATURES[7]


def test_classes_left_out_change_nothing_for_the_others() -> None:
    scores, labels = problem(60, 3, 0.5, 1)
    wider = np.c_[scores[:, :2], np.full(60, -np.inf), scores[:, 2]]
    moved = np.where(labels == 2, 3, labels)
    found = log_losses(torch.from_numpy(wider), torch.from_numpy(moved))
    np.testing.assert_allclose(found, log_losses(torch.from_numpy(scores), torch.from_numpy(labels)), rtol=1e-12)


def test_probabilities_are_softmax_and_do_not_overflow() -> None:
    scores = np.array([[1.0, 0.0, -np.inf], [1e3, -1e3, 0.0]])
    for temperature in (1e-3, 0.7, 10.0):
        found = probabilities(torch.from_numpy(scores), temperature).numpy()
        np.testing.assert_allclose(found, softmax(scores / temperature, axis=1), atol=1e-15)
        np.testing.assert_allclose(found.sum(1), 1.0)


@pytest.mark.parametrize("bend", [1e-6, 0.1, 1e3])
def test_the_lowest_point_of_a_parabola_is_found_however_flat(bend: float) -> None:
    """As the losses of few rows are."""
    for best in (0.02, 0.5, 3.0):
        losses = [7.0 + bend * np.log(T / best) ** 2 for T in TEMPERATURES]
        assert choose_temperature(torch.tensor(losses, dtype=torch.float64)) == pytest.approx(best, rel=1e-4)
