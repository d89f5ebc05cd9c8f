"""A whole federation in one process: every client's rows are here, and each phase sees only what it would see.

phase 1   at each client: statistics of its own training rows
phase 2   at the server: their sum, β for the federation, the global model
phase 3   at each client: α by leave-one-out on its own training rows, its personalized model
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core import (
    LooScore,
    PersonalizationPath,
    RegularizationPath,
    Statistics,
    aggregate,
    default_betas,
    solve_global,
)
from fedhip.data import FeatureSet, Partition, client_parts, split_of

METHODS = ("local", "global", "fedhip")

Rows = tuple[NDArray[Any], NDArray[np.int64]]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Client:
    """One client's name and its rows (features, labels) to train and to test on."""

    name: str
    train: Rows
    test: Rows


@dataclass(frozen=True)
class ClientResult:
    """Test accuracies of one client's models by method, and the α of its own.

    A client without training rows is tested with the global model and has no model or α of its own; one without
    test rows has no accuracies.
    """

    client: str
    train: int
    test: int
    classes: int
    alpha: float | None
    accuracy: dict[str, float | None]


@dataclass(frozen=True)
class Outcome:
    """What a round gave."""

    beta: float
    clients: list[ClientResult]
    seconds: dict[str, float]
    upload_bytes: int
    download_bytes: int

    def summary(self, method: str) -> dict[str, float | None]:
        """Mean over clients, mean over test rows, and the mean over the worst tenth of the clients.

        Clients without test rows are left out; None where that leaves nobody.
        """
        pairs = [(r.accuracy[method], r.test) for r in self.clients]
        values = np.array([value for value, _ in pairs if value is not None])
        weights = np.array([rows for value, rows in pairs if value is not None])
        if len(values) == 0:
            return dict.fromkeys(("mean", "weighted", "worst_decile", "std"))
        worst = np.sort(values)[: max(1, round(len(values) / 10))]
        return {
            "mean": float(values.mean()),
            "weighted": float(np.average(values, weights=weights)),
            "worst_decile": float(worst.mean()),
            "std": float(values.std()),
        }


@dataclass
class _Stopwatch:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def clients_of(data: FeatureSet, partition: Partition) -> list[Client]:
    """Each client's rows to train and to test on: the data's own split, or eight of ten."""
    split = split_of(data.split, partition)
    return [
        Client(name, (data.features[train], data.labels[train]), (data.features[test], data.labels[test]))
        for name, (train, test) in zip(partition.clients, client_parts(partition, split), strict=True)
    ]


def simulate(
    clients: Sequence[Client],
    num_classes: int,
    *,
    alpha: float | Literal["loo"] = "loo",
    beta: float | Literal["auto"] = "auto",
    device: str | torch.device = "cpu",
    report: Report | None = None,
) -> Outcome:
    """One round of FedHiP over the clients, beside models of the clients alone and the global one.

    `report(phase, done, total)` is called as the clients go by. No model and no parameter sees a test row.
    """
    watch, tell = _Stopwatch(), report or (lambda phase, done, total: None)
    training = [client for client in clients if len(client.train[1])]

    def uploads() -> Iterator[Statistics]:
        for k, client in enumerate(training, start=1):
            yield _statistics(client, num_classes, device)
            tell("1 local training", k, len(training))

    with watch("local training and aggregation"):
        total = aggregate(uploads())
    with watch("choosing beta"):
        chosen = _choose_beta(total, training, tell) if beta == "auto" else float(beta)
    with watch("global model"):
        G = solve_global(total, chosen)

    results = []
    for k, client in enumerate(clients, start=1):
        own_alpha: float | None = None
        models = {"local": None, "global": G, "fedhip": G}
        if len(client.train[1]):
            with watch("personalization"):
                path = PersonalizationPath(total, *client.train, chosen, client=client.name)
                own_alpha = path.select() if alpha == "loo" else float(alpha)
                models["fedhip"] = path.weights(own_alpha)
            with watch("models of one client alone"):
                models["local"] = local_model(client, num_classes, device)
        results.append(
            ClientResult(
                client.name,
                len(client.train[1]),
                len(client.test[1]),
                len(np.unique(client.train[1])),
                own_alpha,
                {name: accuracy(model, client.test) for name, model in models.items()},
            )
        )
        tell("3 personalization", k, len(clients))
    m, d = total.num_features, num_classes
    return Outcome(
        chosen,
        results,
        watch.seconds,
        upload_bytes=8 * (m * (m + 1) // 2 + m * d + d),
        download_bytes=8 * (m * (m + 1) // 2 + m * d + d),
    )


def local_model(client: Client, num_classes: int, device: str | torch.device = "cpu") -> Tensor:
    """The ridge of the client's rows alone, its penalty chosen by leave-one-out on them.

    A federation of one: (A_k + αA_k + βI) P = (1 + α)B_k is the ridge with penalty β/(1 + α).
    """
    own = _statistics(client, num_classes, device)
    penalties = default_betas(own)
    path = PersonalizationPath(own, *client.train, max(penalties), client=client.name)
    return path.weights(path.select([max(penalties) / penalty - 1.0 for penalty in penalties]))


def accuracy(model: Tensor | None, test: Rows) -> float | None:
    """Share of rows whose highest score is that of their class; None where there is no model or no row."""
    features, labels = test
    if model is None or len(labels) == 0:
        return None
    scores = torch.as_tensor(features, dtype=model.dtype, device=model.device) @ model
    return float((scores.argmax(dim=1).cpu() == torch.as_tensor(labels)).double().mean())


def _statistics(client: Client, num_classes: int, device: str | torch.device) -> Statistics:
    features = torch.as_tensor(client.train[0], device=device)
    return Statistics.from_data(features, client.train[1], num_classes, client=client.name)


def _choose_beta(total: Statistics, clients: Sequence[Client], tell: Report) -> float:
    path = RegularizationPath(total)

    def scores() -> Iterator[LooScore]:
        for k, client in enumerate(clients, start=1):
            yield path.score(*client.train, client=client.name)
            tell("2 choosing beta", k, len(clients))

    return path.select(scores())
