"""`fedhip verify`: whether a run is what it says it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhip.cli.common.exit_codes import DONE, FOUND
from fedhip.cli.common.progress import show_progress
from fedhip.errors import DataMissingError
from fedhip.runs import Run
from fedhip.runs.verify import verify
from fedhip.utils.text import json_text


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "verify",
        help="check that a run's files, sum, models and ledger are intact",
        description="Check every file against its digest, the sum against the clients' statistics, the models against "
        "the sum, the ledger's chain, and receipts. Exit code 0 if all is well, 1 if something is wrong, 3 if there is "
        "no run to check.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--receipt", type=Path, action="append", default=[], metavar="FILE", help="a receipt you hold")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Check, print."""
    if missing := [path for path in args.receipt if not path.is_file()]:
        raise DataMissingError(f"there is no receipt {missing[0]}; check the path")
    checks = verify(Run.open(args.run), args.receipt, report=show_progress)
    wrong = [check for check in checks if check.problem is not None]
    if args.json:
        print(json_text([{"check": c.what, "problem": c.problem} for c in checks], indent=1))
    else:
        for check in checks:
            print(f"ok     {check.what}" if check.problem is None else f"WRONG  {check.what}: {check.problem}")
        print(f"{args.run}: {'all is well' if not wrong else f'{len(wrong)} of {len(checks)} checks failed'}")
    return FOUND if wrong else DONE
