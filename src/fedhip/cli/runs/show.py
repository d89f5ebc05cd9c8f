"""`fedhip show`: print the table of a run, as `fedhip run` printed it."""

from __future__ import annotations

import argparse
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "show",
        help="print the table of a run",
        description="Print the table of a run as it stands now, after everything that happened to it. Nothing is "
        "computed or written.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--json", action="store_true", help="print results.json instead of tables")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Open, print."""
    from fedhip.cli.runs.run import print_results, where_models_are
    from fedhip.runs import Run
    from fedhip.utils.text import json_text

    folder = Run.open(args.run)
    if args.json:
        print(json_text(folder.results, indent=1))
        return 0
    last = where_models_are(folder)  # before anything is printed: a damaged run is refused in one line
    print_results(folder.results, folder.class_names)
    if stale := folder.results["stale"]:
        print(stale)
    print(last)
    return 0
