"""Tables in the terminal."""

import sys
from collections.abc import Mapping, Sequence

from fedhip.cli.common.progress import show_progress


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print rows under column heads; columns of numbers are aligned right."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    show_progress.close()
    cells = [[f"{value:,}" if isinstance(value, int) else str(value) for value in row] for row in rows]
    right = [all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
    table = Table(box=box.SIMPLE_HEAD, title=escape(title) or None, title_justify="left")
    for column, number in zip(columns, right, strict=True):
        table.add_column(column, justify="right" if number else "left")
    for row in cells:
        table.add_row(*(escape(cell) for cell in row))
    try:
        Console(width=None if sys.stdout.isatty() else 120).print(table)  # a pipe has no width of its own
    except SystemExit as error:  # what rich does when nobody reads any more
        raise BrokenPipeError from error


def note(text: str) -> None:
    """A line on standard error for whoever watches; none with --quiet."""
    if not show_progress.silent:
        print(f"fedhip: {text}", file=sys.stderr, flush=True)


def interval_of(found: Mapping[str, float | None]) -> str:
    """The ends of a share's interval; a dash where there is none."""
    low, high = found.get("low"), found.get("high")
    return "–" if low is None or high is None else f"{100 * low:.1f} to {high:.1%}"


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").strip().isdigit()
