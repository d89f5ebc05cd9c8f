"""The methods in closed form that `fedhip.simulation` computes, in the shape of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.prior import Prior
from fedhip.methods.engine import sketch
from fedhip.methods.prior import choose, prior_bytes
from fedhip.methods.protocol import Evaluation, MethodRun, Protocol
from fedhip.models import masked
from fedhip.phases import Client, Rows
from fedhip.priors import left_out_classes, local_path
from fedhip.simulation import STANDARD, RidgeOptions, local_model, simulate
from fedhip.utils.parallel import in_order

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Task:
    """What a method in closed form is given."""

    clients: Sequence[Client]
    num_classes: int
    protocol: Protocol
    options: Mapping[str, float]
    device: str | torch.device
    report: Report
    ridge: RidgeOptions = STANDARD
    probe_size: int = 0
    probe: list[float] = field(default_factory=list)

    @property
    def training(self) -> list[Client]:
        """The clients with training rows."""
        return [client for client in self.clients if len(client.train[1])]

    @property
    def plain_ridge(self) -> RidgeOptions:
        """How rows become part of the sum that other heads are fitted to: as the ridge's, all rows weighing alike."""
        return replace(self.ridge, balance=False)

    def local_classes(self, client: Client) -> Tensor | None:
        """The classes to choose among (d,) bool; None for all."""
        counts = np.bincount(client.train[1], minlength=self.num_classes)
        return (
            torch.from_numpy(counts > 0).to(self.device) if self.protocol.only_local_classes and counts.any() else None
        )

    def accuracy(
        self, client: Client, scores: Callable[[Tensor], Tensor] | None, prior: Prior | None = None
    ) -> float | None:
        """On the client's test rows, of scores (n, d) from features (n, m) in float64."""
        if scores is None or not len(client.test[1]):
            return None
        features, labels = self.tensors(client.test)
        found = scores(features)
        self.look(client, found)
        if prior is not None:
            found = prior.apply(found, self.counts(client), self.all_counts)
        predicted = masked(found, self.local_classes(client)).argmax(dim=1)
        return float((predicted == labels).double().mean())

    def look(self, client: Client, scores: Tensor) -> None:
        """Keep a sketch of the first client's scores, if one is asked for."""
        if self.probe_size and client is self.clients[0]:
            self.probe[:] = sketch(scores, self.probe_size)

    def counts(self, client: Client) -> Tensor:
        """The client's training rows by class (d,)."""
        return torch.from_numpy(np.bincount(client.train[1], minlength=self.num_classes)).to(self.device)

    @cached_property
    def all_counts(self) -> Tensor:
        """Everybody's training rows by class (d,)."""
        return torch.stack([self.counts(client) for client in self.training]).sum(dim=0)

    def priors(self, scored: Callable[[Client], Tensor | None]) -> dict[str, Prior]:
        """Every client's prior, if it is asked for, from scores of its training rows by models without them."""
        if self.protocol.prior == "none":
            return {}
        scores, labels, own = [], [], []
        for client in self.training:
            labels.append(self.tensors(client.train)[1])
            own.append(self.counts(client))
            found = scored(client)
            if found is not None and self.protocol.only_local_classes:
                found = left_out_classes(found, labels[-1], own[-1])
            scores.append(found)
        chosen = choose(scores, labels, own, self.all_counts)
        return {client.name: prior for client, prior in zip(self.training, chosen, strict=True)}

    def tensors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Copies on the device, features in float64: the rows may be read-only."""
        features, labels = np.array(rows[0], np.float64), np.array(rows[1], np.int64)
        return torch.from_numpy(features).to(self.device), torch.from_numpy(labels).to(self.device)


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
) -> MethodRun:
    """A run whose history is its end."""
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
        probe=task.probe or None,
    )


def run_local(task: Task) -> MethodRun:
    """The ridge of each client's rows alone."""
    began = time.perf_counter()
    models: dict[str, AffineModel] = {}
    found = in_order(
        lambda client: local_model(client, task.num_classes, task.ridge, task.device), task.training, task.device
    )
    for done, (client, model) in enumerate(zip(task.training, found, strict=True), start=1):
        models[client.name] = model
        task.report("trained alone", done, len(task.training))

    def scored(client: Client) -> Tensor:
        path = local_path(client, task.num_classes, task.ridge.standardize, task.ridge.intercept, task.device)
        return path.loo_scores(path.select())

    priors = task.priors(scored)
    seconds = time.perf_counter() - began
    accuracy = []
    for client in task.clients:
        scores = models[client.name].scores if client.name in models else None
        accuracy.append(task.accuracy(client, scores, priors.get(client.name)))
    sent = prior_bytes(task.num_classes) if priors else 0
    return one_shot("local", task, accuracy, rounds=0, seconds=seconds, up=sent, down=sent, priors=priors)


def run_global(task: Task) -> MethodRun:
    """One ridge of all rows (AFL, Fed3R)."""
    return _simulated("global", task)


def run_global_local_classes(task: Task) -> MethodRun:
    """The same, in which no client is told of a class it has no row of: nearly free, and hard to beat."""
    only = replace(task.protocol, only_local_classes=True)
    return replace(_simulated("global", replace(task, protocol=only)), name="global-oll")


def run_fedhip(task: Task) -> MethodRun:
    """FedHiP: α by leave-one-out and β from the sum, unless they are given."""
    return _simulated("fedhip", task)


def _simulated(name: str, task: Task) -> MethodRun:
    outcome = simulate(
        task.clients,
        task.num_classes,
        alpha=task.options.get("alpha", "loo"),
        # The paper's ridge has its β from the sum alone: nothing in a client's model is how the others are divided.
        beta=task.options.get("beta", "auto" if task.ridge.standardize else "gcv"),
        methods=(name,),
        only_local_classes=task.protocol.only_local_classes,
        prior=task.protocol.prior == "client",
        **vars(task.ridge),
        device=task.device,
        report=task.report,
    )
    first = outcome.clients[0]
    if first.test:
        model = first.personal.model if name == "fedhip" and first.personal else outcome.federation.common
        task.look(task.clients[0], model.scores(task.tensors(task.clients[0].test)[0]))
    rounds, up, down = outcome.traffic(name)
    return one_shot(
        name,
        task,
        [client.accuracy[name] for client in outcome.clients],
        rounds=rounds,
        seconds=sum(seconds for phase, seconds in outcome.seconds.items() if phase != "tests"),
        up=up,
        down=down,
        alphas=[client.alpha for client in outcome.clients] if name == "fedhip" else None,
        priors={client.client: client.priors[name] for client in outcome.clients if name in client.priors},
    )
