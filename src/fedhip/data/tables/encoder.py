"""A table by its description as features: X (N, m), NaN where a value is missing, until the federation's mean is known.

    mean_j = Σ_clients Σ x_j  /  Σ_clients n_j          over the values that are there

Each client sends the two sums of its training rows; a simulation adds the same ones. They are whole numbers, by the
survey of `core.columns`: any division of the rows gives the same means, to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedhip.data.tables.cells import Floats, parse_text, present, values_of
from fedhip.data.tables.description import Column, Description
from fedhip.data.tables.reader import Table, no_column
from fedhip.data.tables.text import TextEncoder, require_encoder
from fedhip.errors import ColumnWarning, InputError, StatisticsError
from fedhip.utils.words import listed

if TYPE_CHECKING:
    import polars as pl

    from fedhip.core.exact.columns import Survey

_AT_ONCE = 1 << 16
#: Part of a column's values outside the agreed range from which on it is told.
_TOO_MANY = 0.2


@dataclass(frozen=True, eq=False)
class Encoded:
    """Features (N, m), NaN where a number, boolean or date is missing; and how many values each column lacks."""

    matrix: Floats
    missing: Mapping[str, int]


def encode(
    table: Table, description: Description, *, expect: bool = False, texts: TextEncoder | None = None
) -> Encoded:
    """The features of a table; `texts` makes those of text.

    With `expect`, for a table that the description was not drafted from, whatever is not as described is told in
    warnings: values out of the agreed range, missing ones where none were, and values that are not listed.
    """
    require_columns(table, description)
    matrix = np.zeros((len(table), description.width))
    notes: list[str] = []
    missing: dict[str, int] = {}
    for column in description.used:
        cells = present(table, column.name, description.missing)
        place = description.positions[column.name]
        part = matrix[:, place : place + len(column.features)]
        if column.is_value:
            part[:, 0] = values_of(table, column, cells)
        elif column.kind == "text":
            _encode_texts(part, column, cells, table.source, require_encoder(column, texts))
        else:
            notes += _one_hot(part, column, cells)
        if gone := cells.null_count():
            missing[column.name] = gone
            if column.missing:
                part[:, -1] = cells.is_null().to_numpy()
            else:
                notes.append(_unexpected(column, gone, len(table)))
        notes += _out_of_range(column, part[:, 0]) if column.is_value else []
    if expect:
        for note in notes:
            warnings.warn(f"{table.source}, {note}", ColumnWarning, stacklevel=3)
    return Encoded(matrix, missing)


def require_columns(table: Table, description: Description) -> None:
    """Refuse a table that lacks a column which is to become features."""
    lacking = [column for column in description.used if column.name not in table.names]
    if not lacking:
        return
    first = no_column(table.source, lacking[0].name, table.names)
    others = [repr(column.name) for column in lacking[1:6]]
    more = f", nor {listed(others)}" if others else ""
    raise InputError(f"{first}{more}; the description asks for it: add it, with empty cells where nothing is known")


def _encode_texts(part: Floats, column: Column, cells: pl.Series, source: str, texts: TextEncoder) -> None:
    """Write the features of each text; those of one that is missing stay 0."""
    there = cells.is_not_null()
    if there.any():
        found = texts.encode(column, parse_text(cells.filter(there)).to_list(), f"{source}, column {column.name!r}")
        part[there.to_numpy(), : column.width] = found


def _one_hot(part: Floats, column: Column, cells: pl.Series) -> list[str]:
    """Write one for the value of each row; what is no listed value is in the place after them."""
    import polars as pl

    number = {value: i for i, value in enumerate(column.values)}
    other = len(number)
    text = parse_text(cells)
    codes = text.replace_strict(number, default=other, return_dtype=pl.Int64).to_numpy()
    there = cells.is_not_null().to_numpy()
    # Without a feature of its own, a missing value is one of the others.
    rows = np.flatnonzero(there) if column.missing else np.arange(len(codes))
    part[rows, codes[rows]] = 1.0
    unknown = text.filter((text.is_not_null()) & pl.Series(codes == other))
    if unknown.is_empty():
        return []
    seen = unknown.unique(maintain_order=True).to_list()
    shown = ", ".join(repr(value[:40]) for value in seen[:3]) + ", …" * (len(seen) > 3)
    return [
        f"column {column.name!r}: {len(unknown):,} rows have values that are not agreed on ({shown}): they are other"
    ]


def _unexpected(column: Column, missing: int, rows: int) -> str:
    if column.kind == "text":
        filled = "are 0 in every feature"
    else:
        filled = "are filled with the federation's mean" if column.is_value else "count as other"
    return (
        f"column {column.name!r}: {missing:,} of {rows:,} values are missing, and none was when it was described; they "
        f"{filled}"
    )


def _out_of_range(column: Column, values: Floats) -> list[str]:
    """What is to be told of values that are not where the description expects them: other units, most likely."""
    if column.low is None or column.high is None:
        return []
    there = values[~np.isnan(values)]
    if not len(there):
        return []
    middle = float(np.median(there))
    room = (column.high - column.low) / 2
    # Of numbers above 0 a third of the least is far off too, however wide the range is.
    least = max(column.low - room, column.low / 3) if column.low > 0 else column.low - room
    most = min(column.high + room, column.high / 3) if column.high < 0 else column.high + room
    outside = float(((there < least) | (there > most)).mean())
    if outside < _TOO_MANY and (len(there) < 10 or column.low <= middle <= column.high):
        return []
    unit = f" {column.unit}" if column.unit else ""
    agreed = f"{column.low:g} to {column.high:g}{unit}"
    what = f"its value is {middle:g}" if len(there) == 1 else f"half its values are below {middle:g}"
    return [f"column {column.name!r}: {what}, and {agreed} is agreed on; is it in other units? Convert it if so"]


@dataclass(frozen=True, eq=False)
class FillSums:
    """Σ x and n over the values that are there, of every number, boolean and date; those of several clients add."""

    survey: Survey
    present: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        matrix: Floats,
        description: Description,
        only: Sequence[str] | None = None,
        train: NDArray[np.bool_] | None = None,
    ) -> FillSums:
        """Of a client's rows as `encode` gives them, or of those that `train` marks; of all columns, or `only` some."""
        from fedhip.core.exact.columns import Survey

        places = [description.positions[name] for name in _fillable(description, only)]
        surveys, there = [], np.zeros(len(places), np.int64)
        for start in range(0, len(matrix), _AT_ONCE):
            block = matrix[start : start + _AT_ONCE]
            block = (block if train is None else block[train[start : start + _AT_ONCE]])[:, places]
            if not len(block):
                continue
            gone = np.isnan(block)
            there += (~gone).sum(axis=0)
            surveys.append(Survey.of(np.where(gone, 0.0, block)))
        if not surveys:
            raise InputError("there are no training rows, and so no mean to fill missing values with; add rows")
        return cls(sum(surveys[1:], surveys[0]), there)

    def __add__(self, other: FillSums) -> FillSums:
        return FillSums(self.survey + other.survey, self.present + other.present)

    def means(self, description: Description, only: Sequence[str] | None = None) -> dict[str, float]:
        """By column; 0 where nobody has a value."""
        moments = self.survey.moments()
        sums = [moments.unit * float(total) for total in moments.first[-1]]
        names = _fillable(description, only)
        return {
            name: total / int(count) if count else 0.0
            for name, total, count in zip(names, sums, self.present, strict=True)
        }

    def to_vector(self) -> NDArray[np.int64]:
        """All numbers in one row, for a secure sum."""
        return np.concatenate((self.survey.to_vector(), self.present))

    @classmethod
    def from_vector(
        cls, vector: NDArray[np.int64], description: Description, only: Sequence[str] | None = None
    ) -> FillSums:
        """What `to_vector` gave, of all columns, or `only` some."""
        from fedhip.core.exact.columns import Survey

        width = len(_fillable(description, only))
        return cls(Survey.from_vector(vector[: len(vector) - width], width), vector[len(vector) - width :])

    def require_possible(self, most_rows: int) -> None:
        """Raise `StatisticsError` where no so many rows have these sums."""
        self.survey.require_possible(most_rows)
        other_than_zero = self.survey.table[:, 0].sum(axis=0)
        if (self.present < other_than_zero).any() or int(self.present.max(initial=0)) > self.survey.rows:
            raise StatisticsError("a column has more values than there are rows, or fewer than are not 0")


def _fillable(description: Description, only: Sequence[str] | None) -> list[str]:
    return [column.name for column in description.values if only is None or column.name in only]


def columns_to_fill(matrix: Floats, description: Description) -> list[str]:
    """The columns that lack a value in any of these rows."""
    places = description.positions
    return [c.name for c in description.values if np.isnan(matrix[:, places[c.name]]).any()]


def fill(matrix: Floats, description: Description, source: str) -> Floats:
    """Put the description's means where values are missing, in place."""
    for name in columns_to_fill(matrix, description):
        column = next(column for column in description.values if column.name == name)
        if column.fill is None:
            raise InputError(
                f"{source}, column {name!r} lacks values, and the description has no 'fill' for it: that is known once "
                "the clients' sums are"
            )
        values = matrix[:, description.positions[name]]
        values[np.isnan(values)] = column.fill
    return matrix


def fill_from(matrix: Floats, description: Description, train: NDArray[np.bool_], source: str) -> Description:
    """Fill missing values, in place, with means over training rows; the description that says with what.

    Every column that may lack values gets a mean, for rows that come later; what the description brings stays.
    """
    known: Mapping[str, float | None] = {column.name: column.fill for column in description.values}
    wanted = [name for name, value in known.items() if value is None]
    if wanted:
        sums = FillSums.of(matrix, description, wanted, train)
        description = description.with_fills(sums.means(description, wanted))
    fill(matrix, description, source)
    return description
