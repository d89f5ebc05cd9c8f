"""Metrics in `results.json`: of each client, over clients, and who gains against whom.

A client's line in `per_client` has its value of every metric, and the ends of their intervals under `low` and `high`,
and what curves over clients are drawn by under `curves`.
A method has `mean`, `low` and `high` of each. `gains` compares the run's own models with those of the clients alone and
with the global one, client by client, on the same test rows: by accuracy, or by the absolute error of real targets that
is saved. All that is over clients follows from what is kept of each
of them, so that one who leaves takes its part along. Runs of before there were metrics have accuracies alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedhip.core.intervals import Estimate, Scale, over_clients, wilson
from fedhip.core.metrics import BINS, SCALES, Floats, expected_error
from fedhip.core.paired import LEVEL, compare_rows, holm
from fedhip.core.tested import Tested
from fedhip.utils.words import decimal, percent

Json = dict[str, Any]

#: What a gain is a gain over.
AGAINST = ("local", "global")
#: What the ends of intervals and points of curves are rounded to: a file of 50 clients and 17 methods has 10,000.
DIGITS = 6

#: What a metric is called, and how it is written.
TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "macro F1",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "auc": "AUC",
    "log_loss": "log-loss",
    "calibration_error": "calibration error",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
    "label_accuracy": "labels right",
}
_PERCENT = ("accuracy", "balanced_accuracy", "f1", "sensitivity", "specificity", "label_accuracy")

_DIFFERENCE = Scale(bottom=-1.0, top=1.0, more_is_better=True)
#: Of absolute errors, in the targets' units.
_ERROR_SAVED = Scale(bottom=-math.inf, more_is_better=True)


def measured(tested: Tested | None) -> Json:
    """What a client's line says beside its accuracy; nothing of one without test rows."""
    if tested is None or not tested.metrics:
        return {}
    ends: dict[str, dict[str, float]] = {"low": {}, "high": {}}
    for name, found in tested.metrics.items():
        if found is not None and found.low is not None and found.high is not None:
            ends["low"][name], ends["high"][name] = round(found.low, DIGITS), round(found.high, DIGITS)
    values = {name: None if found is None else found.value for name, found in tested.metrics.items()}
    values.pop("accuracy", None)
    return {**values, **ends, **curves(tested)}


def curves(tested: Tested) -> Json:
    """What the report's curves are made of.

    `bins` has four numbers for each bin of the reliability curve with rows in it: its number, its rows, the sum of
    their probabilities, and how many are right. `roc` has the height of the curve on `ROC_GRID`.
    """
    kept: Json = {}
    if tested.bins is not None:
        kept["bins"] = [
            number
            for at, (rows, sure, right) in enumerate(tested.bins.tolist())
            if rows
            for number in (at, _short(rows), round(sure, DIGITS), _short(right))
        ]
    if tested.roc is not None:
        kept["roc"] = [round(height, 4) for height in tested.roc.tolist()]
    return {"curves": kept} if kept else {}


def _short(value: float) -> float:
    return int(value) if value == int(value) else round(value, DIGITS)


def pooled_bins(entries: Iterable[Json]) -> Floats | None:
    """The reliability curve (15, 3) of all clients, each weighing the same; None where nobody has one."""
    total, known = np.zeros((BINS, 3)), False
    for entry in entries:
        if numbers := entry.get("curves", {}).get("bins"):
            rows = np.asarray(numbers, np.float64).reshape(-1, 4)
            total[rows[:, 0].astype(np.int64)] += rows[:, 1:] / rows[:, 1].sum()
            known = True
    return total if known else None


def refresh_metrics(results: Json) -> None:
    """Everything over clients, from what is there of each; `accuracy` has the means it always had beside it."""
    for method in results["methods"].values():
        entries = method["per_client"]
        for metric, scale in SCALES.items():
            if metric != "accuracy" and not any(metric in entry for entry in entries):
                method.pop(metric, None)
                continue
            found = over_clients([e for entry in entries if (e := estimate_of(entry, metric)) is not None], scale)
            if metric == "accuracy":
                method["accuracy"] |= {"low": found["low"], "high": found["high"]}
                continue
            if metric == "calibration_error":
                bins = pooled_bins(entries)
                found["pooled"] = None if bins is None else expected_error(bins)
            method[metric] = found
    scale = _ERROR_SAVED if results.get("task") == "regression" else _DIFFERENCE
    for gain in (results.get("gains") or {}).values():
        _sum_up(gain, scale)


def metrics_in(method: Json) -> Json:
    """A method's metrics over clients, by name; those that a run of before has not are left out."""
    return {name: method[name] for name in SCALES if name in method}


def written(metric: str, value: float | None) -> str:
    """A value of a metric: shares of rows in percent, everything else as a number."""
    if metric in _PERCENT:
        return percent(value)
    if value is not None and metric in ("rmse", "mae"):
        return f"{value:.3g}"
    return decimal(value) if value is None or abs(value) < 100 else f"{value:.3g}"


def estimate_of(entry: Json, metric: str) -> Estimate | None:
    """A client's value with its interval; that of an accuracy without one is of independent rows."""
    value = entry.get(metric)
    if value is None:
        return None
    low, high = (entry.get(end, {}).get(metric) for end in ("low", "high"))
    if low is None and metric == "accuracy" and "low" not in entry and entry["test"]:
        low, high = wilson(value, entry["test"])
    return Estimate(value, low, high)


def gains_of(client: str, tested: Mapping[str, Tested], own: str) -> dict[str, Json]:
    """A client's line in `gains`, against each that it was tested beside."""
    found = {}
    for other in AGAINST:
        if own in tested and other in tested:
            pair = compare_rows(tested[own].gain, tested[other].gain, tested[own].groups)
            found[other] = {
                "client": client,
                "difference": pair.difference,
                "low": None if pair.low is None else round(pair.low, DIGITS),
                "high": None if pair.high is None else round(pair.high, DIGITS),
                "better": pair.better,
                "worse": pair.worse,
                "p": pair.p,
            }
    return found


def put_gains(results: Json, lines: Iterable[dict[str, Json]]) -> None:
    """Add clients' lines, or replace those that are there."""
    gains: Json = results.setdefault("gains", {})
    known = {other: {line["client"]: at for at, line in enumerate(gain["per_client"])} for other, gain in gains.items()}
    for found in lines:
        for other, line in found.items():
            entries, places = gains.setdefault(other, {"per_client": []})["per_client"], known.setdefault(other, {})
            if line["client"] in places:
                entries[places[line["client"]]] = line
            else:
                places[line["client"]] = len(entries)
                entries.append(line)


def remove_gains(results: Json, client: str) -> None:
    """Leave nothing of a client."""
    for gain in (results.get("gains") or {}).values():
        gain["per_client"] = [line for line in gain["per_client"] if line["client"] != client]


def _sum_up(gain: Json, scale: Scale) -> None:
    """Means and lists, from the clients' lines; p-values are corrected for the number of clients by Holm's method."""
    lines = gain["per_client"]
    for line, adjusted in zip(lines, holm([line["p"] for line in lines]), strict=True):
        line["p_adjusted"] = adjusted
    gain |= over_clients([Estimate(line["difference"], line["low"], line["high"]) for line in lines], scale)
    gain["better"] = sum(line["difference"] > 0 for line in lines)
    gain["worse"] = sum(line["difference"] < 0 for line in lines)
    beyond = [line for line in lines if line["p_adjusted"] <= LEVEL]
    gain["gains_beyond_chance"] = [line["client"] for line in beyond if line["better"] > line["worse"]]
    gain["loses_beyond_chance"] = [line["client"] for line in beyond if line["better"] < line["worse"]]
    gain["test"] = f"exact sign test on the test rows of each client, corrected by Holm's method, at {LEVEL:.0%}"
    gain["per_client"] = gain.pop("per_client")  # last: the lists are what one reads
