"""Two models on the same test rows: who gains by how much, and whether that is more than chance.

    exact sign test   of the b rows that only the first has right and the c that only the second has, each would be
                      either with probability ½ if the models were alike: McNemar's test, without its approximation
    Holm              over clients: p-values so that naming nobody falsely has probability 95 %, however many there are
    Agresti and Min   the interval of (b − c)/n, with half a row added to each of b and c

Where rows have groups, the signs are those of groups: whether the first has more of a group right than the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhip.core.intervals import Z, student

#: What is beyond chance has a p-value, after Holm's correction, of at most this.
LEVEL = 0.05


@dataclass(frozen=True)
class Pair:
    """One client: the first model's value minus the second's with its interval, signs for and against, and p."""

    difference: float
    low: float | None
    high: float | None
    better: int
    worse: int
    p: float


def compare_rows(
    first: NDArray[np.float64], second: NDArray[np.float64], groups: NDArray[np.int64] | None = None
) -> Pair:
    """Of what each model makes of every row (n,), more being better: 1 if it is right, or minus its error."""
    apart = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    difference, rows = float(apart.mean()), len(apart)
    low, high = None, None
    if groups is not None:
        _, at, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        apart = np.bincount(at.reshape(-1), weights=apart).astype(np.float64)
        if len(apart) > 1:
            centred = apart - difference * sizes
            deviation = math.sqrt(float(centred @ centred) * len(apart) / (len(apart) - 1)) / rows
            low, high = (difference + sign * student(len(apart) - 1) * deviation for sign in (-1, 1))
    better, worse = int((apart > 0.0).sum()), int((apart < 0.0).sum())
    if groups is None and set(np.unique(apart).tolist()) <= {-1.0, 0.0, 1.0}:
        low, high = _agresti_min(better, worse, rows)
    elif groups is None and rows > 1:
        half = student(rows - 1) * float(apart.std(ddof=1)) / math.sqrt(rows)
        low, high = difference - half, difference + half
    return Pair(difference, low, high, better, worse, sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """The probability of signs at least as one-sided, if both were as likely: two-sided, exact."""
    number, fewer = better + worse, min(better, worse)
    k = np.arange(1, fewer + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log((number - k + 1) / k)))) - number * math.log(2.0)
    return min(1.0, 2.0 * float(np.exp(logs).sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number: max over those up to it, in order, of (number left) · p, at most 1."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, most = [0.0] * len(p_values), 0.0
    for place, at in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - place) * p_values[at]))
        adjusted[at] = most
    return adjusted


def _agresti_min(better: int, worse: int, rows: int) -> tuple[float, float]:
    b, c, n = better + 0.5, worse + 0.5, rows + 2.0
    half = Z * math.sqrt((b + c) - (b - c) ** 2 / n) / n
    return max(-1.0, (b - c) / n - half), min(1.0, (b - c) / n + half)
