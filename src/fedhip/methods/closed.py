"""Methods in closed form: how one is declared, what it is given, and those that `fedhip.simulation` computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from fedhip.core.calibration import common_temperature
from fedhip.core.prior import Prior
from fedhip.core.tested import Tested
from fedhip.heads import Head
from fedhip.heads.options import Option
from fedhip.heads.round import HeadRound, run_head
from fedhip.heads.task import Task
from fedhip.methods.engine import sketch
from fedhip.methods.protocol import Evaluation, MethodInfo, MethodRun
from fedhip.models import masked
from fedhip.phases import Client
from fedhip.priors import local_path, prior_bytes
from fedhip.simulation import LocalFit, simulate
from fedhip.utils.parallel import in_order


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
        self.look(client, found)
        if prior is not None:
            found = prior.apply(found, self.counts(client), self.all_counts)
            temperature = temperature if prior.is_none else 1.0
        found = masked(found, self.local_classes(client))
        groups = getattr(client, "test_groups", None)
        self.tested[client.name] = Tested.of_scores(found, labels.cpu().numpy(), temperature, groups)
        return float((found.argmax(dim=1) == labels).double().mean())

    def look(self, client: Client, scores: Tensor) -> None:
        """Keep a sketch of the first client's scores, if one is asked for."""
        if self.probe_size and client is self.clients[0]:
            self.probe[:] = sketch(scores, self.probe_size)


@dataclass(frozen=True)
class ClosedMethod(MethodInfo):
    """A method in closed form, as the table of methods holds it."""

    run: Callable[[ClosedTask], MethodRun]


def closed(
    name: str, title: str, description: str, *options: Option
) -> Callable[[Callable[[ClosedTask], MethodRun]], ClosedMethod]:
    """Declare a method: what it is called, and the options that it takes."""
    return lambda run: ClosedMethod(name, title, description, options, gradient=False, run=run)


def of_head(kind: type[Head]) -> ClosedMethod:
    """The method of a head: its round, over clients of the method's own."""

    @closed(kind.method, kind.title, kind.description, *kind.options)
    def run(task: ClosedTask) -> MethodRun:
        found = run_head(kind, task)
        first = found.clients[0]
        if first.test:
            model = found.head.common if first.personal is None else first.personal.model
            task.look(task.clients[0], model.scores(task.tensors(task.clients[0].test)[0]))
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
        priors=every,
        probe=(task.probe or None) if isinstance(task, ClosedTask) else None,
        tested=[tested.get(client.name) for client in task.clients],
    )


@closed("local", "Local ridge", "the ridge of each client's rows alone")
def run_local(task: ClosedTask) -> MethodRun:
    """The ridge of each client's rows alone."""
    began = time.perf_counter()
    models: dict[str, LocalFit] = {}
    found = in_order(
        lambda client: LocalFit.of(client, task.num_classes, task.ridge, task.device, task.only_local_classes),
        task.training,
        task.device,
    )
    for done, (client, model) in enumerate(zip(task.training, found, strict=True), start=1):
        models[client.name] = model
        task.report("trained alone", done, len(task.training))

    def scored(client: Client) -> Tensor:
        path = local_path(client, task.num_classes, task.ridge.standardize, task.ridge.intercept, task.device)
        return path.loo_scores(path.select())

    priors = task.priors(scored)
    seconds = time.perf_counter() - began
    accuracy, temperature = [], common_temperature(fit.losses for fit in models.values())
    for client in task.clients:
        scores = models[client.name].model.scores if client.name in models else None
        accuracy.append(task.accuracy(client, scores, priors.get(client.name), temperature))
    sent = prior_bytes(task.num_classes) if priors else 0
    return one_shot("local", task, accuracy, rounds=0, seconds=seconds, up=sent, down=sent, priors=priors)


@closed("global", "Global ridge", "one ridge of all clients' rows (AFL, Fed3R)", Option("beta"))
def run_global(task: ClosedTask) -> MethodRun:
    """α = 0 for everybody."""
    return _global(task)


@closed(
    "global-oll",
    "Global ridge, own classes",
    "the global ridge, with each client's own classes to choose among",
    Option("beta"),
)
def run_global_local_classes(task: ClosedTask) -> MethodRun:
    """The same, in which no client is told of a class it has no row of: nearly free, and hard to beat."""
    return replace(_global(replace(task, only_local_classes=True)), name="global-oll")


def _global(task: ClosedTask) -> MethodRun:
    outcome = simulate(
        task.clients,
        task.num_classes,
        # The paper's ridge has its β from the sum alone.
        beta=task.options.get("beta", "auto" if task.ridge.standardize else "gcv"),
        methods=("global",),
        only_local_classes=task.only_local_classes,
        prior=task.prior == "client",
        **vars(task.ridge),
        device=task.device,
        report=task.report,
    )
    if outcome.clients[0].test:
        common = outcome.federation.common
        task.look(task.clients[0], common.scores(task.tensors(task.clients[0].test)[0]))
    rounds, up, down = outcome.traffic("global")
    return one_shot(
        "global",
        task,
        [client.accuracy["global"] for client in outcome.clients],
        rounds=rounds,
        seconds=sum(seconds for phase, seconds in outcome.seconds.items() if phase != "tests"),
        up=up,
        down=down,
        priors={client.client: client.priors["global"] for client in outcome.clients if "global" in client.priors},
        tested={client.client: client.tested.get("global") for client in outcome.clients},
    )
