"""The mathematics of FedHiP: statistics that add, and models in closed form from their sum.

No I/O but the statistics' own file, no randomness, no global state. `fedhip.core.paper` holds the paper's own
letters and recursion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.utils.late import late

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
    __getattr__ = late(
        __name__,
        aggregation="aggregate solve_global",
        path="DEFAULT_ALPHAS LooScore PersonalizationPath RegularizationPath default_betas",
        personalization="personalize personalize_from_statistics",
        ridge="RidgePath",
        standardization="Standardization",
        statistics="Statistics",
    )


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
