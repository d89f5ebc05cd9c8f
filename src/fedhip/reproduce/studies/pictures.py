"""The figures of each study, from its cells."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fedhip.reproduce import figures, paper
from fedhip.reproduce.bench import Bench
from fedhip.reproduce.figures import Curve, Dots, EfficiencyCurve, Picture
from fedhip.reproduce.settings import Regime, Source, known_methods
from fedhip.reproduce.studies import efficiency, invariance, sensitivity, table1
from fedhip.reproduce.studies.notes import is_papers_setting, protocol_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def of_table1(bench: Bench) -> list[Picture]:
    """The comparison, under each protocol."""
    return [Picture(f"table1-{regime}", _comparison(bench, regime)) for regime in bench.settings.regimes]


def _comparison(bench: Bench, regime: Regime) -> Callable[[], Figure]:
    def draw() -> Figure:
        s, known = bench.settings, known_methods()
        panels = []
        for source, clients in product(bench.sources, s.clients):
            columns = [table1.TableColumn(source, clients, concentration) for concentration in s.concentrations]
            entries = {
                method: [
                    table1.entry_of(
                        [bench.result(table1.cell(bench, column, method, regime, seed)) for seed in s.seeds]
                    )
                    for column in columns
                ]
                for method in s.methods
            }
            panels.append(
                Dots(
                    f"{source.title}, {clients} clients",
                    {method: [entry.mean for entry in row] for method, row in entries.items()},
                    {method: [entry.deviation for entry in row] for method, row in entries.items()},
                )
            )
        titles = {method: known[method].title for method in s.methods}
        heading = f"Accuracy of every method, {protocol_name(bench, regime)}{_quick(bench)}"
        return figures.comparison(panels, titles, s.concentrations, heading)

    return draw


def of_sensitivity(bench: Bench, study: str) -> list[Picture]:
    """The curves of α or β."""

    def draw() -> Figure:
        s, letter = bench.settings, sensitivity.LETTERS[study]
        panels = []
        for source in bench.sources:
            curves = []
            for concentration in s.concentrations:
                found = sensitivity.points(bench, study, source, concentration)
                entries = [sensitivity.entry_of(by_seed) for by_seed in found]
                published = [
                    paper.sensitivity(study, source.name, s.clients[0], concentration, value)
                    if is_papers_setting(bench, source)
                    else None
                    for value in paper.GRID
                ]
                fixed, chosen = entries[: len(paper.GRID)], entries[len(paper.GRID)]
                curves.append(
                    Curve(
                        f"λ = {concentration:g}",
                        paper.GRID,
                        [entry.mean for entry in fixed],
                        [entry.deviation for entry in fixed],
                        chosen.mean,
                        published,
                    )
                )
            panels.append((f"{source.title}, {s.clients[0]} clients", curves))
        chosen_by = "each client its own α, by leave-one-out" if study == "alpha" else "β from the summed statistics"
        fixed_at = f"β = {paper.ALPHA_TABLE_BETA:g}" if study == "alpha" else f"α = {paper.BETA_TABLE_ALPHA:g}"
        return figures.sensitivity(panels, letter, chosen_by, f"FedHiP over {letter}, {fixed_at}{_quick(bench)}")

    return [Picture(study, draw)]


def of_efficiency(bench: Bench) -> list[Picture]:
    """The three panels, for each protocol and data set."""
    return [
        Picture(efficiency.name_of(bench, source, regime), _ways(bench, source, regime))
        for regime, source in product(bench.settings.regimes, bench.sources)
    ]


def _ways(bench: Bench, source: Source, regime: Regime) -> Callable[[], Figure]:
    def draw() -> Figure:
        ways = []
        for course in efficiency.training_curves(bench, source, regime):
            points = [point for point in course.points if point.accuracy is not None]
            ways.append(
                EfficiencyCurve(
                    course.method,
                    course.title,
                    [point.round for point in points],
                    [point.seconds for point in points],
                    [point.bytes / 1e6 for point in points],
                    [point.accuracy for point in points if point.accuracy is not None],
                )
            )
        column = efficiency.column_of(bench, source)
        heading = f"{', '.join(column.path)}, {protocol_name(bench, regime)}{_quick(bench)}"
        return figures.efficiency([way for way in ways if way.accuracy], heading)

    return draw


def of_invariance(bench: Bench) -> list[Picture]:
    """The drift of the fixed client, for each protocol and data set."""
    return [
        Picture(invariance.name_of(bench, source, regime), _drift(bench, source, regime))
        for regime, source in product(bench.settings.regimes, bench.sources)
    ]


def _drift(bench: Bench, source: Source, regime: Regime) -> Callable[[], Figure]:
    def draw() -> Figure:
        known, found, spreads = known_methods(), {}, {}
        for method in bench.settings.methods:
            by_moved, _, _ = invariance.accuracies(bench, source, regime, method)
            spreads[method] = invariance.spread(by_moved)
            found[method] = [
                None if None in values else float(np.mean([value for value in values if value is not None]))
                for values in by_moved
            ]
        moved = "only the other clients' rows are divided anew"
        heading = f"{source.title}: {moved}, {protocol_name(bench, regime)}{_quick(bench)}"
        titles = {method: known[method].title for method in found}
        return figures.invariance(bench.settings.moved_concentrations, found, spreads, titles, heading)

    return draw


def _quick(bench: Bench) -> str:
    return " (quick)" if bench.settings.quick else ""
