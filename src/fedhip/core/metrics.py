"""Metrics of a client's test rows, each with how it moves with every row, from which its interval follows.

classes      accuracy, balanced accuracy, macro F1, AUC (one class against the rest, mean over classes), log-loss,
             calibration error; of two classes sensitivity and specificity, the second class being the positive one
real numbers R², RMSE, MAE

Values are those of scikit-learn (`balanced_accuracy_score`, `f1_score(average="macro")`, `roc_auc_score` of each class
against the rest, `log_loss`, `r2_score`, ...), with row weights or without. Where scikit-learn warns, or gives a number
that means nothing, there is no value: balanced accuracy is over the classes that the rows have, AUC over those of them
that have others beside them, and R² of a target that does not vary does not exist. A number that is none is refused.

The calibration error is the expected one: rows by the probability of the class that is answered, in 15 bins of equal
width; the mean over rows of |mean probability − share right| of a row's bin. Of n rows that are well calibrated it is
about 1/√n, not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedhip.core.intervals import CALIBRATION, ERROR, EXPLAINED, SHARE, Estimate, Measure, Scale, estimate
from fedhip.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bins of the calibration error, of equal width.
BINS = 15
#: Log-losses are of probabilities of at least this much, as scikit-learn's.
LEAST_PROBABILITY = float(np.finfo(np.float64).eps)
#: Where a mean ROC curve is known: shares of false positives.
ROC_GRID: Floats = np.linspace(0.0, 1.0, 41)

#: Every metric by its name in results.json, in the order of tables.
SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        "accuracy": SHARE,
        "balanced_accuracy": SHARE,
        "f1": SHARE,
        "sensitivity": SHARE,
        "specificity": SHARE,
        "auc": SHARE,
        "log_loss": ERROR,
        "calibration_error": CALIBRATION,
        "r2": EXPLAINED,
        "rmse": ERROR,
        "mae": ERROR,
    }
)


def classification_metrics(
    labels: Ints,
    predicted: Ints,
    scores: Floats | None = None,
    probabilities: Floats | None = None,
    *,
    num_classes: int,
    weights: Floats | None = None,
    groups: Ints | None = None,
) -> dict[str, Estimate | None]:
    """Every metric of classes: None where the rows, or the model, give none.

    Parameters
    ----------
    labels, predicted : (n,) int64
        n of at least 1.
    scores, probabilities : (n, d), optional
        AUC is of probabilities, or of scores where there are none; log-loss and calibration error are of probabilities.
    weights : (n,), optional
        Of rows.
    groups : (n,), optional
        Rows of one group are not independent: intervals are over groups.
    """
    w = _weights(weights, len(labels))
    if not w.all():  # rows of weight 0 are not there, nor are the classes that only they have
        parts = (None if part is None else part[w > 0] for part in (labels, predicted, scores, probabilities, groups))
        labels, predicted, scores, probabilities, groups = parts  # type: ignore[assignment]
        w = w[w > 0]
    ranked = probabilities if probabilities is not None else scores
    found: dict[str, Measure | None] = {
        "accuracy": accuracy(labels, predicted, w),
        "balanced_accuracy": balanced_accuracy(labels, predicted, w),
        "f1": macro_f1(labels, predicted, w),
    }
    found |= {
        "auc": None if ranked is None else auc(labels, ranked, w),
        "log_loss": None if probabilities is None else log_loss(labels, probabilities, w),
    }
    estimates = {name: None if m is None else estimate(m, SCALES[name], groups) for name, m in found.items()}
    error = None if probabilities is None else calibration_error(labels, predicted, probabilities, w)
    # No interval: of few rows the error is mostly chance, and what is to be expected of others is less.
    estimates["calibration_error"] = None if error is None else Estimate(error)
    if num_classes == 2:
        for name, label in (("sensitivity", 1), ("specificity", 0)):
            own = labels == label
            share = accuracy(labels[own], predicted[own], w[own]) if own.any() else None
            kept = None if groups is None else groups[own]
            estimates[name] = None if share is None else estimate(share, SCALES[name], kept)
    return {name: estimates[name] for name in SCALES if name in estimates}


def regression_metrics(
    targets: Floats, predicted: Floats, *, weights: Floats | None = None, groups: Ints | None = None
) -> dict[str, Estimate | None]:
    """R², RMSE and MAE of targets (n,) or (n, t), which count alike; None where the rows give none."""
    y, f = (np.asarray(part, np.float64).reshape(len(part), -1) for part in (targets, predicted))
    if y.shape != f.shape:
        raise InputError(f"targets have shape {y.shape}, and predictions {f.shape}; give one for each")
    _require_numbers(f, "predictions")
    w = _weights(weights, len(y))
    y, f, w, groups = y[w > 0], f[w > 0], w[w > 0], None if groups is None else groups[w > 0]
    found = {"r2": r2(y, f, w), "rmse": rmse(y, f, w), "mae": mae(y, f, w)}
    return {name: None if m is None else estimate(m, SCALES[name], groups) for name, m in found.items()}


def accuracy(labels: Ints, predicted: Ints, w: Floats) -> Measure:
    """Σ w [ŷ = y] / Σ w."""
    return _mean((predicted == labels).astype(np.float64), w)


def balanced_accuracy(labels: Ints, predicted: Ints, w: Floats) -> Measure:
    """The mean over the classes of the rows of the share of each that is right."""
    _, at = np.unique(labels, return_inverse=True)
    right = (predicted == labels).astype(np.float64)
    size = np.bincount(at, w)
    share = np.bincount(at, w * right) / size
    return _mean_over_classes(share, (w / size[at]) * (right - share[at]), np.bincount(at))


def macro_f1(labels: Ints, predicted: Ints, w: Floats) -> Measure:
    """The mean of 2 TP / (rows + answers) over the classes that the rows or the answers have."""
    classes, at = np.unique(np.concatenate((labels, predicted)), return_inverse=True)
    true, answer = at[: len(labels)], at[len(labels) :]
    right = np.where(true == answer, w, 0.0)
    d = len(classes)
    size = np.bincount(true, w, minlength=d) + np.bincount(answer, w, minlength=d)
    f1 = 2.0 * np.bincount(true, right, minlength=d) / size
    # Each row has its part in two classes: its own, and that of its answer.
    influence = 2.0 * right / size[true] - w * (f1[true] / size[true] + f1[answer] / size[answer])
    rows = np.maximum(np.bincount(true, minlength=d), np.bincount(answer, minlength=d))
    return _mean_over_classes(f1, influence, rows)


def auc(labels: Ints, scores: Floats, w: Floats) -> Measure | None:
    """The mean over classes of P(score of a row of the class > score of another row), ties counting half.

    Of two classes it is that of the second. The influence is DeLong's.
    """
    _require_numbers(scores, "scores", infinite=True)
    classes = np.unique(labels)
    if len(classes) < 2:
        return None
    if scores.shape[1] == 2:
        classes = classes[1:]
    columns = scores[:, classes]  # (n, c)
    own = labels[:, None] == classes
    weight = np.broadcast_to(w[:, None], own.shape)
    order = columns.argsort(axis=0, kind="stable")
    ranked = np.take_along_axis(columns, order, axis=0)
    new = np.ones(ranked.shape, dtype=bool)
    new[1:] = ranked[1:] != ranked[:-1]
    places = np.arange(len(labels))[:, None]
    first = np.maximum.accumulate(np.where(new, places, 0), axis=0)
    last = np.ones_like(new)
    last[:-1] = new[1:]
    end = np.minimum.accumulate(np.where(last, places, len(labels))[::-1], axis=0)[::-1] + 1

    def below(of: Floats) -> Floats:
        """The weight of rows with a lower score, and half of those with the same, in the order of scores."""
        sums = np.zeros((len(labels) + 1, len(classes)))
        np.cumsum(np.take_along_axis(of, order, axis=0), axis=0, out=sums[1:])
        found: Floats = np.take_along_axis(sums, first, axis=0) + np.take_along_axis(sums, end, axis=0)
        return found / 2.0

    positive, negative = np.where(own, weight, 0.0), np.where(own, 0.0, weight)
    own_size, other_size = positive.sum(axis=0), negative.sum(axis=0)
    beaten, beating = np.empty_like(columns), np.empty_like(columns)
    np.put_along_axis(beaten, order, below(negative), axis=0)
    np.put_along_axis(beating, order, own_size - below(positive), axis=0)
    value = (positive * beaten).sum(axis=0) / (own_size * other_size)
    value = np.clip(value, 0.0, 1.0)  # rounding
    influence = positive / own_size * (beaten / other_size - value) + negative / other_size * (
        beating / own_size - value
    )
    fewer = np.minimum(own.sum(axis=0), (~own).sum(axis=0))
    # Places among others spread a third as much as rows that are right or wrong do, where all places are alike.
    return _mean_over_classes(value, influence.sum(axis=1), fewer, spread=1.0 / 3.0)


def log_loss(labels: Ints, probabilities: Floats, w: Floats) -> Measure:
    """−Σ w log p(y) / Σ w, with p of at least 2.2e-16."""
    _require_numbers(probabilities, "probabilities")
    own = probabilities[np.arange(len(labels)), labels]
    return _mean(-np.log(np.clip(own, LEAST_PROBABILITY, None)), w)


def calibration_error(labels: Ints, predicted: Ints, probabilities: Floats, w: Floats | None = None) -> float:
    """The expected calibration error; see above."""
    return expected_error(reliability(labels, predicted, probabilities, w))


def reliability(labels: Ints, predicted: Ints, probabilities: Floats, w: Floats | None = None) -> Floats:
    """(15, 3): of each bin the weight of its rows, the sum of their probabilities, and of what is right."""
    _require_numbers(probabilities, "probabilities")
    w = _weights(w, len(labels))
    sure = np.clip(probabilities[np.arange(len(labels)), predicted], 0.0, 1.0)
    at = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)  # (k/15, (k + 1)/15], as is usual
    right = (predicted == labels).astype(np.float64)
    return np.stack([np.bincount(at, part, minlength=BINS) for part in (w, w * sure, w * right)], axis=1)


def expected_error(bins: Floats) -> float:
    """Of bins as `reliability` gives them; those of several clients add."""
    return float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())


def roc(labels: Ints, probabilities: Floats, w: Floats | None = None) -> Floats | None:
    """The share of the second class's rows found, at each share of false positives of ROC_GRID; None of one class."""
    w = _weights(w, len(labels))
    positive, negative = np.where(labels == 1, w, 0.0), np.where(labels == 1, 0.0, w)
    if not positive.any() or not negative.any():
        return None
    order = np.argsort(-probabilities[:, 1], kind="stable")
    falling = probabilities[order, 1]
    ends = np.append(falling[1:] != falling[:-1], True)
    found, wrong = (np.append(0.0, np.cumsum(part[order])[ends] / part.sum()) for part in (positive, negative))
    return np.asarray(np.interp(ROC_GRID, wrong, found), dtype=np.float64)


def r2(y: Floats, f: Floats, w: Floats) -> Measure | None:
    """1 − Σ w (y − f)² / Σ w (y − ȳ)², the mean over targets; None where a target does not vary."""
    total = w.sum()
    away = (y - w @ y / total) ** 2
    spread = w @ away
    varies = spread > 0.0
    if not varies.all() or len(y) < 2:
        return None
    errors = (y - f) ** 2
    unexplained = w @ errors / spread
    influence = -(w[:, None] * (errors - unexplained * away) / spread).mean(axis=1)
    return Measure(float(1.0 - unexplained.mean()), influence, float(len(y)))


def rmse(y: Floats, f: Floats, w: Floats) -> Measure:
    """√(Σ w (y − f)² / Σ w), the mean over targets."""
    errors = (y - f) ** 2
    squares = w @ errors / w.sum()
    roots = np.sqrt(squares)
    slope = np.divide(0.5, roots, out=np.zeros_like(roots), where=roots > 0.0)
    influence = (w[:, None] / w.sum() * (errors - squares) * slope).mean(axis=1)
    return Measure(float(roots.mean()), influence, float(len(y)))


def mae(y: Floats, f: Floats, w: Floats) -> Measure:
    """Σ w |y − f| / Σ w, the mean over targets."""
    return _mean(np.abs(y - f).mean(axis=1), w)


def softmax(scores: Floats, temperature: float) -> Floats:
    """The softmax of scores / T, row by row; a class of score −∞ has 0."""
    z = scores / temperature
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    found: Floats = powers / powers.sum(axis=1, keepdims=True)
    return found


def _mean(values: Floats, w: Floats) -> Measure:
    total = w.sum()
    mean = float(w @ values / total)
    return Measure(mean, w / total * (values - mean), float(total**2 / (w @ w)))


def _mean_over_classes(values: Floats, influence: Floats, rows: Ints, spread: float = 1.0) -> Measure:
    """The mean of shares (c,) of classes of so many rows; `influence` (n,) is that of their sum.

    A class of one row seems certain, as its share has no spread. Its variance is at least that of a share which lies
    between its own and the mean of all, as if two rows of that mean had been seen too.
    """
    number = len(values)
    mean = float(values.mean())
    common = (float(values @ rows) + 1.0) / (float(rows.sum()) + 2.0)
    drawn = (values * rows + 2.0 * common) / (rows + 2.0)
    least = spread * float((drawn * (1.0 - drawn) / rows).sum()) / number**2
    return Measure(mean, influence / number, number**2 / float((1.0 / rows).sum()), least)


def _weights(weights: Floats | None, rows: int) -> Floats:
    if rows == 0:
        raise InputError("there are no rows to measure on; give at least one")
    if weights is None:
        return np.ones(rows)
    w = np.asarray(weights, np.float64)
    if w.shape != (rows,) or not np.isfinite(w).all() or (w < 0.0).any() or not w.any():
        raise InputError(f"weights must be {rows} numbers of at least 0, and not all 0; the shape is {w.shape}")
    return w


def _require_numbers(values: Floats, what: str, *, infinite: bool = False) -> None:
    wrong = np.isnan(values) | (values == np.inf) if infinite else ~np.isfinite(values)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise InputError(f"{what} of row {row} are not numbers; the model that gave them has none to test with")
