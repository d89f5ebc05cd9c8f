"""Ridge or LDA, by the share of training rows that each classifies right without them.

Every client counts, for both heads with the priors that it would choose, its rows that are classified right when they
are left out; the counts add, and nothing else travels. Both are judged exactly. The logistic head is no candidate: its
leave-one-out is of first order, and promises too much to be set beside these (docs/beyond.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from fedhip.core import PersonalizationPath
from fedhip.core.errors import EmptyClientError
from fedhip.core.fixedpoint import fraction_bits_for, round_features
from fedhip.core.prior import PriorLosses, choose_prior, scale_of
from fedhip.methods.closed import Task
from fedhip.methods.fedhip_lda import fit_heads
from fedhip.methods.protocol import Protocol
from fedhip.parallel import in_order
from fedhip.priors import PRIOR_ALPHAS
from fedhip.simulation import Client, Federation, add_up, largest_feature


@dataclass(frozen=True)
class Recommendation:
    """The head of most training rows right, and the share (0 to 1) of each that was judged."""

    head: str
    right: dict[str, float]

    def __str__(self) -> str:
        shares = ", ".join(f"{head} {share:.1%}" for head, share in self.right.items())
        return f"recommended head: {self.head} (training rows right without them: {shares})"


def recommend_head(
    clients: Sequence[Client], num_classes: int, *, device: str | torch.device = "cpu"
) -> Recommendation:
    """Ridge (`fedhip`) or `fedhip-lda` for these clients; of two alike, the ridge."""
    task = Task(clients, num_classes, Protocol(prior="client"), {}, device, lambda *_: None)
    if not task.training:
        raise EmptyClientError("no client has a training row; there is nothing to judge a head by")
    right = {"fedhip": share_right(task, _ridge(task)), "fedhip-lda": share_right(task, _lda(task))}
    return Recommendation(max(right, key=lambda head: right[head]), right)


def share_right(task: Task, scores: list[list[Tensor]]) -> float:
    """Of all training rows those that are right, each client with the model and prior that it would choose.

    `scores` are each training client's, of its rows left out, (N_k, d) for each of the models it may choose among.
    """
    scale = scale_of(model for models in scores for model in models)
    losses = [
        PriorLosses.of(models, task.tensors(client.train)[1], task.counts(client), task.all_counts, scale)
        for client, models in zip(task.training, scores, strict=True)
    ]
    everybody = reduce(add, losses)
    return sum(own.right_with(*choose_prior(own, everybody)) for own in losses) / max(everybody.rows, 1)


def _ridge(task: Task) -> list[list[Tensor]]:
    """FedHiP's, for each α."""
    bits = fraction_bits_for(largest_feature(task.training))
    uploads = in_order(
        lambda client: client.statistics(task.num_classes, bits, task.device), task.training, task.device
    )
    federation = Federation.of(add_up(uploads), "auto")

    def scored(client: Client) -> list[Tensor]:
        F = round_features(torch.as_tensor(client.train[0], device=task.device), bits)
        path = PersonalizationPath(federation.total, F, client.train[1], federation.beta, client=client.name)
        return [path.loo_scores(alpha) for alpha in PRIOR_ALPHAS]

    return list(in_order(scored, task.training, task.device))


def _lda(task: Task) -> list[list[Tensor]]:
    heads, _, _ = fit_heads(task)
    return [[head.loo_scores] for head in heads]
