"""The mathematics of FedHiP: statistics that add, and models in closed form from their sum.

No I/O but the statistics' own file, no randomness, no global state. `fedhip.core.paper` holds the paper's own
letters and recursion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.utils.late import late

if TYPE_CHECKING:
    from fedhip.core.ridge.aggregation import aggregate, solve_global
    from fedhip.core.ridge.alone import RidgePath
    from fedhip.core.ridge.path import DEFAULT_ALPHAS, PersonalizationPath
    from fedhip.core.ridge.personalization import personalize, personalize_from_statistics
    from fedhip.core.ridge.regularization import LooScore, RegularizationPath, default_betas
    from fedhip.core.standardization import Standardization
    from fedhip.core.statistics import Statistics
else:
    __getattr__ = late(
        __name__,
        standardization="Standardization",
        statistics="Statistics",
        **{
            "ridge.aggregation": "aggregate solve_global",
            "ridge.alone": "RidgePath",
            "ridge.path": "DEFAULT_ALPHAS PersonalizationPath",
            "ridge.personalization": "personalize personalize_from_statistics",
            "ridge.regularization": "LooScore RegularizationPath default_betas",
        },
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
