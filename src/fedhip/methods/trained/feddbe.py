"""FedDBE (Zhang et al., 2023): FedAvg with a domain bias eliminator.

Differs from the paper: features are frozen, so that on a linear head its mean term has no gradient and is left out.

min CE(h(g(x) + z_k), y) + κ · mean(½ (r_k − r̄)²)

with h the last layer, z_k an offset that stays with its client, r_k the running mean of what the client's rows are
before the last layer, and r̄ the clients' mean of it after one round without any of this. On a linear head g has
nothing to train: the second term has no gradient and is left out, and z_k is a bias of the form z_k W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.laboratory import Models, for_each, nbytes, put, take, weighted_mean
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Batch, Params, shifted_scores
from fedhip.simulation.orders import WARM_UP


@dataclass(frozen=True)
class FedDBEState:
    """The server's model and r̄ (h,), and every client's z (K, h)."""

    theta: Params
    mean: Tensor
    z: Tensor


@dataclass(frozen=True)
class Eliminate:
    """A step on (θ, z_k, r_k) with r̄ fixed; without z and κ in the warm-up that r̄ comes from."""

    momentum: float
    kappa: float
    warm_up: bool = False

    def __call__(self, params: Params, fixed: Params, batch: Batch) -> None:
        """One gradient for θ and z alike; r moves on."""
        theta, z, r = params[:-2], params[-2], params[-1]
        inputs = network.layer_inputs(theta, batch.x)
        shifted = inputs[-1] + z.unsqueeze(1)
        delta = network.softmax_errors(network.affine(shifted, *theta[-2:]), batch)
        factors = [(shifted, delta)]
        back = (delta.sum(dim=1, keepdim=True) @ theta[-2].mT).squeeze(1)
        if len(inputs) == 2:
            share = batch.w / batch.w.sum(dim=1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
            moved = r.lerp(torch.einsum("kb,kbh->kh", share, inputs[1]), self.momentum)
            r.copy_(torch.where(batch.active[:, None] > 0, moved, r))
            slope = delta @ theta[2].mT
            if not self.warm_up:
                pull = (r - fixed[0]) * (self.kappa * self.momentum / r.shape[1])
                slope += batch.w.unsqueeze(2) * pull.unsqueeze(1)
            factors = [(inputs[0], slope.mul_(inputs[1] > 0)), *factors]
        network.descend(theta, factors)
        if not self.warm_up:
            z.sub_(back)


class FedDBE(Method[FedDBEState]):
    """FedAvg's model with an offset of each client's own before the last layer."""

    name, title = "feddbe", "FedDBE"
    description = "FedAvg's model with an offset of each client's own before its last layer"
    declared = (Option("momentum", 1.0, most=1.0), Option("kappa", 50.0))

    @property
    def note(self) -> str | None:
        """On a linear head half of the method has nothing to act on."""
        linear = self.lab.protocol.head == "linear"
        return "the mean term has no gradient on a linear head and is left out" if linear else None

    def start(self) -> FedDBEState:
        """z = 0."""
        theta = self.lab.initial()
        zero = theta[-2].new_zeros(theta[-2].shape[0])
        return FedDBEState(theta, zero, zero.expand(self.lab.size, -1))

    def round(self, state: FedDBEState, number: int, present: Sequence[int]) -> tuple[FedDBEState, Traffic]:
        """Train model and offset together; the model is averaged, the offset stays."""
        lab, momentum, mean = self.lab, self.options["momentum"], state.mean
        traffic = Traffic()
        if number == 0 and lab.protocol.head == "mlp":
            mean, traffic = self.warm_up(state)
        sent, zero = for_each(state.theta, len(present)), torch.zeros_like(mean).expand(len(present), -1)
        *trained, z, _ = lab.train(
            Eliminate(momentum, self.options["kappa"]),
            (*sent, *take((state.z,), present), zero),
            for_each((mean,), len(present)),
            present=present,
            orders=lab.shuffled(number),
        )
        theta = weighted_mean(tuple(trained), lab.shares(present))
        up, down = nbytes(*trained) + traffic.up, nbytes(*sent) + traffic.down
        return FedDBEState(theta, mean, put((state.z,), present, (z,))[0]), Traffic(up, down)

    def warm_up(self, state: FedDBEState) -> tuple[Tensor, Traffic]:
        """r̄ after a round of plain training by everybody, which is forgotten."""
        lab, everybody = self.lab, range(self.lab.size)
        begun = (*for_each(state.theta, lab.size), state.z, state.z)
        step, orders = Eliminate(self.options["momentum"], 0.0, warm_up=True), lab.shuffled(0, purpose=WARM_UP)
        r = lab.train(step, begun, present=everybody, orders=orders)[-1]
        sent = nbytes(*for_each(state.theta, lab.size))
        (mean,) = weighted_mean((r,), lab.shares(everybody))
        return mean, Traffic(nbytes(r), sent + nbytes(mean) * lab.size)

    def models(self, state: FedDBEState, number: int) -> Models:
        """The global model with the client's own offset; without rows, with none."""
        none = torch.zeros_like(state.z[:1])
        personal, common = (*for_each(state.theta, self.lab.size), state.z), (*for_each(state.theta, 1), none)
        return Models(personal, common, shifted_scores)
