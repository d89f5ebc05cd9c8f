"""Accuracy against rounds, seconds and megabytes; and what FedHiP saves of the last two.

cost = the whole run: seconds of the whole federation in this process; bytes that one client sends and receives
saved = 1 − cost of FedHiP / cost of the other method
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedhip.reproduce import paper
from fedhip.reproduce.bench import Bench
from fedhip.reproduce.cells import Json, PlannedCell
from fedhip.reproduce.settings import Regime, Source, known_methods
from fedhip.reproduce.studies import tuning
from fedhip.reproduce.studies.notes import (
    backbone_notes,
    list_notes,
    prior_notes,
    protocol_name,
    protocol_notes,
    quick_notes,
)
from fedhip.reproduce.studies.table1 import TableColumn, cell, entry_of, numbered, remarks_on, step
from fedhip.reproduce.tables import NOTHING, Entry, Row, Table, rank

#: A method has arrived when it first has this share of its last accuracy.
ARRIVED = 0.99


@dataclass(frozen=True)
class Point:
    """A method after some rounds; bytes are those of one client, up and down."""

    round: int
    accuracy: float | None
    seconds: float
    bytes: float


@dataclass(frozen=True)
class TrainingCurve:
    """A method's way through its rounds, mean over seeds; `last` is its end, `arrived` where it is nearly there."""

    method: str
    title: str
    gradient: bool
    points: tuple[Point, ...]
    diverged: bool

    @property
    def last(self) -> Point:
        """The end."""
        return self.points[-1]

    @property
    def arrived(self) -> Point:
        """The first evaluation with 99 % of the last accuracy."""
        end = self.last.accuracy
        if end is None:
            return self.last
        return next(p for p in self.points if p.accuracy is not None and p.accuracy >= ARRIVED * end)


def column_of(bench: Bench, source: Source) -> TableColumn:
    """The paper's: the first number of clients, the first λ. The cells are those of Table I."""
    return TableColumn(source, bench.settings.clients[0], bench.settings.concentrations[0])


def steps(bench: Bench) -> list[PlannedCell]:
    """The cells."""
    found: list[PlannedCell] = []
    s = bench.settings

    for regime in s.regimes:
        for source, method in product(bench.sources, s.methods):
            if regime == "tuned":
                found += tuning.steps(bench, source, s.concentrations[0], method)
            found += [step(bench, column_of(bench, source), method, regime, seed) for seed in s.seeds]
    return found


def training_curve(method: str, title: str, gradient: bool, results: Sequence[Json]) -> TrainingCurve:
    """The means over seeds after each number of rounds that all seeds were tested after."""
    histories = []
    for result in results:
        history = {int(r): Point(int(r), a, s, up + down) for r, a, s, up, down in result["history"]}
        end = Point(result["rounds"], result["mean"], result["seconds"], result["upload"] + result["download"])
        histories.append({**history, end.round: end})
    rounds = sorted(set.intersection(*(set(history) for history in histories)))
    points = []
    for number in rounds:
        at = [history[number] for history in histories]
        accuracies = [p.accuracy for p in at if p.accuracy is not None]
        points.append(
            Point(
                number,
                float(np.mean(accuracies)) if len(accuracies) == len(at) else None,
                float(np.mean([p.seconds for p in at])),
                float(np.mean([p.bytes for p in at])),
            )
        )
    diverged = any(result["diverged"] is not None for result in results)
    if not points:  # the seeds diverged at different rounds
        points = [Point(0, None, 0.0, 0.0)]
    return TrainingCurve(method, title, gradient, tuple(points), diverged)


def training_curves(bench: Bench, source: Source, regime: Regime) -> list[TrainingCurve]:
    """Every method's."""
    known = known_methods()
    found = []
    for method in bench.settings.methods:
        results = [
            bench.result(cell(bench, column_of(bench, source), method, regime, seed)) for seed in bench.settings.seeds
        ]
        found.append(training_curve(method, known[method].title, known[method].gradient, results))
    return found


def saved(own: float, other: float) -> float | None:
    """1 − own / other; None where the other costs nothing."""
    return None if other <= 0 else 1 - own / other


def tables(bench: Bench) -> list[Table]:
    """A table for each protocol and data set."""
    return [_table(bench, source, regime) for regime, source in product(bench.settings.regimes, bench.sources)]


def name_of(bench: Bench, source: Source, regime: Regime) -> str:
    """The name of the files."""
    return f"efficiency-{regime}" + (f"-{source.name}" if len(bench.sources) > 1 else "")


def _table(bench: Bench, source: Source, regime: Regime) -> Table:
    known, column = known_methods(), column_of(bench, source)
    ways = training_curves(bench, source, regime)
    own = next((way for way in ways if way.method == "fedhip" and not way.diverged), None)
    heads = [
        ("", "accuracy"), ("", "rounds"), ("whole run", "seconds"), ("whole run", "MB"),
        ("FedHiP saves of it", "time"), ("FedHiP saves of it", "bytes"),
        ("to 99 % of its accuracy", "rounds"), ("to 99 % of its accuracy", "seconds"),
        ("to 99 % of its accuracy", "MB"),
        ("FedHiP saves of that", "time"), ("FedHiP saves of that", "bytes"),
    ]  # fmt: skip
    rows, records, footnotes = [], [], list[str]()
    accuracies, rest = [], []
    savings: list[tuple[float | None, float | None, str]] = []
    for way in ways:
        seeds = bench.settings.seeds
        results = [bench.result(cell(bench, column, way.method, regime, seed)) for seed in seeds]
        accuracies.append(entry_of(results))
        end, there = way.last, way.arrived
        compared = own is not None and way is not own and not way.diverged
        of_all = (
            (saved(own.last.seconds, end.seconds), saved(own.last.bytes, end.bytes))
            if own and compared
            else (None, None)
        )
        of_that = (
            (saved(own.last.seconds, there.seconds), saved(own.last.bytes, there.bytes))
            if own and compared
            else (None, None)
        )
        if way.method in paper.ROWS:
            savings.append((*of_all, way.title))
        texts = [str(end.round), _number(end.seconds), _number(end.bytes / 1e6), *map(_share, of_all)]
        texts += [str(there.round), _number(there.seconds), _number(there.bytes / 1e6), *map(_share, of_that)]
        rest.append([Entry(text=text) for text in texts])
        remarks = remarks_on(results, seeds, " ".join(column.path[1:]), way.title)
        rows.append((known[way.method].title, numbered(footnotes, remarks)))
        records.append(_record(bench, source, regime, way, of_all, of_that, results))
    table_rows = [
        Row(label, (accuracy, *others), marks)
        for (label, marks), accuracy, others in zip(rows, rank(accuracies), rest, strict=True)
    ]
    notes = list_notes(
        quick_notes(bench), [_definition(bench), *_claim(savings)], prior_notes(bench), protocol_notes(bench, regime),
        backbone_notes(bench, "efficiency", regime),
    )  # fmt: skip
    title = f"What it takes: {source.title}, {column.path[1]}, {column.path[2]}, {protocol_name(bench, regime)}"
    name = name_of(bench, source, regime)
    return Table(name, title, "Method", tuple(heads), tuple(table_rows), tuple(records), notes, tuple(footnotes))


def _definition(bench: Bench) -> str:
    return (
        "Seconds: all clients and the server in one process, without feature extraction, which is the same for all"
        + (", and without the search for settings" if "tuned" in bench.settings.regimes else "")
        + ". MB: what one client sends and receives in all rounds, in millions of bytes (FedHiP's statistics are "
        "8-byte numbers, one triangle of the symmetric matrix; gradient methods exchange 4-byte numbers). Saves: "
        "1 − FedHiP's whole cost / the method's cost, first its whole run, then until its accuracy was "
        "first 99 % of its last one."
    )


def _claim(savings: Sequence[tuple[float | None, float | None, str]]) -> list[str]:
    """The largest savings against the paper's rivals, beside the paper's claim."""
    time = max(((s, title) for s, _, title in savings if s is not None), default=None)
    sent = max(((s, title) for _, s, title in savings if s is not None), default=None)
    if time is None or sent is None:
        return []
    return [
        f"As much as {_percent(time[0])} of the computation is saved (against {time[1]}; the paper: as much as "
        f"{paper.SAVED_COMPUTATION:.0%}), and {_percent(sent[0])} of the communication (against {sent[1]}; the paper: "
        f"as much as {paper.SAVED_COMMUNICATION:.0%}), of whole runs. The paper does not define its reductions: "
        f"ours is the largest over its rivals."
    ]


def _record(
    bench: Bench,
    source: Source,
    regime: Regime,
    way: TrainingCurve,
    of_all: tuple[float | None, float | None],
    of_that: tuple[float | None, float | None],
    results: Sequence[Json],
) -> dict[str, Any]:
    there = way.arrived
    return {
        "data": source.name,
        "backbone": source.backbone,
        "protocol": regime,
        "method": way.method,
        "clients": bench.settings.clients[0],
        "concentration": bench.settings.concentrations[0],
        "accuracy": way.last.accuracy,
        "rounds": way.last.round,
        "seconds": way.last.seconds,
        "bytes_per_client": way.last.bytes,
        "saved_time": of_all[0],
        "saved_bytes": of_all[1],
        "arrived_round": there.round,
        "arrived_seconds": there.seconds,
        "arrived_bytes_per_client": there.bytes,
        "saved_time_to_arrival": of_that[0],
        "saved_bytes_to_arrival": of_that[1],
        "prior": bench.settings.prior,
        "device": results[0]["device"],
        "quick": bench.settings.quick,
        "history": [f"{p.round}:{p.accuracy}" for p in way.points],
    }


def _number(value: float) -> str:
    """Three digits, but no exponents."""
    if value == 0:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else "<0.001"


def _share(value: float | None) -> str:
    return NOTHING if value is None else _percent(value)


def _percent(value: float) -> str:
    """A share with one decimal; what costs many times as much is said so."""
    if value < -1:
        return f"costs {1 - value:,.1f}×"
    return f"{100 * value:.1f} %".replace("-", "−")
