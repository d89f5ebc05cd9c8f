"""Cells of a column as numbers, booleans, days or text; what is none of these is named with its row and value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.data.tables.description import Column
from fedhip.data.tables.reader import Table
from fedhip.errors import InputError
from fedhip.utils.text import short

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]

TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
#: No feature is larger in size (`fedhip.core.exact.columns`).
LARGEST = 2.0**64
#: No cell of a table that people keep is longer, in bytes.
LONGEST = 1 << 16

_YEAR_1000 = -354_285.0
_WHOLE = r"^([+-]?\d+)\.0+$"
_DECIMAL_COMMA = r"^([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)$"


def present(table: Table, name: str, missing: tuple[str, ...]) -> pl.Series:
    """The column with null wherever no value is: text without spaces around it, numbers without NaN."""
    import polars as pl

    cells = table.frame.get_column(name)
    if cells.dtype in (pl.Categorical, pl.Enum):
        cells = cells.cast(pl.String)
    if cells.dtype == pl.String:
        lengths = cells.str.len_bytes()
        row = lengths.arg_max()
        if row is not None and (longest := int(lengths[row])) > LONGEST:
            raise InputError(
                f"{table.at(row, name)} holds {longest:,} bytes, and a cell has at most {LONGEST:,}; is a quote "
                "open? Correct the row, or drop the column (--drop)"
            )
        cells = cells.str.strip_chars()
        gone = cells.str.to_lowercase().is_in([word.lower() for word in missing])
        return cells.set(gone, None) if gone.any() else cells
    if cells.dtype.is_float():
        return cells.fill_nan(None)
    return cells


def is_supported(cells: pl.Series) -> bool:
    """Whether cells of this type can become features."""
    import polars as pl

    known = (pl.String, pl.Boolean, pl.Date, pl.Categorical, pl.Enum, pl.Null)
    return cells.dtype.is_numeric() or cells.dtype in known or isinstance(cells.dtype, pl.Datetime | pl.Duration)


def parse_numbers(cells: pl.Series, decimal: str = ".") -> pl.Series:
    """Float64; null where a cell is missing or no finite number."""
    import polars as pl

    if isinstance(cells.dtype, pl.Duration):
        return cells.dt.total_microseconds(fractional=False).cast(pl.Float64) / 86_400e6
    if cells.dtype == pl.String and decimal == ",":
        cells = cells.str.replace(_DECIMAL_COMMA, "$1.$2")
    numbers = cells.cast(pl.Float64, strict=False)
    return numbers.set(~numbers.is_finite().fill_null(True), None)


def parse_booleans(cells: pl.Series) -> pl.Series:
    """1.0 and 0.0; null where a cell is missing or neither."""
    import polars as pl

    if cells.dtype != pl.String:
        numbers = cells.cast(pl.Float64, strict=False)
        return numbers.set(~numbers.is_in([0.0, 1.0]).fill_null(True), None)
    words = cells.str.replace(_WHOLE, "$1").str.to_lowercase()
    known = {**dict.fromkeys(TRUE, 1.0), **dict.fromkeys(FALSE, 0.0)}
    return words.replace_strict(known, default=None, return_dtype=pl.Float64)


def parse_dates(cells: pl.Series, form: str) -> pl.Series:
    """Days since the beginning of 1970; null where a cell is missing or no date of this format."""
    import polars as pl

    if cells.dtype == pl.String:
        kind = pl.Datetime("us") if "%H" in form else pl.Date
        cells = cells.str.strptime(kind, form, strict=False)
    if cells.dtype == pl.Date:
        days = cells.cast(pl.Int32).cast(pl.Float64)
    elif isinstance(cells.dtype, pl.Datetime):
        days = cells.dt.epoch("us").cast(pl.Float64) / 86_400e6
    else:
        return pl.Series(cells.name, [None] * len(cells), dtype=pl.Float64)
    return days.set((days < _YEAR_1000).fill_null(False), None)  # "20-01-02" is no year 20


def parse_text(cells: pl.Series) -> pl.Series:
    """Text; a whole number is written as one, whether it comes as 1, 1.0 or "1.0"."""
    import polars as pl

    if cells.dtype == pl.Boolean:
        return cells.replace_strict({True: "true", False: "false"}, default=None, return_dtype=pl.String)
    if cells.dtype != pl.String:
        cells = cells.cast(pl.String)
    return cells.str.replace(_WHOLE, "$1")


def values_of(table: Table, column: Column, cells: pl.Series, role: str = "") -> Floats:
    """The values (N,) of a number, a boolean or a date, NaN where none is; an error where a cell is something else.

    `role` is the option that names the column, where it is no feature.
    """
    if column.kind == "number":
        found, what = parse_numbers(cells, table.decimal), "a number"
    elif column.kind == "boolean":
        found, what = parse_booleans(cells), "true or false"
    else:
        found, what = parse_dates(cells, column.format), f"a date like {column.format}" if column.format else "a date"
    wrong = found.is_null() & cells.is_not_null()
    if wrong.any():
        raise _stray(table, column.name, cells, wrong, f"is not {what}", "nor is", role)
    if column.kind == "number" and (huge := (found.abs() >= LARGEST).fill_null(False)).any():
        raise _stray(table, column.name, cells, huge, f"is larger than {LARGEST:.0e} in size", "so is", role)
    values: Floats = found.cast(_float64()).to_numpy(allow_copy=True)
    return np.where(found.is_null().to_numpy(), np.nan, values) if found.null_count() else values


def _float64() -> Any:
    import polars as pl

    return pl.Float64


def _stray(
    table: Table, name: str, cells: pl.Series, wrong: pl.Series, what: str, and_so: str, role: str
) -> InputError:
    row = int(wrong.arg_max() or 0)
    others = int(wrong.sum()) - 1
    also = "" if not others else f" ({and_so} that of {others:,} other row{'s' * (others > 1)})"
    if role:
        remedy = f"correct it, or name another column with {role}"
    else:
        remedy = (
            f"correct it, write NA where nothing is known, drop the column (--drop {name}), or say what it holds with "
            "fedhip describe and --columns"
        )
    return InputError(f"{table.at(row, name)}: {short(str(cells[row]), 60)!r} {what}{also}; {remedy}")


def require_all(table: Table, name: str, cells: pl.Series, what: str) -> pl.Series:
    """The cells, if none is missing."""
    gone = cells.is_null()
    if gone.any():
        row, others = int(gone.arg_max() or 0), int(gone.sum()) - 1
        also = "" if not others else f" (and so are those of {others:,} other row{'s' * (others > 1)})"
        raise InputError(f"{table.at(row, name)}: {what} is missing{also}; fill it in, or remove the row")
    return cells
