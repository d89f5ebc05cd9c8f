"""FedHiP-LDA: the shared-covariance discriminant of all rows, with each client's own means where they differ.

phase 1   at each client: statistics of its own training rows, on the grid (FedHiP's own upload)
phase 2   at the server: their sum; features standardised, LDA with oracle approximating shrinkage, all from the sum
phase 3   at each client: its means by empirical Bayes; they are used if leave-one-out on its rows says so
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core import Standardization
from fedhip.core.affine import AffineModel
from fedhip.core.calibration import choose_temperature, log_losses
from fedhip.core.discriminant import Discriminant, PersonalDiscriminant
from fedhip.core.fixedpoint import decode, fraction_bits_for, round_features
from fedhip.methods.closed import Task, one_shot
from fedhip.methods.prior import prior_bytes
from fedhip.methods.protocol import MethodRun
from fedhip.parallel import in_order, one_thread
from fedhip.simulation import Client, add_up, largest_feature

#: Half as large to forty times as large as the discriminant's scores: LDA of many features is too sure of itself.
TEMPERATURES: tuple[float, ...] = tuple(10.0 ** (i / 10) for i in range(-3, 17))


@dataclass(frozen=True)
class LdaHead:
    """One client's model on raw features, the scores of its rows left out, and whether its means are its own."""

    model: AffineModel
    loo_scores: Tensor
    personal: bool


def choose_means(federation: Discriminant, own: PersonalDiscriminant, y: Tensor, common: Tensor, T: float) -> bool:
    """Whether the client's means beat the federation's on its rows left out, by log-loss at temperature T.

    `common` are the federation's scores (N_k, d) of the rows left out. Rows alone in their class judge nothing.
    """
    judges = federation.total.counts.to(y.device)[y] > 1
    mine, theirs = (float(log_losses(scores[judges], y[judges], [T])[0]) for scores in (own.loo_scores(), common))
    return mine < theirs


def fit_heads(task: Task) -> tuple[list[LdaHead], AffineModel, int]:
    """The head of each client with training rows, the federation's model, and the bytes of the statistics."""
    training, d = task.training, task.num_classes
    bits = fraction_bits_for(largest_feature(training))
    uploads = in_order(lambda client: client.statistics(d, bits, task.device), training, task.device)
    total = decode(add_up(uploads))
    standardization = Standardization.of(total, intercept=False)
    with one_thread():
        federation = Discriminant(standardization.statistics(total), task.options.get("shrinkage", "oas"))
        common = federation.model.on_raw(standardization)

    def rows(client: Client) -> tuple[Tensor, Tensor]:
        x, y = task.tensors(client.train)
        return standardization.features(round_features(x, bits)), y

    def left_out(client: Client) -> Tensor:
        return federation.loo_scores(*rows(client), client=client.name)

    scores = list(in_order(left_out, training, task.device))
    losses = torch.zeros(len(TEMPERATURES), dtype=torch.float64, device=task.device)
    for client, found in zip(training, scores, strict=True):
        y = torch.tensor(client.train[1], device=task.device)
        judges = total.counts[y] > 1
        losses += log_losses(found[judges], y[judges], TEMPERATURES)
    temperature = choose_temperature(losses, TEMPERATURES)

    def personalize(at: int) -> LdaHead:
        F, y = rows(training[at])
        own = federation.personal(F, y, client=training[at].name)
        if choose_means(federation, own, y, scores[at], temperature):
            return LdaHead(own.model.on_raw(standardization), own.loo_scores(), personal=True)
        return LdaHead(common, scores[at], personal=False)

    heads = []
    for done, head in enumerate(in_order(personalize, range(len(training)), task.device), start=1):
        heads.append(head)
        task.report("personal means", done, len(training))
    m = total.num_features
    return heads, common, 8 * (m * (m + 1) // 2 + m * d + d)


def run_fedhip_lda(task: Task) -> MethodRun:
    """One round: statistics up, their sum down."""
    began = time.perf_counter()
    heads, common, sent = fit_heads(task)
    own = {id(client): head for client, head in zip(task.training, heads, strict=True)}
    priors = task.priors(lambda client: own[id(client)].loo_scores)
    seconds = time.perf_counter() - began
    models = {at: head.model for at, head in own.items()}
    accuracy = [
        task.accuracy(client, models.get(id(client), common).scores, priors.get(client.name)) for client in task.clients
    ]
    sent += prior_bytes(task.num_classes, counts=False) if priors else 0
    return one_shot("fedhip-lda", task, accuracy, rounds=1, seconds=seconds, up=sent, down=sent, priors=priors)
