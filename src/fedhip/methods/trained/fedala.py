"""FedALA (Zhang et al., 2023): adaptive local aggregation.

Differs from the paper: a threshold of 0.1 ends the first learning of the weights, as in its code (0.01 in the paper),
and 50 passes at the latest.

Θ̂_k = Θ_k + (Θ − Θ_k) ⊙ A_k,   A_k ← clip(A_k − η_A ∇_Θ̂ CE ⊙ (Θ − Θ_k), 0, 1)

with Θ the server's model, Θ_k what the client trained last and A_k its weights, entry by entry, for the last tensors
of the head; the others are Θ's. A slice of the client's rows serves to learn A_k: until the loss has settled when the
client first takes part in it, one pass ever after. Training goes on from Θ̂_k, and Θ̂_k is what is tested.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch

from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.laboratory import Models, for_each, nbytes, put, sgd, take, weighted_mean
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Batch, Params
from fedhip.simulation.orders import SLICE, Order, draw

#: The loss has settled when the deviation of its last values is small; it is not asked before there are more.
SETTLED_OVER = 10


@dataclass(frozen=True)
class FedALAState:
    """The server's Θ; of each client Θ_k, A_k, and whether A_k has been learnt."""

    theta: Params
    own: Params
    A: Params
    learnt: torch.Tensor


def blend(received: Params, own: Params, A: Params) -> Params:
    """Θ̂ = Θ_k + (Θ − Θ_k) ⊙ A for the last tensors, Θ for the others."""
    lower = len(received) - len(A)
    upper = zip(received[lower:], own[lower:], A, strict=True)
    return (*received[:lower], *(old + (new - old) * weight for new, old, weight in upper))


@dataclass(frozen=True)
class LearnWeights:
    """A step on A; `params` ends with the loss of the client's last batch, `fixed` is (Θ, Θ_k)."""

    rate: float

    def __call__(self, params: Params, fixed: Params, batch: Batch) -> None:
        """A ← clip(A − η_A ∇ ⊙ (Θ − Θ_k), 0, 1)."""
        A, loss = params[:-1], params[-1]
        received, own = fixed[: len(fixed) // 2], fixed[len(fixed) // 2 :]
        merged = blend(received, own, A)
        loss.copy_(torch.where(batch.active > 0, network.weighted_loss(merged, batch) / self.rate, loss))
        lower = len(received) - len(A)
        slopes = network.dense(network.gradient(merged, batch))[lower:]
        for weight, slope, new, old in zip(A, slopes, received[lower:], own[lower:], strict=True):
            weight.sub_(slope * (new - old)).clamp_(0, 1)


class FedALA(Method[FedALAState]):
    """Each client mixes the server's model into its own, entry by entry."""

    name, title = "fedala", "FedALA"
    description = "each client mixes the server's model with its own, with weights learnt entry by entry"
    declared = (
        Option("ala_rate", 1.0, positive=True),
        Option("slice_percent", 80.0, positive=True, most=100.0),
        Option("adapted_tensors", 2.0, whole=True),
        Option("threshold", 0.1),
        Option("start_epochs", 50.0, whole=True),
    )

    def start(self) -> FedALAState:
        """Everybody has the common beginning, and A = 1: the server's model."""
        theta, size = self.lab.initial(), self.lab.size
        adapted = theta[-int(self.options["adapted_tensors"]) :]
        ones = tuple(torch.ones_like(tensor).expand(size, *tensor.shape) for tensor in adapted)
        return FedALAState(theta, for_each(theta, size), ones, torch.zeros(size, dtype=torch.bool))

    def round(self, state: FedALAState, number: int, present: Sequence[int]) -> tuple[FedALAState, Traffic]:
        """Merge, train on from there, average."""
        lab = self.lab
        merged, A = self.merge(state, number, present)
        trained = lab.train(sgd, merged, present=present, orders=lab.shuffled(number))
        learnt = state.learnt.clone()
        learnt[list(present)] |= number > 0
        new = FedALAState(
            weighted_mean(trained, lab.shares(present)),
            put(state.own, present, trained),
            put(state.A, present, A),
            learnt,
        )
        return new, Traffic(nbytes(*trained), nbytes(*for_each(state.theta, len(present))))

    def merge(self, state: FedALAState, number: int, present: Sequence[int]) -> tuple[Params, Params]:
        """Θ̂ and A of the clients present."""
        received, A = for_each(state.theta, len(present)), take(state.A, present)
        if number == 0:  # Θ_k = Θ, and there is nothing to learn
            return received, A
        own = take(state.own, present)
        losses: dict[int, list[float]] = {k: [] for k in present}
        learning = set(present)
        for _ in range(int(self.options["start_epochs"])):
            A, found = self.learn(A, (*received, *own), number, present, learning)
            learning = {k for k in learning if not state.learnt[k]}
            if learning:  # only then is it worth waiting for the losses
                for k, loss in zip(present, found.tolist(), strict=True):
                    losses[k].append(loss)
            learning = {k for k in learning if not self.has_settled(losses[k])}
            if not learning:
                break
        return blend(received, own, A), A

    def learn(
        self, A: Params, fixed: Params, number: int, present: Sequence[int], learning: Set[int]
    ) -> tuple[Params, torch.Tensor]:
        """A after one pass of those still learning over their slices, and the losses of their last batches."""
        lab, rate = self.lab, self.options["ala_rate"]
        params = (*A, torch.zeros(len(present), dtype=lab.dtype, device=lab.device))
        *found, loss = lab.train(
            LearnWeights(rate),
            params,
            fixed,
            present=present,
            orders=lambda k: [self.slice(k, number)] if k in learning else [],
            rate=rate,
        )
        return tuple(found), loss

    def slice(self, k: int, number: int) -> Order:
        """A contiguous part of the client's rows, in their order."""
        rows, lab = self.lab.rows[k], self.lab
        length = min(rows, max(1, int(rows * self.options["slice_percent"] / 100)))
        first = draw(lab.protocol.seed, SLICE, lab.place[k], number).integers(rows - length + 1)
        return np.arange(first, first + length)

    def has_settled(self, losses: Sequence[float]) -> bool:
        """Whether the last losses are alike."""
        enough = len(losses) > SETTLED_OVER
        return enough and float(np.std(losses[-SETTLED_OVER:])) < self.options["threshold"]

    def models(self, state: FedALAState, number: int) -> Models:
        """What every client would train on from, if there was another round."""
        merged, _ = self.merge(state, number, range(self.lab.size))
        return Models(merged, for_each(state.theta, 1))
