"""Personalized federated learning in one round and closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.core.errors import FedHiPError
from fedhip.utils.late import late

if TYPE_CHECKING:
    from fedhip.core import PersonalizationPath, Statistics, aggregate, personalize, solve_global
else:
    __getattr__ = late(__name__, core="PersonalizationPath Statistics aggregate personalize solve_global")

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
