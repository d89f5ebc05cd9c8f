"""Options of heads and methods: declared by each, as users write them, and checked as they were declared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedhip.errors import InputError
from fedhip.simulation.options import Alpha
from fedhip.utils.nearest import did_you_mean

if TYPE_CHECKING:
    from fedhip.heads.head import Head


@dataclass(frozen=True)
class Option:
    """A number of at least 0; without a default, what it sets is chosen from the data unless it is given.

    `whole` numbers are at least 1, those that are `positive` above 0, none is above `most`. With `follows_epochs` it is
    the protocol's number of epochs unless it is given.
    """

    name: str
    default: float | None = None
    whole: bool = False
    positive: bool = False
    most: float = math.inf
    follows_epochs: bool = False

    def check(self, value: float, title: str) -> float:
        """The value, if it makes sense; `title` is whose option it is."""
        wanted = None
        if not (math.isfinite(value) and value >= 0):
            wanted = "a number of at least 0"
        elif self.whole and (value != int(value) or value < 1):
            wanted = "a whole number of at least 1"
        elif self.positive and value == 0:
            wanted = "a number above 0"
        elif value > self.most:
            wanted = f"a number of at most {self.most:g}"
        if wanted is not None:
            raise InputError(f"{title}: {self.name} is {value!r}; give {wanted}")
        return float(value)


def checked_options(
    title: str, options: Sequence[Option], given: Mapping[str, float], epochs: int | None = None
) -> dict[str, float]:
    """All options of what has this title: those given, if it has them and can take them, and the others' defaults."""
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            others = f"; there are {', '.join(known)}" if known else "; it has none"
            raise InputError(f"{title} has no option {name!r}{did_you_mean(name, known, others)}")
    defaults = {
        option.name: float(epochs if option.follows_epochs and epochs is not None else option.default)
        for option in options
        if option.default is not None
    }
    return defaults | {name: known[name].check(value, title) for name, value in given.items()}


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
            raise InputError(f"an option of a head is {pair!r}; give NAME=NUMBER, such as penalty=50")
    return options


def options_of(head: type[Head], alpha: Alpha, given: Mapping[str, float]) -> dict[str, float]:
    """All options of a head: those given, α if it is a number and the head takes one, and the defaults."""
    takes_alpha = any(option.name == "alpha" for option in head.options)
    fixed = {"alpha": float(alpha)} if alpha != "loo" and takes_alpha else {}
    return checked_options(head.title, head.options, {**fixed, **given})
