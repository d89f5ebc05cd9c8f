"""The heads that a run's models can have: the paper's ridge, the discriminant, logistic regression, or a choice."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedhip.errors import InputError
from fedhip.heads.auto import Auto
from fedhip.heads.head import Head
from fedhip.heads.lda import Lda
from fedhip.heads.logistic import Logistic
from fedhip.heads.ridge import Ridge
from fedhip.utils.nearest import did_you_mean

__all__ = ["HEADS", "Auto", "Head", "Lda", "Logistic", "Ridge", "head_named"]

#: Every head by name.
HEADS: Mapping[str, type[Head]] = MappingProxyType({head.name: head for head in (Ridge, Lda, Logistic, Auto)})


def head_named(name: str) -> type[Head]:
    """The head of this name."""
    if name not in HEADS:
        raise InputError(f"there is no head {name!r}; choose among {', '.join(HEADS)}{did_you_mean(name, HEADS)}")
    return HEADS[name]
