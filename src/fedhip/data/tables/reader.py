"""A table from a file (CSV, TSV, Parquet) or a frame in memory (polars, pandas, Arrow), as one polars frame.

Every cell of a text file stays text until its column's kind is known: a reader that guesses makes 7 of "007", and tells
nobody which row it could not read. Frames are taken as they are, without a copy where their columns allow it.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import DataMissingError, FedHiPWarning, InputError, MissingExtraError
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.text import readable, short

if TYPE_CHECKING:
    import polars as pl

TEXT_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".tsv"), (".parquet", ".pq")
#: The name of a column that has none, such as the row numbers that pandas writes.
UNNAMED = "(unnamed)"

_SEPARATORS = (",", ";", "\t", "|")
_HEAD = 1 << 20
#: A file is looked at in blocks of so many bytes, and a cell of more than `_TOO_LONG` is refused before it is read.
_BLOCK, _TOO_LONG = 1 << 24, 1 << 26
_MAGIC = {b"PK\x03\x04": "a zip archive or an Excel file", b"\x1f\x8b": "compressed", b"PAR1": "a Parquet file"}


@dataclass(frozen=True, eq=False)
class Table:
    """A table in memory.

    Parameters
    ----------
    source : str
        What to call it in messages.
    frame : polars.DataFrame
        All columns; text alone, where it comes from a text file.
    numbers : (N,) int64 or None
        The number of each row in the source, where rows were left out; else they count from `first`.
    first : int
        The number of the first row: 1 in a file, below its header, 0 in a frame.
    decimal : "." or ","
        In text.
    """

    source: str
    frame: pl.DataFrame
    numbers: NDArray[np.int64] | None = None
    first: int = 1
    decimal: str = "."

    def __len__(self) -> int:
        return self.frame.height

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return self.frame.columns

    def at(self, row: int, column: str) -> str:
        """`file, row 17, column 'age'`, for the beginning of a message."""
        return f"{self.source}, row {self.number(row)}, column {readable(column)!r}"

    def number(self, row: int) -> int:
        """What a row is called in messages and answers."""
        return row + self.first if self.numbers is None else int(self.numbers[row])


def no_column(source: str, name: str, known: Iterable[str], what: str = "") -> InputError:
    """The error for a column that is not there, with the nearest name that is."""
    names = list(known)
    listed = ", ".join(names[:8]) + ", …" * (len(names) > 8)
    return InputError(
        f"{source} has no column {name!r}{what}{did_you_mean(name, names)} (its {len(names)} columns: {listed})"
    )


def polars_or_error() -> Any:
    """The module, or an error that says what to install."""
    try:
        import polars
    except ImportError as error:
        raise MissingExtraError("tables need polars; pip install 'fedhip[tables]'") from error
    return polars


def is_table(source: object) -> bool:
    """Whether it is a frame, or the path of a file that this module reads."""
    if isinstance(source, str | Path):
        return Path(source).suffix.lower() in (*TEXT_SUFFIXES, *PARQUET_SUFFIXES)
    # A lazy frame of polars has columns too, but warns whoever asks for them.
    return hasattr(source, "collect_schema") or (hasattr(source, "__arrow_c_stream__") and hasattr(source, "columns"))


def read_table(source: Any, name: str | None = None) -> Table:
    """A table by path or from a frame; `name` is what to call a frame in messages."""
    if isinstance(source, Table):
        return source
    pl = polars_or_error()
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_dir() or not path.is_file():
            what = "is a folder" if path.is_dir() else "is not there"
            raise DataMissingError(f"{path} {what}; give the path of a .csv, .tsv or .parquet file")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty; write a header with the columns' names, and rows below it")
        table = _read_parquet(pl, path) if path.suffix.lower() in PARQUET_SUFFIXES else _read_text(pl, path)
    elif is_table(source):
        table = Table(name or "the table", _from_frame(pl, source, name or "the table"), first=0)
    else:
        raise InputError(f"a {type(source).__name__} is no table; give a polars or pandas frame, or the path of a file")
    if not len(table):
        raise InputError(f"{table.source} has {len(table.names)} columns and no rows; add rows")
    return table


def _read_parquet(pl: Any, path: Path) -> Table:
    try:
        frame = pl.read_parquet(path, glob=False)
    except (Exception, pl.exceptions.PanicException) as error:  # they have no common base
        reason = short(str(error).splitlines()[0] if str(error) else type(error).__name__, 120)
        raise InputError(
            f"{path} cannot be read as Parquet ({reason}); it is cut off or of another kind: write or copy it again"
        ) from error
    return Table(str(path), frame)


def _from_frame(pl: Any, frame: Any, name: str) -> Any:
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if isinstance(frame, pl.DataFrame):
        return frame
    names = [str(column) for column in frame.columns] if type(frame).__module__.startswith("pandas") else None
    if names is None:
        return pl.DataFrame(frame)  # Arrow's own interface: no copy
    _require_names(name, names)
    return pl.DataFrame([_from_pandas(pl, column, frame.iloc[:, i]) for i, column in enumerate(names)])


def _from_pandas(pl: Any, name: str, values: Any) -> Any:
    """A column of a pandas frame; without pyarrow, which pandas' own conversion would need."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiubM":
        return pl.Series(name, values.to_numpy())
    if str(values.dtype).startswith(("Int", "UInt", "Float")):
        return pl.Series(name, values.to_numpy(dtype=np.float64, na_value=np.nan))
    if str(values.dtype).startswith("datetime64"):  # with a time zone
        return pl.Series(name, values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy())
    missing = values.isna().to_numpy()
    cells = values.astype(object).to_numpy()
    if all(isinstance(cell, bool) for cell in cells[~missing]):
        return pl.Series(name, [None if gone else bool(cell) for cell, gone in zip(cells, missing, strict=True)])
    return pl.Series(
        name, [None if gone else str(cell) for cell, gone in zip(cells, missing, strict=True)], dtype=pl.String
    )


def _require_names(source: str, names: list[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            places = " and ".join(str(place + 1) for place, other in enumerate(names) if other == name)
            raise InputError(f"{source} has two columns named {name!r} (columns {places}); rename one of them")


@dataclass(frozen=True)
class _Format:
    """How a text file is written."""

    encoding: str
    separator: str
    line_end: str

    def records(self, path: Path, until: int | None = None) -> Iterator[list[str]]:
        """Its records, one after the other, by another reader than polars; slow, for finding out what is wrong.

        With `until`, those of so many bytes.
        """
        return (cells for cells, _ in self.records_as_written(path, until))

    def records_as_written(self, path: Path, until: int | None = None) -> Iterator[tuple[list[str], str]]:
        """Records, and how each is written."""
        lines: list[str] = []

        def kept(text: Iterable[str]) -> Iterator[str]:
            for line in text:
                lines.append(line)
                yield line

        # The reader takes four bytes and more for each letter of a cell, so that these have an end.
        before, number = csv.field_size_limit(_TOO_LONG), 0
        try:
            newline = None if self.line_end == "\r" else ""
            with path.open("rb") as file:
                part = file if until is None else io.BytesIO(file.read(until))
                text = io.TextIOWrapper(part, encoding=self.encoding, errors="replace", newline=newline)
                for record in csv.reader(kept(text), delimiter=self.separator):
                    yield record, "".join(lines)
                    lines.clear()
                    number += 1
        except csv.Error as error:
            raise InputError(f"{path}, row {number} cannot be read ({error}); is a quote open? Correct it") from error
        finally:
            csv.field_size_limit(before)


def _read_text(pl: Any, path: Path) -> Table:
    import warnings

    head = _head(path)
    form = _format(path, head)
    _require_no_endless_cell(path, form)
    names = [name.strip() or UNNAMED for name in _first_record(path, form)]
    _require_names(str(path), names)
    try:
        if form.encoding == "utf-8-sig":  # polars does not look at the header
            head[: head.rfind(form.line_end.encode()) + 1].decode("utf-8")
        frame = _parsed(pl, path, form)
    except UnicodeDecodeError:
        form, where = _as_windows(path, form)
        warnings.warn(
            f"{where} is not UTF-8; the file was read as Latin-1 (Windows-1252): check its names, or write it as UTF-8",
            FedHiPWarning,
            stacklevel=4,
        )
        names = [name.strip() or UNNAMED for name in _first_record(path, form)]
        frame = _parsed(pl, path, form)
    if frame.width != len(names):
        raise InputError(f"{path} has a header of {len(names)} names, and {frame.width} columns; correct the header")
    frame.columns = names
    numbers = None
    # What a short row lacks is missing, and its last cell is: rows that end in one are looked at again.
    last = frame.to_series(frame.width - 1)
    if last.null_count():
        if frame.width > 1:
            _require_full_rows(path, form, names)
        blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
        if blank.any():
            numbers = np.flatnonzero(~blank.to_numpy()) + 1
            frame = frame.filter(~blank)
    return Table(str(path), frame, numbers, decimal="," if form.separator == ";" else ".")


def _require_no_endless_cell(path: Path, form: _Format) -> None:
    """Refuse a cell of very many megabytes, which would be in memory several times before anybody could say so.

    One without quotes has no separator and no end of line. One that a quote opens has no other quote; where a quote may
    have opened one, and none follows for long, the rows are read one by one.
    """
    separator, line_end = form.separator.encode(), form.line_end.encode()
    start, before = 0, line_end
    quote: int | None = None
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            offset = file.tell() - len(block)
            last = max(block.rfind(separator), block.rfind(line_end))
            start = start if last < 0 else offset + last + 1
            place = block.rfind(b'"')
            if place >= 0:
                ahead = block[place - 1 : place] if place else before
                quote = offset + place if ahead in (separator, line_end) else None
            before = block[-1:]
            if file.tell() - start > _TOO_LONG:
                raise _endless(path, form, start)
            if quote is not None and file.tell() - quote > _TOO_LONG:
                try:
                    deque(form.records(path), maxlen=0)
                except InputError:
                    raise _endless(path, form, quote) from None
                quote = None


def _endless(path: Path, form: _Format, start: int) -> InputError:
    return InputError(
        f"{_place(path, form, start)} has a cell of more than {_TOO_LONG:,} bytes; is a quote open? Correct the row"
    )


def _place(path: Path, form: _Format, position: int) -> str:
    """`file, row 17, column 'age'` of where a cell of the file begins, in bytes."""
    number, cells = 0, [""]
    for number, cells in enumerate(form.records(path, position)):  # noqa: B007 (wanted after the loop)
        pass
    with path.open("rb") as file:
        file.seek(max(position - 1, 0))
        if file.read(1) == form.line_end.encode():
            number, cells = number + 1, [""]
    if not number:
        return f"{path}, its header, column {len(cells)}"
    names = [name.strip() for name in _first_record(path, form)]
    return f"{path}, row {number}, column {names[min(len(cells), len(names)) - 1]!r}"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            raise InputError(f"{path} is {what}, not text; save it as CSV, or give it the name of what it is")
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is not text (a zero byte is in it); save it as CSV in UTF-8")
    return head


def _format(path: Path, head: bytes) -> _Format:
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = head.decode(encoding, errors="replace")
    line_end = "\r" if "\n" not in text and "\r" in text else "\n"
    if path.suffix.lower() == ".tsv":
        return _Format(encoding, "\t", line_end)
    lines = text.replace("\r\n", "\n").split(line_end)
    first, second = _unquoted(lines[0]), _unquoted(next((line for line in lines[1:] if line.strip()), ""))
    likely = [s for s in _SEPARATORS if first.count(s) and first.count(s) == second.count(s)] or _SEPARATORS
    return _Format(encoding, max(likely, key=first.count), line_end)


def _unquoted(line: str) -> str:
    """The text outside quotes."""
    return "".join(line.split('"')[::2])


def _first_record(path: Path, form: _Format) -> list[str]:
    names = next(form.records(path), [])
    if not any(name.strip() for name in names):
        raise InputError(f"{path} begins with an empty line; the first line names the columns")
    return names


def _parsed(pl: Any, path: Path, form: _Format) -> Any:
    encoding = "utf8" if form.encoding == "utf-8-sig" else form.encoding
    try:
        return pl.read_csv(
            path,
            separator=form.separator,
            eol_char=form.line_end,
            encoding=encoding,
            infer_schema=False,
            glob=False,
            raise_if_empty=False,
        )
    except MemoryError as error:
        raise InputError(f"{path} does not fit in memory; write it as Parquet, or with fewer columns") from error
    except (Exception, pl.exceptions.PanicException) as error:  # they have no common base
        if "utf-8" in str(error) or "utf8" in str(error):
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "invalid") from error
        names = [name.strip() or UNNAMED for name in _first_record(path, form)]
        _require_full_rows(path, form, names)
        _require_whole_quotes(path, form, names)
        reason = short(str(error).splitlines()[0] if str(error) else type(error).__name__, 120)
        raise InputError(f"{path} cannot be read ({reason}); write it again") from error


def _require_full_rows(path: Path, form: _Format, names: list[str]) -> None:
    """Refuse a row of more or fewer cells than the header has names; an empty line is no row."""
    for number, record in enumerate(form.records(path)):
        if record and len(record) != len(names):
            named = f"ends before column {names[len(record)]!r}" if len(record) < len(names) else "has cells too many"
            raise InputError(
                f"{path}, row {number} {named}: it has {len(record)} cells, and the header names {len(names)} columns; "
                "complete it, or put text with a separator in quotes"
            )


def _require_whole_quotes(path: Path, form: _Format, names: list[str]) -> None:
    """Refuse a cell with a quote that is neither around it nor written twice; and one that is never closed."""
    last, number = [""], 0
    for number, (record, written) in enumerate(form.records_as_written(path)):
        last = record or last
        for name, cell in zip(names, record, strict=False):
            as_written = '"' + cell.replace('"', '""') + '"' if '"' in cell else cell
            if as_written not in written:
                raise InputError(
                    f"{path}, row {number}, column {name!r}: {short(cell, 60)!r} has a quote by itself; put the cell "
                    "in quotes, and write those inside it twice"
                )
    if "\n" in last[-1]:
        raise InputError(f"{path}: a quote is opened in row {number} and never closed; close it")


def _as_windows(path: Path, form: _Format) -> tuple[_Format, str]:
    """The format of a file that is not UTF-8, and the first place that shows it."""
    data = path.read_bytes()
    try:
        data.decode("utf-8")
        position = 0
    except UnicodeDecodeError as error:
        position = error.start
    try:
        data.decode("cp1252")
        encoding = "cp1252"
    except UnicodeDecodeError:  # five bytes are nothing there
        encoding = "latin-1"
    del data
    form = _Format(encoding, form.separator, form.line_end)
    return form, _place(path, form, position)
