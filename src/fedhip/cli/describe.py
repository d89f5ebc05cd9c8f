"""`fedhip describe`: draft what the columns of a table hold."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from fedhip.cli.common.console import print_table
from fedhip.cli.common.options import add_client_column, add_columns, require_new
from fedhip.cli.common.parser import respell
from fedhip.utils.text import json_text


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "describe",
        help="draft columns.toml: what each column of a table holds",
        description="Look at a table and write down what each column seems to hold: number, boolean, date or category, "
        "with the values of categories and where numbers are expected. Correct the file by hand; fedhip run --columns "
        "and fedhip federation init --columns take it.",
    )
    parser.add_argument("table", type=Path, metavar="TABLE", help="a .csv, .tsv or .parquet file")
    file = parser.add_argument(
        "out", type=Path, metavar="[FILE.toml]", help="write the description here (default: print it)"
    )
    respell(parser, file, "-o", "--out")
    add_client_column(parser, "the column that names each row's client")
    add_columns(parser)
    parser.add_argument(
        "--backbone", metavar="NAME", help="of --text: what makes features of it (default: minilm; or hf:NAME)"
    )
    parser.add_argument("--pooling", metavar="SPEC", help="of --text with hf:NAME: cls or mean")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Read the table, draft, write or print."""
    from fedhip.data.tables import draft, read_table
    from fedhip.data.tables.report import done_with, shown_range
    from fedhip.errors import ColumnWarning, InputError
    from fedhip.features.text_columns import DEFAULT_TEXT_BACKBONE, TextColumns
    from fedhip.utils.files import write_text

    if args.out is not None:
        if args.out.suffix != ".toml":
            raise InputError(f"{args.out}: a description ends in .toml, not '{args.out.suffix}'")
        require_new(args.out, args.force)
    table = read_table(args.table)
    if (args.backbone is not None or args.pooling is not None) and not args.text:
        raise InputError("--backbone and --pooling are of text; name its columns with --text, or leave them out")
    found = draft(
        table,
        label=args.label,
        client=args.client,
        group=args.group,
        weight=args.weight,
        drop=args.drop or (),
        text=args.text or (),
        texts=TextColumns(args.backbone or DEFAULT_TEXT_BACKBONE, pooling=args.pooling, device="cpu"),
    )
    for question in found.questions:
        warnings.warn(question, ColumnWarning, stacklevel=1)
    description = found.description
    if args.out is not None:
        write_text(args.out, description.to_toml())
    if args.json:
        source = {"table": str(args.table), "rows": len(table), "file": None if args.out is None else str(args.out)}
        print(json_text({**source, "description": description.to_dict(), "questions": list(found.questions)}))
        return 0
    if args.out is None:
        print(description.to_toml(), end="")
        return 0
    rows = [(name, description.role_of(name).removeprefix("the "), "", "") for name in description.roles] + [
        (column.name, column.kind, shown_range(column), done_with(column, 0, len(table)))
        for column in description.columns
    ]
    print_table(("column", "kind", "expected", "becomes"), rows, f"{args.table}: {len(table):,} rows")
    print(f"wrote {args.out}: review it, correct it, and add units")
    return 0
