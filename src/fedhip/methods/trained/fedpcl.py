"""FedPCL (Tan et al., 2022): clients exchange class prototypes, not weights.

Differs from the paper: its losses as cross-entropies over all classes of one view of a row, where the paper leaves the
own class out of the denominator and its code contrasts two; prototypes are normalised again after the mean; plain SGD.

z = relu(x U_k + c_k) / ‖·‖,   C_k[c] = the normalised mean of z over the client's rows of class c
min CE(z·C̄ / τ) + (1/K) Σ_p CE(z·C_p / τ),   C̄ the normalised mean of the C_p, which fills in what a C_p lacks

Each client keeps its projection (256 wide, whatever the protocol's head) and is tested by its own nearest prototype.
The first round only collects prototypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.laboratory import Models, for_each, put, take
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Batch, Params

PROJECTION = 256
#: Below it a length counts as this much, so that a row that no unit answers to has z = 0.
SHORTEST = 1e-12


@dataclass(frozen=True)
class FedPCLState:
    """Of each client: its projection, its prototypes (K, d, h), and whether the server has them."""

    projection: Params
    own: Tensor
    sent: Tensor


def embed(params: Params, x: Tensor) -> Tensor:
    """z (k, B, h)."""
    return normalize(network.affine(x, params[0], params[1]).relu_(), dim=-1, eps=SHORTEST)


def nearest_own(params: Params, x: Tensor) -> Tensor:
    """(k, B, d): nearness to the client's prototypes; −∞ for classes it has none of."""
    *projection, own, owned = params
    return (embed(tuple(projection), x) @ own.mT).masked_fill(~owned.unsqueeze(1), -torch.inf)


def contrast(params: Params, fixed: Params, batch: Batch) -> None:
    """A step on (U, c). Fixed, and the same for all: what `FedPCL.attraction` gives.

    All sets in one product, and as little as can be on its result, (k B, (1 + P) d), which is large.
    """
    towards, pull, absent, known = (tensor[0] for tensor in fixed)
    on = network.affine(batch.x, *params).relu_()
    length = on.norm(dim=-1, keepdim=True).clamp(min=SHORTEST)
    z = on / length
    logits = torch.addmm(absent.flatten(), z.flatten(0, 1), towards.flatten(0, 1).mT)
    delta = logits.view(-1, *absent.shape).softmax(dim=-1)
    labels = batch.y.view(-1, 1, 1).expand(-1, len(absent), 1)
    delta.scatter_add_(-1, labels, torch.full_like(delta[..., :1], -1))
    slope = (delta.flatten(1) @ pull.flatten(0, 1)).view_as(z)
    # A class that nobody has sent a prototype of draws nowhere.
    slope *= (batch.w * known[batch.y]).unsqueeze(-1)
    slope = (slope - z * (z * slope).sum(dim=-1, keepdim=True)) / length
    network.descend(params, [(batch.x, torch.where(on > 0, slope, 0))])


class FedPCL(Method[FedPCLState]):
    """A projection of each client's own, trained towards everybody's class prototypes."""

    name, title = "fedpcl", "FedPCL"
    description = "a projection of each client's own, drawn to all clients' class prototypes"
    declared = (Option("temperature", 0.07, positive=True),)

    def start(self) -> FedPCLState:
        """A common projection, and no prototypes."""
        lab = self.lab
        widths = (lab.width, PROJECTION)
        projection = network.initial(widths, lab.protocol.seed, lab.dtype, lab.device)
        own = torch.zeros(lab.size, lab.num_classes, PROJECTION, dtype=lab.dtype, device=lab.device)
        return FedPCLState(for_each(projection, lab.size), own, torch.zeros(lab.size, dtype=torch.bool))

    def round(self, state: FedPCLState, number: int, present: Sequence[int]) -> tuple[FedPCLState, Traffic]:
        """Train towards the prototypes of the round before, and send one's own anew."""
        lab, projection, down = self.lab, take(state.projection, present), 0
        owned = lab.class_counts > 0
        if state.sent.any():
            sets, known, down = self.received(state)
            fixed = for_each(self.attraction(sets, known), len(present))
            projection = lab.train(contrast, projection, fixed, present=present, orders=lab.shuffled(number))
        own = normalize(lab.class_means(embed, projection, present), dim=-1, eps=SHORTEST)
        sent = state.sent.clone()
        sent[list(present)] = True
        new = FedPCLState(put(state.projection, present, projection), put((state.own,), present, (own,))[0], sent)
        up = int(owned[list(present)].sum()) * PROJECTION * own.element_size() + len(present) * lab.num_classes
        return new, Traffic(up, down * len(present))

    def received(self, state: FedPCLState) -> tuple[Tensor, Tensor, int]:
        """C̄ and every C_p that the server has (1 + P, d, h), the classes that somebody has, and their bytes."""
        at = state.sent.nonzero()[:, 0].to(self.lab.device)
        own, owned = state.own[at], self.lab.class_counts[at] > 0
        mean = normalize((own * owned.unsqueeze(2)).sum(dim=0), dim=-1, eps=SHORTEST)
        sets = torch.cat((mean[None], torch.where(owned.unsqueeze(2), own, mean)))
        known = owned.any(dim=0)
        # Of each set the prototypes there are, and a byte for each class that says which.
        size = (int(owned.sum()) + int(known.sum())) * PROJECTION * own.element_size() + owned.numel() + known.numel()
        return sets, known, size

    def attraction(self, sets: Tensor, known: Tensor) -> Params:
        """What a step is told: C/τ, of which logits are made, and the same by each set's part in the loss, of slopes.

        Then, of classes (1 + P, d), 0 for those that are known and −∞ for others; and the classes known (d,), 0 or 1.
        """
        towards = sets / self.options["temperature"]
        parts = towards.new_full((len(sets), 1, 1), 1 / (len(sets) - 1))
        parts[0] = 1
        absent = torch.zeros_like(sets[..., 0]).masked_fill_(~known, -torch.inf)
        return towards, parts * towards, absent, known.to(sets.dtype)

    def models(self, state: FedPCLState, number: int) -> Models:
        """The client's own prototypes; those of a client that was never drawn are of the first projection."""
        missing = [k for k in range(self.lab.size) if not state.sent[k]]
        own = state.own
        if missing:
            means = self.lab.class_means(embed, take(state.projection, missing), missing)
            (own,) = put((own,), missing, (normalize(means, dim=-1, eps=SHORTEST),))
        # Nearness is no logarithm of a probability.
        return Models((*state.projection, own, self.lab.class_counts > 0), None, nearest_own, logits=False)
