"""Several runs side by side, as numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedhip.runs.report.findings import Findings, Method, difference
from fedhip.utils.text import plain


@dataclass(frozen=True)
class Comparison:
    """Runs in the order given; the first is what the others are compared with."""

    runs: tuple[Findings, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The folders' names; those that occur twice with a number."""
        given = [plain(run.record.name) for run in self.runs]
        return tuple(
            name if given.count(name) == 1 else f"{name} ({given[:i].count(name) + 1})" for i, name in enumerate(given)
        )

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """Every method of any run, once."""
        return tuple({m.key: m for run in reversed(self.runs) for m in reversed(run.methods)}.values())[::-1]

    def of(self, run: Findings, key: str) -> Method | None:
        """That method in that run."""
        return next((method for method in run.methods if method.key == key), None)

    def best(self, key: str) -> float | None:
        """The highest mean of a method over runs."""
        means = [found.mean for run in self.runs if (found := self.of(run, key)) and found.mean is not None]
        return max(means, default=None)

    @cached_property
    def changed(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(option, its value in each run) where the configurations differ."""
        configs = [run.results.get("config") or {} for run in self.runs]
        keys = dict.fromkeys(key for config in configs for key in config)
        rows = [(plain(key), tuple(_shown(config.get(key)) for config in configs)) for key in keys]
        return tuple((key, values) for key, values in rows if len(set(values)) > 1)

    @cached_property
    def key(self) -> str | None:
        """The method that clients are compared by: the first that every run has."""
        return next((m.key for m in self.methods if all(self.of(run, m.key) for run in self.runs)), None)

    @cached_property
    def same_clients(self) -> bool:
        """Whether all runs have clients of the same names, and a method in common."""
        return self.key is not None and len({frozenset(run.names) for run in self.runs}) == 1

    @cached_property
    def moved(self) -> int:
        """Clients whose rows are not the same in all runs, as their numbers tell: the name alone is."""
        held = [
            {
                row.name: (row.train, row.test, *counts)
                for row, counts in zip(run.clients, run.counts.tolist(), strict=True)
            }
            for run in self.runs
        ]
        return sum(len({rows[name] for rows in held}) > 1 for name in held[0])

    @cached_property
    def repeats(self) -> tuple[float, float] | None:
        """Mean and standard deviation, over runs that differ in their seed alone, of the method in common."""
        means = [
            found.mean for run in self.runs if self.key and (found := self.of(run, self.key)) and found.mean is not None
        ]
        if len(means) < len(self.runs) or [option for option, _ in self.changed] != ["seed"]:
            return None
        return statistics.mean(means), statistics.stdev(means)

    @cached_property
    def clients(self) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
        """(client, its accuracy in each run)."""
        by_run = [{row.name: row.accuracy.get(self.key or "") for row in run.clients} for run in self.runs]
        return tuple((name, tuple(run[name] for run in by_run)) for name in self.runs[0].names)

    @cached_property
    def differences(self) -> tuple[tuple[float, ...], ...]:
        """For each run but the first: accuracy minus that in the first run, of every client that has both."""
        return tuple(
            tuple(d for _, values in self.clients if (d := difference(values[i], values[0])) is not None)
            for i in range(1, len(self.runs))
        )


def compare(runs: Sequence[Findings]) -> Comparison:
    """The runs side by side."""
    return Comparison(tuple(runs))


def _shown(value: object) -> str:
    return "–" if value is None else plain(value)
