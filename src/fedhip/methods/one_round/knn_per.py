"""kNN-Per (Marfoq et al., 2022): each client's own rows as a memory beside a global model.

Differs from the paper: the global model is one of this package's one-round heads, where the paper trains a network; k,
the length s and the mix are each client's own, by its rows left out, where its code looks at test rows.

w_j = exp(−‖x − f_j‖² / (s r²)) for the k nearest of the client's rows,   r² their mean squared distance, over its rows
p_knn(c) = Σ_{j: y_j = c} w_j / Σ_j w_j,   p = λ p_knn + (1 − λ) p_global,   p_global = softmax(scores / T)

A row is no neighbour of its own, and is scored by the global model without it. T is everybody's, by these scores; k, s
and λ are those of highest likelihood. Nothing more than the global model's sums and the losses over T is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from fedhip.core.choice.calibration import common_temperature, probabilities
from fedhip.heads import Head, Lda, Ridge
from fedhip.heads.options import Option
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.one_round import Fitted, OneRound, Scores, one_round
from fedhip.simulation.client import Client
from fedhip.utils.parallel import in_order, one_thread

NEIGHBOURS, LENGTHS = (3, 10, 30), (0.1, 0.3, 1.0, 3.0)
MIXES = tuple(step / 10 for step in range(11))
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Memory:
    """A client's rows (N_k, m), their labels (N_k,), and the number of classes."""

    rows: Tensor
    labels: Tensor
    num_classes: int

    def squared_distances(self, x: Tensor) -> Tensor:
        """(n, N_k)."""
        return torch.cdist(x, self.rows, compute_mode="donot_use_mm_for_euclid_dist").square()

    def shares(self, distances: Tensor, neighbours: int, length: float) -> Tensor:
        """p_knn (n, d) from squared distances, ∞ for rows that are no neighbours; `length` is s r². None: all 0."""
        near, at = distances.topk(min(neighbours, distances.shape[1]), dim=1, largest=False)
        # Less the smallest distance, which leaves the shares as they are, so that not all of them are 0.
        exponents = (near - near[:, :1]) / max(length, _TINY)
        weights = torch.where(near.isinf(), 0.0, torch.exp(-exponents.nan_to_num(nan=0.0)))
        total = weights.sum(dim=1, keepdim=True).clamp(min=_TINY)
        found = weights.new_zeros(len(weights), self.num_classes)
        return found.scatter_add_(1, self.labels[at], weights / total)

    def distances_left_out(self, groups: Tensor | None) -> Tensor:
        """(N_k, N_k) with ∞ for the row itself, or for all of its group."""
        together = torch.arange(len(self.labels)) if groups is None else groups
        same = (together[:, None] == together[None, :]).to(self.rows.device)
        return self.squared_distances(self.rows).masked_fill(same, torch.inf)


def logs(probabilities: Tensor) -> Tensor:
    """log p, of at least the smallest number."""
    return probabilities.clamp(min=_TINY).log()


def mean_nearest(distances: Tensor, neighbours: int) -> float:
    """r²: the mean squared distance of rows left out from their nearest; 1 where there are none."""
    near = distances.topk(min(neighbours, distances.shape[1]), dim=1, largest=False).values
    near = near[near.isfinite()]
    return float(near.mean()) if len(near) and float(near.mean()) > 0 else 1.0


@dataclass(frozen=True)
class NeighbourChoice:
    """A client's k, s r² and λ, and log p (N_k, d) of its rows left out."""

    neighbours: int
    length: float
    mix: float
    left_out: Tensor


def choose(
    memory: Memory, common: Tensor, groups: Tensor | None,
    neighbours: tuple[int, ...] = NEIGHBOURS, lengths: tuple[float, ...] = LENGTHS, mixes: tuple[float, ...] = MIXES,
) -> NeighbourChoice:  # fmt: skip
    """The choice of highest likelihood; `common` (N_k, d) is p_global of the rows, each left out. Of equals the first.

    A row that the global model cannot score without itself, being alone in its class, judges nothing.
    """
    distances, y = memory.distances_left_out(groups), memory.labels[:, None]
    judges = common.gather(1, y) > 0
    best, highest = None, -torch.inf
    for k, s in product(neighbours, lengths):
        length = s * mean_nearest(distances, k)
        near = memory.shares(distances, k, length)
        # Without any neighbour the global model answers.
        near = torch.where(near.sum(dim=1, keepdim=True) > 0, near, common)
        for mix in mixes:
            mixed = torch.lerp(common, near, mix)
            likelihood = float(mixed.gather(1, y)[judges].log().sum())
            if best is None or likelihood > highest + 1e-9 * len(y):
                best, highest = NeighbourChoice(k, length, mix, logs(mixed)), likelihood
    if best is None:
        raise ValueError("there is nothing to choose among")
    return best


def knn_per(name: str, title: str, base: type[Head], summary: str) -> OneRound:
    """The method on a head's global model."""

    @one_round(
        name,
        title,
        f"{summary}, mixed with each client's own nearest rows",
        Option("neighbours", whole=True),
        Option("length", positive=True),
        Option("mix", most=1.0),
    )
    def fit(task: ClosedTask) -> Fitted:
        """The head's round; then every client keeps its rows, and chooses."""
        plain = replace(task, options={"alpha": 0.0} if base is Ridge else {}, prior="none")
        federation = base.federate(plain)
        with one_thread():
            head = base.fit(federation, plain)
        training, d = task.training, task.num_classes

        def scored(client: Client) -> Tensor:
            (scores,) = head.left_out(client)["global"].scores
            return scores

        scores = dict(zip((c.name for c in training), in_order(scored, training, task.device), strict=True))
        losses = (head.losses(scores[c.name], task.tensors(c.train)[1]) for c in training)
        temperature = common_temperature(losses, base.temperatures) or 1.0

        def personal(client: Client) -> tuple[Scores, Tensor]:
            memory = Memory(*task.tensors(client.train), d)
            options = task.options
            found = choose(
                memory,
                probabilities(scores[client.name], temperature).nan_to_num(nan=1 / d),
                client.group_tensor,
                (int(options["neighbours"]),) if "neighbours" in options else NEIGHBOURS,
                (options["length"],) if "length" in options else LENGTHS,
                (options["mix"],) if "mix" in options else MIXES,
            )
            return mixture(memory, found, common), found.left_out

        def common(x: Tensor) -> Tensor:
            return probabilities(head.common.scores(x), temperature)

        own, left_out = {}, {}
        # What it answers with holds on to the head, and everybody's rows with it.
        memories = in_order(personal, training, task.device, here=True)
        for done, (scored_by, of_rows) in enumerate(memories, start=1):
            client = training[done - 1].name
            own[client], left_out[client] = scored_by, of_rows
            task.report("memories", done, len(training))
        rounds, up, down = head.traffic
        return Fitted(
            lambda x: logs(common(x)),
            up + 8 * len(base.temperatures),
            down + 8,
            rounds,
            own,
            logits=True,
            left_out=lambda client: left_out[client.name],
        )

    return fit


def mixture(memory: Memory, choice: NeighbourChoice, common: Callable[[Tensor], Tensor]) -> Scores:
    """log p of a client's model."""

    def scores(x: Tensor) -> Tensor:
        near = memory.shares(memory.squared_distances(x), choice.neighbours, choice.length)
        return logs(torch.lerp(common(x), near, choice.mix))

    return scores


knn_per_ridge = knn_per("knn-per", "kNN-Per", Ridge, "the global ridge")
knn_per_lda = knn_per("knn-per-lda", "kNN-Per, LDA", Lda, "the global linear discriminant")
