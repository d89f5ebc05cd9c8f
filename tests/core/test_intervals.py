"""95 % intervals cover what they are of in about 95 of 100 cases, on federations whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedhip.core.intervals import CALIBRATION, ERROR, SHARE, Estimate, over_clients, student, wilson
from fedhip.core.metrics import Floats, Ints, classification_metrics, regression_metrics, softmax

REPEATS = 1500


def test_students_quantile() -> None:
    for freedom in (*range(1, 40), 499, 500, 501, 10**6):
        assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-7)


@given(st.integers(0, 60), st.integers(1, 60))
def test_wilsons_interval(right: int, rows: int) -> None:
    right = min(right, rows)
    want = stats.binomtest(right, rows).proportion_ci(0.95, "wilson")
    assert list(wilson(right / rows, rows)) == pytest.approx([want.low, want.high], abs=1e-12)


@given(st.integers(0, 30), st.integers(1, 30))
def test_the_accuracy_of_independent_rows_has_wilsons_interval(right: int, rows: int) -> None:
    right = min(right, rows)
    labels, predicted = np.zeros(rows, np.int64), (np.arange(rows) >= right).astype(np.int64)
    alone = classification_metrics(labels, predicted, num_classes=2)["accuracy"]
    grouped = classification_metrics(labels, predicted, num_classes=2, groups=np.arange(rows))["accuracy"]
    assert alone is not None
    assert grouped is not None
    assert (alone.low, alone.high) == pytest.approx(wilson(right / rows, rows), abs=1e-12)
    if rows > 1:  # groups of one row are rows, but for the quantile
        assert (grouped.low, grouped.high) == pytest.approx(wilson(right / rows, rows, student(rows - 1)), abs=1e-9)


def coverage(truth: float, found: list[Estimate | None]) -> float:
    known = [f for f in found if f is not None and f.low is not None and f.high is not None]
    assert len(known) > 0.9 * len(found)
    return float(np.mean([f.low <= truth <= f.high for f in known]))  # type: ignore[operator]


def drawn(rng: np.random.Generator, n: int, d: int) -> tuple[Ints, Floats]:
    """Labels that are likelier the lower, and scores that know something of them."""
    labels = rng.choice(d, n, p=np.arange(d, 0, -1) / (d * (d + 1) / 2))
    return labels, np.eye(d)[labels] + rng.normal(size=(n, d)) * 0.6


@pytest.mark.parametrize(("n", "d"), [(40, 2), (60, 4), (400, 4)])
def test_a_clients_intervals_cover(n: int, d: int) -> None:
    rng = np.random.default_rng(0)
    labels, scores = drawn(rng, 100_000, d)
    truth = classification_metrics(labels, scores.argmax(1), probabilities=softmax(scores, 0.4), num_classes=d)
    found: dict[str, list[Estimate | None]] = {name: [] for name in truth}
    for _ in range(REPEATS):
        labels, scores = drawn(rng, n, d)
        one = classification_metrics(labels, scores.argmax(1), probabilities=softmax(scores, 0.4), num_classes=d)
        for name, value in one.items():
            found[name].append(value)
    for name in truth.keys() - {"calibration_error"}:
        want = truth[name]
        assert want is not None
        # Of 40 rows a few have most of the log-loss, and they may not be among these.
        least = 0.9 if name == "log_loss" else 0.92
        assert least <= coverage(want.value, found[name]) <= 0.99, (name, coverage(want.value, found[name]))


def test_classes_of_one_row_do_not_seem_certain() -> None:
    rng, d, n = np.random.default_rng(1), 20, 30
    labels, scores = drawn(rng, 100_000, d)
    truth = classification_metrics(labels, scores.argmax(1), probabilities=softmax(scores, 0.4), num_classes=d)
    found: dict[str, list[Estimate | None]] = {"balanced_accuracy": [], "auc": []}
    for _ in range(REPEATS):
        labels, scores = drawn(rng, n, d)
        one = classification_metrics(labels, scores.argmax(1), probabilities=softmax(scores, 0.4), num_classes=d)
        for name, kept in found.items():
            kept.append(one[name])
    for name, kept in found.items():
        want = truth[name]
        assert want is not None
        assert coverage(want.value, kept) >= 0.92, (name, coverage(want.value, kept))


def test_rows_of_a_patient_are_not_independent() -> None:
    """Ten rows of each of twelve patients, whose answers hang together: by rows 95 % would be far fewer."""
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(12), 10)
    with_groups, without = list[Estimate | None](), list[Estimate | None]()
    for _ in range(REPEATS):
        right = rng.uniform(size=120) < np.repeat(rng.beta(4, 1, 12), 10)
        labels, predicted = np.zeros(120, np.int64), 1 - right.astype(np.int64)
        for given_, kept in ((groups, with_groups), (None, without)):
            kept.append(classification_metrics(labels, predicted, num_classes=2, groups=given_)["accuracy"])
    assert 0.93 <= coverage(0.8, with_groups) <= 0.98
    assert coverage(0.8, without) < 0.85


def test_one_group_says_nothing_of_others_and_all_right_is_a_row_for_each() -> None:
    labels = np.zeros(20, np.int64)
    one = classification_metrics(labels, labels, num_classes=2, groups=np.zeros(20, np.int64))["accuracy"]
    assert one == Estimate(1.0)
    four = classification_metrics(labels, labels, num_classes=2, groups=np.arange(20) % 4)["accuracy"]
    assert four is not None
    assert (four.low, four.high) == pytest.approx(wilson(1.0, 4, student(3)))


def test_errors_of_real_targets_cover() -> None:
    rng = np.random.default_rng(3)
    found: dict[str, list[Estimate | None]] = {"r2": [], "rmse": [], "mae": []}
    for _ in range(REPEATS):
        y = rng.normal(size=80)
        for name, value in regression_metrics(y, y + 0.5 * rng.normal(size=80)).items():
            found[name].append(value)
    truth = {"r2": 0.75, "rmse": 0.5, "mae": 0.5 * math.sqrt(2 / math.pi)}
    for name, want in truth.items():
        assert 0.92 <= coverage(want, found[name]) <= 0.98, (name, coverage(want, found[name]))


@pytest.mark.parametrize(("clients", "rows"), [(3, 20), (4, 100), (8, 20), (20, 5), (50, 20)])
@pytest.mark.parametrize(("a", "b"), [(8, 2), (19, 1), (500, 500)])
def test_the_mean_over_clients_covers_that_of_clients_like_these(clients: int, rows: int, a: float, b: float) -> None:
    rng, inside = np.random.default_rng(4), 0
    for _ in range(REPEATS):
        numbers = np.maximum(2, rng.poisson(rows, clients))
        shares = rng.binomial(numbers, rng.beta(a, b, clients)) / numbers
        estimates = [Estimate(p, *wilson(p, n)) for p, n in zip(shares.tolist(), numbers.tolist(), strict=True)]
        found = over_clients(estimates, SHARE)
        assert found["mean"] == pytest.approx(shares.mean())
        assert found["low"] is not None
        assert found["high"] is not None
        assert 0.0 <= found["low"] <= found["mean"] <= found["high"] <= 1.0  # type: ignore[operator]
        inside += found["low"] <= a / (a + b) <= found["high"]
    # Of very few clients with few rows the interval is wider than it need be; it is never much too short.
    assert inside / REPEATS >= 0.925


def test_a_mean_of_losses_is_a_t_interval() -> None:
    values = [0.3, 0.5, 0.9, 0.4]
    found = over_clients([Estimate(v) for v in values], ERROR)
    want = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert [found["low"], found["high"]] == pytest.approx([max(0.0, want[0]), want[1]])


def test_nobody_one_and_many_that_are_all_right() -> None:
    assert over_clients([], SHARE) == {"mean": None, "low": None, "high": None}
    assert over_clients([Estimate(0.5, 0.2, 0.7)], SHARE) == {"mean": 0.5, "low": 0.2, "high": 0.7}
    found = over_clients([Estimate(1.0, *wilson(1.0, 10))] * 50, SHARE)
    assert found["high"] == 1.0
    assert found["low"] is not None
    assert wilson(1.0, 400)[0] < found["low"] < wilson(1.0, 600)[0]
    # Nothing is known of how certain they are.
    assert over_clients([Estimate(0.1), Estimate(0.1)], CALIBRATION)["low"] is None
