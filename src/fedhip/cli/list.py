"""`fedhip list`: what is known by name."""

import argparse
import json

from fedhip.cli.common.console import print_table
from fedhip.data import list_datasets, list_partitions


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser("list", help="data sets, partitions, backbones and methods by name")
    parser.add_argument("what", choices=("datasets", "partitions", "backbones", "methods"))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Print names and descriptions."""
    entries = _entries(args.what)
    if args.json:
        print(json.dumps([{"name": name, "description": text} for name, text in entries], ensure_ascii=False))
    else:
        print_table(("name", "description"), entries)
        if args.what == "datasets":
            print("Any image folder (class/image or client/class/image), .npz of images and table: --data PATH.")
    return 0


def _entries(what: str) -> list[tuple[str, str]]:
    if what == "datasets":
        return [(info.name, info.description) for info in list_datasets()]
    if what == "partitions":
        return list(list_partitions().items())
    if what == "methods":
        from fedhip.methods import METHODS

        others = [(name, method.description) for name, method in METHODS.items()]
        return [*others, ("majority", "each client's own most frequent class: what a model must be better than")]
    # Only here: it brings in the encoder, and the other lists need not wait for it.
    from fedhip.features import list_backbones

    return [(info.name, info.description) for info in list_backbones()]
