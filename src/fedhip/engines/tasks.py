"""What a task of a Ray cluster does, in the process that it runs in: a function of some items, and sums of results."""

from __future__ import annotations

import platform
import traceback
import warnings
from collections.abc import Callable
from functools import lru_cache, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch

from fedhip import __version__
from fedhip.engines.rows import give_back
from fedhip.errors import FedHiPError
from fedhip.utils.parallel import one_thread

#: The place of a function in the object store, in a list, so that it is not read anew for every task.
Known = list[Any]


class Warned(NamedTuple):
    """A warning, to be given again where somebody reads it."""

    message: str
    category: type[Warning]
    file: str
    line: int


class Found(NamedTuple):
    """What a task found of its items, up to the first that failed; and how that one failed."""

    results: list[Any]
    error: Exception | None
    warned: list[Warned]
    #: What it was computed by, where that decides last bits.
    processor: str


def versions() -> dict[str, str]:
    """Of everything that decides what is computed."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"fedhip": __version__, "torch": torch.__version__, "numpy": np.__version__, "Python": python}


def processor() -> str:
    """Which instructions are used."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def require_versions(theirs: dict[str, str]) -> None:
    """Refuse to compute with other versions: the bits would not be the same."""
    for name, own in versions().items():
        if theirs[name] != own:
            raise FedHiPError(
                f"a node of the cluster has {name} {own}, and the run {theirs[name]}; install the same on all nodes"
            )


def each(function: Known, theirs: dict[str, str], items: list[Any]) -> Found:
    """A function of each item."""
    require_versions(theirs)
    return found_of(_read(*function), items)


def each_and_sum(functions: Known, theirs: dict[str, str], items: list[Any]) -> tuple[Any, Found]:
    """The sum of the first function of each item, None if one failed; and what the second sees of each."""
    require_versions(theirs)
    term, look = _read(*functions)
    total: Any = None

    def looked(item: Any) -> Any:
        nonlocal total
        own = term(item)
        total = own if total is None else total + own
        return look(item, own)

    found = found_of(looked, items)
    return None if found.error is not None else total, found


def sum_of(*terms: Any) -> Any:
    """The sum of sums.

    They are arguments, which Ray fetches before the task has a processor: one that waited on it for a lost term would
    keep the term from being made again.
    """
    return reduce(add, terms)


@lru_cache(maxsize=1)
def _read(place: Any) -> Any:
    import ray

    return ray.get(place)


def found_of(function: Callable[[Any], Any], items: list[Any]) -> Found:
    """A function of each item, on one thread."""
    results: list[Any] = []
    error: Exception | None = None
    with warnings.catch_warnings(record=True) as told, one_thread():
        warnings.simplefilter("always")
        try:
            for item in items:
                results.append(function(item))
                give_back()
        except Exception as failed:
            if not isinstance(failed, FedHiPError):
                failed.add_note("".join(traceback.format_exception(failed)))
            error = failed
        finally:
            give_back()
    warned = [Warned(str(one.message), one.category, one.filename, one.lineno) for one in told]
    return Found(results, error, warned, processor())
