"""Fields of a federation's files, each declared once: its type, default, check, place in the file, and help.

From the declarations follow reading and writing TOML, checking, the digest that everybody compares, and the options of
`fedhip federation init`. A record is a frozen dataclass whose fields are made by `declare`, in the order of the file.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhip.federation.agreement.names import near, shown
from fedhip.federation.errors import SetupError
from fedhip.utils import toml

#: More than any agreement needs; a larger file is none.
LARGEST_FILE = 8 << 20
#: What TOML's whole numbers end below.
LIMIT = 1 << 63
#: A check is given the field's name and value: the value in the one form that is digested, or an error.
Check = Callable[[str, Any], Any]

_REQUIRED: Any = object()


@dataclass(frozen=True)
class Declaration:
    """What is said of a field, beside its name, type and default.

    `absent` is what a file means that does not say it: that value is not written. A field with `help` is an option of
    the command line; `dump` makes of its value what a file can hold.
    """

    table: str
    key: str
    check: Check | None
    absent: Any
    help: str
    metavar: str | None
    dump: Callable[[Any], Any]


def declare(
    table: str = "",
    check: Check | None = None,
    *,
    default: Any = dataclasses.MISSING,
    absent: Any = _REQUIRED,
    key: str = "",
    help: str = "",  # noqa: A002  (as argparse calls it)
    metavar: str | None = None,
    dump: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value,
) -> Any:
    """A field in this table of the file, or above all tables; required there unless it is said what `absent` means."""
    declaration = Declaration(table, key, check, absent, help, metavar, dump)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"declared": declaration})
    return dataclasses.field(default=default, metadata={"declared": declaration})


def declarations(record: Any) -> dict[str, Declaration]:
    """The fields of a record, or of its class, by name."""
    return _declarations(record if isinstance(record, type) else type(record))


@functools.cache
def _declarations(cls: type) -> dict[str, Declaration]:
    found = {field.name: field.metadata["declared"] for field in dataclasses.fields(cls)}
    return {name: dataclasses.replace(each, key=each.key or name) for name, each in found.items()}


def check_fields(record: Any) -> None:
    """Check each field by itself, and give it its one form; to be called first in `__post_init__`."""
    for name, declared in declarations(record).items():
        value = getattr(record, name)
        if declared.check is not None and not (value is None and declared.absent is None):
            object.__setattr__(record, name, declared.check(name, value))


def to_tables(record: Any) -> dict[str, Any]:
    """As a file holds the record: tables and keys in their order, without what is absent."""
    content: dict[str, Any] = {}
    for name, declared in declarations(record).items():
        table = content.setdefault(declared.table, {}) if declared.table else content
        value = getattr(record, name)
        if declared.absent is _REQUIRED or value != declared.absent:
            table[declared.key] = declared.dump(value)
    return content


def from_tables(cls: type, content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of a file by field; refuses what means nothing here, and a required field that is missing."""
    fields, values = declarations(cls), dict[str, Any]()
    flat = [declared.key for declared in fields.values() if not declared.table]
    titles = dict.fromkeys(declared.table for declared in fields.values() if declared.table)
    require_known(content, [*titles, *flat], where)
    for title in titles:
        keys = [declared.key for declared in fields.values() if declared.table == title]
        require_known(require_table(content, title, where), keys, f"{where}: [{title}]")
    for name, declared in fields.items():
        table = content[declared.table] if declared.table else content
        if declared.key in table:
            values[name] = table[declared.key]
        elif declared.absent is _REQUIRED:
            raise SetupError(f"{where}: [{declared.table}] {declared.key} is missing; restore the file")
        else:
            values[name] = declared.absent
    return values


def digest_of(purpose: str, content: Mapping[str, Any]) -> str:
    """SHA-256 of values, in one form whatever the file looks like."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(f"fedhip.{purpose}\n{text}".encode("ascii")).hexdigest()


# Files.


def read_toml(path: Path, missing: str) -> dict[str, Any]:
    """The file's content; `missing` says what to do where there is none."""
    return toml.read_toml(path, missing, largest=LARGEST_FILE, error=SetupError)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """What the text of a file says."""
    return toml.parse_toml(text, where, SetupError)


def require_known(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuse a key that means nothing here, with the nearest that does."""
    names = sorted(known)
    for key in content:
        if key not in names:
            raise SetupError(f"{where}: there is no {shown(key)}{near(key, names)}")


def require_table(content: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The table of this name."""
    table = content.get(name)
    if not isinstance(table, dict):
        found = "is missing" if table is None else f"is {shown(table)}, not a table"
        raise SetupError(f"{where}: [{name}] {found}; restore the file")
    return table


def require_schema(schema: object, known: int, where: str) -> None:
    """Refuse a file of another version of its format."""
    if schema != known or isinstance(schema, bool):
        raise SetupError(
            f"{where} has schema {shown(schema)}, and this fedhip reads {known}; use the version that wrote it"
        )


# Checks.


def require_whole(field: str, value: object, least: int, most: int = LIMIT - 1, why: str = "") -> int:
    """The value, if it is a whole number in this range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        span = f"from {least} to {most}" if most < LIMIT - 1 else f"of at least {least}"
        raise SetupError(f"{field} is {shown(value)}{f', and {why}' if why else ''}; give a whole number {span}")
    return value


def require_number(
    field: str, value: object, *, above: float | None = None, word: str | None = None, most: float | None = None
) -> float:
    """The value, if it is finite, not negative and not above `most`; `above` excludes itself, `word` will do too."""
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if not finite or value < 0.0 or value == above or (most is not None and value > most):  # type: ignore[operator]
        span = "of at least 0" if above is None else f"above {above:g}"
        span += "" if most is None else f" and at most {most:g}"
        other = f"'{word}' or " if word else ""
        raise SetupError(f"{field} is {shown(value)}; give {other}a finite number {span}")
    try:
        return abs(float(value))  # type: ignore[arg-type]  # −0 is 0
    except OverflowError:
        raise SetupError(f"{field} is too large; give a smaller number") from None


def whole(least: int, most: int = LIMIT - 1) -> Check:
    """A whole number in this range."""
    return lambda name, value: require_whole(name, value, least, most)


def number(*words: str, above: float | None = None, most: float | None = None) -> Check:
    """One of these words, or a finite number of at least 0, or above one, and at most another."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        return require_number(name, value, above=above, word="' or '".join(words) or None, most=most)

    return check


def choice(*words: str) -> Check:
    """One of these words."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            raise SetupError(f"{name} is {shown(value)}; give {', '.join(words[:-1])} or {words[-1]}")
        return value

    return check


def flag(name: str, value: Any) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise SetupError(f"{name} is {shown(value)}; give true or false")
    return value


# Options.


@dataclass(frozen=True)
class FieldOption:
    """A field as an option of the command line: `kind` is bool, int, float, or the words that it may be.

    With `words` and a number's kind, both will do.
    """

    name: str
    kind: type
    words: tuple[str, ...]
    help: str
    metavar: str | None


def options_of(cls: type, table: str) -> list[FieldOption]:
    """The fields of a table that have help."""
    hints, found = typing.get_type_hints(cls), []
    for name, declared in declarations(cls).items():
        if declared.table == table and declared.help:
            parts = typing.get_args(hints[name]) or (hints[name],)
            if typing.get_origin(hints[name]) is typing.Literal:
                kinds, words = [], parts
            else:
                kinds = [part for part in parts if part in (bool, int, float)]
                words = tuple(word for part in parts for word in typing.get_args(part))
            found.append(FieldOption(name, kinds[0] if kinds else str, words, declared.help, declared.metavar))
    return found
