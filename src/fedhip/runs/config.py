"""`config.toml`: the options of a run, flat, by their names; the same file starts the run again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from fedhip.errors import InputError
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.toml import Value, read_toml


def read_config(path: Path, known: Iterable[str], of_numbers: Collection[str] = ()) -> dict[str, Value]:
    """The file's options; a key that is none of `known` is refused with the nearest that is.

    Lists are of strings, but for the options `of_numbers`, which are lists of numbers.
    """
    content = read_toml(path, "check the path", what="configuration file", name="config.toml")
    names = sorted(known)
    options: dict[str, Value] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in names:
            guess = did_you_mean(name, names, f"; the keys are {', '.join(names)}")
            raise InputError(f"{path}: there is no option '{key}'{guess}")
        if name in options:
            raise InputError(f"{path}: '{key}' is there twice, once with '-' and once with '_'; keep one")
        if name in of_numbers and not _is_list_of(value, int, float):
            raise InputError(f"{path}: '{key}' must be a list of numbers")
        if name not in of_numbers and not _is_value(value):
            raise InputError(f"{path}: '{key}' must be a string, a number, true, false or a list of strings")
        options[name] = value
    return options


def _is_value(value: Any) -> bool:
    return _is_list_of(value, str) if isinstance(value, list) else isinstance(value, str | int | float | bool)


def _is_list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(type(item) in kinds for item in value)
