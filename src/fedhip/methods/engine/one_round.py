"""Rivals of one round: fitted to what clients send once, tested by everybody, with the client's prior as all others.

A rival is a function from a task to what its round gave (`Fitted`). Where that has no scores of rows left out, a prior
is chosen as for methods that train by gradients: the rival is fitted once more, to four fifths of every client's rows,
and that second fit, its shadow, scores the last fifth. What the shadow sends and takes is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedhip.core.choice.prior import Prior
from fedhip.core.standardization import Standardization
from fedhip.heads.options import Option
from fedhip.methods.engine.closed import ClosedMethod, ClosedTask, one_shot
from fedhip.methods.engine.protocol import MethodRun, differs_from_paper
from fedhip.simulation.client import Client
from fedhip.simulation.hold_out import hold_out
from fedhip.simulation.priors import choose_scored_priors, left_out_classes, losses_bytes, prior_bytes
from fedhip.utils.progress import silent

#: Scores (n, d) of features (n, m) in float64.
Scores = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Fitted:
    """What a round gave: `scores` of everybody's model, and of the clients' `own`, by name, where they have one.

    `up` and `down` are bytes of one client, a mean over clients. The softmax of scores that are `logits` is a
    probability. `left_out` gives scores (N_k, d) of a client's rows by models that have not seen them, where that takes
    no second fit. `note` is for the table.
    """

    scores: Scores
    up: int
    down: int
    rounds: int = 1
    own: Mapping[str, Scores] = field(default_factory=dict)
    logits: bool = False
    left_out: Callable[[Client], Tensor] | None = None
    note: str | None = None


@dataclass(frozen=True)
class OneRound(ClosedMethod):
    """A rival of one round, as the table of methods holds it."""

    fit: Callable[[ClosedTask], Fitted]


def one_round(
    name: str, title: str, description: str, *options: Option
) -> Callable[[Callable[[ClosedTask], Fitted]], OneRound]:
    """Declare a rival: what it is called, and the options that it takes."""

    def declare(fit: Callable[[ClosedTask], Fitted]) -> OneRound:
        def run(task: ClosedTask) -> MethodRun:
            began = time.perf_counter()
            fitted = fit(task)
            priors, up, down = _priors(task, fit, fitted)
            seconds = time.perf_counter() - began
            accuracy = [
                task.accuracy(
                    client, _known(task, fitted, client.name), priors.get(client.name), 1.0 if fitted.logits else None
                )
                for client in task.clients
            ]
            return one_shot(
                name, task, accuracy, rounds=fitted.rounds, seconds=seconds, up=fitted.up + up,
                down=fitted.down + down, priors=priors, note=fitted.note,
            )  # fmt: skip

        differs = differs_from_paper(fit)
        return OneRound(name, title, description, options, gradient=False, differs=differs, run=run, fit=fit)

    return declare


def _known(task: ClosedTask, fitted: Fitted, client: str) -> Scores:
    """The client's scores; a class that nobody has is never chosen."""
    scores, unknown = fitted.own.get(client, fitted.scores), task.all_counts == 0
    return lambda x: scores(x).masked_fill(unknown, -torch.inf)


def _priors(task: ClosedTask, fit: Callable[[ClosedTask], Fitted], fitted: Fitted) -> tuple[dict[str, Prior], int, int]:
    """Every client's, if they are asked for, and the bytes up and down that it takes to choose them."""
    if task.prior == "none":
        return {}, 0, 0
    up, down = losses_bytes([1]), prior_bytes(task.num_classes)
    if fitted.left_out is not None:
        return task.priors(fitted.left_out), up, down
    apart = replace(task, clients=hold_out(task.training, task.seed), report=silent)
    shadow = fit(apart)
    scores: list[Tensor | None] = []
    labels: list[Tensor] = []
    own = [task.counts(client) for client in task.training]
    for client, counts in zip(apart.clients, own, strict=True):
        x, y = task.tensors(client.test)
        found = _known(apart, shadow, client.name)(x) if len(y) else None
        if found is not None and task.only_local_classes:
            found = left_out_classes(found, y, counts)
        scores.append(found)
        labels.append(y)
    chosen = choose_scored_priors(scores, labels, own, task.all_counts)
    priors = {client.name: prior for client, prior in zip(task.training, chosen, strict=True)}
    return priors, up + shadow.up, down + shadow.down


def standardize(task: ClosedTask, *, intercept: bool = False) -> Standardization:
    """Features less mean, over deviation, of all clients' training rows: from their sums."""
    rows, sums, squares = 0, torch.zeros(()), torch.zeros(())
    for client in task.training:
        x, y = task.tensors(client.train)
        rows += len(y)
        sums, squares = sums.to(x) + x.sum(dim=0), squares.to(x) + x.square().sum(dim=0)
    return Standardization.of_sums(rows, sums, squares, intercept=intercept)


def standardization_bytes(m: int) -> tuple[int, int]:
    """What that takes: rows, Σ x and Σ x² up, mean and deviation down."""
    return 8 * (2 * m + 1), 8 * 2 * m
