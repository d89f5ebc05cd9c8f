"""What was done with each column, in words and as plain values for a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedhip.data.tables.description import Column, Description
from fedhip.utils.words import count, listed


def column_report(description: Description, missing: Mapping[str, int], rows: int) -> list[dict[str, Any]]:
    """An entry for each column of the table: name, kind, features, missing values, and what was done in words."""
    roles = [
        {"name": name, "kind": description.role_of(name).removeprefix("the "), "features": 0, "missing": 0, "done": ""}
        for name in description.roles
    ]
    columns = [
        {
            "name": column.name,
            "kind": column.kind,
            "features": len(column.features),
            "missing": missing.get(column.name, 0),
            "done": done_with(column, missing.get(column.name, 0), rows),
        }
        for column in description.columns
    ]
    return [*roles, *columns]


def done_with(column: Column, missing: int, rows: int) -> str:
    """What became of a column."""
    if column.kind == "dropped":
        return f"left out: {column.note}" if column.note else "left out"
    parts = [
        {
            "number": "used as it is",
            "boolean": "1 for true, 0 for false",
            "date": "days since 1970-01-01",
            "category": f"{count(len(column.values), 'value')}, a feature each, and one for any other",
            "text": f"{count(column.width, 'feature')} by {column.backbone}",
        }[column.kind]
    ]
    if column.unit:
        parts[0] += f", in {column.unit}"
    if missing:
        share = f"{missing:,} of {rows:,} missing"
        if column.is_value and column.fill is not None:
            share += f", filled with {column.fill:.4g}"
        parts.append(share + (" and marked by a feature" if column.missing else ""))
    elif column.missing:
        parts.append("a feature marks missing values")
    return "; ".join(parts)


def summary(description: Description, entries: Sequence[Mapping[str, Any]]) -> str:
    """One line: how many columns became how many features, and what was left out or filled."""
    plural = {"category": "categories", "text": "texts"}
    kinds = [entry["kind"] for entry in entries]
    used = [
        count(kinds.count(kind), kind, plural.get(kind))
        for kind in ("number", "boolean", "date", "category", "text")
        if kind in kinds
    ]
    dropped = [entry["name"] for entry in entries if entry["kind"] == "dropped"]
    filled = [entry["name"] for entry in entries if entry["missing"]]
    parts = [f"{listed(used)} → {count(description.width, 'feature')}"]
    if filled:
        parts.append(f"missing values in {_few(filled)}")
    if dropped:
        parts.append(f"left out: {_few(dropped)}")
    return "; ".join(parts)


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def shown_range(column: Column) -> str:
    """Where numbers are expected, or which values."""
    if column.kind == "text":
        return column.backbone
    if column.kind == "category":
        return ", ".join(column.values[:4]) + ", …" * (len(column.values) > 4)
    if column.low is None or column.high is None:
        return column.format
    return f"{column.low:g} to {column.high:g}{' ' + column.unit if column.unit else ''}"
