"""What the report says, as numbers. Nothing here draws or writes; what a run does not have is None or empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.heads import Head
from fedhip.heads.choice import describe
from fedhip.runs.folder import head_of
from fedhip.runs.report.record import RunRecord
from fedhip.runs.results import title_of
from fedhip.utils.candidates import is_wide
from fedhip.utils.text import plain
from fedhip.utils.words import number

_MARKERS = {"fedhip": "o", "global": "D", "local": "v", "majority": "s"}
_WORST_CLASSES = 10
_FEW_TEST_ROWS = 5  # a class with fewer says little
_MOST_CONFUSED = 12
_MOST_EXAMPLES = 24


@dataclass(frozen=True)
class Method:
    """One method's means, as results.json has them, and its cost."""

    key: str
    title: str
    colour: str  # of the page's colours; with the marker, the same on all of the page
    marker: str
    mean: float | None
    low: float | None  # of the mean's 95 % interval
    high: float | None
    weighted: float | None
    std: float | None
    worst_decile: float | None
    rounds: float | None
    seconds: float | None
    upload: float | None
    download: float | None


@dataclass(frozen=True)
class ClientRow:
    """One client: its size, its skew, its accuracy by method, its α."""

    name: str
    train: int
    test: int
    classes: int | None
    skew: float | None
    accuracy: dict[str, float | None]
    gain: float | None
    alpha: float | None


@dataclass(frozen=True)
class ClientThird:
    """The clients between two values of x, and their mean gain."""

    low: float
    high: float
    clients: int
    gain: float


@dataclass(frozen=True)
class WorstClass:
    """A class the personalized models get wrong most: its test rows, and what it is taken for."""

    label: int
    name: str
    test: int
    right: int
    taken_for: dict[int, int]


@dataclass(frozen=True)
class Candidate:
    """One that was tried: the share of training rows right, held out, with its standard error over clients."""

    title: str
    held_out: float
    error: float | None
    clients: int | None
    chosen: bool


@dataclass(frozen=True)
class Example:
    """A test image the personalized model got wrong."""

    client: str
    true: str
    predicted: str
    image: str


@dataclass(frozen=True)
class Findings:
    """One run, read. `others` are the methods of all runs on the page that have no colour of their own."""

    record: RunRecord
    others: tuple[str, ...]

    @property
    def results(self) -> dict[str, Any]:
        """results.json."""
        return self.record.results

    @property
    def head(self) -> type[Head]:
        """The head of the run's models."""
        return head_of(self.results)

    @property
    def main_method(self) -> str:
        """The method of the run's models."""
        return self.head.method

    @property
    def choice(self) -> str | None:
        """What training rows spoke for, in words; None of a run without a choice, or after a change."""
        told = self.results.get("choice")
        return None if not told or "candidates" not in told else describe(told)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """What was tried, in the order from the simplest."""
        told = self.results.get("choice") or {}
        several = len({str(entry.get("features")) for entry in told.get("candidates", ())}) > 1
        found = []
        for entry in told.get("candidates", ()):
            if (held_out := number(entry.get("held_out"))) is None:
                continue
            features, model, clients = str(entry.get("features")), str(entry.get("model")), number(entry.get("clients"))
            chosen = features == told.get("features") and model == told.get("model")
            members = model.split("+")
            beside = ", lifted" if is_wide(members) else ""
            simple = " + ".join(name for name in members if not is_wide([name]))
            title = f"{simple}{beside}{', features ' + features if several else ''}"
            whole = None if clients is None else int(clients)
            found.append(Candidate(title, held_out, number(entry.get("error")), whole, chosen))
        return tuple(found)

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """What was done with each column, of a run that was made from a table."""
        found = self.record.details.get("table")
        entries = found if isinstance(found, list) else []
        return [
            {
                "name": str(entry.get("name")),
                "kind": str(entry.get("kind")),
                "features": int(number(entry.get("features")) or 0),
                "missing": int(number(entry.get("missing")) or 0),
                "done": str(entry.get("done") or ""),
            }
            for entry in entries
            if isinstance(entry, dict)
        ]

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """The personalized model first, then global and local, then the others as they come."""
        held = self.results.get("methods", {})
        first = (self.main_method, "global", "local", "majority")
        keys = [*(key for key in first if key in held), *(key for key in held if key not in first)]
        task = str(self.results.get("task", "classification"))
        return tuple(_method(key, held[key], self.others, task) for key in keys)

    @cached_property
    def hero(self) -> Method | None:
        """The personalized model, or the first method where it did not run."""
        return self.methods[0] if self.methods else None

    @cached_property
    def baseline(self) -> Method | None:
        """What a gain is a gain over: the global model; where it did not run, the clients alone."""
        found = {method.key: method for method in self.methods}
        return (found.get("global") or found.get("local")) if self.main_method in found else None

    @cached_property
    def tested(self) -> bool:
        """Whether any method has an accuracy."""
        return any(method.mean is not None for method in self.methods)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; numbers where details.json has none."""
        names = self.record.details.get("class_names") or []
        classes = int(self.results.get("num_classes") or len(names))
        return tuple(plain(names[i]) if i < len(names) else str(i) for i in range(classes))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Training rows of each client of the table and class, (K, d)."""
        return self._counts("train_counts")

    def _counts(self, key: str) -> NDArray[np.int64]:
        counts = np.zeros((len(self.names), len(self.class_names)), dtype=np.int64)
        for k, name in enumerate(self.names):
            row = self._client(name).get(key) or []
            counts[k, : len(row)] = row[: counts.shape[1]]
        return counts

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every client of any method, in the order of the first that has it."""
        held = self.results.get("methods", {})
        return tuple(
            dict.fromkeys(str(row["client"]) for method in self.methods for row in held[method.key]["per_client"])
        )

    def _client(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.record.details.get("clients", {}).get(name, {})
        return found

    @cached_property
    def clients(self) -> tuple[ClientRow, ...]:
        """A row of the table for each client."""
        by_method = {
            method.key: {str(row["client"]): row for row in self.results["methods"][method.key]["per_client"]}
            for method in self.methods
        }
        skews = skew(self.counts)
        return tuple(
            self._row(
                name, {key: rows[name] for key, rows in by_method.items() if name in rows}, self.counts[k], skews[k]
            )
            for k, name in enumerate(self.names)
        )

    def _row(self, name: str, rows: dict[str, dict[str, Any]], counts: NDArray[np.int64], skew: float) -> ClientRow:
        accuracy = {method.key: number(rows.get(method.key, {}).get("accuracy")) for method in self.methods}
        any_row = next(iter(rows.values()))
        known = bool(counts.any())
        return ClientRow(
            name=name,
            train=int(any_row["train"]),
            test=int(any_row["test"]),
            classes=int((counts > 0).sum()) if known else None,
            skew=skew if known else None,
            accuracy=accuracy,
            gain=difference(accuracy.get(self.main_method), accuracy.get(self.baseline.key)) if self.baseline else None,
            alpha=number(rows.get(self.main_method, {}).get("alpha")),
        )

    @cached_property
    def gains(self) -> NDArray[np.float64]:
        """The gain of every client that has one."""
        return np.array([row.gain for row in self.clients if row.gain is not None])

    @cached_property
    def alphas(self) -> NDArray[np.float64]:
        """The α of every client that has one."""
        return np.array([row.alpha for row in self.clients if row.alpha is not None])

    @property
    def median_alpha(self) -> float:
        """The median of them."""
        return float(np.median(self.alphas))

    @cached_property
    def grid(self) -> NDArray[np.float64]:
        """The values of α the leave-one-out curve is given at."""
        found = self.results.get("leave_one_out") or {}
        return np.array(found.get("alphas") or [], dtype=float)

    @cached_property
    def loo_mean(self) -> NDArray[np.float64]:
        """Mean over clients of the leave-one-out accuracy, had every client used that α."""
        found = self.results.get("leave_one_out") or {}
        values = np.array([np.nan if (x := number(v)) is None else x for v in found.get("accuracy") or []])
        return values if len(values) == len(self.grid) and np.isfinite(values).all() else np.array([])

    @cached_property
    def loo_chosen(self) -> float | None:
        """The same with every client's own α and prior, both chosen without the rows that are counted."""
        return number((self.results.get("leave_one_out") or {}).get("chosen"))

    @cached_property
    def loo_clients(self) -> NDArray[np.float64]:
        """Leave-one-out accuracy of each client at each α, (clients that were trained, alphas)."""
        curves = [self._client(name).get("loo_accuracy") for name in self.names]
        kept = [curve for curve in curves if curve and len(curve) == len(self.grid)]
        return np.array(kept, dtype=float).reshape(len(kept), len(self.grid))

    @cached_property
    def worst_classes(self) -> tuple[WorstClass, ...]:
        """The classes of lowest accuracy, lowest first; those with few test rows only where there are no others."""
        test = self._counts("test_counts").sum(axis=0)
        taken_for: list[dict[int, int]] = [{} for _ in test]
        for name in self.names:
            for true, predicted, errors in self._client(name).get("confusions") or []:
                taken_for[true][predicted] = taken_for[true].get(predicted, 0) + errors
        found = [
            WorstClass(label, self.class_names[label], int(rows), int(rows) - sum(errors.values()), errors)
            for label, (rows, errors) in enumerate(zip(test, taken_for, strict=True))
            if errors and rows
        ]
        found.sort(key=lambda c: (c.test < _FEW_TEST_ROWS, c.right / c.test, -c.test, c.label))
        return tuple(found[:_WORST_CLASSES])

    @cached_property
    def confused_with(self) -> tuple[int, ...]:
        """The classes that the worst ones are taken for most, in order of label."""
        votes: dict[int, tuple[int, int]] = {}
        for worst in self.worst_classes:
            for label, errors in worst.taken_for.items():
                most, total = votes.get(label, (0, 0))
                votes[label] = max(most, errors), total + errors
        ranked = sorted(votes, key=lambda label: (votes[label][0], votes[label][1], -label), reverse=True)
        return tuple(sorted(ranked[:_MOST_CONFUSED]))

    @property
    def confused_in_place(self) -> bool:
        """Whether one of these is itself among the worst, so that right answers are in the picture."""
        return any(worst.label in self.confused_with for worst in self.worst_classes)

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """Images that were got wrong, those of the worst classes first, in turn."""
        places = {worst.label: place for place, worst in enumerate(self.worst_classes)}
        given = [e for e in self.record.details.get("examples") or [] if is_image(e["image"])]
        turns: dict[int, int] = {}
        keyed: list[tuple[int, int, int, dict[str, Any]]] = []
        for example in given:
            turn = turns[example["true"]] = turns.get(example["true"], -1) + 1
            keyed.append((turn, places.get(example["true"], len(places)), len(keyed), example))
        chosen = sorted(keyed)[:_MOST_EXAMPLES]
        chosen.sort(key=lambda item: (item[1], item[0], item[2]))
        return tuple(
            Example(str(e["client"]), self._class(e["true"]), self._class(e["predicted"]), e["image"])
            for *_, e in chosen
        )

    def _class(self, label: int) -> str:
        return self.class_names[label] if 0 <= label < len(self.class_names) else str(label)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, as the run took them."""
        given = self.results.get("seconds") or {}
        return {plain(phase): value for phase, taken in given.items() if (value := number(taken)) is not None}


def read_runs(records: Sequence[RunRecord]) -> tuple[Findings, ...]:
    """The runs of one page: a method has the same colour in all of them."""
    keys = {key for record in records for key in record.results.get("methods", {})}
    others = tuple(sorted(keys - set(_MARKERS)))
    return tuple(Findings(record, others) for record in records)


def _marker_of(key: str, others: Sequence[str]) -> tuple[str, str]:
    """Colour and marker of a method."""
    if key in _MARKERS:
        return "muted" if key == "majority" else key, _MARKERS[key]
    place = others.index(key)
    return f"other-{place % 5 + 1}", "s^PX"[place // 5 % 4]


def _method(key: str, held: dict[str, Any], others: Sequence[str], task: str) -> Method:
    colour, marker = _marker_of(key, others)
    means = {name: number(value) for name, value in (held.get("accuracy") or {}).items()}
    return Method(
        key=key,
        title=plain(title_of(key, task)),
        colour=colour,
        marker=marker,
        mean=means.get("mean"),
        low=means.get("low"),
        high=means.get("high"),
        weighted=means.get("weighted"),
        std=means.get("std"),
        worst_decile=means.get("worst_decile"),
        rounds=number(held.get("rounds")),
        seconds=number(held.get("seconds")),
        upload=number(held.get("upload_bytes_per_client")),
        download=number(held.get("download_bytes_per_client")),
    )


def skew(counts: NDArray[np.int64]) -> list[float]:
    """½ Σ_c |p_k(c) − p(c)| for each client k: the share of its rows that would have to change class.

    p is the distribution of classes of the federation, p_k the client's; 0 for a client without rows.
    """
    total = counts.sum()
    if not total:
        return [0.0] * len(counts)
    sizes = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    distances = 0.5 * np.abs(counts / sizes - counts.sum(axis=0) / total).sum(axis=1)
    return [float(d) for d in np.where(counts.any(axis=1), distances, 0.0)]


def difference(a: float | None, b: float | None) -> float | None:
    """a − b where there are both."""
    return None if a is None or b is None else a - b


def thirds(x: Sequence[float], gains: Sequence[float]) -> list[ClientThird]:
    """Clients in order of x, in three parts of equal number; nothing where there are too few or x does not vary."""
    if len(x) < 6 or min(x) == max(x):
        return []
    order = np.argsort(x, kind="stable")
    values, gained = np.array(x)[order], np.array(gains)[order]
    parts = np.array_split(np.arange(len(x)), 3)
    return [
        ClientThird(float(values[part[0]]), float(values[part[-1]]), len(part), float(gained[part].mean()))
        for part in parts
    ]


def standard_error(values: NDArray[np.float64]) -> float | None:
    """Of the mean over clients; None for fewer than two."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def is_image(text: object) -> bool:
    """Whether it is an image held in the text itself, and nothing that would be fetched."""
    return isinstance(text, str) and text.startswith(
        ("data:image/png;base64,", "data:image/jpeg;base64,", "data:image/webp;base64,")
    )
