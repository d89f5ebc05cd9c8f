"""TOML of a federation, read strictly: with readers that know every key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedhip.federation.agreement.names import near, shown
from fedhip.federation.errors import FederationError

#: More than any agreement needs; a larger file is none.
LARGEST_FILE = 8 << 20


def read_toml(path: Path, error: type[FederationError], missing: str) -> dict[str, Any]:
    """The file's content; `missing` says what to do where there is none."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise error(f"{path} is larger than {LARGEST_FILE >> 20} MB; it is not the file it should be")
        return parse_toml(path.read_text(encoding="utf-8"), str(path), error)
    except FileNotFoundError:
        raise error(f"there is no file {path}; {missing}") from None
    except OSError as problem:
        raise error(f"{path} cannot be read ({problem.strerror}); {missing}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not a TOML file ({problem}); correct it") from None


def parse_toml(text: str, where: str, error: type[FederationError]) -> dict[str, Any]:
    """What the text of a file says."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise error(f"{where} is not a TOML file ({problem}); correct it") from None


def require_known(content: Mapping[str, Any], known: Iterable[str], where: str, error: type[FederationError]) -> None:
    """Refuse a key that means nothing here, with the nearest that does."""
    names = sorted(known)
    for key in content:
        if key not in names:
            raise error(f"{where}: there is no {shown(key)}{near(key, names)}")


def require_table(content: Mapping[str, Any], name: str, where: str, error: type[FederationError]) -> dict[str, Any]:
    """The table of this name."""
    table = content.get(name)
    if not isinstance(table, dict):
        found = "is missing" if table is None else f"is {shown(table)}, not a table"
        raise error(f"{where}: [{name}] {found}; restore the file")
    return table
