"""Every table and figure of the paper."""

from fedhip.reproduce.bench import Bench
from fedhip.reproduce.cells import Store
from fedhip.reproduce.settings import (
    STUDIES,
    Settings,
    Source,
    choose_methods,
    choose_regimes,
    choose_studies,
    subset,
)
from fedhip.reproduce.study import reproduce

__all__ = [
    "STUDIES",
    "Bench",
    "Settings",
    "Source",
    "Store",
    "choose_methods",
    "choose_regimes",
    "choose_studies",
    "reproduce",
    "subset",
]
