"""The page of a run whose targets are real numbers, or several labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedhip.errors import InputError
from fedhip.runs.report import curves, figures
from fedhip.runs.report.findings import Findings
from fedhip.runs.report.measured import Gain
from fedhip.runs.report.svg import colour, inline
from fedhip.runs.results import saved
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.tasks import METRICS, thresholds_of
from fedhip.utils.text import plain, short
from fedhip.utils.words import count, points

_TITLES = {"r2": "R²", "rmse": "RMSE", "mae": "MAE", "label_accuracy": "labels right", "f1": "F1 over labels"}
#: Measures without units, shown with three decimals.
_WITHOUT_UNITS = ("r2", "label_accuracy", "f1")
_WORDS = {"regression": "regression", "multilabel": "several labels"}
_BESIDE = {"global": "with the global model", "local": "trained alone"}
#: What is drawn lies between these: a client whose R² is far below 0 would hide the others.
_LOWEST = -0.5


@dataclass(frozen=True)
class TargetClient:
    """One client's row of the table."""

    name: str
    train: int
    test: int
    values: dict[str, float | None]
    alpha: float | None


@dataclass(frozen=True)
class TargetPage:
    """What the page says beside what it says of every run."""

    run: Findings

    @property
    def _results(self) -> Mapping[str, Any]:
        return self.run.results

    @property
    def task_in_words(self) -> str:
        """For the line above the title."""
        return _WORDS[self._results["task"]]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names in results.json."""
        return METRICS[self._results["task"]]

    @property
    def metric_titles(self) -> list[str]:
        """The same as people write them."""
        return [_TITLES[name] for name in self.metrics]

    @property
    def targets(self) -> list[str]:
        """Names of the targets."""
        return [plain(name) for name in self.run.record.details["class_names"]]

    def mean(self, method: str, metric: str) -> float | None:
        """Over clients."""
        found: float | None = self._results["methods"].get(method, {}).get(metric, {}).get("mean")
        return found

    @staticmethod
    def shown(value: float | None, metric: str = "") -> str:
        """Three digits at least, whatever the units; of a metric without units three decimals."""
        if value is None:
            return "–"
        if metric in _WITHOUT_UNITS:
            return f"{value:,.3f}".replace("-", "−")
        digits = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 1
        text = f"{value:,.{digits}f}" if 1e-2 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"
        return text.replace("-", "−")

    def ends(self, method: str, metric: str) -> str:
        """The 95 % interval over clients, as 0.51 to 0.80; nothing where there is none."""
        found = self._results["methods"][method].get(metric, {})
        if found.get("low") is None or found.get("high") is None:
            return ""
        return f"{self.shown(found['low'], metric)} to {self.shown(found['high'], metric)}"

    def saved(self, value: float) -> str:
        """A gain: what is saved of the absolute error, or labels in points."""
        return saved(value) if self._results["task"] == "regression" else f"{points(value)} points"

    @property
    def gained(self) -> str:
        """What a gain is of."""
        return "absolute error saved" if self._results["task"] == "regression" else "gain in labels right"

    def gain_picture(self, gain: Gain, width: int) -> str:
        """The gain of each client with its interval."""
        real = self._results["task"] == "regression"
        return curves.gains_by_client(gain, width, self.gained, saved if real else points)

    @property
    def lead(self) -> str:
        """The first sentence."""
        first, own = self.metrics[0], self.run.main_method
        if own not in self._results["methods"]:
            return "No model of a client’s own is among the methods: the table says how the others do."
        value = self.mean(own, first)
        if value is None:
            return "No client has test rows enough, so there are no errors to report."
        others = [
            f"{self.shown(self.mean(other.key, first), first)} "
            f"{_BESIDE.get(other.key) or f'with {short(other.title, 24)}'}"
            for other in self.run.methods
            if other.key not in (own, MAJORITY)
        ]
        beside = f"; it is {' and '.join(others)}" if others else ""
        what = f"{_TITLES[first]} of a client’s own model on its test rows"
        return f"{what} is {self.shown(value, first)}, the mean over clients{beside}."

    @property
    def more(self) -> str:
        """What it took."""
        clients, method = self._results["num_clients"], self._results["methods"].get(self.run.main_method, {})
        named = ", ".join(short(name, 30) for name in self.targets[:6]) + (" …" if len(self.targets) > 6 else "")
        rounds = method.get("rounds")
        took = f" It took {count(int(rounds), 'round')} of communication." if rounds else ""
        return f"{count(clients, 'client')}; {count(len(self.targets), 'target')}: {named}.{took}"

    @cached_property
    def clients(self) -> list[TargetClient]:
        """By name."""
        methods, first = self._results["methods"], self.metrics[0]
        rows: dict[str, TargetClient] = {}
        for key, method in methods.items():
            for entry in method["per_client"]:
                name = entry["client"]
                row = rows.setdefault(name, TargetClient(name, entry["train"], entry["test"], {}, None))
                row.values[key] = entry.get(first)
                if key == self.run.main_method and entry["alpha"] is not None:
                    rows[name] = TargetClient(name, row.train, row.test, row.values, entry["alpha"])
        return [rows[name] for name in sorted(rows)]

    @cached_property
    def intervals(self) -> list[tuple[str, float, float, float]]:
        """Of each target the smallest, median and largest threshold over clients."""
        if self._results["task"] != "regression":
            return []
        details = self.run.record.details["clients"]
        try:
            found = np.array([thresholds_of(details, name, 0.9) for name in details if details[name].get("misses")])
        except InputError:
            return []
        if not len(found):
            return []
        return [
            (name, float(part.min()), float(np.median(part)), float(part.max()))
            for name, part in zip(self.targets, found.T, strict=True)
        ]

    @property
    def alt(self) -> str:
        """The picture in words."""
        return f"{_TITLES[self.metrics[0]]} of {count(len(self.clients), 'client')} by method"

    @property
    def caption(self) -> str:
        """How to read the picture."""
        values = [value for row in self.clients for value in row.values.values() if value is not None]
        below = f" What lies below {self.shown(_LOWEST)} is drawn there." if min(values, default=0.0) < _LOWEST else ""
        return f"Every client’s {_TITLES[self.metrics[0]]} on its test rows, by its own model’s; 1 is perfect.{below}"

    def picture(self, width: int) -> str:
        """A dot for each client and method."""
        own = self.run.main_method
        rows = [row for row in self.clients if row.values.get(own) is not None]
        rows.sort(key=lambda row: (row.values[own] or 0.0, row.name))
        figure, axes = figures.axes_of(width, 340)
        for method in reversed(self.run.methods):
            places = [
                (at, max(value, _LOWEST))
                for at, row in enumerate(rows)
                if (value := row.values.get(method.key)) is not None
            ]
            axes.scatter(
                [x for x, _ in places], [y for _, y in places], s=40 if method.key == own else 26,
                marker=method.marker, color=colour(method.colour), linewidths=0, label=short(method.title, 18),
            )  # fmt: skip
        axes.set(xlim=(-0.8, max(len(rows), 1) - 0.2), xticks=[], ylabel=_TITLES[self.metrics[0]])
        axes.set_xlabel(f"{count(len(rows), 'client')}, by {_TITLES[self.metrics[0]]} of their own models")
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, frameon=False, labelcolor=colour("ink"),
            handletextpad=0.2, columnspacing=1.0, borderpad=0.2,
        )  # fmt: skip
        return inline(figure, f"targets-{width}")
