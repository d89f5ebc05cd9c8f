"""Rows that come to a run after the round: whose they are, in the run's classes, divided as they were before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.data import Dataset, FeatureSet, make_partition, split_of
from fedhip.data.tables import TableRows
from fedhip.errors import InputError
from fedhip.runs.folder import Run
from fedhip.simulation.client import Client
from fedhip.utils.groups import group_numbers
from fedhip.utils.nearest import did_you_mean, nearest


def clients_in(run: Run, source: str, data: FeatureSet) -> dict[str, Client]:
    """All clients of rows that say whose they are; `source` is what to call them."""
    if data.clients is None:
        raise InputError(f"{source} does not say whose rows these are; it needs 'clients'")
    found = {}
    for name in np.unique(data.clients).tolist():
        chosen = data.clients == name
        labels = in_classes_of(run, source, data, chosen)
        split = None if data.split is None else data.split[chosen]
        groups = None if data.groups is None else data.groups[chosen]
        weights = None if data.weights is None else data.weights[chosen]
        found[name], _ = divided(run, name, data.features[chosen], labels, split, groups, weights)
    return found


def divided(
    run: Run,
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    split: NDArray[np.int8] | None,
    groups: NDArray[Any] | None = None,
    weights: NDArray[np.float64] | None = None,
    *,
    test_rows: bool = True,
) -> tuple[Client, NDArray[np.int8] | None]:
    """A client of its rows, and how they were divided where the data do not say it; those of a group together.

    Rows for testing are those that `split` marks; else, with `test_rows`, those that the run has divided so before, or
    as many as a run takes.
    """
    drawn = None
    if split is None and test_rows:
        drawn = run.split(name, len(labels))
        if drawn is None:
            clients, seed = np.full(len(labels), name), int(run.config["seed"])
            dealt = labels if labels.ndim == 1 else np.zeros(len(labels), np.int64)
            drawn = split_of(None, make_partition(dealt, "natural", clients=clients, seed=seed, groups=groups))
    part = split if drawn is None else drawn
    together = None if groups is None else group_numbers(groups)
    if weights is not None and not weights.all():  # what weighs nothing is no training row
        kept = (weights > 0.0) | (np.zeros(len(weights), bool) if part is None else part == 1)
        features, labels, weights = features[kept], labels[kept], weights[kept]
        together = None if together is None else together[kept]
        part = None if part is None else part[kept]
    whole = Client(
        name,
        (features, labels),
        (features[:0], labels[:0]),
        together,
        weights=weights,
        multilabel=run.task == "multilabel",
    )
    return (whole, None) if part is None else (whole.testing(part == 1), drawn)


def client_and_rows(source: str, data: Dataset | FeatureSet | TableRows, client: str | None) -> tuple[str, np.ndarray]:
    """The client's name, and which rows are its."""
    everything = np.ones(len(data), dtype=bool)
    if data.clients is None:
        if client is None:
            raise InputError(f"{source} does not say whose rows these are; name the client with --client")
        return client, everything
    names = np.unique(data.clients).tolist()
    if client is None and len(names) > 1:
        raise InputError(f"{source} holds rows of {len(names)} clients; choose one with --client")
    if client is not None and client not in names:
        if len(names) > 1:
            near = nearest(client, names, 3) or names[:3]
            raise InputError(f"{source} holds no rows of client {client!r}; it has those of {', '.join(near)}")
        return client, everything
    name = names[0] if client is None else client
    return name, data.clients == name


def in_classes_of(run: Run, source: str, data: Dataset | FeatureSet, chosen: np.ndarray) -> np.ndarray:
    """Labels of the chosen rows by the run's numbers; a class that the run does not know is refused by name."""
    if run.task != "classification":
        if isinstance(data, Dataset) or data.task != run.task or data.num_classes != len(run.class_names):
            targets = ", ".join(run.class_names)
            raise InputError(f"{source} does not hold the targets of the run's {run.task}: {targets}; give these")
        found: np.ndarray = data.labels[chosen]
        return found
    numbers = {name: number for number, name in enumerate(run.class_names)}
    for label in np.unique(data.labels[chosen]):
        name = data.class_names[label]
        if name not in numbers:
            guess = did_you_mean(name, numbers)
            raise InputError(
                f"{source} has a class {name!r}, which is none of the run's {len(numbers)} classes{guess}; a new class "
                "needs a new run"
            )
    mapping = np.array([numbers.get(name, -1) for name in data.class_names])
    labels: np.ndarray = mapping[data.labels[chosen]]
    return labels
