"""Methods in closed form: how one is declared, what it is given, and the row that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedhip.core.affine import masked
from fedhip.core.choice.prior import Prior
from fedhip.core.tested import Tested
from fedhip.heads import Head
from fedhip.heads.options import Option
from fedhip.heads.round import HeadRound, run_head
from fedhip.heads.task import Task
from fedhip.methods.engine.laboratory import sketch
from fedhip.methods.engine.protocol import Evaluation, MethodInfo, MethodRun, differs_from_paper
from fedhip.simulation.client import Client


@dataclass(frozen=True)
class ClosedTask(Task):
    """What a method in closed form is given; `probe_size` is how many numbers are kept of the first client's scores.

    `tested` has what tests gave, by client.
    """

    probe_size: int = 0
    probe: list[float] = field(default_factory=list)
    tested: dict[str, Tested] = field(default_factory=dict)

    def accuracy(
        self,
        client: Client,
        scores: Callable[[Tensor], Tensor] | None,
        prior: Prior | None = None,
        temperature: float | None = None,
    ) -> float | None:
        """On the client's test rows, of scores (n, d) from features (n, m) in float64.

        `temperature` makes probabilities of them; without one there are none, unless the prior has one.
        """
        if scores is None or not len(client.test[1]):
            return None
        features, labels = self.tensors(client.test)
        found = scores(features)
        self.record_probe(client, found)
        if prior is not None:
            found = prior.apply(found, self.counts(client), self.all_counts)
            temperature = temperature if prior.is_none else 1.0
        found = masked(found, self.local_classes(client))
        self.tested[client.name] = Tested.of_scores(found, labels.cpu().numpy(), temperature, client.test_groups)
        return float((found.argmax(dim=1) == labels).double().mean())

    def record_probe(self, client: Client, scores: Tensor) -> None:
        """Keep a sketch of the first client's scores, if one is asked for."""
        if self.probe_size and client is self.clients[0]:
            self.probe[:] = sketch(scores, self.probe_size)


@dataclass(frozen=True)
class ClosedMethod(MethodInfo):
    """A method in closed form, as the table of methods holds it."""

    run: Callable[[ClosedTask], MethodRun]


def closed(
    name: str, title: str, description: str, *options: Option, told_by: object = None
) -> Callable[[Callable[[ClosedTask], MethodRun]], ClosedMethod]:
    """Declare a method: what it is called, and the options that it takes.

    `told_by` is whose docstring says how it differs from its paper, where that is not the function's.
    """
    return lambda run: ClosedMethod(
        name,
        title,
        description,
        options,
        gradient=False,
        differs=differs_from_paper(run if told_by is None else told_by),
        run=run,
    )


def of_head(kind: type[Head]) -> ClosedMethod:
    """The method of a head: its round, over clients of the method's own."""

    @closed(kind.method, kind.title, kind.description, *kind.options, told_by=kind)
    def run(task: ClosedTask) -> MethodRun:
        found = run_head(kind, task)
        first = found.clients[0]
        if first.test:
            model = found.head.common if first.personal is None else first.personal.model
            task.record_probe(task.clients[0], model.scores(task.tensors(task.clients[0].test)[0]))
        return row_of(found)

    return run


def row_of(found: HeadRound) -> MethodRun:
    """A head's row in a table."""
    rounds, up, down = found.head.traffic
    return one_shot(
        found.head.method,
        found.head.task,
        found.accuracy,
        rounds=rounds,
        seconds=found.seconds,
        up=up,
        down=down,
        alphas=[client.alpha for client in found.clients],
        priors=found.priors,
        tested={client.client: client.tested.get(found.head.method) for client in found.clients},
    )


def one_shot(
    name: str,
    task: Task,
    accuracy: list[float | None],
    *,
    rounds: int,
    seconds: float,
    up: int,
    down: int,
    alphas: list[float | None] | None = None,
    priors: Mapping[str, Prior] | None = None,
    tested: Mapping[str, Tested | None] | None = None,
    note: str | None = None,
) -> MethodRun:
    """A run whose history is its end; `tested` is what the task's own tests gave, where it is not given."""
    if tested is None:
        tested = task.tested if isinstance(task, ClosedTask) else {}
    known = [value for value in accuracy if value is not None]
    end = Evaluation(rounds, float(np.mean(known)) if known else None, seconds, up, down)
    every = [priors.get(client.name) for client in task.clients] if priors else None
    return MethodRun(
        name,
        accuracy,
        rounds,
        seconds,
        up,
        down,
        dict(task.options),
        alphas,
        [end],
        note=note,
        priors=every,
        probe=(task.probe or None) if isinstance(task, ClosedTask) else None,
        tested=[tested.get(client.name) for client in task.clients],
    )
