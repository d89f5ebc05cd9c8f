"""Limited-memory BFGS by asking and telling: the next point, from all points evaluated so far.

A pure function of the history, which may be cut short at its old end. An evaluation may be a round of the federation,
so none is thrown away here: a step that went too far still tells the curvature along itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

#: A step is taken if it brings this part of what its slope promises.
_ARMIJO = 1e-4
_SHORTEST, _LONGEST = 0.1, 0.5


@dataclass(frozen=True, eq=False)
class Point:
    """A point with the objective's value and gradient there."""

    point: Tensor
    value: float
    gradient: Tensor
    _step: list[tuple[weakref.ref[Point], _Step]] = field(default_factory=list, repr=False)

    def since(self, before: Point) -> _Step:
        """The step from the evaluation before, computed once: every later one asks for it."""
        if not self._step or self._step[0][0]() is not before:
            s, y = self.point - before.point, self.gradient - before.gradient
            self._step[:] = [(weakref.ref(before), _Step(s, y, _dot(s, y), float(s.norm()) * float(y.norm())))]
        return self._step[0][1]


@dataclass(frozen=True, eq=False)
class _Step:
    """From one evaluation to the next: what the point, and what the gradient changed by; s·y, and ‖s‖‖y‖."""

    s: Tensor
    y: Tensor
    curvature: float
    size: float


def best_of(history: Sequence[Point]) -> Point:
    """The evaluation of least value; of several, the latest."""
    return min(reversed(history), key=lambda evaluation: evaluation.value)


def propose(history: Sequence[Point], *, memory: int = 10) -> Tensor:
    """Where to evaluate next.

    From the best point, the quasi-Newton step. Where the last step was too long, a shorter one between the best point
    and the last: the lowest of the cubic through both values and slopes, from a tenth to a half of the way.
    """
    best, last = best_of(history), history[-1]
    if last is not best:
        step = last.point - best.point
        slope = _dot(best.gradient, step)
        if slope < 0.0 and last.value > best.value + _ARMIJO * slope:
            return best.point + _cubic(best.value, slope, last.value, _dot(last.gradient, step)) * step
    return best.point + direction(history, memory=memory)


def halved(history: Sequence[Point], point: Tensor) -> Tensor:
    """Half the way from the best point to `point`, where there was no value to be had."""
    best = best_of(history).point
    return best + 0.5 * (point - best)


def direction(history: Sequence[Point], *, memory: int = 10) -> Tensor:
    """−H g at the best point, with H from the steps between evaluations in the order they were made.

    The last `memory` of these count, those that went too far among them; the latest gives H its scale to begin with.
    """
    best = best_of(history)
    steps = [after.since(before) for before, after in pairwise(history)]
    # A convex function has no others, but rounding has.
    pairs = [(step.s, step.y, step.curvature) for step in steps if step.curvature > 1e-12 * step.size][-memory:]
    q, weights = best.gradient.clone(), []
    for s, y, curvature in reversed(pairs):
        weight = _dot(s, q) / curvature
        weights.append(weight)
        q -= weight * y
    if pairs:
        s, y, curvature = pairs[-1]
        q *= curvature / _dot(y, y)
    for (s, y, curvature), weight in zip(pairs, reversed(weights), strict=True):
        q += (weight - _dot(y, q) / curvature) * s
    return -q


def _cubic(f0: float, slope0: float, f1: float, slope1: float) -> float:
    """The lowest point of the cubic with these values and slopes at 0 and 1, between a tenth and a half."""
    a, b = slope0 + slope1 - 2.0 * (f1 - f0), 3.0 * (f1 - f0) - 2.0 * slope0 - slope1
    inside = b * b - 3.0 * a * slope0
    if inside < 0.0:
        return _LONGEST
    bottom = b + inside**0.5
    # −slope0 / bottom, the stable way to write (−b + √inside) / 3a.
    return min(max(-slope0 / bottom, _SHORTEST), _LONGEST) if bottom > 0.0 else _LONGEST


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.reshape(-1), b.reshape(-1)))
