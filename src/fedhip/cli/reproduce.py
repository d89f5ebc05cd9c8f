"""`fedhip reproduce`: make the paper's tables and figures."""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from fedhip.cli.common.console import note, print_table
from fedhip.cli.common.lifts import add_lift, lift_settings
from fedhip.cli.common.options import (
    DEFAULT_BACKBONE,
    add_backbone,
    add_window,
    at_least,
    extract_features,
    load_images,
    refuse_unused,
)
from fedhip.cli.common.progress import show_progress
from fedhip.data import Dataset, FeatureSet, make_partition, read_features
from fedhip.errors import InputError
from fedhip.features import resolve_device
from fedhip.reproduce import (
    Bench,
    Settings,
    Source,
    Store,
    choose_methods,
    choose_regimes,
    choose_studies,
    reproduce,
    subset,
)
from fedhip.reproduce.tables import Entry, Table
from fedhip.simulation.lifting import LiftSettings
from fedhip.utils.files import require_folder
from fedhip.utils.text import json_text

NETWORKS = ("linear", "mlp")
NATURAL, FINE_TUNING = "natural", "fine-tuning"
MOST_COLUMNS = 8  # of a table in the terminal
DESCRIPTION = """\
Run the paper's experiments on your data, and write its tables and figures.

  table1      every method, for 50 and 100 clients and three levels of heterogeneity
  alpha       FedHiP over the paper's values of α, beside leave-one-out
  beta        FedHiP over the paper's values of β, beside the β chosen from the sum
  efficiency  accuracy against rounds, seconds and megabytes
  invariance  one client's model while the others' rows are divided anew (Theorem 3)
  all         all of them

And beyond the paper:

  natural      real federations by name, those at hand: --data DIR with heart/, wrist.zip and feature files with clients
  fine-tuning  the backbone itself trained by clients, beside heads on its frozen features; slow without a GPU
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "reproduce",
        help="make the paper's tables and figures",
        description=DESCRIPTION,
        epilog="Finished cells are kept under OUT/cells: the same command goes on where it was interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "study", metavar="STUDY", help="table1, alpha, beta, efficiency, invariance or all; or natural or fine-tuning"
    )
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", nargs="+", metavar="NAME", help="data sets by name, see: fedhip list datasets")
    data.add_argument("--data", nargs="+", metavar="PATH", help="where their files lie; alone: image folders or .npz")
    data.add_argument("--features", nargs="+", metavar="FILE", help="feature files, instead of data sets")
    data.add_argument("--official-split", action="store_true", help="keep the data sets' own test rows; else 8:2")
    data.add_argument("--skip-corrupt", action="store_true", help="skip corrupt images, with a warning")
    data.add_argument("--allow-single", action="store_true", help="accept classes with a single image")
    data.add_argument(
        "--part", nargs=2, type=at_least(1), metavar=("CLASSES", "ROWS"),
        help="of the rows only the first so many classes, and so many rows of each",
    )  # fmt: skip
    data.add_argument("--styles", action="store_true", help="fine-tuning: every client's images in a style of its own")
    add_window(data)
    add_backbone(parser)
    group = parser.add_argument_group("experiments")
    group.add_argument("--methods", default="all", metavar="NAME,…", help="methods, or all (default)")
    group.add_argument("-k", "--clients", nargs="+", type=int, metavar="K", help="numbers of clients (default: 50 100)")
    group.add_argument("--concentrations", nargs="+", type=float, metavar="λ", help="default: 0.1 0.5 1.0")
    group.add_argument("--seeds", nargs="+", type=int, metavar="N", help="default: 0 1 2")
    group.add_argument(
        "--protocol", metavar="paper|tuned|both",
        help="paper: raw features, learning rate 0.005; tuned: standardised features, settings chosen for every method "
        "on a part of the training rows; default: paper, with --quick both",
    )  # fmt: skip
    group.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="of methods that train by gradients (default: 200; fine-tuning: at most 30)",
    )
    group.add_argument("--network", default="linear", metavar="linear|mlp", help="of these methods (default: linear)")
    group.add_argument("--only-local-classes", action="store_true", help="no model names a class its client lacks")
    group.add_argument(
        "--prior", choices=("client", "none"), default="none",
        help="client: every method's models weigh their clients' class frequencies (default: none)",
    )  # fmt: skip
    group.add_argument(
        "--quick", action="store_true", help="a small version in a few minutes; on the sketches if no data is given"
    )
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that share the cells (default: 1)")
    add_lift(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="where to write (default: reproduce/DATA)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Check everything, make the features, run what is not there yet, write, print."""
    if args.study == FINE_TUNING:
        return run_fine_tuning(args)
    if args.styles:
        raise InputError("--styles is for fine-tuning alone; leave it out")
    if args.study == NATURAL:
        return run_natural(args)
    studies = choose_studies(args.study)
    settings, lift = settings_of(args), lift_settings(args)
    if args.jobs < 1:
        raise InputError(f"the number of jobs must be at least 1, not {args.jobs}")
    named = parts_of(args)
    # Divided before any feature is computed: a wrong number of clients is not worth a minute's wait.
    for (_, rows), clients, concentration in product(named, settings.clients, settings.concentrations):
        make_partition(rows.labels, "dirichlet", clients, seed=settings.seeds[0], concentration=concentration)
    out = args.out or Path("reproduce") / ("+".join(name for name, _ in named) + ("-quick" if args.quick else ""))
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out")
    require_folder(out)
    device = str(resolve_device(args.device))
    (out / "cells").mkdir(parents=True, exist_ok=True)
    if args.quick and args.pooling is None and args.features is None and args.backbone in (None, DEFAULT_BACKBONE):
        args.pooling = "mean"  # a fifth of the features, and a small part of the time
    sources = tuple(source_of(args, name, rows, lift) for name, rows in named)
    bench = Bench(sources, settings, Store(out / "cells"), device)
    before = bench.store.size
    tables, files = reproduce(bench, studies, out, show_progress, jobs=args.jobs)
    if args.json:
        print(json_text({"out": str(out), "files": list(map(str, files)), "cells": bench.store.size - before}))
        return 0
    for table in tables:
        show_table(table)
    kinds = sorted({path.suffix.removeprefix(".") for path in files})
    computed = f"{bench.store.size - before} cells computed now, all kept in {out}/cells"
    print(f"{len(files)} files ({', '.join(kinds)}) in {out}; {computed}")
    return 0


def run_natural(args: argparse.Namespace) -> int:
    """Every method on the real federations that are at hand."""
    from fedhip.reproduce.studies.natural import NaturalBench, at_hand, reproduce_natural

    if args.part is not None:
        raise InputError("--part has no effect on natural; leave it out")
    if args.data is not None and len(args.data) > 1:
        raise InputError("natural looks for its federations in one folder; give one with --data DIR")
    settings = settings_of(args)
    folder = None if args.data is None else Path(args.data[0])
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is no folder; give the one in which heart/, wrist.zip and others lie")
    found, left = at_hand(folder, [Path(file) for file in args.features or ()], args.dataset or ())
    for line in left:
        note(f"left out {line}")
    out = args.out or Path("reproduce") / NATURAL
    require_folder(out)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    bench = NaturalBench(tuple(found), settings, Store(out / "cells"), str(resolve_device(args.device)))
    before = bench.store.size
    table, files = reproduce_natural(bench, out, show_progress)
    return _say_done(args, out, bench.store.size - before, table, files)


def run_fine_tuning(args: argparse.Namespace) -> int:
    """Networks that clients train, beside heads on frozen features of the same images."""
    import torch

    from fedhip.features import cache_folder, choose_dtype, load_backbone
    from fedhip.features.backbones import ViTBackbone
    from fedhip.reproduce.studies import fine_tuning

    _refuse_beside_fine_tuning(args)
    settings = settings_of(args, fine_tuning.choose_methods(None if args.methods == "all" else _listed(args.methods)))
    rounds = fine_tuning.QUICK_ROUNDS if args.quick else fine_tuning.ROUNDS
    settings = replace(settings, rounds=args.rounds or rounds)
    if args.quick:
        settings = replace(settings, clients=tuple(args.clients or (3,)), concentrations=(1.0,), seeds=(0,))
    part = args.part or (fine_tuning.QUICK_PART if args.quick else None)
    sources = []
    for name, rows in load(args):
        taken = rows if part is None else subset(rows, *part)
        if not isinstance(taken, Dataset):
            raise InputError("networks are trained on images; give --dataset or --data, and not --features")
        sources.append(fine_tuning.Pictured(name, taken, args.styles))
    for source, clients, concentration in product(sources, settings.clients, settings.concentrations):
        labels = source.dataset.labels
        make_partition(labels, "dirichlet", clients, seed=settings.seeds[0], concentration=concentration)
    out = args.out or Path("reproduce") / (
        "+".join([FINE_TUNING, *(source.name for source in sources), *(["styles"] if args.styles else [])])
        + ("-quick" if args.quick else "")
    )
    require_folder(out)
    device = resolve_device(args.device)
    name = args.backbone or DEFAULT_BACKBONE
    backbone = load_backbone(name, pooling=args.pooling, device=device, weights=args.weights)
    if not isinstance(backbone, ViTBackbone):
        raise InputError(f"{name} cannot be trained here; choose one of our own encoders, such as {DEFAULT_BACKBONE}")
    dtype = getattr(torch, args.precision) if args.precision else choose_dtype(backbone)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    bench = fine_tuning.FineTuningBench(
        tuple(sources), settings, backbone, Store(out / "cells"), dtype, cache_folder(args.cache) or False
    )
    before = bench.store.size
    table, files = fine_tuning.reproduce_fine_tuning(bench, out, show_progress)
    return _say_done(args, out, bench.store.size - before, table, files)


def _refuse_beside_fine_tuning(args: argparse.Namespace) -> None:
    """Options that would do nothing."""
    given = {
        "--protocol": args.protocol is not None,
        "--network": args.network != "linear",
        "--only-local-classes": args.only_local_classes,
        "--jobs": args.jobs != 1,
        "--mask-ratio": args.mask_ratio != 0.0,
        "--batch": args.batch is not None,
        "--lift": lift_settings(args) is not None,
    }
    unused = [option for option, is_given in given.items() if is_given]
    if unused:
        raise InputError(f"{', '.join(unused)} has no effect on fine-tuning; leave it out")


def _listed(names: str) -> list[str]:
    return [name.strip().lower() for name in names.split(",") if name.strip()]


def _say_done(args: argparse.Namespace, out: Path, cells: int, table: Table, files: list[Path]) -> int:
    """What a study of one table has made."""
    if args.json:
        print(json_text({"out": str(out), "files": list(map(str, files)), "cells": cells}))
        return 0
    show_table(table)
    print(f"{len(files)} files in {out}")
    return 0


def settings_of(args: argparse.Namespace, methods: tuple[str, ...] | None = None) -> Settings:
    """What the options say, and the defaults of the full or the small version for what they do not say."""
    methods = choose_methods(args.methods.split(",")) if methods is None else methods
    settings = Settings(methods, only_local_classes=args.only_local_classes, prior=args.prior, quick=args.quick)
    if args.quick:
        settings = replace(
            settings, clients=(5, 10), concentrations=(0.1, 1.0), seeds=(0, 1), rounds=6, budget=4, tuning_rounds=4,
            moved_concentrations=(0.1, 1.0, 100.0), regimes=("paper", "tuned"),
        )  # fmt: skip
    if args.network not in NETWORKS:
        raise InputError(f"there is no network {args.network!r}; choose linear or mlp")
    settings = replace(settings, head=args.network)
    if args.protocol is not None:
        settings = replace(settings, regimes=choose_regimes(args.protocol))
    for name in ("clients", "concentrations", "seeds"):
        if getattr(args, name) is not None:
            given: dict[str, Any] = {name: tuple(dict.fromkeys(getattr(args, name)))}
            settings = replace(settings, **given)
    if args.rounds is not None:
        settings = replace(settings, rounds=args.rounds)
    if settings.rounds < 1:
        raise InputError(f"the number of rounds must be at least 1, not {settings.rounds}")
    if min(settings.clients) < 2:
        raise InputError(f"a federation has at least 2 clients, not {min(settings.clients)}")
    if min(settings.seeds) < 0:
        raise InputError(f"a seed must be at least 0, not {min(settings.seeds)}")
    return settings


def load(args: argparse.Namespace) -> list[tuple[str, Dataset | FeatureSet]]:
    """The rows that the options name; all of them, whatever part is to be taken."""
    named: list[tuple[str, Dataset | FeatureSet]] = []
    if args.features is not None:
        if args.dataset is not None or args.data is not None:
            raise InputError("--features stands alone; leave --dataset and --data out")
        refuse_unused(args)
        named += [(Path(file).stem, read_features(file)) for file in args.features]
    elif args.dataset is not None or args.data is not None:
        names, paths = args.dataset or [None] * len(args.data), args.data or [None] * len(args.dataset)
        if len(names) != len(paths):
            raise InputError(
                f"{len(names)} names after --dataset, {len(paths)} paths after --data; give one path for each name"
            )
        for name, path in zip(names, paths, strict=True):
            dataset = load_images(argparse.Namespace(**{**vars(args), "dataset": name, "data": path}))
            named.append((dataset.name, dataset))
    elif args.quick:
        named.append(("sketches", load_images(argparse.Namespace(**{**vars(args), "dataset": "sketches"}))))
    else:
        raise InputError(
            "no data given; choose one of --dataset NAME, --data PATH and --features FILE, or --quick for the sketches"
        )
    if len({name for name, _ in named}) < len(named):
        raise InputError("two data sets have the same name; rename one of the files")
    return named


def parts_of(args: argparse.Namespace) -> list[tuple[str, Dataset | FeatureSet]]:
    """The rows that the options name, or the part of them that they ask for, which has a name of its own."""
    named = load(args)
    if args.part is not None:
        classes, rows = args.part
        return [(f"{name}-{classes}x{rows}", subset(all_rows, classes, rows)) for name, all_rows in named]
    return [(name, subset(rows)) for name, rows in named] if args.quick else named


def source_of(
    args: argparse.Namespace, name: str, rows: Dataset | FeatureSet, lift: LiftSettings | None = None
) -> Source:
    """The rows as features, with the backbone that made them, and the lift that they are to go through."""
    if isinstance(rows, FeatureSet):
        source = Source(name, rows)
    else:
        reference, features = extract_features(args, rows)
        source = Source(name, features, reference.name)
    if lift is None:
        return source
    plan = lift.plan(source.features.features.shape[1], source.features.num_classes)
    plan.require_memory(2 * len(source.features))  # two divisions are kept
    note(f"{name}: {plan.price}")
    return replace(source, lift=plan)


def show_table(table: Table) -> None:
    """The table in the terminal: means alone, the paper's in parentheses, no wider than a terminal."""
    for title, heads, rows in narrow(table):
        print_table(heads, rows, title)
    print("* best, ' second; notes in the files")


def narrow(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """The table as (title, headings, rows): lying where it is low, one for each data set, or its first columns."""
    heads = [" ".join(part for part in path if part) for path in table.columns]
    rows = [[row.label, *map(shown, row.entries)] for row in table.rows]
    if len(heads) <= MOST_COLUMNS:
        return [(table.title, [table.corner, *heads], rows)]
    if len(rows) < len(heads) / 2:
        lying = [list(column) for column in zip(heads, *(row[1:] for row in rows), strict=True)]
        return [(table.title, ["", *(row[0] for row in rows)], lying)]
    if table.name.startswith("table1"):
        parts = {}
        for name in dict.fromkeys(path[0] for path in table.columns):
            places = [place for place, path in enumerate(table.columns) if path[0] == name]
            parts[name] = (
                [table.corner, *(" ".join(table.columns[place][1:]) for place in places)],
                [[row[0], *(row[1 + place] for place in places)] for row in rows],
            )
        return [(f"{table.title}: {name}", *part) for name, part in parts.items()]
    return [(table.title, [table.corner, *heads[:6]], [row[:7] for row in rows])]


def shown(entry: Entry) -> str:
    """The mean with its mark."""
    text = entry.shown_mean + {"best": "*", "second": "'", "": ""}[entry.mark]
    return text if entry.shown_paper is None else f"{text} ({entry.shown_paper})"
