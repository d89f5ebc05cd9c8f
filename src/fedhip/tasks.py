"""What clients' rows are to be used for: classes, real targets, several labels; and what the ridge alone can do of it.

    classification   labels (N,), one class for each row
    regression       real targets (N, t)
    multilabel       labels (N, L) of 0 and 1: a regression of each, and a threshold

All three are the same ridge of the same sums; heads and methods that know classes alone say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core.columns import Columns, Survey
from fedhip.core.errors import ColumnError, FedHiPError
from fedhip.core.targets import Targets, weight_unit
from fedhip.phases import Client, RowEncoding, Rows
from fedhip.utils.parallel import in_order

Task = Literal["classification", "regression", "multilabel"]
TASKS: tuple[Task, ...] = ("classification", "regression", "multilabel")
#: Metrics of real targets; of the first more is better, of the others less.
REGRESSION_METRICS = ("r2", "rmse", "mae")


class TaskError(FedHiPError, ValueError):
    """A head, a method or an option that cannot do the task."""


def has_real_targets(rows: Rows) -> bool:
    """Whether rows have targets (N, t) and not labels (N,)."""
    return rows[1].ndim == 2


def require_ridge(
    task: Task,
    weighted: bool,
    *,
    head: str = "ridge",
    methods: Sequence[str] = (),
    ridges: Sequence[str] = (),
    prior: str = "none",
    only_local_classes: bool = False,
    balance: bool = False,
) -> None:
    """Refuse what is of classes alone, or of rows that weigh alike."""
    if task not in TASKS:
        raise TaskError(f"task is {task!r}; give {', '.join(map(repr, TASKS[:-1]))} or {TASKS[-1]!r}")
    if task == "classification" and not weighted:
        return
    what = f"--task {task}" if task != "classification" else "rows with weights"
    others = [name for name in methods if name not in ridges]
    for given, name, remedy in (
        (head != "ridge", f"--head {head}", "take the ridge"),
        (bool(others), f"the method {', '.join(others)}", f"choose among {', '.join(ridges)}"),
        (prior != "none", "--prior client", "leave it out"),
        (only_local_classes, "--only-local-classes", "leave it out"),
        (balance, "--balance", "leave it out"),
    ):
        if given:
            raise TaskError(f"{name} is not for {what}: {remedy}")


def targets_of(clients: Sequence[Client], encoding: RowEncoding, centred: bool) -> Targets | None:
    """How targets and weights stand on the grid, from sums over clients alone; None for classes that are counted."""
    real = has_real_targets(clients[0].train)
    weighted = any(client.weights is not None for client in clients)
    if not real and not weighted:
        return None
    columns = _target_columns(clients, centred) if real else None
    if not weighted:
        return Targets(columns)
    sums = list(in_order(lambda client: _weighed(client, encoding, Targets(columns)), clients))
    whole, total = all(part[0] for part in sums), sum(part[1] for part in sums)
    heaviest = float(reduce(add, (part[2] for part in sums)).max())
    return Targets(columns, weight_unit(whole, total, heaviest, encoding.fraction_bits))


def _target_columns(clients: Sequence[Client], centred: bool) -> Columns:
    try:
        survey = reduce(add, (Survey.of(client.train[1], client=client.name) for client in clients))
        return Columns.of(survey, centred=centred)
    except ColumnError as error:
        raise ColumnError(f"of the targets, {error}", column=error.column) from None


def _weighed(client: Client, encoding: RowEncoding, targets: Targets) -> tuple[bool, float, NDArray[np.float64]]:
    """Whether a client's weights are whole numbers, their sum, and Σ w x² of each column."""
    w = np.ones(len(client.train[1])) if client.weights is None else client.weights
    squares = encoding.features(client.train).square().numpy()
    if targets.columns is not None:
        y = targets.columns.features(torch.as_tensor(np.array(client.train[1], np.float64)))
        squares = np.concatenate((squares, y.square().numpy()), axis=1)
    ones = np.ones((len(w), 1))
    return bool((w == np.round(w)).all()), float(w.sum()), w @ np.concatenate((squares, ones), axis=1)


def regression_metrics(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, Any]:
    """R², RMSE and MAE over rows (n, t), the mean over targets; with several targets, of each too.

    R² is about the mean of these rows; None where they have no variance, as one row has none.
    """
    errors = predicted - truth
    spread = np.square(truth - truth.mean(axis=0)).sum(axis=0)
    r2 = [None if s <= 0.0 else 1.0 - e / s for e, s in zip(np.square(errors).sum(axis=0), spread, strict=True)]
    each = {
        "r2": [None if value is None else float(value) for value in r2],
        "rmse": np.sqrt(np.square(errors).mean(axis=0)).tolist(),
        "mae": np.abs(errors).mean(axis=0).tolist(),
    }
    known = {name: [value for value in values if value is not None] for name, values in each.items()}
    found: dict[str, Any] = {name: float(np.mean(values)) if values else None for name, values in known.items()}
    return found if truth.shape[1] == 1 else {**found, "targets": each}


def summarize_metrics(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Of each metric the mean over clients that have it, and over their test rows."""
    found = {}
    for name in names:
        pairs = [(entry[name], entry["test"]) for entry in entries if entry.get(name) is not None]
        values, rows = ([pair[at] for pair in pairs] for at in (0, 1))
        found[name] = {
            "mean": float(np.mean(values)) if values else None,
            "weighted": float(np.average(values, weights=rows)) if values else None,
        }
    return found
