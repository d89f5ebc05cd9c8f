"""UCI Heart Disease: four hospitals, each with a file of its own, whose columns have no names.

Without a folder of them, the files are fetched from UCI once, and kept in the cache. UCI publishes no hashes: those
here are of its files as many projects have them (FLamby's among them), and what differs is not taken. Files in a folder
of the user's own are taken as they are, with `?`, `NaN` or nothing for a missing value.

The label is whether any vessel is narrowed (`num` above 0). Codes of symptoms and of findings are categories. A resting
pressure or a cholesterol of 0 was not measured (Switzerland has no cholesterol at all) and counts as missing.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from fedhip.data.download import download
from fedhip.data.tables.description import Column, Description
from fedhip.data.tables.reader import Table, polars_or_error
from fedhip.data.tables.rows import TableRows, load_table
from fedhip.errors import DataMissingError, InputError
from fedhip.utils.files import default_cache

PAGE = "https://archive.ics.uci.edu/dataset/45/heart+disease"
ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
MD5 = {
    "processed.cleveland.data": "2d91a8ff69cfd9616aa47b59d6f843db",
    "processed.hungarian.data": "22e96bee155b5973568101c93b3705f6",
    "processed.switzerland.data": "9a87f7577310b3917730d06ba9349e20",
    "processed.va.data": "4249d03ca7711e84f4444768c9426170",
}
#: Hospital, its file, its rows.
HOSPITALS = (
    ("cleveland", "processed.cleveland.data", 303),
    ("hungary", "processed.hungarian.data", 294),
    ("switzerland", "processed.switzerland.data", 123),
    ("long-beach", "processed.va.data", 200),
)
_UNNAMED = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
_NOT_MEASURED = ("trestbps", "chol")  # where it is 0
DESCRIPTION = Description(
    columns=(
        Column("age", "number", low=25.0, high=80.0, unit="years"),
        Column("sex", "boolean", note="1 is male"),
        Column("cp", "category", ("1", "2", "3", "4"), note="kind of chest pain"),
        Column("trestbps", "number", missing=True, low=90.0, high=190.0, unit="mmHg", note="resting blood pressure"),
        Column("chol", "number", missing=True, low=120.0, high=420.0, unit="mg/dl", note="serum cholesterol"),
        Column("fbs", "boolean", missing=True, note="fasting blood sugar above 120 mg/dl"),
        Column("restecg", "category", ("0", "1", "2"), missing=True, note="resting electrocardiogram"),
        Column("thalach", "number", missing=True, low=70.0, high=200.0, unit="1/min", note="highest heart rate"),
        Column("exang", "boolean", missing=True, note="pain under exercise"),
        Column("oldpeak", "number", missing=True, low=-1.0, high=5.0, unit="mm", note="ST depression under exercise"),
        Column("slope", "category", ("1", "2", "3"), missing=True, note="of the ST segment"),
        Column("ca", "number", missing=True, low=0.0, high=3.0, note="vessels seen by fluoroscopy"),
        Column("thal", "category", ("3", "6", "7"), missing=True, note="thallium scan"),
    ),
    labels=("diagnosis",),
    client="hospital",
)


def load_heart(data: Path | None, description: Description | None = None) -> TableRows:
    """The rows of all four hospitals, from UCI's files in a folder; without one, from the cache, or from UCI."""
    pl = polars_or_error()
    get = f"download the four processed.*.data files from {PAGE} into one folder, and give it with --data DIR"
    if data is None:
        data = default_cache() / "heart"
        for _, name, _ in HOSPITALS:
            download(f"{ADDRESS}/{name}", data / name, md5=MD5[name], remedy=get)
    if not data.is_dir():
        raise DataMissingError(f"{data} is no folder; {get}")
    cells: list[list[Any]] = []
    for hospital, name, rows in HOSPITALS:
        found = _read(data / name, rows, get)
        cells += [[hospital, *row] for row in found]
    names = ("hospital", *_UNNAMED[:-1], "diagnosis")
    frame = pl.DataFrame({name: [row[i] for row in cells] for i, name in enumerate(names)})
    return load_table(Table(str(data), frame), description=description or DESCRIPTION)


def _read(path: Path, rows: int, get: str) -> list[list[str]]:
    if not path.is_file():
        raise DataMissingError(f"{path} is not there; {get}")
    found = []
    with path.open(encoding="latin-1", newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if not row:
                continue
            if len(row) != len(_UNNAMED):
                raise InputError(f"{path}, row {number} has {len(row)} cells, not {len(_UNNAMED)}; {get} again")
            *values, answer = (cell.strip() for cell in row)
            if answer not in ("0", "1", "2", "3", "4"):
                raise InputError(f"{path}, row {number}: the diagnosis is {answer[:20]!r}, not 0 to 4; {get} again")
            for column in _NOT_MEASURED:
                place = _UNNAMED.index(column)
                values[place] = "" if _is_zero(values[place]) else values[place]
            found.append([*values, "healthy" if answer == "0" else "disease"])
    if len(found) != rows:
        raise DataMissingError(f"{path} has {len(found)} rows, not {rows}: it is not complete; {get} again")
    return found


def _is_zero(cell: str) -> bool:
    try:
        return float(cell) == 0.0
    except ValueError:
        return False
