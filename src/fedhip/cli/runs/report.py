"""`fedhip report`: the report of a run drawn again, or several runs side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedhip.cli.common.console import interval_of, print_table
from fedhip.cli.common.options import require_new, write_answers
from fedhip.cli.common.parser import respell
from fedhip.cli.runs.run import print_targets
from fedhip.errors import InputError
from fedhip.runs import Run
from fedhip.runs.measures import metrics_in
from fedhip.runs.results import title_of
from fedhip.utils.files import require_folder
from fedhip.utils.text import json_text
from fedhip.utils.words import percent

if TYPE_CHECKING:
    from fedhip.runs.report import RunRecord


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="write the report of a run, or compare several runs",
        description="Write report.html of one run into its folder, or a page that compares several; print a table.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    page = parser.add_argument(
        "--html", type=Path, metavar="FILE", help="the page (default: RUN/report.html, or comparison.html for several)"
    )
    tables = parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="write every table of the page as CSV into this folder"
    )
    respell(parser, page, "-o", "--out")
    respell(parser, tables, "--csv")
    parser.add_argument(
        "--force", action="store_true", help="write over what is there; RUN/report.html is always drawn anew"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Read, render, write, print."""
    from fedhip.runs.report import render_report
    from fedhip.runs.report.csv_tables import csv_tables

    folders = [Run.open(path) for path in args.runs]
    names = _names(args.runs)
    records = [run.record(name) for name, run in zip(names, folders, strict=True)]
    own = args.runs[0] / "report.html" if len(folders) == 1 else None
    out = args.html or own or Path("comparison.html")
    require_new(out, args.force or out == own)
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"{out}: the page ends in .html, not '{out.suffix}'")
    if args.tables is not None:
        require_folder(args.tables)
        for name in csv_tables(records):
            require_new(args.tables / name, args.force)
    page = render_report(records)
    write_answers(out, page)  # it shows images of test rows
    tables = _write_tables(args.tables, records) if args.tables is not None else []
    if args.json:
        summaries = [
            {
                "run": name,
                "methods": {method: m["accuracy"] for method, m in run.results["methods"].items()},
                "metrics": {method: metrics_in(m) for method, m in run.results["methods"].items()},
            }
            for name, run in zip(names, folders, strict=True)
        ]
        print(json_text({"runs": summaries, "report": str(out), "tables": [str(path) for path in tables]}))
        return 0
    if folders[0].task != "classification":
        print_targets(folders[0].results, folders[0].task)
    else:
        _print_accuracies(names, folders)
    print(f"the report: {out}")
    if tables:
        print(f"{len(tables)} tables: {', '.join(path.name for path in tables)} in {args.tables}")
    return 0


def _print_accuracies(names: Sequence[str], folders: Sequence[Run]) -> None:
    rows = [
        (
            name,
            title_of(method),
            percent(m["accuracy"]["mean"]),
            interval_of(m["accuracy"]),
            *(percent(m["accuracy"][key]) for key in ("weighted", "worst_decile")),
        )
        for name, run in zip(names, folders, strict=True)
        for method, m in run.results["methods"].items()
    ]
    print_table(("run", "model", "mean over clients", "95 % interval", "over rows", "worst tenth"), rows)


def _write_tables(folder: Path, records: Sequence[RunRecord]) -> list[Path]:
    from fedhip.runs.report.csv_tables import csv_tables

    written = []
    for name, text in csv_tables(records).items():
        write_answers(folder / name, text)  # it names clients, and tells of their rows
        written.append(folder / name)
    return written


def _names(paths: list[Path]) -> list[str]:
    """The folders' names; whole paths where two have the same name."""
    names = [path.absolute().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
