"""Did you mean: the known names that are most like one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LIKE = 0.4


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Up to so many names like this one, the most like first."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=_LIKE)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`; did you mean 'x'?` for the end of a message, or what to say where nothing is like it."""
    near = nearest(name, known)
    return f"; did you mean {near[0]!r}?" if near else otherwise
