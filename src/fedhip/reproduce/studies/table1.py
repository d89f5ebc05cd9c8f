"""Table I: every method, for every number of clients and every λ, on every data set."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedhip.methods.engine.protocol import NOTHING_KNOWN
from fedhip.reproduce import paper
from fedhip.reproduce.bench import Bench, Setting, method_cell
from fedhip.reproduce.cells import Cell, Json, PlannedCell
from fedhip.reproduce.settings import Regime, Source, known_methods
from fedhip.reproduce.studies import tuning
from fedhip.reproduce.studies.closed_form import Pair, curve_cell
from fedhip.reproduce.studies.notes import (
    accuracy_notes,
    backbone_notes,
    is_papers_setting,
    list_notes,
    prior_notes,
    protocol_name,
    protocol_notes,
    quick_notes,
)
from fedhip.reproduce.tables import DIVERGED, NOTHING, Entry, Row, Table, rank_columns

#: How the paper picks α: the best of its grid on the test rows, with β = 0.
HINDSIGHT: tuple[Pair, ...] = tuple((alpha, paper.ALPHA_TABLE_BETA) for alpha in paper.GRID)


@dataclass(frozen=True)
class TableColumn:
    """A column: a data set, a number of clients, a λ."""

    source: Source
    clients: int
    concentration: float

    @property
    def path(self) -> tuple[str, str, str]:
        """Its headings."""
        return self.source.title, f"{self.clients} clients", f"λ = {self.concentration:g}"


def steps(bench: Bench) -> list[PlannedCell]:
    """The cells: the search first where there is one, then seed by seed."""
    found: list[PlannedCell] = []
    for regime in bench.settings.regimes:
        if regime == "tuned":
            s = bench.settings
            for source, concentration, method in product(bench.sources, s.concentrations, s.methods):
                found += tuning.steps(bench, source, concentration, method)
        for seed, column in product(bench.settings.seeds, columns_of(bench)):
            found += [step(bench, column, method, regime, seed) for method in bench.settings.methods]
            if regime == "paper" and "fedhip" in bench.settings.methods:
                found.append(_hindsight_step(bench, column, seed))
    return found


def columns_of(bench: Bench) -> list[TableColumn]:
    """The columns in the paper's order."""
    s = bench.settings
    return [TableColumn(*parts) for parts in product(bench.sources, s.clients, s.concentrations)]


def cell(bench: Bench, column: TableColumn, method: str, regime: Regime, seed: int) -> Cell:
    """The cell of one seed."""
    setting = setting_of(bench, column, method, regime)
    return method_cell(bench, column.source, method, regime, column.clients, column.concentration, seed, setting)


def setting_of(bench: Bench, column: TableColumn, method: str, regime: Regime) -> Setting:
    """What the method is told under this protocol."""
    return Setting(None) if regime == "paper" else choice_of(bench, column, method).setting


def choice_of(bench: Bench, column: TableColumn, method: str) -> tuning.TunedSetting:
    """What the search for this λ found."""
    return tuning.choose(bench, column.source, column.concentration, method)


def step(bench: Bench, column: TableColumn, method: str, regime: Regime, seed: int) -> PlannedCell:
    """The cell to come."""
    identity = (*column.path, method, regime, seed)
    return PlannedCell(method, identity, lambda: cell(bench, column, method, regime, seed))


def _hindsight_step(bench: Bench, column: TableColumn, seed: int) -> PlannedCell:
    def make() -> Cell:
        return curve_cell(bench, column.source, "hindsight", HINDSIGHT, column.clients, column.concentration, seed)

    return PlannedCell("grid", ("hindsight", *column.path, seed), make)


def tables(bench: Bench) -> list[Table]:
    """The table under each protocol."""
    return [_table(bench, regime) for regime in bench.settings.regimes]


def _table(bench: Bench, regime: Regime) -> Table:
    known, methods = known_methods(), bench.settings.methods
    columns = columns_of(bench)
    footnotes: list[str] = []
    records: list[dict[str, Any]] = []
    rows = []
    for method in methods:
        entries, remarks = [], []
        for column in columns:
            results = [bench.result(cell(bench, column, method, regime, seed)) for seed in bench.settings.seeds]
            entry = entry_of(results, published(bench, column, method, regime))
            entries.append(entry)
            remarks += remarks_on(results, bench.settings.seeds, " ".join(column.path[1:]), known[method].title)
            records.append(record_of(bench, column, method, regime, results, entry))
        remarks += differences(method)
        if regime == "tuned":
            remarks += [f"{known[method].title}: {chosen(bench, source, method)}" for source in bench.sources]
        rows.append(Row(known[method].title, tuple(entries), numbered(footnotes, remarks)))
    rows = rank_columns(rows)
    rows = _with_rules(rows, methods)
    if "fedhip" in methods:
        rows += _below(bench, rows, columns, regime, records)
    name = f"Overall comparison, {protocol_name(bench, regime)}"
    notes = list_notes(
        quick_notes(bench),
        accuracy_notes(bench),
        prior_notes(bench),
        protocol_notes(bench, regime),
        _alpha_notes(bench, regime),
        backbone_notes(bench, "table1", regime),
    )
    return Table(
        f"table1-{regime}", name, "Method", tuple(c.path for c in columns), tuple(rows), tuple(records), notes,
        tuple(footnotes),
    )  # fmt: skip


def numbered(footnotes: list[str], remarks: list[str]) -> tuple[int, ...]:
    """The numbers of these remarks among the footnotes, to which new ones are added."""
    for remark in remarks:
        if remark not in footnotes:
            footnotes.append(remark)
    return tuple(sorted({footnotes.index(remark) for remark in remarks}))


def entry_of(results: list[Json], published: float | None = None) -> Entry:
    """The place of a table from the cells of the seeds; one that diverged makes the place `div.`."""
    if any(result["diverged"] is not None for result in results):
        return Entry(text=DIVERGED, paper=published)
    means = [result["mean"] for result in results]
    if any(mean is None for mean in means):
        return Entry(text=NOTHING, paper=published)
    return Entry(tuple(means), paper=published)


def remarks_on(results: list[Json], seeds: tuple[int, ...], where: str, title: str) -> list[str]:
    """Where a method diverged or degenerates."""
    remarks = [
        f"{title}, {where}, seed {seed}: diverged: {result['diverged']}."
        for result, seed in zip(results, seeds, strict=True)
        if result["diverged"] is not None
    ]
    return remarks + list(dict.fromkeys(sentence(title, result["note"]) for result in results if result["note"]))


def differences(method: str) -> list[str]:
    """How the method differs from its paper, as a footnote; nothing where no difference is known."""
    info = known_methods()[method]
    return [f"{info.title} differs from its paper: {info.differs}"] if info.differs not in ("", NOTHING_KNOWN) else []


def sentence(title: str, note: str) -> str:
    """A method's note as a footnote."""
    return f"{title}: {note.rstrip('.')}."


def published(bench: Bench, column: TableColumn, method: str, regime: Regime) -> float | None:
    """The paper's figure, where the setting is the paper's."""
    if not is_papers_setting(bench, column.source, regime):
        return None
    return paper.table1(column.source.name, method, column.clients, column.concentration)


def chosen(bench: Bench, source: Source, method: str) -> str:
    """What the search chose for every λ, and how many settings it tried."""
    found = {value: tuning.choose(bench, source, value, method) for value in bench.settings.concentrations}
    values = list(dict.fromkeys(_value(choice) for choice in found.values()))
    parts = [value + ("" if len(values) == 1 else f" at λ = {', '.join(_those(found, value))}") for value in values]
    number = len(next(iter(found.values())).tried)
    name = f" ({source.title})" if len(bench.sources) > 1 else ""
    return f"{'; '.join(parts)}; of {number} setting{'s' if number > 1 else ''}{name}."


def _value(choice: tuning.TunedSetting) -> str:
    return f"{choice.setting}{' (the outermost that was tried)' if choice.at_edge else ''}"


def _those(found: dict[float, tuning.TunedSetting], value: str) -> list[str]:
    return [f"{concentration:g}" for concentration, choice in found.items() if _value(choice) == value]


def record_of(
    bench: Bench, column: TableColumn, method: str, regime: Regime, results: list[Json], entry: Entry
) -> dict[str, Any]:
    """A line of the CSV."""
    weighted = [result["weighted"] for result in results if result["weighted"] is not None]
    whole = len(weighted) == len(results) and entry.text is None
    setting = setting_of(bench, column, method, regime)
    gradient = known_methods()[method].gradient
    rate = setting.learning_rate or bench.settings.protocol(0).learning_rate
    return {
        "data": column.source.name,
        "backbone": column.source.backbone,
        "protocol": regime,
        "method": method,
        "clients": column.clients,
        "concentration": column.concentration,
        "mean": entry.mean,
        "std": entry.deviation,
        "weighted_mean": float(np.mean(weighted)) if whole else None,
        "weighted_std": float(np.std(weighted, ddof=1)) if whole and len(weighted) > 1 else None,
        "paper": entry.paper,
        "seeds": list(bench.settings.seeds),
        "seed_means": [result["mean"] for result in results],
        "rounds": results[0]["rounds"],
        "seconds": float(np.mean([result["seconds"] for result in results])),
        "upload_bytes_per_client": results[0]["upload"],
        "download_bytes_per_client": results[0]["download"],
        "learning_rate": rate if gradient else None,
        "options": results[0]["options"],
        "settings_tried": len(choice_of(bench, column, method).tried) if regime == "tuned" else None,
        "only_local_classes": bench.settings.only_local_classes,
        "prior": bench.settings.prior,
        "quick": bench.settings.quick,
        "diverged": "; ".join(str(r["diverged"]) for r in results if r["diverged"] is not None) or None,
        "note": results[0]["note"],
    }


def _with_rules(rows: list[Row], methods: tuple[str, ...]) -> list[Row]:
    """A line above the methods that the paper does not have, and above FedHiP."""
    extra = next((place for place, method in enumerate(methods) if method not in paper.ROWS), -1)
    return [
        Row(row.label, row.entries, row.footnotes, rule=place > 0 and (place == extra or methods[place] == "fedhip"))
        for place, row in enumerate(rows)
    ]


def _below(
    bench: Bench, rows: list[Row], columns: list[TableColumn], regime: Regime, records: list[dict[str, Any]]
) -> list[Row]:
    """FedHiP against the best of the others; and with α as the paper picks it, which is not ranked."""
    own = rows[-1].entries
    gains = []
    for place, entry in enumerate(own):
        others = [row.entries[place].mean for row in rows[:-1]]
        best = max((mean for mean in others if mean is not None), default=None)
        gain = None if best is None or entry.mean is None else 100 * (entry.mean - best)
        gains.append(Entry(text=NOTHING if gain is None else f"{gain:+.2f}".replace("-", "−")))
    found = [Row("Improvement ↑", tuple(gains))] if len(rows) > 1 else []
    if regime == "tuned":
        return found
    entries = []
    for column in columns:
        best_means = []
        for seed in bench.settings.seeds:
            curve = bench.result(_hindsight_step(bench, column, seed).make())["points"]
            best_means.append(max(point["mean"] for point in curve if point["mean"] is not None))
        entry = Entry(tuple(best_means), paper=published(bench, column, "fedhip", regime))
        entries.append(entry)
        records.append(
            {
                "data": column.source.name, "backbone": column.source.backbone, "protocol": regime,
                "method": "fedhip-hindsight", "clients": column.clients, "concentration": column.concentration,
                "mean": entry.mean, "std": entry.deviation, "paper": entry.paper,
                "seeds": list(bench.settings.seeds), "seed_means": best_means,
                "only_local_classes": bench.settings.only_local_classes, "prior": "none",
                "quick": bench.settings.quick,
                "note": "the best α of the paper's grid on the test rows, β = 0",
            }
        )  # fmt: skip
    return [*found, Row("FedHiP, α by hindsight", tuple(entries), rule=True)]


def _alpha_notes(bench: Bench, regime: Regime) -> list[str]:
    if "fedhip" not in bench.settings.methods:
        return []
    notes = [
        "FedHiP: every client's α by exact leave-one-out on its own training rows"
        + (", together with its prior" if bench.settings.prior == "client" else "")
        + ", β from the summed statistics"
        + (" unless a β was chosen." if regime == "tuned" else ".")
        + " Improvement: FedHiP less the best of the other methods, in points."
    ]
    if regime == "paper":
        notes.append(
            "FedHiP, α by hindsight: as the paper picks it, the one α of its grid that is best on the test rows, with "
            "β = 0"
            + (", without a prior" if bench.settings.prior == "client" else "")
            + ". It uses the test rows and is not ranked."
        )
    return notes
