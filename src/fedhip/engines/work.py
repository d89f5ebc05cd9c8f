"""What a task does in the process that it runs in: a function of some items, and sums of what others found."""

from __future__ import annotations

import platform
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch

from fedhip import __version__
from fedhip.engines.lending import Store, give_back
from fedhip.engines.parcels import Parcel, pack, unpack
from fedhip.errors import FedHiPError
from fedhip.utils.parallel import one_thread


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


def results_of(found: Found) -> Iterator[Any]:
    """What was found, one after the other; then how the first item failed that did. Its warnings are given here."""
    for one in found.warned:
        warnings.warn_explicit(one.message, one.category, one.file, one.line)
    yield from found.results
    if found.error is not None:
        raise found.error


def mapped(function: Callable[[Any], Any], items: Parcel, store: Store) -> Parcel:
    """`Found` of the function of each item."""
    return pack(found_of(function, unpack(items, store)))


def mapped_and_added(
    functions: tuple[Callable[[Any], Any], Callable[[Any, Any], Any]], items: Parcel, store: Store
) -> tuple[Parcel | None, Parcel]:
    """The sum of the first function of each item, None if one failed; and `Found` of what the second sees of each."""
    term, look = functions
    total: Any = None

    def looked(item: Any) -> Any:
        nonlocal total
        own = term(item)
        total = own if total is None else total + own
        return look(item, own)

    found = found_of(looked, unpack(items, store))
    return None if found.error is not None else pack(total), pack(found)


def added(parcels: list[Parcel], store: Store) -> Parcel:
    """The sum of sums."""
    return pack(reduce(add, (unpack(parcel, store) for parcel in parcels)))
