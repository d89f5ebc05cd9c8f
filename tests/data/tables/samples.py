"""Small tables as files: a few hospitals, columns of every kind, values missing here and there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

HEADER = ("id", "age", "pressure", "sex", "smoker", "seen", "hospital", "diagnosis")
HOSPITALS = ("bern", "chur", "genf")
ROWS = 60


def cells(rows: int = ROWS, seed: int = 0) -> dict[str, list[Any]]:
    """Columns by name; None where a value is missing."""
    random = np.random.default_rng(seed)
    age = random.integers(20, 90, rows)
    ill = age + random.normal(0, 12, rows) > 55
    columns: dict[str, list[Any]] = {
        "id": [f"p{i:04d}" for i in random.permutation(rows)],
        "age": [float(value) for value in age],
        "pressure": [
            None if i % 7 == 3 else round(float(value), 1) for i, value in enumerate(random.normal(130, 15, rows))
        ],
        "sex": [None if i % 11 == 5 else str(value) for i, value in enumerate(random.choice(["f", "m"], rows))],
        "smoker": [bool(value) for value in random.integers(0, 2, rows)],
        "seen": [f"20{value:02d}-0{1 + value % 9}-1{value % 10}" for value in random.integers(10, 25, rows)],
        "hospital": [HOSPITALS[value] for value in random.integers(0, len(HOSPITALS), rows)],
        "diagnosis": ["ill" if value else "well" for value in ill],
    }
    return {name: columns[name] for name in HEADER}


def as_text(value: Any, missing: str = "") -> str:
    return missing if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def write_csv(path: Path, columns: dict[str, list[Any]] | None = None, separator: str = ",", missing: str = "") -> Path:
    columns = cells() if columns is None else columns
    lines = [separator.join(columns)]
    lines += [separator.join(as_text(value, missing) for value in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
