"""`fedhip influence`: who contributes to a run, and who harms."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from fedhip.cli.common.client_rows import add_backbone_place
from fedhip.cli.common.exit_codes import DONE
from fedhip.cli.common.options import require_csv, write_answers
from fedhip.cli.common.progress import show_progress
from fedhip.cli.runs.life import clients_of_the_data
from fedhip.data import read_features
from fedhip.runs import Run
from fedhip.runs.influence import Influence, influence_in
from fedhip.runs.rows import clients_in
from fedhip.utils.text import json_text


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "influence",
        help="measure how each client changes the others' accuracy",
        description="Remove each client from the sum in turn, exactly (leave-one-client-out), and compare the accuracy "
        "of the federation's ridge on the other clients' training rows, by leave-one-out, with and without it.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, with its statistics")
    parser.add_argument(
        "--rows", type=Path, metavar="FILE",
        help="a feature file with the clients' rows and names (default: the data that the run was made from)",
    )  # fmt: skip
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table to a file")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_backbone_place(parser)
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Subtract, count, print."""
    if args.csv is not None:
        require_csv(args.csv, args.force)
    opened = Run.open(args.run)
    opened.require_exact()
    opened.require_personalized()
    if args.rows is not None:
        rows = clients_in(opened, str(args.rows), read_features(args.rows, task=opened.task))
    else:
        rows = clients_of_the_data(opened, args, opened.clients)
    found = influence_in(opened, rows, show_progress)
    if args.csv is not None:
        write_answers(args.csv, _table(found))
    if args.json:
        print(json_text([each.to_dict() for each in found], indent=1))
        return DONE
    wide = max(len("client"), *(len(each.client) for each in found))
    print(f"{'client':<{wide}}  {'rows':>7}  {'others gain':>11}  {'95 % interval':>16}  {'p':>6}")
    for each in sorted(found, key=lambda each: each.difference):
        between = "-" if each.low is None or each.high is None else f"{100 * each.low:+.2f} to {100 * each.high:+.2f}"
        gain, p = f"{100 * each.difference:+.2f}", f"{each.p:.3f}"
        print(f"{each.client:<{wide}}  {each.train:>7,}  {gain:>11}  {between:>16}  {p:>6}  {each.verdict}")
    print(
        "Points of accuracy of the federation's ridge on the other clients' training rows, each left out, with the "
        "client less without it; p is corrected for the number of clients."
    )
    return DONE


def _table(found: list[Influence]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, list(found[0].to_dict()), lineterminator="\n")
    table.writeheader()
    table.writerows(each.to_dict() for each in found)
    return text.getvalue()
