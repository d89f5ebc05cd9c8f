"""`fedhip partition`: divide a data set among clients, as a table, a manifest and a picture."""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhip.cli.common.console import print_table
from fedhip.cli.common.options import add_partition, add_rows, divide, load_rows, require_new
from fedhip.data import Partition, draw_partition, save_partition, split_of
from fedhip.data.tables.text import Unread

_MOST_ROWS = 100  # a longer table is cut in the terminal; --json holds all of it
_COLUMNS = ("client", "rows", "train", "test", "classes", "largest class")


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser("partition", help="divide a data set among clients, and draw who has what")
    add_rows(parser)
    add_partition(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="write partition.json and partition.svg here")
    parser.add_argument("--force", action="store_true", help="write over what is there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Divide, print, and write what was asked for."""
    if args.out is not None:
        for file in ("partition.json", "partition.svg"):
            require_new(args.out / file, args.force)
    name, data = load_rows(args, Unread())
    partition = divide(args, data)
    counts = partition.class_counts(data.labels, data.num_classes)
    table = _table(partition, counts, split_of(data.split, partition))
    title = f"{name} · {partition.title}"
    written = []
    if args.out is not None:
        picture = args.out / "partition.svg"
        save_partition(args.out / "partition.json", partition, data_split=data.split)
        draw_partition(picture, counts, class_names=data.class_names, client_names=partition.clients, title=title)
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
