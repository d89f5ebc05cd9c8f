"""What it costs not to train the backbone: heads on its frozen features beside networks that clients train.

Both see the same images, divided alike. Heads run as `fedhip run` runs them. Networks have learning rate and number of
rounds chosen for every λ on a fifth of the training images, held out, of one division (the first number of clients, the
first seed), whose test images are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from fedhip import methods
from fedhip.data import Dataset, FeatureSet, Partition, client_parts, draw_styles, make_partition, split_of, styled
from fedhip.data.sets.dataset import ImagePaths
from fedhip.errors import InputError
from fedhip.features import extract
from fedhip.features.backbones import ViTBackbone
from fedhip.features.images import to_rgb
from fedhip.reproduce.bench import chosen_by, plain
from fedhip.reproduce.cells import Cell, Json, PlannedCell, Store
from fedhip.reproduce.divisions import validation_order
from fedhip.reproduce.figures import Picture, TradeOff, trade_off, write_pictures
from fedhip.reproduce.fine_tuning import HEAD_RATE, TRAINED, WEIGHT_DECAY, TrainingRecipe, train_backbone
from fedhip.reproduce.settings import Settings, known_methods, require_known
from fedhip.reproduce.studies.table1 import differences, entry_of, numbered, remarks_on
from fedhip.reproduce.tables import NOTHING, Entry, Row, Table, rank_columns, to_markdown, write_table
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.hold_out import hold_out
from fedhip.simulation.options import STANDARD
from fedhip.utils.files import write_text
from fedhip.utils.progress import ReportProgress, silent

NAME = "fine-tuning"
#: Heads that stand beside the networks where nobody names others.
FROZEN = ("local", "global", "fedhip", "fedhip-lda", "fedhip-logistic", "auto")
#: Learning rates of the encoder that are compared.
RATES = (1e-4, 3e-4, 1e-3)
#: Rounds at most, where nobody says.
ROUNDS, QUICK_ROUNDS = 30, 2
#: Classes, and images of each, of the small version.
QUICK_PART = (5, 12)
#: Points of a method's way in the figure.
POINTS = 10
_QUANTITIES = ("accuracy", "rounds", "MB", "seconds")


def choose_methods(names: Sequence[str] | None) -> tuple[str, ...]:
    """Networks and heads by name; without names, all networks and the usual heads."""
    if names is None or "all" in names:
        return (*TRAINED, *FROZEN)
    if not names:
        raise InputError(f"no method given; choose all, or among {', '.join(TRAINED)} and heads on frozen features")
    heads = {name: info for name, info in known_methods().items() if not info.gradient}
    for name in names:
        require_known("method of fine-tuning", name, [*TRAINED, *heads])
    return tuple(name for name in (*TRAINED, *heads) if name in names)


@dataclass(frozen=True, eq=False)
class Pictured:
    """Images to train on, by what name, and whether every client's are in a style of its own."""

    name: str
    dataset: Dataset
    styles: bool = False

    @property
    def title(self) -> str:
        """What a table calls it."""
        data = self.dataset
        return f"{self.name}{' in styles' if self.styles else ''}: {data.num_classes} classes, {len(data):,} images"


@dataclass(frozen=True)
class FineTuningColumn:
    """A data set, a number of clients, a λ."""

    source: Pictured
    clients: int
    concentration: float

    @property
    def path(self) -> tuple[str, str]:
        """Its headings, above those of what is measured."""
        return self.source.title, f"{self.clients} clients, λ = {self.concentration:g}"


@dataclass(frozen=True, eq=False)
class FineTuningBench:
    """The images, the settings, the backbone, finished cells, and in which precision networks are trained."""

    sources: tuple[Pictured, ...]
    settings: Settings
    backbone: ViTBackbone
    store: Store
    dtype: torch.dtype = torch.float32
    cache: bool | Path = True
    _divided: dict[tuple[object, ...], tuple[Dataset, list[Client], Partition]] = field(default_factory=dict)
    _featured: dict[tuple[object, ...], list[Client]] = field(default_factory=dict)

    @property
    def rates(self) -> tuple[float, ...]:
        """What is compared."""
        return RATES[1:] if self.settings.quick else RATES

    def divided(self, column: FineTuningColumn, seed: int) -> tuple[Dataset, list[Client], Partition]:
        """The images as the clients have them, every client's own, and the partition; the last division is kept."""
        key = (column.path, seed)
        if key not in self._divided:
            self._divided.clear()
            data = column.source.dataset
            partition = make_partition(
                data.labels, "dirichlet", column.clients, seed=seed, concentration=column.concentration
            )
            if column.source.styles:
                data = styled(data, partition, draw_styles(column.clients, seed))
            parts = client_parts(partition, split_of(data.split, partition))
            clients = [
                Client(name, (self._read(data, train), data.labels[train]), (self._read(data, test), data.labels[test]))
                for name, (train, test) in zip(partition.clients, parts, strict=True)
            ]
            self._divided[key] = data, clients, partition
        return self._divided[key]

    def featured(self, column: FineTuningColumn, seed: int) -> list[Client]:
        """The same clients with the frozen features of their images; of the last division they are kept."""
        key = (column.path, seed)
        if key not in self._featured:
            self._featured.clear()
            data, _, partition = self.divided(column, seed)
            found = extract(self.backbone, data, dtype=self.dtype, cache=self.cache)
            rows = FeatureSet(found, data.labels, data.class_names, split=data.split)
            self._featured[key] = clients_of(rows, partition)
        return self._featured[key]

    def _read(self, data: Dataset, rows: np.ndarray) -> np.ndarray:
        """uint8 (n, H, W, 3): as they are, or as large as the backbone sees them where they lie on disk."""
        if isinstance(data.images, ImagePaths):
            return data.read(rows, self.backbone.image_size)
        return to_rgb(data.images[rows])


def columns_of(bench: FineTuningBench) -> list[FineTuningColumn]:
    """In the order of the table."""
    s = bench.settings
    return [FineTuningColumn(*parts) for parts in product(bench.sources, s.clients, s.concentrations)]


# --- cells


def cell(bench: FineTuningBench, column: FineTuningColumn, method: str, seed: int) -> Cell:
    """A head, or a network with what was chosen for it, on one division."""
    if method not in TRAINED:
        return head_cell(bench, column, method, seed)
    rate, rounds = choose(bench, column, method)
    return network_cell(bench, column, method, seed, rate, rounds)


def head_cell(bench: FineTuningBench, column: FineTuningColumn, method: str, seed: int) -> Cell:
    """A head on the features of the backbone as it is."""
    s = bench.settings

    def compute(checkpoint: Path, tell: ReportProgress) -> Json:
        clients, number = bench.featured(column, seed), column.source.dataset.num_classes
        run = methods.run_method(
            method, clients, number, s.protocol(seed), device=bench.backbone.device, report=tell, ridge=STANDARD
        )
        return {**plain(run, [len(client.test[1]) for client in clients]), "device": str(bench.backbone.device)}

    told = {"prior": s.prior, **chosen_by(method)}
    return Cell(_label(column, method, seed), method, _key(bench, column, method, seed, told), compute)


def network_cell(
    bench: FineTuningBench,
    column: FineTuningColumn,
    method: str,
    seed: int,
    rate: float,
    rounds: int,
    held_out: bool = False,
) -> Cell:
    """A network on all training images; or on four fifths of them, tested after each round on those held out."""
    prior = "none" if held_out else bench.settings.prior
    recipe = TrainingRecipe(rounds, rate, seed=seed)

    def compute(checkpoint: Path, tell: ReportProgress) -> Json:
        data, clients, _ = bench.divided(column, seed)
        given = hold_out(clients, seed, validation_order) if held_out else clients
        run = train_backbone(
            method, bench.backbone.encoder, bench.backbone.pooling, given, data.num_classes, recipe,
            device=bench.backbone.device, dtype=bench.dtype, prior=prior,
            evaluate_every=1 if held_out else max(1, rounds // POINTS), checkpoint=checkpoint, report=tell,
        )  # fmt: skip
        return {**plain(run, [len(client.test[1]) for client in given]), "device": str(bench.backbone.device)}

    told = {**vars(recipe), "head_rate": HEAD_RATE, "weight_decay": WEIGHT_DECAY, "prior": prior}
    key = _key(bench, column, method, seed, told)
    if held_out:
        key["tested_on"] = "held-out training rows"
    label = f"{'tuning ' if held_out else ''}{_label(column, method, seed)} rate {rate:g} rounds {rounds}"
    return Cell(label, method, key, compute)


def _label(column: FineTuningColumn, method: str, seed: int) -> str:
    styles = " in styles" if column.source.styles else ""
    return f"{column.source.name}{styles} K={column.clients} λ={column.concentration:g} seed {seed} {method}"


def _key(bench: FineTuningBench, column: FineTuningColumn, method: str, seed: int, told: Json) -> Json:
    return {
        "study": NAME,
        "images": column.source.dataset.fingerprint,
        "styles": column.source.styles,
        "backbone": bench.backbone.identity,
        "precision": str(bench.dtype).removeprefix("torch."),
        "division": {"clients": column.clients, "concentration": column.concentration, "seed": seed},
        "method": method,
        "told": told,
    }


# --- the search


def tuning_cell(bench: FineTuningBench, column: FineTuningColumn, method: str, rate: float) -> Cell:
    """All rounds at one learning rate, without a fifth of the training images."""
    s = bench.settings
    first = replace(column, clients=s.clients[0])
    return network_cell(bench, first, method, s.seeds[0], rate, s.rounds, held_out=True)


def choose(bench: FineTuningBench, column: FineTuningColumn, method: str) -> tuple[float, int]:
    """Learning rate and number of rounds of highest accuracy on the images held out; of equals the first."""
    best, found = -1.0, (bench.rates[0], 1)
    for rate in bench.rates:
        for number, accuracy, *_ in bench.store.obtain(tuning_cell(bench, column, method, rate))["history"]:
            if accuracy is not None and accuracy > best:
                best, found = accuracy, (rate, number)
    return found


def steps(bench: FineTuningBench) -> list[PlannedCell]:
    """The search first, then seed by seed."""
    found, s = [], bench.settings
    trained = [method for method in s.methods if method in TRAINED]
    for column, method, rate in product(columns_of(bench), trained, bench.rates):
        identity = ("tuning", column.source.title, column.concentration, method, rate)
        found.append(PlannedCell("tuning", identity, partial(tuning_cell, bench, column, method, rate)))
    for seed, column, method in product(s.seeds, columns_of(bench), s.methods):
        found.append(PlannedCell(method, (*column.path, method, seed), partial(cell, bench, column, method, seed)))
    return found


# --- the table and the figure


def titles_of(bench: FineTuningBench) -> dict[str, str]:
    """What the rows are called."""
    known = known_methods()
    return {name: TRAINED[name].title if name in TRAINED else known[name].title for name in bench.settings.methods}


def results_of(bench: FineTuningBench, column: FineTuningColumn, method: str) -> list[Json]:
    """Seed by seed."""
    return [bench.store.obtain(cell(bench, column, method, seed)) for seed in bench.settings.seeds]


def table(bench: FineTuningBench) -> Table:
    """A row for each network and head; accuracy, rounds, megabytes and seconds for each column."""
    titles, columns = titles_of(bench), columns_of(bench)
    footnotes: list[str] = []
    rows: list[Row] = []
    records: list[Json] = []
    for method, title in titles.items():
        entries, remarks = [], []
        for column in columns:
            results = results_of(bench, column, method)
            accuracy = entry_of(results)
            entries += [accuracy, *_costs(results)]
            remarks += remarks_on(results, bench.settings.seeds, column.path[1], title)
            remarks += _chosen(bench, column, method)
            records.append(_record(bench, column, method, results, accuracy))
        remarks += _differences(method)
        first = method not in TRAINED and not any(row.rule for row in rows)
        rows.append(Row(title, tuple(entries), numbered(footnotes, remarks), rule=first))
    paths = tuple((*column.path, quantity) for column, quantity in product(columns, _QUANTITIES))
    where = columns[0].path if len(columns) == 1 else [source.title for source in bench.sources]
    title = f"Frozen features and networks that clients train: {', '.join(where)}"
    return Table(
        NAME, title, "Method", paths, tuple(rank_columns(rows)), tuple(records), _notes(bench), tuple(footnotes)
    )


def _costs(results: Sequence[Json]) -> list[Entry]:
    """Rounds, megabytes up and down of one client, and seconds."""
    sent = np.mean([result["upload"] + result["download"] for result in results]) / 1e6
    seconds = float(np.mean([result["seconds"] for result in results]))
    rounds = str(results[0]["rounds"]) if sent else NOTHING
    return [Entry(text=rounds), Entry(text=f"{sent:,.1f}" if sent else NOTHING), Entry(text=f"{seconds:,.1f}")]


def _chosen(bench: FineTuningBench, column: FineTuningColumn, method: str) -> list[str]:
    if method not in TRAINED:
        return []
    rate, rounds = choose(bench, column, method)
    edge = rate in (bench.rates[0], bench.rates[-1]) or rounds == bench.settings.rounds
    return [
        f"{TRAINED[method].title}, {column.source.name}, λ = {column.concentration:g}: learning rate {rate:g}, "
        f"{rounds} round{'s' if rounds > 1 else ''}{' (the outermost that was tried)' if edge else ''}."
    ]


def _differences(method: str) -> list[str]:
    if method not in TRAINED:
        return differences(method)
    info = TRAINED[method]
    return [f"{info.title} differs from its paper: {info.differs}"] if info.differs else []


def _notes(bench: FineTuningBench) -> tuple[str, ...]:
    s = bench.settings
    several = f"mean ± sample deviation over seeds {', '.join(map(str, s.seeds))}"
    notes = [
        "Accuracy in percent on the clients' test images, unweighted mean over clients, networks of the last round; "
        + (several if len(s.seeds) > 1 else f"seed {s.seeds[0]}")
        + ". Bold: the best of a column; underlined: the second.",
        f"Networks: {bench.backbone.name} with a linear head, AdamW (weight decay {WEIGHT_DECAY:g}, the head "
        f"{HEAD_RATE:g} times as fast), batches of 32, one pass over a client's images a round, at most {s.rounds} "
        f"rounds, all clients in every round, no augmentation, {str(bench.dtype).removeprefix('torch.')}. Learning "
        f"rate among {', '.join(f'{rate:g}' for rate in bench.rates)} and number of rounds by accuracy on a fifth of "
        f"the training images, held out, for every λ of one division (K = {s.clients[0]}, seed {s.seeds[0]}).",
        "Heads: on features of the same backbone, frozen, with the defaults of fedhip run.",
        "MB: what one client sends and receives in all rounds, in millions of bytes; pre-trained weights, which "
        "everybody has, are not counted. Of images at one place: a client's images and labels up, the network down. "
        f"Seconds: all clients and the server, on {_devices(bench)}; of heads without the features.",
    ]
    if s.prior == "client":
        notes.append(
            "All methods with the client's prior; networks by a second training without a fifth of the images, counted "
            "in seconds and bytes."
        )
    if s.quick:
        notes.insert(0, "QUICK: a small version. It shows that everything runs, and says nothing of how they compare.")
    return tuple(notes)


def _devices(bench: FineTuningBench) -> str:
    """Where the cells were computed, which need not be here."""
    results = (
        result
        for column, method in product(columns_of(bench), bench.settings.methods)
        for result in results_of(bench, column, method)
    )
    return " and ".join(sorted({result["device"].split(":")[0] for result in results}))


def _record(
    bench: FineTuningBench, column: FineTuningColumn, method: str, results: Sequence[Json], entry: Entry
) -> Json:
    trained = method in TRAINED
    rate, _ = choose(bench, column, method) if trained else (None, None)
    return {
        "data": column.source.name,
        "styles": column.source.styles,
        "classes": column.source.dataset.num_classes,
        "images": len(column.source.dataset),
        "backbone": bench.backbone.name,
        "trained": trained,
        "method": method,
        "clients": column.clients,
        "concentration": column.concentration,
        "mean": entry.mean,
        "std": entry.deviation,
        "seeds": list(bench.settings.seeds),
        "seed_means": [result["mean"] for result in results],
        "rounds": results[0]["rounds"],
        "learning_rate": rate,
        "seconds": float(np.mean([result["seconds"] for result in results])),
        "upload_bytes_per_client": results[0]["upload"],
        "download_bytes_per_client": results[0]["download"],
        "prior": bench.settings.prior,
        "precision": str(bench.dtype).removeprefix("torch."),
        "device": results[0]["device"],
        "quick": bench.settings.quick,
    }


def picture(bench: FineTuningBench) -> Picture:
    """Accuracy against bytes, frozen and trained; means over seeds of the first, the way of the first seed."""
    titles = titles_of(bench)
    panels = []
    for column in columns_of(bench):
        ways = []
        for method, title in titles.items():
            results = results_of(bench, column, method)
            points = [(up + down, mean) for _, mean, _, up, down in results[0]["history"] if mean is not None]
            if entry_of(results).mean is None:
                continue
            last = results[0]["upload"] + results[0]["download"], results[0]["mean"]
            ways.append(TradeOff(method, title, method not in TRAINED, (*points[:-1], last)))
        panels.append((", ".join(column.path if len(bench.sources) > 1 else column.path[1:]), ways))
    which = f":\n{bench.sources[0].title}" if len(bench.sources) == 1 else ""
    return Picture(NAME, lambda: trade_off(panels, f"Accuracy against what a client sends and receives{which}"))


def reproduce_fine_tuning(
    bench: FineTuningBench, out: Path, report: ReportProgress = silent
) -> tuple[Table, list[Path]]:
    """Compute the cells that are not there yet, and write the table and the figure."""
    bench.store.perform(steps(bench), report)
    made = table(bench)
    files = [*write_table(out, made), *write_pictures(out, [picture(bench)])]
    write_text(out / f"{NAME}.md", f"{to_markdown(made)}\n![{NAME}]({NAME}.svg)\n")
    return made, files
