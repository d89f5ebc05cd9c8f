"""Personalized federated learning in one round and closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.errors import FedHiPError
from fedhip.utils.late import late

if TYPE_CHECKING:
    from fedhip.core import PersonalizationPath, Statistics, aggregate, personalize, solve_global
    from fedhip.runs.folder import Run
    from fedhip.runs.run import open_run, run
else:
    __getattr__ = late(
        __name__,
        core="PersonalizationPath Statistics aggregate personalize solve_global",
        **{"runs.folder": "Run", "runs.run": "open_run run"},
    )

__version__ = "0.1.0"

__all__ = [
    "FedHiPError",
    "PersonalizationPath",
    "Run",
    "Statistics",
    "__version__",
    "aggregate",
    "open_run",
    "personalize",
    "run",
    "solve_global",
]
