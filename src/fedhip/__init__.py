"""Personalized federated learning in one round and closed form."""

from fedhip.core import PersonalizationPath, Statistics, aggregate, personalize, solve_global
from fedhip.core.errors import FedHiPError

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
