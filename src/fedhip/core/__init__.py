"""The mathematics of FedHiP: statistics that add, and models in closed form from their sum.

No I/O but the statistics' own file, no randomness, no global state. `fedhip.core.paper` holds the paper's own
letters and recursion.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedhip.core.aggregation import aggregate, solve_global
    from fedhip.core.path import (
        DEFAULT_ALPHAS,
        LooScore,
        PersonalizationPath,
        RegularizationPath,
        default_betas,
    )
    from fedhip.core.personalization import personalize, personalize_from_statistics
    from fedhip.core.ridge import RidgePath
    from fedhip.core.standardization import Standardization
    from fedhip.core.statistics import Statistics
else:
    _WHERE = {
        "aggregate": "aggregation",
        "solve_global": "aggregation",
        "personalize": "personalization",
        "personalize_from_statistics": "personalization",
        "RidgePath": "ridge",
        "Standardization": "standardization",
        "Statistics": "statistics",
    }

    def __getattr__(name):
        """Imported when asked for: who only wants the errors does not wait for torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"fedhip.core.{_WHERE.get(name, 'path')}"), name)


__all__ = [
    "DEFAULT_ALPHAS",
    "LooScore",
    "PersonalizationPath",
    "RegularizationPath",
    "RidgePath",
    "Standardization",
    "Statistics",
    "aggregate",
    "default_betas",
    "personalize",
    "personalize_from_statistics",
    "solve_global",
]
