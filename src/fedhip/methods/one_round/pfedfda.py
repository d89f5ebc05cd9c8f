"""pFedFDA (McLaughlin and Su, 2024) on frozen features, in one round.

Differs from the paper: the network is not trained, so that one round takes the place of many.

scores_c(x) = x·Σ⁻¹μ_c − ½ μ_c·Σ⁻¹μ_c + log π_c,   μ = β μ_k + (1 − β) μ_all,   Σ = β Σ_k + (1 − β) Σ_all

with π the client's own class frequencies, Σ the covariance within classes, shrunk to (1 − s) Σ + s (tr Σ / m) I, and β
chosen by each client: half of its rows, with those of all others, score the other half, and the β of least log-loss is
taken. (To that end the client takes its own statistics out of everybody's, so that no row scores itself.)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedhip.heads.options import Option
from fedhip.methods.engine.closed import ClosedTask, closed, one_shot
from fedhip.methods.engine.gaussian import shrunk, triangle
from fedhip.methods.engine.laboratory import mean_by_class, nbytes
from fedhip.methods.engine.protocol import MethodRun
from fedhip.simulation.client import Client
from fedhip.simulation.orders import client_order
from fedhip.simulation.priors import losses_bytes
from fedhip.utils.parallel import in_order

BETAS = tuple(step / 10 for step in range(11))


@dataclass(frozen=True)
class Gaussians:
    """Class means (d, m), covariance within classes (m, m), and rows of each class (d,)."""

    means: Tensor
    covariance: Tensor
    counts: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, num_classes: int) -> Gaussians:
        """Of a client's rows."""
        means = mean_by_class(x, y, num_classes)
        rest = x - means[y]
        return cls(means, rest.mT @ rest / len(y), torch.bincount(y, minlength=num_classes))

    @classmethod
    def of_all(cls, clients: Iterable[Gaussians]) -> Gaussians:
        """Means weighted by their counts, covariances by the clients' rows; one client at a time."""
        each = iter(clients)
        first = next(each)
        counts, sums = first.counts.clone(), first.means * first.counts[:, None]
        scatter = first.covariance * first.counts.sum()
        for client in each:
            counts += client.counts
            sums += client.means * client.counts[:, None]
            scatter += client.covariance * client.counts.sum()
        return cls(sums / counts[:, None].clamp(min=1), scatter / counts.sum(), counts)

    def without(self, own: Gaussians) -> Gaussians:
        """Of the other clients, in the sums of `of_all`."""
        counts = self.counts - own.counts
        sums = self.means * self.counts[:, None] - own.means * own.counts[:, None]
        covariance = self.covariance * self.counts.sum() - own.covariance * own.counts.sum()
        return Gaussians(sums / counts[:, None].clamp(min=1), covariance / counts.sum().clamp(min=1), counts)


def log_priors(counts: Tensor) -> Tensor:
    """log π, with one row in all spread evenly over the classes, so that none is impossible."""
    return ((counts.double() + 1 / len(counts)) / (counts.sum() + 1)).log()


@dataclass(frozen=True)
class GaussianClassifier:
    """scores = x W + b; a class that no client has is never chosen."""

    W: Tensor
    b: Tensor

    @classmethod
    def of(cls, own: Gaussians, everybody: Gaussians, beta: float, shrinkage: float) -> GaussianClassifier:
        """Between the client's and everybody's; a class the client lacks has everybody's mean."""
        held = (own.counts > 0)[:, None]
        means = torch.where(held, everybody.means.lerp(own.means, beta), everybody.means)
        covariance = everybody.covariance.lerp(own.covariance, beta)
        covariance = shrunk(covariance, shrinkage)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if int(failed):
            factor = torch.linalg.cholesky(shrunk(covariance, torch.finfo(covariance.dtype).eps * len(covariance)))
        W = torch.cholesky_solve(means.mT.contiguous(), factor)
        b = log_priors(own.counts) - (means * W.mT).sum(dim=1) / 2
        return cls(W, b.masked_fill(everybody.counts == 0, -torch.inf))

    def scores(self, x: Tensor) -> Tensor:
        """(n, d)."""
        return x @ self.W + self.b


def choose_beta(x: Tensor, y: Tensor, everybody: Gaussians, shrinkage: float, order: Tensor) -> float:
    """The β of least log-loss when each half of the rows scores the other (the method's own); else 0."""
    if len(y) < 2:
        return 0.0
    halves = order[::2], order[1::2]
    others = everybody.without(Gaussians.of(x, y, len(everybody.counts)))
    losses = [0.0] * len(BETAS)
    for fitted, held_out in (halves, halves[::-1]):
        own = Gaussians.of(x[fitted], y[fitted], len(everybody.counts))
        rest = Gaussians.of_all([others, own])
        judges = held_out[rest.counts[y[held_out]] > 0]  # a class that is all held out can be scored by nobody
        for i, beta in enumerate(BETAS):
            scores = GaussianClassifier.of(own, rest, beta, shrinkage).scores(x[judges])
            losses[i] += float(torch.nn.functional.cross_entropy(scores, y[judges], reduction="sum"))
    return BETAS[int(np.argmin(losses))]


def scores_by_halves(
    x: Tensor, y: Tensor, everybody: Gaussians, beta: float, shrinkage: float, order: Tensor
) -> Tensor:
    """(n, d): each row scored by all others but its half of the client's; −∞ for classes that these do not have."""
    halves = order[::2], order[1::2]
    others = everybody.without(Gaussians.of(x, y, len(everybody.counts)))
    scores = x.new_full((len(y), len(everybody.counts)), -torch.inf)
    for fitted, held_out in (halves, halves[::-1]):
        if len(fitted) and len(held_out):
            own = Gaussians.of(x[fitted], y[fitted], len(everybody.counts))
            scores[held_out] = GaussianClassifier.of(own, Gaussians.of_all([others, own]), beta, shrinkage).scores(
                x[held_out]
            )
    return scores


@closed(
    "pfedfda",
    "pFedFDA",
    "discriminant analysis between the client's Gaussians and everybody's",
    Option("shrinkage", 1e-4, most=1.0),
    Option("beta", most=1.0),
)
def run_pfedfda(task: ClosedTask) -> MethodRun:
    """Every client sends means, counts and covariance, receives those of all, and chooses its β."""
    began, d, training, shrinkage = time.perf_counter(), task.num_classes, task.training, task.options["shrinkage"]

    def fit(client: Client) -> Gaussians:
        return Gaussians.of(*task.tensors(client.train), d)

    everybody = Gaussians.of_all(in_order(fit, training, task.device))

    def personalize(at: int) -> tuple[GaussianClassifier, Tensor | None]:
        x, y = task.tensors(training[at].train)
        order = torch.from_numpy(client_order(len(y), task.seed, training[at].name, 0, 0)).to(task.device)
        beta = task.options.get("beta")
        chosen = choose_beta(x, y, everybody, shrinkage, order) if beta is None else beta
        judged = task.prior == "client"
        scores = scores_by_halves(x, y, everybody, chosen, shrinkage, order) if judged else None
        return GaussianClassifier.of(Gaussians.of(x, y, d), everybody, chosen, shrinkage), scores

    models, scored = {}, {}
    for done, found in enumerate(in_order(personalize, range(len(training)), task.device), start=1):
        name = training[done - 1].name
        models[name], scored[name] = found
        task.report("choosing beta", done, len(training))
    priors = task.priors(lambda client: scored[client.name])
    seconds = time.perf_counter() - began
    common = GaussianClassifier.of(everybody, everybody, 0.0, shrinkage)
    accuracy = [
        # Scores of Gaussians are logarithms of probabilities.
        task.accuracy(client, models.get(client.name, common).scores, priors.get(client.name), 1.0)
        for client in task.clients
    ]
    sent = nbytes(everybody.means, everybody.counts) + triangle(len(everybody.covariance))
    sent += losses_bytes([1]) if priors else 0
    return one_shot("pfedfda", task, accuracy, rounds=1, seconds=seconds, up=sent, down=sent, priors=priors)
