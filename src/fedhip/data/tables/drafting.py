"""A description drafted from a table: what each column seems to hold, and what a person must decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedhip.data.tables.cells import (
    Floats,
    is_supported,
    parse_booleans,
    parse_dates,
    parse_numbers,
    parse_text,
    present,
)
from fedhip.data.tables.description import MISSING, Column, Description
from fedhip.data.tables.reader import UNNAMED, Table, no_column
from fedhip.data.tables.text import TextEncoder, require_encoder
from fedhip.errors import InputError

if TYPE_CHECKING:
    import polars as pl

#: A text column with more values is drafted as dropped; whoever wants it lists its values.
MOST_DRAFTED = 200
#: Of a column's cells, those that must be numbers or dates for the others to be called stray.
_MOSTLY = 0.5

DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d-%b-%Y",
    "%d %b %Y",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.fZ",
    "%Y-%m-%dT%H:%M:%S%.f%z",
)
_DAY_OR_MONTH = ({"%d/%m/%Y", "%m/%d/%Y"}, {"%d-%m-%Y", "%m-%d-%Y"})


@dataclass(frozen=True)
class DraftDescription:
    """A description, and what nobody but a person can say: each a line that names the column."""

    description: Description
    questions: tuple[str, ...]

    def certain(self) -> Description:
        """The description, if nothing is open."""
        if self.questions:
            raise InputError(self.questions[0])
        return self.description


def draft(
    table: Table,
    *,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    group: str | None = None,
    weight: str | None = None,
    drop: Iterable[str] = (),
    text: Iterable[str] = (),
    texts: TextEncoder | None = None,
    missing: tuple[str, ...] = MISSING,
) -> DraftDescription:
    """What the columns of a table seem to hold; those that `text` names are text, of which `texts` makes features."""
    labels = labels_named(table, label)
    named: dict[str | None, str] = {
        **dict.fromkeys(labels, "label"),
        client: "client",
        group: "group",
        weight: "weight",
    }
    for name, role in named.items():
        if name is not None and name not in table.names:
            raise no_column(table.source, name, table.names, f", which --{role} names")
    dropped = dict.fromkeys(drop)
    for name in dropped:
        if name not in table.names:
            raise no_column(table.source, name, table.names, ", which --drop names")
        if name in named:
            raise InputError(f"column {name!r} of {table.source} is dropped and is the {named[name]}; choose one")
    read = dict.fromkeys(text)
    for name in read:
        if name not in table.names:
            raise no_column(table.source, name, table.names, ", which --text names")
        if name in named or name in dropped:
            role = f"is the {named[name]}" if name in named else "is dropped"
            raise InputError(f"column {name!r} of {table.source} is to be read as text and {role}; choose one")
    columns, questions = [], []
    for name in table.names:
        if name in named:
            continue
        if name in dropped:
            columns.append(Column(name, "dropped", note="as asked"))
        elif name in read:
            columns.append(text_column(table, name, missing, texts))
        elif name == UNNAMED:
            columns.append(Column(name, "dropped", note="it has no name: row numbers, most likely"))
        else:
            column, question = _column(table, name, missing)
            columns.append(column)
            questions += [question] if question else []
    try:
        return DraftDescription(Description(tuple(columns), labels, client, group, weight, missing), tuple(questions))
    except InputError as error:
        raise InputError(questions[0] if questions else f"{table.source}: {error}") from None


def labels_named(table: Table, label: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that are named as labels: one, several, or several with commas between them."""
    if label is None or not isinstance(label, str):
        return tuple(label or ())
    return (label,) if label in table.names else tuple(part.strip() for part in label.split(","))


def text_column(table: Table, name: str, missing: tuple[str, ...], texts: TextEncoder | None) -> Column:
    """A column of text."""
    if not is_supported(table.frame.get_column(name)):
        raise InputError(
            f"{table.source}, column {name!r} holds {table.frame.get_column(name).dtype}, which is no text; drop it "
            f"(--drop {name})"
        )
    gone = present(table, name, missing).null_count()
    if gone == len(table):
        raise InputError(
            f"{table.source}, column {name!r} is to be read as text, and has none; drop it (--drop {name})"
        )
    column = Column(name, "text", missing=gone > 0)
    return require_encoder(column, texts).describe(column)


def _column(table: Table, name: str, missing: tuple[str, ...]) -> tuple[Column, str]:
    """A column, and what is to be asked of it, if anything."""
    if not is_supported(table.frame.get_column(name)):
        held = table.frame.get_column(name).dtype
        question = (
            f"{table.source}, column {name!r} holds {held}, which is no number, date or text; drop it (--drop {name})"
        )
        return Column(name, "dropped", note=f"it holds {held}"), question
    cells = present(table, name, missing)
    gone = cells.null_count()
    if gone == len(cells):
        return Column(name, "dropped", note="it has no values"), ""
    kind, form, question = _kind(table, name, cells)
    any_missing = gone > 0
    if kind == "category":
        return _category(table, name, cells, any_missing)
    if kind == "boolean":
        return Column(name, kind, missing=any_missing), question
    low, high = (None, None) if kind == "date" else expected_range(_floats(parse_numbers(cells, table.decimal)))
    note = _identifier(table, cells) if kind == "number" else ""
    return Column(name, kind, missing=any_missing, low=low, high=high, format=form, note=note), question


def _kind(table: Table, name: str, cells: pl.Series) -> tuple[str, str, str]:
    """Kind, format of dates, and a question."""
    import polars as pl

    if cells.dtype == pl.Boolean:
        return "boolean", "", ""
    if cells.dtype == pl.Date or isinstance(cells.dtype, pl.Datetime):
        return "date", "", ""
    if cells.dtype != pl.String:
        return "number", "", ""
    there = len(cells) - cells.null_count()
    if cells.len() - parse_numbers(cells, table.decimal).null_count() > _MOSTLY * there:
        return "number", "", ""
    if parse_booleans(cells).null_count() == cells.null_count():
        return "boolean", "", ""
    form, question = _date_format(table, name, cells, there)
    return ("date", form, question) if form else ("category", "", "")


def _date_format(table: Table, name: str, cells: pl.Series, there: int) -> tuple[str, str]:
    # A few of the cells tell whether they are dates at all.
    few = cells.drop_nulls().head(100)
    some = [form for form in DATE_FORMATS if parse_dates(few, form).null_count() < len(few)]
    found = {form: len(cells) - parse_dates(cells, form).null_count() for form in some}
    best = max(found, key=lambda form: found[form], default="")
    if not best or found[best] <= _MOSTLY * there:
        return "", ""
    for pair in _DAY_OR_MONTH:
        if best in pair and len({found.get(form, 0) for form in pair}) == 1:
            return best, (
                f"{table.source}, column {name!r} holds dates with the day or the month first, such as {few[0]!r}; "
                f"write them as 2024-12-31, or say format = {best!r} with fedhip describe and --columns"
            )
    return best, ""


def _category(table: Table, name: str, cells: pl.Series, missing: bool) -> tuple[Column, str]:
    values = parse_text(cells).drop_nulls().unique().sort()
    rows = len(cells) - cells.null_count()
    if len(values) <= MOST_DRAFTED and (len(values) <= 20 or len(values) <= rows / 2):
        return Column(name, "category", tuple(values.to_list()), missing), ""
    many = f"it has {len(values):,} different values in {rows:,} rows"
    return Column(name, "dropped", note=many), (
        f"{table.source}, column {name!r} is text with {len(values):,} different values in {rows:,} rows, and each "
        f"would be a feature; drop it (--drop {name}), read it as text (--text {name}), or list those that count with "
        "fedhip describe and --columns"
    )


def _identifier(table: Table, cells: pl.Series) -> str:
    """A note on whole numbers that rise from row to row."""
    if len(cells) < 20 or cells.null_count():
        return ""
    numbers = _floats(parse_numbers(cells, table.decimal))
    steps = np.diff(numbers)
    rising = bool((steps > 0).all() and (numbers == np.rint(numbers)).all())
    return "whole numbers that rise from row to row: an identifier, to be dropped?" if rising else ""


def _floats(cells: pl.Series) -> Floats:
    """The values that are there."""
    return cells.drop_nulls().to_numpy()


def expected_range(values: Floats) -> tuple[float | None, float | None]:
    """Where all but a fiftieth of the values lie, in round numbers: nobody's own value is told."""
    if not len(values):
        return None, None
    low, high = np.quantile(values, (0.01, 0.99))
    size = high - low if high > low else abs(high) or 1.0
    step = 10.0 ** (math.floor(math.log10(size)) - 1)
    return _rounded(math.floor(low / step), step), _rounded(math.ceil(high / step), step)


def _rounded(steps: int, step: float) -> float:
    """A multiple of a power of ten, without the digits that binary fractions add."""
    return float(f"{steps * step:.12g}")
