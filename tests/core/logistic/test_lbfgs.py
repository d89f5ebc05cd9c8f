"""The quasi-Newton step against dense matrices, and the shorter step against a cubic's own minimum."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.polynomial import Polynomial

from fedhip.core.logistic.lbfgs import Point, best_of, direction, halved, propose
from tests.core.problems import Array, relative_error


def evaluations(points: int, seed: int, size: int = 5) -> list[Point]:
    """Of a bowl at random points: no order of values, so that the best is not the last."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    bowl = root @ root.T + np.eye(size)
    found = []
    for point in rng.normal(size=(points, size)):
        value, gradient = float(point @ bowl @ point / 2), torch.from_numpy(bowl @ point)
        found.append(Point(torch.from_numpy(point), value, gradient))
    return found


def dense_direction(history: list[Point], memory: int) -> Array:
    """−H g with H by BFGS's own update, pair after pair, of the multiple of the identity that fits the last pair."""
    steps = [((b.point - a.point).numpy(), (b.gradient - a.gradient).numpy()) for a, b in pairwise(history)]
    pairs = steps[-memory:]
    size = len(history[0].point)
    s, y = pairs[-1] if pairs else (np.ones(1), np.ones(1))
    H = np.eye(size) * (s @ y) / (y @ y)
    for s, y in pairs:
        left = np.eye(size) - np.outer(s, y) / (s @ y)
        H = left @ H @ left.T + np.outer(s, s) / (s @ y)
    best = min(history, key=lambda evaluation: evaluation.value)
    return np.asarray(-H @ best.gradient.numpy())


@pytest.mark.parametrize("points", [1, 2, 3, 9])
@pytest.mark.parametrize("memory", [1, 3, 10])
def test_the_direction_is_that_of_dense_bfgs(points: int, memory: int) -> None:
    for seed in range(3):
        history = evaluations(points, seed)
        assert relative_error(direction(history, memory=memory), dense_direction(history, memory)) <= 1e-9


def test_pairs_without_curvature_are_left_out() -> None:
    """The same gradient twice, or a slope that falls along the step: neither is of a convex function."""
    history = evaluations(3, 0)
    last = history[-1]
    bent = Point(last.point + 1.0, last.value + 1.0, last.gradient - 1.0)
    flat = Point(bent.point + 1.0, bent.value + 1.0, bent.gradient)
    assert relative_error(direction([*history, bent, flat]), dense_direction(history, 10)) <= 1e-9


@pytest.mark.parametrize(
    "coefficients",
    [
        (1.0, -1.0, 8.0),
        (2.0, -1.0, 40.0),
        (0.0, -1e-3, 1.0),
        (1.0, -1.0, 3.0, 4.0),
        (0.0, -3.0, 5.0, 2.0),
        (0.0, -1.0, -2.0, 9.0),
        (0.0, -1.0, 0.9, 0.4),
        (5.0, -2.0, 7.0, -3.0),
    ],
)
def test_a_step_too_long_is_cut_where_the_cubic_is_lowest(coefficients: tuple[float, ...]) -> None:
    """The function is a cubic along the step, so that its own lowest point is known."""
    for unit in (1.0, 1e-3):
        require_cut(Polynomial(np.multiply(coefficients, unit)))


def require_cut(f: Polynomial) -> None:
    slope = f.deriv()
    assert f(1.0) > f(0.0)
    lowest = [float(t.real) for t in slope.roots() if abs(t.imag) < 1e-12 and slope.deriv()(t.real) > 0]
    expected = min(max(lowest[0], 0.1), 0.5)
    way = torch.tensor([3.0, -4.0], dtype=torch.float64)
    start = torch.tensor([1.0, 2.0], dtype=torch.float64)
    history = [Point(start + t * way, float(f(t)), float(slope(t)) * way / 25.0) for t in (0.0, 1.0)]
    assert relative_error(propose(history), start + expected * way) <= 1e-6


def test_where_no_cubic_has_a_lowest_point_half_the_way_is_taken() -> None:
    """Values and slopes that contradict each other: down at both ends, and yet higher."""
    way = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for value, slope in ((0.5, -1.0), (0.01, -3.0), (3.0, -2.0)):
        history = [Point(0 * way, 0.0, -1.0 * way), Point(way, value, slope * way)]
        cubic = Polynomial([0.0, -1.0, 3 * value + 2.0 - slope, slope - 1.0 - 2 * value])
        roots = [float(t.real) for t in cubic.deriv().roots() if abs(t.imag) < 1e-12 and cubic.deriv(2)(t.real) > 0]
        expected = min(max(roots[0], 0.1), 0.5) if roots and roots[0] > 0 else 0.5
        assert float(propose(history)[0]) == pytest.approx(expected)


def test_a_step_that_was_good_is_followed_by_the_next() -> None:
    history = sorted(evaluations(4, 1), key=lambda evaluation: -evaluation.value)
    assert best_of(history) is history[-1]
    expected = history[-1].point.numpy() + dense_direction(history, 10)
    assert relative_error(propose(history), expected) <= 1e-9


def test_a_step_that_did_not_go_down_to_begin_with_is_not_cut() -> None:
    """From the best point back to the last one it is uphill: the next step does not go there."""
    for history in (evaluations(4, seed) for seed in range(20)):
        ordered = sorted(history, key=lambda evaluation: evaluation.value)
        best, last = ordered[0], ordered[-1]
        uphill = float(best.gradient @ (last.point - best.point)) >= 0.0
        expected = best.point.numpy() + dense_direction([best, last], 10)
        assert uphill == (relative_error(propose([best, last]), expected) <= 1e-9)


def test_of_several_alike_the_latest_is_best_and_a_failed_step_is_halved() -> None:
    here, there = torch.zeros(2).double(), torch.tensor([4.0, -2.0]).double()
    history = [Point(there, 1.0, there), Point(here + 1, 1.0, here)]
    assert best_of(history) is history[1]
    assert halved(history, there).tolist() == [2.5, -0.5]
