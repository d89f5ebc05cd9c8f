"""The tables of α and of β: FedHiP over the paper's grids, beside what is chosen without test rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from fedhip.reproduce import paper
from fedhip.reproduce.bench import Bench
from fedhip.reproduce.cells import Cell, PlannedCell
from fedhip.reproduce.settings import Source
from fedhip.reproduce.studies.closed_form import Pair, curve_cell
from fedhip.reproduce.studies.notes import accuracy_notes, backbone_notes, is_papers_setting, list_notes, quick_notes
from fedhip.reproduce.tables import NOTHING, Entry, Row, Table, rank

PAIRS: dict[str, tuple[Pair, ...]] = {
    # One more than the paper: every client's own α, by leave-one-out, at the same β.
    "alpha": (*((alpha, paper.ALPHA_TABLE_BETA) for alpha in paper.GRID), (None, paper.ALPHA_TABLE_BETA)),
    # Two more: β by generalized cross-validation, with the same α and with each client's own.
    "beta": (*((paper.BETA_TABLE_ALPHA, beta) for beta in paper.GRID), (paper.BETA_TABLE_ALPHA, None), (None, None)),
}
LETTERS = {"alpha": "α", "beta": "β"}


def steps(bench: Bench, study: str) -> list[PlannedCell]:
    """The cells: one for each data set, λ and seed."""

    def step(source: Source, concentration: float, seed: int) -> PlannedCell:
        identity = (study, source.name, concentration, seed)
        return PlannedCell("grid", identity, lambda: cell(bench, study, source, concentration, seed))

    s = bench.settings
    return [step(*parts) for parts in product(bench.sources, s.concentrations, s.seeds)]


def cell(bench: Bench, study: str, source: Source, concentration: float, seed: int) -> Cell:
    """FedHiP over the grid, on the first number of clients."""
    return curve_cell(bench, source, study, PAIRS[study], bench.settings.clients[0], concentration, seed)


def points(bench: Bench, study: str, source: Source, concentration: float) -> list[list[dict[str, Any]]]:
    """For each pair of the grid what each seed gave."""
    by_seed = [bench.result(cell(bench, study, source, concentration, seed))["points"] for seed in bench.settings.seeds]
    return [[curve[place] for curve in by_seed] for place in range(len(PAIRS[study]))]


def entry_of(found: Sequence[dict[str, Any]], published: float | None = None) -> Entry:
    """The place of the table from what the seeds gave."""
    means = [point["mean"] for point in found]
    return Entry(text=NOTHING) if None in means else Entry(tuple(means), paper=published)


def tables(bench: Bench, study: str) -> list[Table]:
    """The table."""
    s, letter = bench.settings, LETTERS[study]
    heads = [f"{letter} = {value:g}" for value in paper.GRID]
    heads += ["leave-one-out", "median α"] if study == "alpha" else ["auto", "auto, α leave-one-out", "β of auto"]
    rows, records = [], []
    for source, concentration in product(bench.sources, s.concentrations):
        found = points(bench, study, source, concentration)
        entries = []
        for (alpha, beta), by_seed in zip(PAIRS[study], found, strict=True):
            value = alpha if study == "alpha" else beta
            published = None
            if value is not None and is_papers_setting(bench, source):
                published = paper.sensitivity(study, source.name, s.clients[0], concentration, value)
            entries.append(entry_of(by_seed, published))
            records.append(_record(bench, source, concentration, (alpha, beta), by_seed, entries[-1]))
        # Ranked among the paper's values alone: the others are chosen without seeing these accuracies.
        ranked = [*rank(entries[: len(paper.GRID)]), *entries[len(paper.GRID) :]]
        last = found[-1] if study == "alpha" else found[-2]
        values = [point["median_alpha" if study == "alpha" else "beta"] for point in last]
        known = [value for value in values if value is not None]
        ranked.append(Entry(text=f"{np.mean(known):.3g}" if known else NOTHING))
        name = f"{source.title}, " if len(bench.sources) > 1 else ""
        rows.append(Row(f"{name}λ = {concentration:g}", tuple(ranked)))
    fixed = f"β = {paper.ALPHA_TABLE_BETA:g}" if study == "alpha" else f"α = {paper.BETA_TABLE_ALPHA:g}"
    where = bench.sources[0].title if len(bench.sources) == 1 else "each data set"
    title = f"FedHiP with various values of {letter} on {where} ({s.clients[0]} clients, {fixed})"
    notes = list_notes(
        quick_notes(bench), accuracy_notes(bench, marks="row among the fixed values"),
        _notes(study, s.prior), backbone_notes(bench, study),
    )  # fmt: skip
    columns = tuple((head,) for head in heads)
    return [Table(study, title, "non-IID", columns, tuple(rows), tuple(records), notes)]


def _notes(study: str, prior: str) -> list[str]:
    without = ["Without the clients' priors, as in the paper."] if prior == "client" else []
    if study == "alpha":
        return [
            "The paper takes the best α of each row, that is, it picks α on the test rows: its Table I repeats the "
            "maxima of its table of α.",
            "Leave-one-out: every client's own α, by exact leave-one-out on its training rows, at the same β; no test "
            "row is seen. Median α: over the clients, mean over seeds.",
            *without,
        ]
    return [
        "auto: β by generalized cross-validation from the summed statistics alone; with the same α, and with every "
        "client's own α by leave-one-out. No test row is seen. Last column: the β that auto chose, mean over seeds.",
        *without,
    ]


def _record(
    bench: Bench, source: Source, concentration: float, pair: Pair, by_seed: Sequence[dict[str, Any]], entry: Entry
) -> dict[str, Any]:
    alpha, beta = pair
    weighted = [point["weighted"] for point in by_seed]
    return {
        "data": source.name,
        "backbone": source.backbone,
        "clients": bench.settings.clients[0],
        "concentration": concentration,
        "alpha": "leave-one-out" if alpha is None else alpha,
        "beta": "auto" if beta is None else beta,
        "mean": entry.mean,
        "std": entry.deviation,
        "weighted_mean": None if None in weighted else float(np.mean(weighted)),
        "paper": entry.paper,
        "seeds": list(bench.settings.seeds),
        "seed_means": [point["mean"] for point in by_seed],
        "median_alpha": [point["median_alpha"] for point in by_seed],
        "beta_used": [point["beta"] for point in by_seed],
        "only_local_classes": bench.settings.only_local_classes,
        "quick": bench.settings.quick,
    }
