"""`columns.toml`: what turns a table into features, agreed by everybody and kept with every model.

    schema = 1                          [columns.age]            [columns.sex]
    label = "diagnosis"                 kind = "number"          kind = "category"
    client = "hospital"                 unit = "years"           values = ["f", "m"]
    missing = ["", "NA", "?"]           low = 20.0               missing = true
                                        high = 90.0

A number, a boolean and a date (in days) are one feature each, a category one for each of its values and one for all
others. `missing = true` adds one that says where a value is missing. `low` and `high` are where values are expected.
`fill` stands in for missing values: the federation's mean, which is known once the clients' sums are.

    [columns.note]
    kind = "text"                       as many features as its backbone makes (`width`), by weights and tokenizer of
    backbone = "minilm"                 one digest (`identity`); where these two are not said, they are looked up
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedhip.errors import InputError
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.text import readable
from fedhip.utils.toml import read_toml, write_toml

SCHEMA = 1
#: What a cell without a value holds, where the description does not say otherwise; case does not matter.
MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "null", "None", "?")
KINDS = ("number", "boolean", "date", "category", "text", "dropped")
#: More values than this are no category.
MOST_VALUES = 10_000
OTHER, ABSENT = "(other)", "(missing)"

_HEADING = """What turns the table into features. Everybody who takes part uses the same file, and it is kept with the
models: it holds no rows, but lists the values of categories and where numbers are expected.
kind: number, boolean, date (in days; format as in strftime), category (values), text (backbone), dropped
missing: true adds a feature that says where a value is missing; low, high, unit: what is expected"""


_OF_TEXT = ("backbone", "pooling", "width", "identity")
_OPTIONAL = ("unit", "low", "high", "format", "missing", "fill", "note", "backbone", "pooling", "identity")
#: No encoder of text is wider.
_WIDEST = 1 << 16


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Parameters
    ----------
    name : str
    kind : "number", "boolean", "date", "category", "text" or "dropped"
    values : tuple of str
        Of a category; any other value is one feature of its own.
    missing : bool
        Whether a feature says where the value is missing.
    low, high : float or None
        Where numbers are expected; a table that differs is taken, with a warning.
    unit : str
        For people: what numbers are in.
    format : str
        Of a date that is text, as in strftime.
    fill : float or None
        What stands in for a missing number, boolean or date; None until the sums are known.
    note : str
        For people, such as why it is dropped.
    backbone, pooling, identity : str
        Of text: the name of what makes features of it, how (as --pooling), and the digest of its weights and tokenizer.
    width : int
        Of text: how many features that makes; 0 until it is looked up.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    missing: bool = False
    low: float | None = None
    high: float | None = None
    unit: str = ""
    format: str = ""
    fill: float | None = None
    note: str = ""
    backbone: str = ""
    pooling: str = ""
    width: int = 0
    identity: str = ""

    @property
    def is_value(self) -> bool:
        """Whether its first feature is its value, which can be missing."""
        return self.kind in ("number", "boolean", "date")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of what it becomes."""
        if self.kind == "dropped":
            return ()
        if self.is_value:
            own: tuple[str, ...] = (self.name,)
        elif self.kind == "text":
            own = tuple(f"{self.name}[{number}]" for number in range(1, self.width + 1))
        else:
            own = tuple(f"{self.name}={value}" for value in (*self.values, OTHER))
        return (*own, f"{self.name}={ABSENT}") if self.missing else own

    def to_dict(self) -> dict[str, Any]:
        """What it says, without what it leaves open."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind == "category":
            found["values"] = list(self.values)
        if self.width:
            found["width"] = self.width
        for name in _OPTIONAL:
            if (value := getattr(self, name)) is not None and value != "" and value is not False:
                found[name] = value
        return found


@dataclass(frozen=True)
class Description:
    """The columns in their order, and which of the table's other columns say what is predicted, and whose a row is."""

    columns: tuple[Column, ...]
    labels: tuple[str, ...] = ()
    client: str | None = None
    group: str | None = None
    weight: str | None = None
    missing: tuple[str, ...] = field(default=MISSING)

    def __post_init__(self) -> None:
        roles = self.roles
        for name in (*roles, *(column.name for column in self.columns)):
            if readable(name) != name:
                raise InputError(f"the name of a column is {readable(name)!r}; names are UTF-8 text")
        for i, name in enumerate(roles):
            if name in roles[:i]:
                raise InputError(
                    f"column {name!r} is named twice among label, client, group and weight; each has a column of its "
                    "own"
                )
        for column in self.columns:
            if column.name in roles and column.kind != "dropped":
                raise InputError(
                    f"column {column.name!r} is {self.role_of(column.name)} and a feature too; leave it out of "
                    "[columns], or it would give itself away"
                )
        if not self.used:
            raise InputError("no column is left to predict from; describe one that is not dropped")

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are no features: labels, client, group, weight."""
        return (*self.labels, *(name for name in (self.client, self.group, self.weight) if name is not None))

    def role_of(self, name: str) -> str:
        """What such a column is, in words."""
        named = {self.client: "the client", self.group: "the group", self.weight: "the weight"}
        return named.get(name, "the label")

    @cached_property
    def used(self) -> tuple[Column, ...]:
        """The columns that become features."""
        return tuple(column for column in self.columns if column.kind != "dropped")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(name for column in self.used for name in column.features)

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(self.names)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Where each used column's features begin."""
        found, place = {}, 0
        for column in self.used:
            found[column.name] = place
            place += len(column.features)
        return found

    @cached_property
    def values(self) -> tuple[Column, ...]:
        """The used columns whose first feature is a value that can be missing."""
        return tuple(column for column in self.used if column.is_value)

    @cached_property
    def texts(self) -> tuple[Column, ...]:
        """The columns of text."""
        return tuple(column for column in self.columns if column.kind == "text")

    def with_columns(self, changed: Iterable[Column]) -> Description:
        """With these columns in the places of those of their names."""
        by_name = {column.name: column for column in changed}
        return replace(self, columns=tuple(by_name.get(column.name, column) for column in self.columns))

    def with_fills(self, fills: Mapping[str, float]) -> Description:
        """With what stands in for missing values, by column."""
        return self.with_columns(
            replace(column, fill=fills[column.name]) for column in self.columns if column.name in fills
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values; the columns are a list, for their order is that of the features, and JSON may lose it."""
        found: dict[str, Any] = {"schema": SCHEMA}
        if self.labels:
            found["label"] = self.labels[0] if len(self.labels) == 1 else list(self.labels)
        for name in ("client", "group", "weight"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        found["missing"] = list(self.missing)
        found["columns"] = [column.to_dict() for column in self.columns]
        return found

    def digest(self) -> str:
        """SHA-256 of all that it says."""
        return hashlib.sha256(json.dumps(self.to_dict(), ensure_ascii=False).encode()).hexdigest()

    def to_toml(self) -> str:
        """columns.toml."""
        found = self.to_dict()
        columns = {entry.pop("name"): entry for entry in found.pop("columns")}
        return write_toml({**found, "columns": columns}, _HEADING)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "the description of columns") -> Description:
        """What `to_dict` gave or the file holds, checked; `where` is what to call it."""
        content = _table(content, where)
        _known(content, ("schema", "label", "client", "group", "weight", "missing", "columns"), where)
        if content.get("schema") != SCHEMA or isinstance(content.get("schema"), bool):
            raise InputError(
                f"{where} has the schema {str(content.get('schema'))[:20]}, and this fedhip reads {SCHEMA}; "
                f"write 'schema = {SCHEMA}', or use the version that wrote it"
            )
        label = content.get("label", [])
        columns = _entries(content.get("columns"), where)
        try:
            return cls(
                columns=tuple(
                    _column(name, _table(entry, f"{where}: column {name!r}"), f"{where}: column {name!r}")
                    for name, entry in columns
                ),
                labels=_texts([label] if isinstance(label, str) else label, f"{where}: label"),
                client=_text(content.get("client"), f"{where}: client"),
                group=_text(content.get("group"), f"{where}: group"),
                weight=_text(content.get("weight"), f"{where}: weight"),
                missing=_texts(content.get("missing", list(MISSING)), f"{where}: missing"),
            )
        except InputError as error:
            raise error if str(error).startswith(where) else InputError(f"{where}: {error}") from None

    @classmethod
    def from_file(cls, path: str | Path) -> Description:
        """Read columns.toml."""
        path = Path(path)
        content = read_toml(path, f"draft one with: fedhip describe TABLE {path}", name="columns.toml")
        return cls.from_dict(content, str(path))


def _entries(columns: object, where: str) -> list[tuple[str, Any]]:
    """Each column's name and what is said of it, from a list of entries with names or from the tables of a file."""
    if not isinstance(columns, list):
        return list(_table(columns, f"{where}: [columns]").items())
    found = [dict(_table(entry, f"{where}: a column")) for entry in columns]
    named = [(_text(entry.pop("name", None), f"{where}: the name of a column"), entry) for entry in found]
    if any(name is None for name, _ in named) or len({name for name, _ in named}) < len(named):
        raise InputError(f"{where}: a column has no name, or that of another; give each its own")
    return [(str(name), entry) for name, entry in named]


def _column(name: str, entry: Mapping[str, Any], where: str) -> Column:
    _known(entry, ("kind", "values", "missing", "low", "high", "unit", "format", "fill", "note", *_OF_TEXT), where)
    kind = entry.get("kind")
    if kind not in KINDS:
        guess = did_you_mean(str(kind), KINDS)
        raise InputError(f"{where}: kind is {kind!r}; it is one of {', '.join(KINDS)}{guess}")
    values = _texts(entry.get("values", []), f"{where}: values")
    if kind == "category" and "values" not in entry:
        raise InputError(f"{where} is a category without 'values'; list them")
    if kind != "category" and "values" in entry:
        raise InputError(f"{where} is a {kind}, which has no 'values'; leave them out, or make it a category")
    if len(values) > MOST_VALUES:
        raise InputError(f"{where} lists {len(values):,} values, and at most {MOST_VALUES:,} are taken; drop it")
    twice = next((value for i, value in enumerate(values) if value in values[:i]), None) if len(values) < 500 else None
    if twice is not None or len(set(values)) < len(values):
        raise InputError(f"{where} lists a value twice{'' if twice is None else f', {twice!r}'}; keep one")
    if bad := [value for value in values if value in (OTHER, ABSENT)]:
        raise InputError(f"{where} lists the value {bad[0]!r}, which stands for others; rename it in the table")
    missing = entry.get("missing", False)
    if not isinstance(missing, bool):
        raise InputError(f"{where}: missing is {missing!r}; give true or false")
    low, high, fill = (_number(entry.get(key), f"{where}: {key}") for key in ("low", "high", "fill"))
    if low is not None and high is not None and low > high:
        raise InputError(f"{where}: low is {low:g} and high is {high:g}; give the smaller one as low")
    unit, form, note = (_text(entry.get(key), f"{where}: {key}") or "" for key in ("unit", "format", "note"))
    backbone, pooling, identity = (
        _text(entry.get(key), f"{where}: {key}") or "" for key in ("backbone", "pooling", "identity")
    )
    if kind != "text" and (given := [key for key in _OF_TEXT if key in entry]):
        raise InputError(f"{where} is a {kind}, which has no {given[0]!r}; leave it out, or make it text")
    if kind == "text" and not backbone:
        raise InputError(f"{where} is text without 'backbone', which makes features of it; name one, such as minilm")
    width = entry.get("width", 0)
    if type(width) is not int or not 0 <= width <= _WIDEST:
        raise InputError(f"{where}: width is {width!r}; give a whole number, or leave it out")
    return Column(name, kind, values, missing, low, high, unit, form, fill, note, backbone, pooling, width, identity)


def _known(content: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in keys:
            guess = did_you_mean(key, keys, f"; the keys are {', '.join(keys)}")
            raise InputError(f"{where}: there is no key {key!r}{guess}")


def _table(content: object, where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise InputError(f"{where} is missing or no table; draft one with: fedhip describe TABLE")
    return content


def _text(value: object, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where} is {value!r}; give text in quotes")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{where} must be a list of texts in quotes")
    return tuple(value)


def _number(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where} is {value!r}; give a number")
    return float(value)
