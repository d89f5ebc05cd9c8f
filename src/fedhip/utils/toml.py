"""TOML read, with one line for whatever is wrong; and written, so that it is read back as it was."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhip.errors import FedHiPError, InputError
from fedhip.utils.text import readable

Value = str | int | float | bool | list[str] | list[float] | list[Mapping[str, Any]]
Table = Mapping[str, "Value | Table"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(
    path: Path,
    missing: str,
    *,
    what: str = "file",
    name: str = "",
    largest: int | None = None,
    error: type[FedHiPError] = InputError,
) -> dict[str, Any]:
    """The content of a file; `missing` says what to do where there is none, `what` what it should be.

    `name` is what such files are called, for somebody who gives the folder instead. A file of more than `largest` bytes
    is refused.
    """
    try:
        if largest is not None and path.stat().st_size > largest:
            raise error(f"{path} is larger than {largest >> 20} MB; it is not the file it should be")
        return parse_toml(path.read_text(encoding="utf-8-sig"), str(path), error)
    except FileNotFoundError:
        raise error(f"there is no {what} {path}; {missing}") from None
    except IsADirectoryError:
        such_as = f", such as {path / name}" if name else ""
        raise error(f"{path} is a folder; give the file in it{such_as}") from None
    except OSError as problem:
        raise error(f"{path} cannot be read ({problem.strerror}); {missing}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not a TOML file ({problem}); correct it") from None


def parse_toml(text: str, where: str, error: type[FedHiPError] = InputError) -> dict[str, Any]:
    """What the text of a file says."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise error(f"{where} is not a TOML file ({problem}); correct it") from None


def write_toml(content: Table, heading: str = "", path: tuple[str, ...] = ()) -> str:
    """A text with the heading as a comment, values first, then each table under its full name."""
    # A comment may hold no control character.
    lines = ["# " + "".join(c if c.isprintable() else "�" for c in line) for line in readable(heading).splitlines()]
    lines += [f"[{'.'.join(map(_key, path))}]"] if path else []
    lines += [f"{_key(name)} = {_value(value)}" for name, value in content.items() if not isinstance(value, Mapping)]
    parts = ["".join(f"{line}\n" for line in lines)] if lines else []
    parts += [write_toml(table, path=(*path, name)) for name, table in content.items() if isinstance(table, Mapping)]
    return "\n".join(parts)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):  # tables in an order of their own
        lines = "".join(f"    {_value(table)},\n" for table in value)
        return f"[\n{lines}]"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(name)} = {_value(part)}' for name, part in value.items())} }}"
    if isinstance(value, str):
        if readable(value) != value:
            raise InputError(f"{readable(value)} is not UTF-8, as a configuration file must be; rename it")
        # A JSON string is a TOML string, but for the one control character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
