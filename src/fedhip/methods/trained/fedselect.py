"""FedSelect (Tamirisa et al., 2024): which entries are personal is found out on the way.

Differs from the paper: weights are chosen by how far they have drifted since the last choice, the server's mean among
it, as in its code; the paper goes by the local update of the round.

personal pass   θ_k ← θ_k − η M_k ⊙ ∇CE
shared pass     θ_k ← θ_k − η (1 − M_k) ⊙ ∇CE
server          θ = Σ_k (1 − M_k) ⊙ θ_k / Σ_k (1 − M_k), written into the entries that client k shares

Every few rounds the shared weights that have moved most since the last time become personal (M_k = 1). Biases are
always shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.laboratory import Models, for_each, put, take
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Batch, Params


@dataclass(frozen=True)
class FedSelectState:
    """Of each client: θ_k, as it was before the last mean was written into it, M_k, and θ_k when M_k last changed."""

    own: Params
    trained: Params
    mask: Params
    before: Params


def masked_sgd(params: Params, fixed: Params, batch: Batch) -> None:
    """θ ← θ − η M ⊙ ∇CE(θ), M the tensors that are fixed."""
    for theta, slope, mask in zip(params, network.dense(network.gradient(params, batch)), fixed, strict=True):
        theta.addcmul_(slope, mask, value=-1)


def mean_of_shared(theta: Tensor, mask: Tensor) -> Tensor:
    """Entry by entry, over the clients that share it; it stays as it is where nobody does."""
    shared = ~mask
    return (theta * shared).sum(dim=0) / shared.sum(dim=0).clamp(min=1)


def choose(mask: Tensor, drift: Tensor, percent: float, limit: float) -> Tensor:
    """M (k, entries…) with each client's shared entries that have drifted most.

    A client of which more than `limit` percent are personal keeps its M. All clients at once: one order of their
    entries, in which a client takes as many as it has to.
    """
    entries = mask[0].numel()
    shared = (~mask).flatten(1).sum(dim=1)
    numbers = shared - ((1 - percent / 100) * shared.double()).round().to(shared.dtype)
    numbers = torch.where(entries - shared > limit / 100 * entries, 0, numbers)
    most = int(numbers.max())
    if most == 0:
        return mask
    order = torch.where(mask, -torch.inf, drift).flatten(1).topk(most, dim=1).indices
    taken = torch.arange(most, device=mask.device) < numbers[:, None]
    return mask.flatten(1).scatter(1, order, taken | mask.flatten(1).gather(1, order)).view(mask.shape)


class FedSelect(Method[FedSelectState]):
    """Entries of the head become personal one after another."""

    name, title = "fedselect", "FedSelect"
    description = "the weights that move most become each client's own, the others are averaged"
    declared = (
        Option("la_epochs", 3.0, whole=True, follows_epochs=True),
        Option("every_rounds", 3.0, whole=True),
        Option("percent", 25.0, most=100.0),
        Option("limit_percent", 80.0, most=100.0),
    )

    def start(self) -> FedSelectState:
        """Everything is shared."""
        own = for_each(self.lab.initial(), self.lab.size)
        mask = tuple(torch.zeros_like(tensor, dtype=torch.bool).contiguous() for tensor in own)
        return FedSelectState(own, own, mask, own)

    def round(self, state: FedSelectState, number: int, present: Sequence[int]) -> tuple[FedSelectState, Traffic]:
        """Train both parts in turn, send what is shared, choose anew, receive the mean."""
        lab, mask, theta = self.lab, take(state.mask, present), take(state.own, present)
        personal = tuple(entries.to(lab.dtype) for entries in mask)
        shared = tuple(1 - entries for entries in personal)
        for turn in range(int(self.options["la_epochs"])):
            for part, entries in enumerate((personal, shared)):
                epoch = 2 * turn + part
                passes = lab.shuffled(number, range(epoch, epoch + 1))
                theta = lab.train(masked_sgd, theta, entries, present=present, orders=passes)
        chosen, before = mask, take(state.before, present)
        if number and number % int(self.options["every_rounds"]) == 0:
            chosen = tuple(self.choose(*tensors) for tensors in zip(mask, theta, before, strict=True))
            before = theta
        merged = tuple(torch.where(m, t, mean_of_shared(t, m)) for t, m in zip(theta, mask, strict=True))
        new = FedSelectState(
            put(state.own, present, merged),
            put(state.trained, present, theta),
            put(state.mask, present, chosen),
            put(state.before, present, before),
        )
        values = sum(int((~m).sum()) * t.element_size() for t, m in zip(theta, mask, strict=True))
        bits = sum(-(-m[0].numel() // 8) for m in mask if m.ndim == 3) * len(present)
        return new, Traffic(values + bits, values)

    def choose(self, mask: Tensor, theta: Tensor, before: Tensor) -> Tensor:
        """Anew for each client; a bias (K, d) is left alone."""
        if mask.ndim == 2:
            return mask
        percent, limit = self.options["percent"], self.options["limit_percent"]
        return choose(mask, (theta - before).abs(), percent, limit)

    def models(self, state: FedSelectState, number: int) -> Models:
        """θ_k as it was trained, before the last mean."""
        return Models(state.trained)
