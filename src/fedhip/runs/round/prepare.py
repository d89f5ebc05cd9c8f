"""What is given to a run as rows: arrays, a feature file, a table; and what made features of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhip.core.exact.columns import Columns
from fedhip.data import FeatureSet, Partition, feature_set, read_features
from fedhip.data.tables import Description, TableRows, is_table, load_table
from fedhip.errors import InputError
from fedhip.features.text_columns import TextColumns
from fedhip.simulation.tasks import Task
from fedhip.utils.words import listed

Json = dict[str, Any]


@dataclass(frozen=True)
class Described:
    """What turned a table into features, and what was done with each of its columns."""

    description: Description
    report: list[Json]

    @classmethod
    def divided(cls, rows: TableRows, partition: Partition) -> tuple[FeatureSet, Described]:
        """The rows of a table with missing values filled from training rows, and how they came about."""
        features, description = rows.divided(partition)
        return features, cls(description, rows.report(description))

    @property
    def title(self) -> str:
        """What the features were made from, for the title of a run."""
        names = dict.fromkeys(column.backbone for column in self.description.texts)
        return f"a table with text by {listed([*names])}" if names else "a table"


def columns_given(columns: str | Path | Description | None) -> tuple[Description | None, Columns | None]:
    """What is known of columns beforehand: what those of a table hold (a .toml file), or the units of features."""
    if columns is None or isinstance(columns, Description):
        return columns, None
    path = Path(columns)
    return (Description.from_file(path), None) if path.suffix == ".toml" else (None, Columns.from_file(path))


def rows_given(
    features: Any,
    arrays: Mapping[str, Any],
    named: Mapping[str, Any],
    task: Task,
    description: Description | None,
    texts: TextColumns,
) -> FeatureSet | TableRows:
    """The rows of an array, a FeatureSet, a feature file or a table.

    `arrays` are labels, clients, split, class_names, groups and weights; `named` the columns of a table: label, client,
    group, weight, drop and text. What is None was not given.
    """
    has_arrays = any(value is not None for value in arrays.values())
    if isinstance(features, TableRows) or is_table(features):
        if has_arrays:
            raise InputError(
                "of a table, label=, client=, group= and weight= name columns; leave labels, clients, split, "
                "class_names, groups and weights out"
            )
        if isinstance(features, TableRows):
            return features
        lists = {name: named[name] or () for name in ("drop", "text")}
        return load_table(features, **{**named, **lists}, description=description, task=task, texts=texts)
    if description is not None or any(value is not None for value in named.values()):
        raise InputError(
            "label, client, group, weight, drop, text and a description of columns are for tables; give a frame, or "
            "the path of a .csv, .tsv or .parquet file"
        )
    if isinstance(features, FeatureSet | str | Path):
        rows = features if isinstance(features, FeatureSet) else read_features(features, task=task)
        if has_arrays:
            raise InputError(
                "a FeatureSet and a feature file have labels, clients, split, class_names, groups and weights of their "
                "own; leave them out, or give features as an array"
            )
        return rows
    if arrays["labels"] is None:
        raise InputError("features need a label for each row; give labels, or the path of a feature file")
    return feature_set(features, **arrays, task=task)
