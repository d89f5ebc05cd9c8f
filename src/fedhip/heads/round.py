"""A round of any head in one process: fit, personalize, test. A run and a comparison of methods do the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from fedhip.core.choice.calibration import common_temperature
from fedhip.core.choice.prior import NO_PRIOR, Prior
from fedhip.heads.head import Head, Personalized
from fedhip.heads.task import Task
from fedhip.simulation.federation import Federation
from fedhip.simulation.outcome import ClientResult
from fedhip.simulation.testing import evaluate
from fedhip.utils.parallel import one_thread


@dataclass(frozen=True)
class HeadRound:
    """The head as it was fitted, every client tested with its model, and the seconds without the tests."""

    head: Head
    clients: list[ClientResult]
    seconds: float

    @property
    def accuracy(self) -> list[float | None]:
        """Of each client's model on its test rows."""
        return [client.accuracy[self.head.method] for client in self.clients]

    @property
    def priors(self) -> dict[str, Prior]:
        """The clients', where they were asked for."""
        method = self.head.method
        return {client.client: client.priors[method] for client in self.clients if method in client.priors}


def run_head(kind: type[Head], task: Task, federation: Federation | None = None) -> HeadRound:
    """The head on the task's clients; `federation` is their sum, where it is known.

    A client without training rows is tested with the federation's model.
    """
    began = time.perf_counter()
    if federation is None:
        federation = kind.federate(task)
    with one_thread():
        head = kind.fit(federation, task)
    owns = head.personalize()
    return tested(head, owns, time.perf_counter() - began)


def tested(head: Head, owns: Mapping[str, Personalized], seconds: float) -> HeadRound:
    """Every client of the head's task tested with its model, or with the federation's."""
    kind, task, federation = type(head), head.task, head.federation
    clients = []
    temperatures = {
        kind.method: common_temperature((own.log_losses for own, _ in owns.values()), kind.temperatures),
    }
    for client in task.clients:
        own, prior = owns.get(client.name, (None, NO_PRIOR))
        clients.append(
            evaluate(
                client,
                {kind.method: head.common if own is None else own.model},
                own,
                task.num_classes,
                task.only_local_classes,
                {kind.method: prior} if own is not None and task.prior == "client" else {},
                federation.grid.counts,
                own=kind.method,
                temperatures=temperatures,
            )
        )
    return HeadRound(head, clients, seconds)
