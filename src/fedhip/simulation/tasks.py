"""What clients' rows are to be used for: classes, real targets, several labels; and what the ridge alone can do of it.

    classification   labels (N,), one class for each row
    regression       real targets (N, t)
    multilabel       labels (N, L) of 0 and 1: a regression of each, and a threshold

All three are the same ridge of the same sums; heads and methods that know classes alone say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core.choice.conformal import common_threshold, require_coverage, threshold
from fedhip.core.exact.columns import Columns, Survey
from fedhip.core.metrics import regression_metrics as intervals_of_regression
from fedhip.core.targets import Targets, weight_unit
from fedhip.data import Dataset, FeatureSet, Partition, divide_rows
from fedhip.data.tables import TableRows
from fedhip.errors import ColumnError, InputError
from fedhip.simulation.client import Client, LabelledRows
from fedhip.utils.parallel import in_order

if TYPE_CHECKING:
    from fedhip.simulation.encoding import RowEncoding

Task = Literal["classification", "regression", "multilabel"]
TASKS: tuple[Task, ...] = ("classification", "regression", "multilabel")
#: What tells how good a model is, by task, beside accuracy.
METRICS: dict[str, tuple[str, ...]] = {"regression": ("r2", "rmse", "mae"), "multilabel": ("label_accuracy", "f1")}


#: What weights of rows may add up to.
_HEAVIEST = 1e20
#: The score from which on a label is given: scores are those of 0 and 1.
LABEL_THRESHOLD = 0.5


def task_named(name: str) -> Task:
    """The task of this name."""
    for task in TASKS:
        if task == name:
            return task
    raise InputError(f"task is {name!r}; give {', '.join(map(repr, TASKS[:-1]))} or {TASKS[-1]!r}")


def divide(
    data: FeatureSet | Dataset | TableRows,
    scheme: str | None,
    num_clients: int | None,
    *,
    owner: str | None = None,
    **parameters: Any,
) -> Partition:
    """Rows among clients, as `divide_rows`; those of real targets are dealt without regard to them.

    Rows that say whose they are (a table by its column `owner`) are divided anew by a scheme that is named, never
    by a number of clients alone.
    """
    if scheme is None and num_clients is not None and (owner is not None or data.clients is not None):
        who = "the data names the client" if owner is None else f"column {owner!r} names the client"
        raise InputError(
            f"{who} of each row, and {num_clients} clients are asked for; leave the number out, or name a partition "
            "that divides the rows anew, such as dirichlet or iid"
        )
    if isinstance(data, Dataset) or data.task == "classification":
        return divide_rows(data.labels, data.clients, scheme, num_clients, groups=data.groups, **parameters)
    if scheme in ("dirichlet", "dirichlet-unbalanced", "shards"):
        raise InputError(f"--partition {scheme} divides rows by class, and --task {data.task} has none; take iid")
    if scheme is None and data.clients is None:
        scheme = "iid"
    dealt = np.zeros(len(data), np.int64)
    return divide_rows(dealt, data.clients, scheme, num_clients, groups=data.groups, **parameters)


def require_classes(data: FeatureSet | Dataset | TableRows) -> None:
    """Refuse rows that are all of one class: whatever answers is right every time, and has learned nothing."""
    if (isinstance(data, Dataset) or data.task == "classification") and len(found := np.unique(data.labels)) < 2:
        raise InputError(
            f"all rows are of one class, {data.class_names[int(found[0])]!r}, so there is nothing to tell apart; give "
            "rows of at least two classes"
        )


def has_real_targets(rows: LabelledRows) -> bool:
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
    if task == "classification" and not weighted:
        return
    what = f"--task {task}" if task != "classification" else "rows with weights"
    others = [name for name in methods if name not in ridges]
    for given, name, remedy in (
        (head != "ridge", f"--head {head}", "take the ridge"),
        (bool(others), f"the method {', '.join(others)}", f"choose among {', '.join(ridges)}"),
        (prior != "none", "--prior client", "leave it out"),
        (only_local_classes and task != "classification", "--only-local-classes", "leave it out"),
        (balance, "--balance", "leave it out"),
    ):
        if given:
            raise InputError(f"{name} is not for {what}: {remedy}")


def repeated(client: Client) -> Client:
    """The client whose rows of weight 2 are written down twice, and so on, where weights are whole and not large.

    Units of columns are found by these, so that whole weights are repeated rows to the last bit.
    """
    weights = client.weights
    most = 0.0 if weights is None else 16.0 * len(weights)
    if weights is None or not (weights == np.round(weights)).all() or weights.max() > most or weights.sum() > most:
        return client
    features, labels = (np.repeat(part, weights.astype(np.int64), axis=0) for part in client.train)
    return Client(client.name, (features, labels), client.test)


def targets_of(
    surveyed: Sequence[Client], clients: Sequence[Client], encoding: RowEncoding, centred: bool
) -> Targets | None:
    """How targets and weights stand on the grid, from sums over clients alone; None for classes that are counted.

    `surveyed` are the clients whose rows tell the targets' units.
    """
    real = has_real_targets(clients[0].train)
    weighted = any(client.weights is not None for client in clients)
    if not real and not weighted:
        return None
    columns = _target_columns(surveyed, centred) if real else None
    if not weighted:
        return Targets(columns)
    sums = list(in_order(lambda client: _weighed(client, encoding, Targets(columns)), clients))
    whole, total = all(part[0] for part in sums), sum(part[1] for part in sums)
    if not 1.0 / _HEAVIEST <= total <= _HEAVIEST:
        raise InputError(
            f"the weights of all rows add up to {total:.3g}; multiply all of them by one number, so that they add up "
            f"to {1.0 / _HEAVIEST:.0e} at least and {_HEAVIEST:.0e} at most"
        )
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
    with np.errstate(over="ignore"):  # what overflows is refused
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


def regression_intervals(
    predicted: NDArray[np.float64], truth: NDArray[np.float64], groups: NDArray[np.int64] | None = None
) -> dict[str, dict[str, float]]:
    """The ends of the 95 % intervals of these, of those that have any; rows of one group (n,) count together.

    To seven digits, whatever the units.
    """
    ends: dict[str, dict[str, float]] = {"low": {}, "high": {}}
    for name, found in intervals_of_regression(truth, predicted, groups=groups).items():
        if found is not None and found.low is not None and found.high is not None:
            ends["low"][name], ends["high"][name] = float(f"{found.low:.7g}"), float(f"{found.high:.7g}")
    return ends


def label_metrics(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, Any]:
    """Share of labels right, and F1 over labels (n, L); of each label too. A label is given from a score of ½ on.

    F1 is the mean over labels that some row has or is given; None where there are none.
    """
    given, has = predicted >= LABEL_THRESHOLD, truth >= 0.5
    right = (given == has).mean(axis=0)
    both, either = (given & has).sum(axis=0), given.sum(axis=0) + has.sum(axis=0)
    f1 = [None if n == 0 else float(2.0 * b / n) for b, n in zip(both, either, strict=True)]
    known = [value for value in f1 if value is not None]
    return {
        "label_accuracy": float(right.mean()),
        "f1": float(np.mean(known)) if known else None,
        "labels": {"label_accuracy": right.tolist(), "f1": f1},
    }


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


def targets_of_scores(scores: NDArray[np.float64], task: Task) -> NDArray[Any]:
    """What a model of another task than classes predicts, from its scores (N, t)."""
    if task == "multilabel":
        return (scores >= LABEL_THRESHOLD).astype(np.int64)
    return scores[:, 0] if scores.shape[1] == 1 else scores


def thresholds_of(clients: Mapping[str, Mapping[str, Any]], client: str | None, coverage: float) -> list[float]:
    """What misses (`fedhip.core.choice.conformal`) an answer allows for, of a client's model or of the global one.

    `clients` are those of a run's details.json.
    """
    require_coverage(coverage)
    known = {name: _misses(found, client is None) for name, found in clients.items()}
    known = {name: found for name, found in known.items() if found}
    if not known or (client is not None and client not in known):
        raise InputError(
            "nothing is known of how far rows left out were from being right: the run has differential privacy, under "
            "which there are no prediction sets, was made before there were any, or has no models of clients"
        )
    if client is None:
        every = zip(*known.values(), strict=True)
        return [common_threshold(list(misses), coverage) for misses in every]
    scales = {name: float(clients[name].get("miss_scale", 1.0)) for name in known}
    found = []
    for target in range(len(known[client])):
        scaled = {name: np.array(misses[target]) / scales[name] for name, misses in known.items()}
        own = scaled.pop(client)
        found.append(scales[client] * threshold(own, list(scaled.values()), coverage))
    return found


def _misses(client: Mapping[str, Any], common: bool) -> list[list[float]]:
    """Of each target those of the client's rows left out; what has no number is infinite."""
    stored = client.get("global_misses" if common else "misses") or []
    return [[math.inf if value is None else value for value in part] for part in stored]
