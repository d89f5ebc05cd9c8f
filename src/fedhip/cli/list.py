"""`fedhip list`: what is known by name."""

import argparse
import json
from collections.abc import Sequence

from fedhip.cli.common.console import print_table
from fedhip.data import list_datasets, list_partitions


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser("list", help="list data sets, partitions, backbones and methods")
    parser.add_argument("what", choices=("datasets", "partitions", "backbones", "methods"))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Print names and descriptions."""
    entries = _entries(args.what)
    columns = ("name", "description", "differs from its paper")[: len(entries[0])]
    if args.json:
        keys = ("name", "description", "differs")
        print(json.dumps([dict(zip(keys, entry, strict=False)) for entry in entries], ensure_ascii=False))
    else:
        print_table(columns, entries)
        if args.what == "datasets":
            print("Any image folder (class/image or client/class/image), .npz of images and table: --data PATH.")
    return 0


def _entries(what: str) -> Sequence[tuple[str, ...]]:
    if what == "datasets":
        return [(info.name, info.description) for info in list_datasets()]
    if what == "partitions":
        return list(list_partitions().items())
    if what == "methods":
        from fedhip.methods import METHODS

        others = [(name, method.description, method.differs) for name, method in METHODS.items()]
        return [*others, ("majority", "each client's own most frequent class: what a model must be better than", "")]
    # Only here: it brings in the encoder, and the other lists need not wait for it.
    from fedhip.features import list_backbones

    return [(info.name, info.description) for info in list_backbones()]
