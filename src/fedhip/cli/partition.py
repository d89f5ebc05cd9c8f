"""`fedhip partition`: divide a data set among clients, as a table, a manifest and a picture."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.cli.console import print_table
from fedhip.data import (
    Dataset,
    FeatureSet,
    Partition,
    draw_partition,
    list_partitions,
    load_dataset,
    make_partition,
    read_features,
    save_partition,
    split_clients,
)
from fedhip.data.errors import DatasetNameError

_MOST_ROWS = 100  # a longer table is cut in the terminal; --json holds all of it
_COLUMNS = ("client", "rows", "train", "test", "classes", "largest class")


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "partition", help="divide a data set among clients: table, partition.json and picture"
    )
    parser.add_argument("--dataset", metavar="NAME", help="a data set by name, see: fedhip list datasets")
    parser.add_argument("--data", metavar="PATH", help="where its files lie; alone: an image folder or .npz")
    parser.add_argument("--features", metavar="FILE", help="a feature file, instead of a data set")
    parser.add_argument("--clients", type=int, metavar="K", help="number of clients")
    parser.add_argument(
        "--partition", default="dirichlet", choices=tuple(list_partitions()), help="the scheme"
    )
    parser.add_argument("--concentration", type=float, metavar="λ", help="of the Dirichlet schemes (0.1)")
    parser.add_argument("--shards", type=int, metavar="S", help="shards for each client (2)")
    parser.add_argument("--min-rows", type=int, default=1, metavar="N", help="every client's least rows (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the generator (0)")
    parser.add_argument(
        "--skip-corrupt", action="store_true", help="leave corrupt images out, with a warning"
    )
    parser.add_argument("--allow-single", action="store_true", help="allow classes with a single image")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write partition.json and partition.svg here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Divide, print, and write what was asked for."""
    name, data = _load(args)
    partition = make_partition(
        data.labels,
        args.partition,
        args.clients,
        seed=args.seed,
        concentration=args.concentration,
        shards_per_client=args.shards,
        min_rows=args.min_rows,
        clients=data.clients,
    )
    counts = partition.class_counts(data.labels, data.num_classes)
    table = _table(partition, counts, split_clients(partition))
    title = f"{name} · {_describe(partition)}"
    written = []
    if args.out is not None:
        picture = args.out / "partition.svg"
        save_partition(args.out / "partition.json", partition)
        draw_partition(
            picture, counts, class_names=data.class_names, client_names=partition.clients, title=title
        )
        written = [str(args.out / "partition.json"), str(picture)]
    if args.json:
        print(json.dumps({"title": title, "clients": table, "written": written}, ensure_ascii=False))
        return 0
    rows = [(*list(row.values())[:5], f"{row['largest_class_share']:.1%}") for row in table[:_MOST_ROWS]]
    print_table(_COLUMNS, rows, title)
    if len(table) > _MOST_ROWS:
        print(f"… and {len(table) - _MOST_ROWS:,} more clients; --json prints all")
    for path in written:
        print(f"wrote {path}")
    return 0


def _load(args: argparse.Namespace) -> tuple[str, Dataset | FeatureSet]:
    """The rows to divide, and what to call them."""
    if args.features is not None:
        if args.dataset is not None or args.data is not None:
            raise DatasetNameError("--features stands alone; leave --dataset and --data out")
        return Path(args.features).stem, read_features(args.features)
    if args.dataset is None and args.data is None:
        raise DatasetNameError("no data given; choose one of --dataset NAME, --data PATH and --features FILE")
    options: dict[str, Any] = {"skip_corrupt": args.skip_corrupt, "allow_single": args.allow_single}
    if args.dataset is None:
        dataset = load_dataset(Path(args.data), **options)
    else:
        dataset = load_dataset(args.dataset, args.data, **options)
    return dataset.name, dataset


def _table(
    partition: Partition, counts: NDArray[np.int64], split: NDArray[np.int8]
) -> list[dict[str, str | int | float]]:
    test = np.bincount(partition.assignment, weights=split, minlength=partition.num_clients).astype(int)
    return [
        {
            "client": client,
            "rows": int(size),
            "train": int(size - held_out),
            "test": int(held_out),
            "classes": int((row > 0).sum()),
            "largest_class_share": float(row.max() / size),
        }
        for client, size, held_out, row in zip(partition.clients, partition.sizes, test, counts, strict=True)
    ]


def _describe(partition: Partition) -> str:
    """Scheme, parameters and seed in a few words."""
    words = [partition.scheme]
    if "concentration" in partition.parameters:
        words.append(f"λ = {partition.parameters['concentration']:g}")
    if "shards_per_client" in partition.parameters:
        words.append(f"{partition.parameters['shards_per_client']} shards a client")
    return ", ".join([*words, f"seed {partition.seed}"])
