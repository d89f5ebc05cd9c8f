"""Every table and figure of the paper."""

from fedhip.experiments.reproduce.bench import Bench
from fedhip.experiments.reproduce.cells import Store
from fedhip.experiments.reproduce.errors import ReproduceError
from fedhip.experiments.reproduce.settings import (
    STUDIES,
    Settings,
    Source,
    choose_methods,
    choose_regimes,
    choose_studies,
    subset,
)
from fedhip.experiments.reproduce.study import reproduce

__all__ = [
    "STUDIES",
    "Bench",
    "ReproduceError",
    "Settings",
    "Source",
    "Store",
    "choose_methods",
    "choose_regimes",
    "choose_studies",
    "reproduce",
    "subset",
]
