"""Metrics are scikit-learn's, row by row and weight by weight; what does not exist is None, and never a NaN."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as oracle

from fedhip.core.metrics import (
    BINS,
    ROC_GRID,
    Floats,
    Ints,
    classification_metrics,
    expected_error,
    regression_metrics,
    reliability,
    roc,
    softmax,
)
from fedhip.errors import InputError
from tests.drawing import examples

Rows = tuple[int, Ints, Ints, Floats, Floats | None]


@st.composite
def classified(draw: st.DrawFn) -> Rows:
    """A few rows of a few classes, with many ties, classes that no row has, and weights of 0."""
    d, n = draw(st.integers(2, 5)), draw(st.integers(1, 25))
    labels = draw(arrays(np.int64, n, elements=st.integers(0, draw(st.integers(0, d - 1)))))
    # Eighths: ties are common, and every sum is exact.
    scores = draw(arrays(np.int64, (n, d), elements=st.integers(-8, 8))) / 8.0
    weights = draw(st.none() | arrays(np.float64, n, elements=st.sampled_from([0.0, 0.5, 1.0, 3.0])))
    if weights is not None and not weights.any():
        weights[0] = 1.0
    return d, labels, scores.argmax(axis=1), softmax(scores, 0.5), weights


def value(found: dict[str, Any], name: str) -> float | None:
    return None if found[name] is None else found[name].value


@examples(400)
@given(classified())
def test_every_metric_of_classes_is_that_of_scikit_learn(rows: Rows) -> None:
    d, y, predicted, p, w = rows
    found = classification_metrics(y, predicted, probabilities=p, num_classes=d, weights=w)
    kept = np.ones(len(y), bool) if w is None else w > 0  # scikit-learn counts classes of rows without weight
    y, predicted, p, w = y[kept], predicted[kept], p[kept], None if w is None else w[kept]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "accuracy": oracle.accuracy_score(y, predicted, sample_weight=w),
            "balanced_accuracy": oracle.balanced_accuracy_score(y, predicted, sample_weight=w),
            "f1": oracle.f1_score(y, predicted, average="macro", sample_weight=w, zero_division=0),
            "log_loss": oracle.log_loss(y, p, labels=range(d), sample_weight=w),
        }
        present = np.unique(y)
        each = [oracle.roc_auc_score(y == c, p[:, c], sample_weight=w) for c in present] if len(present) > 1 else []
    for name, want in expected.items():
        assert value(found, name) == pytest.approx(want, abs=1e-12), name
    if d == 2:
        assert value(found, "auc") == (pytest.approx(each[1], abs=1e-12) if each else None)
        for name, label in (("sensitivity", 1), ("specificity", 0)):
            there = (y == label).any()
            want = oracle.recall_score(y, predicted, pos_label=label, sample_weight=w) if there else None
            assert value(found, name) == (None if want is None else pytest.approx(want, abs=1e-12))
    else:
        assert value(found, "auc") == (pytest.approx(np.mean(each), abs=1e-12) if each else None)
        assert "sensitivity" not in found
    for name, one in found.items():
        if one is not None:
            assert math.isfinite(one.value)
            if one.low is not None and one.high is not None:
                assert one.low <= one.value + 1e-12, name
                assert one.value <= one.high + 1e-12, name
                assert one.high - one.low > 0.0 or name == "log_loss"


@examples(200)
@given(classified())
def test_a_row_of_weight_two_is_two_rows(rows: Rows) -> None:
    d, y, predicted, p, _ = rows
    twice = np.arange(len(y)) % 2 + 1
    weighted = classification_metrics(y, predicted, probabilities=p, num_classes=d, weights=twice.astype(float))
    at = np.repeat(np.arange(len(y)), twice)
    repeated = classification_metrics(y[at], predicted[at], probabilities=p[at], num_classes=d)
    for name in weighted:
        want = value(repeated, name)
        assert value(weighted, name) == (None if want is None else pytest.approx(want, abs=1e-12))


def test_the_multiclass_auc_of_scikit_learn_where_it_has_one() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 4, 200), rng.dirichlet(np.ones(4), 200)
    found = classification_metrics(y, p.argmax(axis=1), probabilities=p, num_classes=4)
    assert value(found, "auc") == pytest.approx(oracle.roc_auc_score(y, p, multi_class="ovr"), abs=1e-12)


def test_calibration_error_by_hand() -> None:
    # Bins (0.4, 0.4667], (0.8, 0.8667]: |0.45 − 0|·1/3 + |0.82 + 0.84 − 1|/3
    p = np.array([[0.45, 0.40, 0.15], [0.82, 0.1, 0.08], [0.84, 0.1, 0.06]])
    y, predicted = np.array([1, 0, 2]), np.zeros(3, np.int64)
    found = classification_metrics(y, predicted, probabilities=p, num_classes=3)
    assert value(found, "calibration_error") == pytest.approx((0.45 + 0.66) / 3)
    bins = reliability(y, predicted, p)
    assert bins.shape == (BINS, 3)
    assert bins[6].tolist() == [1.0, 0.45, 0.0]
    assert bins[12].tolist() == [2.0, pytest.approx(1.66), 1.0]
    # Bins of clients add, and errors of opposite signs in one bin then cancel.
    assert expected_error(bins) == pytest.approx((0.45 + 0.66) / 3)


@examples(200)
@given(st.integers(1, 200), st.integers(0, 10_000))
def test_calibration_error_against_a_loop(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(3, 0.4), n)
    p[0] = (1.0, 0.0, 0.0)
    y, predicted = rng.integers(0, 3, n), p.argmax(axis=1)
    sure, error = p.max(axis=1), 0.0
    for b in range(15):
        inside = (sure > b / 15) & (sure <= (b + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(sure[inside].mean() - (predicted == y)[inside].mean())
    found = classification_metrics(y, predicted, probabilities=p, num_classes=3)
    assert value(found, "calibration_error") == pytest.approx(error, abs=1e-9)


@examples(200)
@given(st.integers(0, 10_000), st.integers(2, 40))
def test_the_roc_curve_is_that_of_scikit_learn(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    y = np.append(rng.integers(0, 2, n - 2), (0, 1))
    second = rng.integers(0, 9, n) / 8.0
    p = np.stack((1 - second, second), axis=1)
    found = roc(y, p)
    wrong, right, _ = oracle.roc_curve(y, second, drop_intermediate=False)
    assert found is not None
    for x, height in zip(ROC_GRID, found, strict=True):
        after = np.searchsorted(wrong, x, side="right")
        if after == len(wrong) or wrong[after - 1] == x:
            want = right[after - 1]
        else:
            part = (x - wrong[after - 1]) / (wrong[after] - wrong[after - 1])
            want = right[after - 1] + part * (right[after] - right[after - 1])
        assert height == pytest.approx(want, abs=1e-9)


@examples(300)
@given(
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([1.0, 1e-6, 1e9]),
)
def test_metrics_of_real_targets_are_those_of_scikit_learn(
    n: int, targets: int, seed: int, weighted: bool, unit: float
) -> None:
    rng = np.random.default_rng(seed)
    y, f = unit * rng.normal(size=(n, targets)), unit * rng.normal(size=(n, targets))
    w = rng.choice([0.5, 1.0, 2.0], n) if weighted else None
    found = regression_metrics(y if targets > 1 else y[:, 0], f if targets > 1 else f[:, 0], weights=w)
    assert value(found, "rmse") == pytest.approx(oracle.root_mean_squared_error(y, f, sample_weight=w), rel=1e-9)
    assert value(found, "mae") == pytest.approx(oracle.mean_absolute_error(y, f, sample_weight=w), rel=1e-9)
    if n > 1:
        assert value(found, "r2") == pytest.approx(oracle.r2_score(y, f, sample_weight=w), rel=1e-6, abs=1e-9)
    else:
        assert found["r2"] is None


def test_r2_of_a_target_that_does_not_vary_does_not_exist() -> None:
    found = regression_metrics(np.ones(5), np.arange(5.0))
    assert found["r2"] is None
    assert value(found, "mae") == pytest.approx(1.4)


def test_without_probabilities_auc_is_of_scores_and_nothing_is_calibrated() -> None:
    y, scores = np.array([0, 1, 0, 1]), np.array([[3.0, 1.0], [0.0, 2.0], [5.0, -np.inf], [1.0, 1.0]])
    found = classification_metrics(y, scores.argmax(axis=1), scores, num_classes=2)
    assert value(found, "auc") == pytest.approx(0.875)
    assert found["log_loss"] is None
    assert found["calibration_error"] is None
    labels_alone = classification_metrics(y, scores.argmax(axis=1), num_classes=2)
    assert labels_alone["auc"] is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_refused_by_its_row(wrong: float) -> None:
    p = np.array([[0.5, 0.5], [0.5, wrong]])
    y = np.array([0, 1])
    with pytest.raises(InputError, match="row 1"):
        classification_metrics(y, y, probabilities=p, num_classes=2)
    with pytest.raises(InputError, match="row 1"):
        classification_metrics(y, y, np.array([[0.0, 0.0], [np.nan, 0.0]]), num_classes=2)
    with pytest.raises(InputError, match="row 0"):
        regression_metrics(np.zeros(2), np.array([wrong, 0.0]))


def test_no_rows_and_bad_weights_are_refused() -> None:
    none = np.zeros(0, np.int64)
    with pytest.raises(InputError, match="no rows"):
        classification_metrics(none, none, num_classes=2)
    y = np.array([0, 1])
    for weights in ([1.0], [1.0, -1.0], [0.0, 0.0], [1.0, np.nan]):
        with pytest.raises(InputError, match="weights"):
            classification_metrics(y, y, num_classes=2, weights=np.array(weights))
