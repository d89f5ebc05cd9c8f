"""Options of a head, as users write them and as its method takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedhip.heads.errors import HeadOptionError
from fedhip.heads.head import Head
from fedhip.methods import METHODS, checked_options
from fedhip.phases import Alpha


def numbers_of(pairs: Iterable[str]) -> dict[str, float]:
    """NAME=NUMBER, one by one."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            options[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not (name.strip() and equals):
            raise HeadOptionError(f"an option of a head is {pair!r}; give NAME=NUMBER, such as penalty=50")
    return options


def options_of(head: type[Head], alpha: Alpha, given: Mapping[str, float]) -> dict[str, float]:
    """All options of the head's method: those given, α if it is a number and the head takes one, and the defaults."""
    info = METHODS[head.method]
    fixed = {} if alpha == "loo" or "alpha" not in info.optional else {"alpha": float(alpha)}
    return checked_options(info, {**fixed, **given})
