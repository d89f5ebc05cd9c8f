"""What the report says of metrics beside accuracy, and of who gains: numbers alone, from results.json and details.json.

A run of before there were metrics has none of it, and its page says nothing of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhip.core.metrics import ROC_GRID, SCALES, Floats, expected_error
from fedhip.runs.measures import AGAINST, pooled_bins, written
from fedhip.runs.report.findings import Findings, Method
from fedhip.utils.text import plain
from fedhip.utils.words import number

#: Methods whose curves are drawn.
_CURVES = 3
#: Of so many clients a picture may end before the longest intervals do.
_MANY = 10


@dataclass(frozen=True)
class Value:
    """A metric of a method: the mean over clients and its interval, as words too."""

    metric: str
    mean: float | None
    low: float | None
    high: float | None
    best: bool = False

    @property
    def shown(self) -> str:
        """The mean."""
        return written(self.metric, self.mean)

    @property
    def interval(self) -> str:
        """The ends, or nothing."""
        if self.low is None or self.high is None:
            return ""
        return f"{written(self.metric, self.low)} to {written(self.metric, self.high)}".replace("% to", " to")


def metrics_of(run: Findings) -> tuple[str, ...]:
    """The metrics beside accuracy of any method, in the order of tables."""
    held = run.results.get("methods", {}).values()
    return tuple(
        name
        for name in SCALES
        if name != "accuracy" and any(_summary(method, name).get("mean") is not None for method in held)
    )


def values_of(run: Findings) -> dict[str, tuple[Value, ...]]:
    """Of each method its metrics; the best mean of each is marked."""
    held, names = run.results.get("methods", {}), metrics_of(run)
    found: dict[str, tuple[Value, ...]] = {}
    best = {name: _best(name, [_read(held[m.key], name) for m in run.methods]) for name in names}
    for method in run.methods:
        values = [_read(held[method.key], name) for name in names]
        found[method.key] = tuple(
            Value(v.metric, v.mean, v.low, v.high, v.mean is not None and v.mean == best[v.metric]) for v in values
        )
    return found


def _read(method: dict[str, Any], metric: str) -> Value:
    summary = _summary(method, metric)
    if metric == "calibration_error":  # over clients of few rows its mean is mostly chance
        return Value(metric, number(summary.get("pooled")), None, None)
    mean, low, high = (number(summary.get(key)) for key in ("mean", "low", "high"))
    return Value(metric, mean, low, high)


def _summary(method: dict[str, Any], metric: str) -> dict[str, Any]:
    return method.get(metric) or {}


def _best(metric: str, values: list[Value]) -> float | None:
    known = [value.mean for value in values if value.mean is not None]
    if not known:
        return None
    return max(known) if SCALES[metric].more_is_better else min(known)


@dataclass(frozen=True)
class MethodCurve:
    """A method's curve, and one number that sums it up."""

    method: Method
    x: Floats
    y: Floats
    weight: Floats
    summary: float


def reliability_curves(run: Findings) -> list[MethodCurve]:
    """Of the run's own models and those beside them: share right against probability, all clients weighing the same."""
    found = []
    for method in run.methods[:_CURVES]:
        bins = pooled_bins(run.results["methods"][method.key]["per_client"])
        if bins is not None:
            there = bins[:, 0] > 0
            rows, sure, right = bins[there].T
            found.append(MethodCurve(method, sure / rows, right / rows, rows / rows.sum(), expected_error(bins)))
    return found


def roc_curves(run: Findings) -> list[MethodCurve]:
    """Of two classes: the mean over clients of their curves."""
    found = []
    for method in run.methods[:_CURVES]:
        held = run.results["methods"][method.key]
        heights = [roc for entry in held["per_client"] if (roc := entry.get("curves", {}).get("roc"))]
        area = number(_summary(held, "auc").get("mean"))
        if heights and area is not None:
            mean = np.mean(heights, axis=0)
            found.append(MethodCurve(method, ROC_GRID, mean, np.ones(len(mean)), area))
    return found


@dataclass(frozen=True)
class GainLine:
    """A client's difference to another model, and whether chance alone would do that."""

    client: str
    difference: float
    low: float | None
    high: float | None
    better: int
    worse: int
    p: float | None

    @property
    def beyond(self) -> bool:
        """Whether it is beyond chance, for the number of clients."""
        return self.p is not None and self.p <= 0.05


@dataclass(frozen=True)
class Gain:
    """The run's own models against another: the mean, how many gain and lose, and who beyond chance."""

    key: str
    mean: float | None
    low: float | None
    high: float | None
    lines: tuple[GainLine, ...]

    @property
    def gaining(self) -> tuple[GainLine, ...]:
        """Who gains, most first."""
        return tuple(line for line in self.lines if line.difference > 0)

    @property
    def losing(self) -> tuple[GainLine, ...]:
        """Who loses, most first."""
        return tuple(line for line in reversed(self.lines) if line.difference < 0)

    @property
    def edge(self) -> float | None:
        """Where the picture ends, if a few intervals, of clients with two or three rows, would hide all others."""
        ends = sorted(
            max(abs(line.low), abs(line.high)) for line in self.lines if line.low is not None and line.high is not None
        )
        if len(ends) < _MANY:
            return None
        usual = max(ends[(9 * len(ends)) // 10 - 1], *(abs(line.difference) for line in self.lines))
        return 1.2 * usual if ends[-1] > 3.0 * usual > 0.0 else None

    def beyond(self, sign: int) -> tuple[GainLine, ...]:
        """Who gains (1) or loses (−1) beyond chance."""
        lines = self.gaining if sign > 0 else self.losing
        return tuple(line for line in lines if line.beyond)


def gains_of_run(run: Findings) -> tuple[Gain, ...]:
    """Against training alone and against the global model; clients that gain most come first."""
    held = run.results.get("gains") or {}
    found = []
    for key in AGAINST:
        lines = [
            GainLine(
                plain(line["client"]),
                float(line["difference"]),
                number(line.get("low")),
                number(line.get("high")),
                int(line["better"]),
                int(line["worse"]),
                number(line.get("p_adjusted")),
            )
            for line in (held.get(key) or {}).get("per_client", [])
        ]
        if lines:
            lines.sort(key=lambda line: (-line.difference, line.client))
            mean, low, high = (number(held[key].get(end)) for end in ("mean", "low", "high"))
            found.append(Gain(key, mean, low, high, tuple(lines)))
    return tuple(found)
