"""Personalized federated learning in one round and closed form."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedhip.core.errors import FedHiPError

if TYPE_CHECKING:
    from fedhip.core import PersonalizationPath, Statistics, aggregate, personalize, solve_global
else:

    def __getattr__(name):
        """The mathematics when it is asked for: torch takes two seconds, and a site's short answers need none of it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("fedhip.core"), name)


__version__ = "0.1.0"

__all__ = [
    "FedHiPError",
    "PersonalizationPath",
    "Statistics",
    "__version__",
    "aggregate",
    "personalize",
    "solve_global",
]
