"""From a table to rows of a run: features, labels, whose each row is, its group and its weight."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedhip.data.array_files import encode_names
from fedhip.data.feature_files import FeatureSet
from fedhip.data.partitions.partition import Partition, split_of
from fedhip.data.tables.cells import Floats, parse_numbers, parse_text, present, require_all, values_of
from fedhip.data.tables.description import Column, Description
from fedhip.data.tables.drafting import draft, labels_named, text_column
from fedhip.data.tables.encoder import encode, fill, fill_from, require_columns
from fedhip.data.tables.reader import Table, no_column, read_table
from fedhip.data.tables.report import column_report
from fedhip.data.tables.text import TextEncoder, with_backbones
from fedhip.errors import ColumnWarning, InputError

if TYPE_CHECKING:
    import polars as pl

Task = Literal["classification", "regression", "multilabel"]
#: More different labels than these are quantities if they are not whole numbers, and may be if they are.
_MOST_NUMBERS = 20


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a table before missing values are filled.

    `matrix` (N, m) holds NaN where they are, `missing` how many there are by column. They are filled with means over
    training rows, and which these are is known once the rows are divided: `divided` gives the rows as a `FeatureSet`.
    """

    source: str
    matrix: Floats
    missing: Mapping[str, int]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    description: Description
    clients: NDArray[np.str_] | None = None
    groups: NDArray[np.str_] | None = None
    weights: Floats | None = None
    targets: Floats | None = None
    split: NDArray[np.int8] | None = None
    task: str = "classification"
    #: Whether the description was drafted from these very rows, and not agreed before.
    drafted: bool = False
    #: What each row is called in messages and answers.
    numbers: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def divided(self, partition: Partition) -> tuple[FeatureSet, Description]:
        """The rows with missing values filled by means over the training rows of this partition's clients."""
        return self.features(split_of(self.split, partition) == 0)

    def report(self, description: Description) -> list[dict[str, Any]]:
        """What was done with each column, by the description that `divided` gave."""
        return column_report(description, self.missing, len(self))

    def features(self, train: NDArray[np.bool_] | None = None) -> tuple[FeatureSet, Description]:
        """The rows with missing values filled, and the description that says with what.

        `train` are the rows to take the means of, but for those of weight 0; None takes the means that the description
        brings. The matrix is filled in place: there is room for one.
        """
        matrix, description = self.matrix, self.description
        if train is None:
            fill(matrix, description, self.source)
        else:
            counted = train if self.weights is None else train & (self.weights > 0)
            description = fill_from(matrix, description, counted, self.source)
        return FeatureSet(
            features=matrix,
            labels=self.labels if self.targets is None else self.targets,
            class_names=self.class_names,
            clients=self.clients,
            split=self.split,
            groups=self.groups,
            weights=self.weights,
            task=self.task,
        ), description


def load_table(
    source: Any,
    *,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    group: str | None = None,
    weight: str | None = None,
    drop: Iterable[str] = (),
    description: Description | None = None,
    task: Task = "classification",
    name: str | None = None,
    text: Iterable[str] = (),
    texts: TextEncoder | None = None,
) -> TableRows:
    """The rows of a table, by a description or by one that is drafted from the table itself.

    Label, client, group and weight are columns of it; those that are not given are the description's. `text` names
    columns to be read as text, `texts` is what makes features of these.
    """
    table = read_table(source, name)
    given: dict[str, Any] = {"label": label, "client": client, "group": group, "weight": weight}
    if description is None:
        if label is None:
            raise InputError(f"{table.source} needs a column that says what is to be predicted; name it with --label")
        found = draft(table, **given, drop=drop, text=text, texts=texts).certain()
        for column in found.columns:
            if column.note and column.kind == "number":
                warnings.warn(f"{table.source}, column {column.name!r}: {column.note}", ColumnWarning, stacklevel=2)
        expect = False
    else:
        found, expect = _with_roles(table, description, drop=drop, **given), True
        found = with_backbones(_with_texts(table, found, text, texts), texts)
    _require_roles(table, found)
    rows = replace(_labelled(table, found, task, expect=expect, texts=texts), drafted=not expect)
    _require_federation(table, found, rows)
    _require_no_giveaway(table, found, rows)
    _warn_of_names(table, found, rows)
    return rows


def read_rows(
    source: Any, description: Description, *, name: str | None = None, texts: TextEncoder | None = None
) -> tuple[Table, Floats]:
    """The features (N, m) of a table that need not say labels, missing values filled as the description says."""
    table = read_table(source, name)
    matrix = encode(table, description, expect=True, texts=texts).matrix
    _warn_of_others(table, description)
    return table, fill(matrix, description, table.source)


def read_labelled(
    source: Any,
    description: Description,
    *,
    task: Task = "classification",
    name: str | None = None,
    expect: bool = True,
    texts: TextEncoder | None = None,
) -> FeatureSet:
    """Rows of a table for a run that is there: by its description, filled as it says; with clients if the table has.

    `expect` and `texts` as in `encode`.
    """
    return read_described(source, description, task=task, name=name, expect=expect, texts=texts).features()[0]


def read_described(
    source: Any,
    description: Description,
    *,
    task: Task = "classification",
    name: str | None = None,
    expect: bool = True,
    texts: TextEncoder | None = None,
) -> TableRows:
    """The same before missing values are filled."""
    table = read_table(source, name)
    optional: dict[str, Any] = {
        role: None if (column := getattr(description, role)) is None or column not in table.names else column
        for role in ("client", "group", "weight")
    }
    known = replace(description, **optional)
    _require_roles(table, known)
    return _labelled(table, known, task, expect=expect, texts=texts)


def clients_of_table(table: Table, description: Description) -> NDArray[np.str_] | None:
    """Whose each row is, where the table says so."""
    if description.client is None or description.client not in table.names:
        return None
    return _names(table, description.client, description.missing, "the client")


def _with_roles(
    table: Table,
    description: Description,
    *,
    label: str | Sequence[str] | None,
    client: str | None,
    group: str | None,
    weight: str | None,
    drop: Iterable[str],
) -> Description:
    """The description with the columns that are named beside it."""
    labels = labels_named(table, label) or description.labels
    if not labels:
        raise InputError(f"{table.source} needs a column that says what is to be predicted; name it with --label")
    roles: dict[str, Any] = {
        "client": description.client if client is None else client,
        "group": description.group if group is None else group,
        "weight": description.weight if weight is None else weight,
    }
    dropped = {*drop}
    known = {column.name for column in description.columns}
    for name in dropped - known:
        raise no_column(table.source, name, known, ", which --drop names")
    taken = {*labels, *(name for name in roles.values() if name is not None)}
    columns = tuple(
        Column(column.name, "dropped", note="as asked") if column.name in dropped else column
        for column in description.columns
        if column.name not in taken
    )
    return replace(description, columns=columns, labels=labels, **roles)


def _with_texts(table: Table, description: Description, text: Iterable[str], texts: TextEncoder | None) -> Description:
    """The description with these of its columns read as text."""
    names = {column.name for column in description.columns}
    for name in (wanted := tuple(text)):
        if name not in names or name not in table.names:
            raise no_column(table.source, name, names & {*table.names}, ", which --text names")
    return description.with_columns(text_column(table, name, description.missing, texts) for name in wanted)


def _require_roles(table: Table, description: Description) -> None:
    for name in description.roles:
        if name not in table.names:
            raise no_column(table.source, name, table.names, f", which is to say {description.role_of(name)}")
    require_columns(table, description)
    _warn_of_others(table, description)


def _warn_of_others(table: Table, description: Description) -> None:
    known = {*description.roles, *(column.name for column in description.columns)}
    for name in table.names:
        if name not in known:
            warnings.warn(
                f"{table.source}, column {name!r} is not described, and is not used", ColumnWarning, stacklevel=4
            )


def _labelled(
    table: Table, description: Description, task: Task, *, expect: bool, texts: TextEncoder | None
) -> TableRows:
    missing = description.missing
    clients = None if description.client is None else _names(table, description.client, missing, "the client")
    targets = None
    if task != "classification" or len(description.labels) > 1:
        columns = [_target(table, name, missing, task) for name in description.labels]
        targets = np.column_stack(columns)
        labels, class_names = np.zeros(len(table), np.int64), description.labels
    else:
        labels, class_names = _classes(table, description.labels[0], missing)
    encoded = encode(table, description, expect=expect, texts=texts)
    return TableRows(
        source=table.source,
        matrix=encoded.matrix,
        missing=encoded.missing,
        labels=labels,
        class_names=class_names,
        description=description,
        clients=clients,
        groups=None if description.group is None else _names(table, description.group, missing, "the group"),
        weights=None if description.weight is None else _weights(table, description.weight, missing),
        targets=targets,
        task="classification" if targets is None else "regression" if task == "regression" else "multilabel",
        numbers=np.arange(len(table)) + table.first if table.numbers is None else table.numbers,
    )


def _names(table: Table, column: str, missing: tuple[str, ...], what: str) -> NDArray[np.str_]:
    cells = require_all(table, column, present(table, column, missing), what)
    return parse_text(cells).to_numpy().astype(np.str_)


def _classes(table: Table, column: str, missing: tuple[str, ...]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    import polars as pl

    cells = require_all(table, column, present(table, column, missing), "the label")
    numbers = parse_numbers(cells, table.decimal) if cells.dtype != pl.Boolean else cells.cast(pl.Float64)
    if not numbers.null_count():
        broken = numbers.filter(numbers != numbers.round(0))
        if broken.n_unique() > _MOST_NUMBERS:
            raise InputError(
                f"{table.source}, column {column!r} holds {numbers.n_unique():,} different numbers, such as "
                f"{broken[0]:g}, which are no classes; predict them with --task regression, or name another --label"
            )
    text = parse_text(cells)
    # In the order of numbers where they all are, so that 10 comes after 9.
    whole = text.str.contains(r"^(0|-?[1-9]\d{0,17})$").all()
    return encode_names(text.cast(pl.Int64).to_numpy() if whole else text.to_numpy().astype(np.str_))


def _target(table: Table, name: str, missing: tuple[str, ...], task: Task) -> Floats:
    cells = require_all(table, name, present(table, name, missing), "the label")
    kind = "number" if task == "regression" else "boolean"
    return values_of(table, Column(name, kind), cells, "--label")


def _weights(table: Table, name: str, missing: tuple[str, ...]) -> Floats:
    cells = require_all(table, name, present(table, name, missing), "the weight")
    found = values_of(table, Column(name, "number"), cells, "--weight")
    if (found < 0).any():
        row = int((found < 0).argmax())
        raise InputError(f"{table.at(row, name)}: the weight is {found[row]:g}; give numbers of at least 0")
    if not found.any():
        raise InputError(f"{table.source}, column {name!r}: every weight is 0; give some row a weight")
    return found


def _require_federation(table: Table, description: Description, rows: TableRows) -> None:
    """Refuse what no model can be made of: a label of one value, and clients of one row each."""
    for place, name in enumerate(description.labels):
        answers = rows.labels if rows.targets is None else rows.targets[:, place]
        if (answers == answers[0]).all():
            value = rows.class_names[0] if rows.targets is None else f"{answers[0]:g}"
            raise InputError(
                f"{table.source}, column {name!r} is {value!r} in every row, so there is nothing to predict; name "
                "another --label"
            )
    if rows.clients is not None and len(rows) > 1 and len(np.unique(rows.clients)) == len(rows):
        raise InputError(
            f"{table.source}, column {description.client!r} has another value in each of its {len(rows):,} rows, so "
            "every row would be a client of its own; name the column of the owners with --client-column"
        )


def _warn_of_names(table: Table, description: Description, rows: TableRows) -> None:
    """Warn of classes that may be quantities, and of names of classes and clients that differ in capitals alone."""
    import polars as pl

    named: dict[str | None, Iterable[str]] = {}
    if rows.targets is None:
        named[description.labels[0]] = rows.class_names
        if len(rows.class_names) > _MOST_NUMBERS and not parse_numbers(pl.Series(rows.class_names)).null_count():
            warnings.warn(
                f"{table.source}, column {description.labels[0]!r}: each of its {len(rows.class_names):,} numbers is a "
                "class of its own; if they are quantities, predict them with --task regression",
                ColumnWarning,
                stacklevel=3,
            )
    if rows.clients is not None:
        named[description.client] = np.unique(rows.clients).tolist()
    for column, names in named.items():
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(name.casefold(), name)
            if other != name:
                warnings.warn(
                    f"{table.source}, column {column!r}: {other!r} and {name!r} are two; write them alike if they are "
                    "one",
                    ColumnWarning,
                    stacklevel=3,
                )
                break


def _require_no_giveaway(table: Table, description: Description, rows: TableRows) -> None:
    """Refuse a feature that is the label itself; warn of one that says it row for row under other names."""
    missing = description.missing
    for label in description.labels:
        if rows.targets is None:
            answer, classes = rows.labels, len(np.unique(rows.labels))
        else:
            answer, classes = np.unique(rows.targets[:, description.labels.index(label)], return_inverse=True)[1], 0
            classes = int(answer.max()) + 1
        for column in description.used:
            cells = table.frame.get_column(column.name)
            # Quick first: as many values as the label has, at the beginning already.
            if cells.head(1000).n_unique() > classes or cells.n_unique() not in (classes, classes + 1):
                continue
            codes = _codes(present(table, column.name, missing))
            if codes is None or int(codes.max()) + 1 != classes:
                continue
            pairs = np.unique(codes * classes + answer)
            if len(pairs) != classes:
                continue
            same = _same_text(table, column.name, label, missing)
            what = f"{table.source}, column {column.name!r} {'is' if same else 'says'} the label {label!r} in every row"
            if same:
                raise InputError(f"{what}, so that nothing would be predicted; drop it (--drop {column.name})")
            # Values that hardly ever come twice are one for each label by themselves: nothing is said by that.
            if len(table) >= 20 and classes <= len(table) / 2:
                warnings.warn(
                    f"{what}: if it is not known before the label is, drop it (--drop {column.name})",
                    ColumnWarning,
                    stacklevel=3,
                )


def _codes(cells: pl.Series) -> NDArray[np.int64] | None:
    """A number for each value; None where values are missing."""
    if cells.null_count():
        return None
    return (cells.rank("dense").cast(int) - 1).to_numpy() if len(cells) else None


def _same_text(table: Table, one: str, other: str, missing: tuple[str, ...]) -> bool:
    return bool((parse_text(present(table, one, missing)) == parse_text(present(table, other, missing))).all())
