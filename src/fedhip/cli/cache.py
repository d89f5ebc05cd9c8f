"""`fedhip cache`: the features that were kept, how much room they take, and how to be rid of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhip.cli.common.console import print_table
from fedhip.utils.text import json_text
from fedhip.utils.words import size as in_words


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "cache",
        help="list or empty the feature cache",
        description="Features of images are kept, so that a second run need not compute them. They are to be guarded "
        "like the images.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="what is kept, and its size", description="What is kept, and its size.")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(handler=list_entries)
    clearing = commands.add_parser(
        "clear",
        help="remove features",
        description="Remove the features that are kept: all, or those that fit all options given. They are computed "
        "again when they are needed. Downloads and encoders stay.",
    )
    clearing.add_argument("--run", type=Path, metavar="RUN", help="those that this run used")
    clearing.add_argument("--older-than", type=_days, metavar="DAYS", help="those written more days ago")
    clearing.add_argument("--json", action="store_true", help="print JSON instead of words")
    clearing.set_defaults(handler=clear)
    for command in (listing, clearing):
        command.add_argument("--site", type=Path, metavar="FOLDER", help="the cache of a federation's site")


def list_entries(args: argparse.Namespace) -> int:
    """Print what there is."""
    from fedhip.features.cache import entries

    root = _root(args)
    found = [(entry, entry.size) for entry in entries(root)]
    if args.json:
        listed = [
            {
                "path": str(entry.path),
                "source": entry.source,
                "backbone": entry.backbone,
                "rows": entry.rows,
                "bytes": size,
                "days": round(entry.age, 2),
                "runs": sorted(entry.runs.values()),
            }
            for entry, size in found
        ]
        print(json_text({"cache": str(root), "features": listed}, indent=1))
        return 0
    rows = [
        (e.source, e.backbone, "–" if e.rows is None else e.rows, in_words(size), f"{e.age:.0f}", _runs(e.runs))
        for e, size in found
    ]
    if rows:
        print_table(("of", "backbone", "rows", "size", "days old", "used by"), rows)
    print(f"{root}: {len(rows)} sets of features, {in_words(sum(size for _, size in found))}")
    return 0


def clear(args: argparse.Namespace) -> int:
    """Remove what fits the options."""
    from fedhip.features.cache import entries

    run = None
    if args.run is not None:
        from fedhip.runs import Run

        run = Run.open(args.run).ledger.run
    found = entries(_root(args), run=run, older_than=args.older_than)
    size = sum(entry.size for entry in found)
    for entry in found:
        entry.remove()
    if args.json:
        print(json_text({"cache": str(_root(args)), "removed": len(found), "bytes": size}))
    else:
        print(f"{len(found)} sets of features removed, {in_words(size)}")
    return 0


def _root(args: argparse.Namespace) -> Path:
    from fedhip.utils.files import default_cache

    if args.site is None:
        return default_cache()
    from fedhip.federation.errors import SetupError
    from fedhip.federation.site.state import SiteState

    if not (args.site / "connection.toml").is_file():
        raise SetupError(f"{args.site} is no folder of a site; give the one that the site takes part with")
    return SiteState(args.site).cache


def _runs(runs: dict[str, str]) -> str:
    return ", ".join(sorted(runs.values())) or "–"


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0.0 <= days < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days; give one of at least 0")
    return days
