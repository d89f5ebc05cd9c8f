"""FedAS (Yang et al., 2024): a shared base and a personal head, aligned before training and weighed after it.

Differs from the paper: the base is a layer on frozen features, and on a linear head there is none: local training.

align    g ← g − 0.01 ∇ Σ_c MSE(g(x_c), p_c) from the base received, p_c the class means under the client's old base
train    E passes of SGD on base and head
server   base = Σ_k (trace_k / Σ trace) base_k,   trace_k = Σ_batches ‖∇ CE(batch)‖²

On a linear head there is no base, nothing is shared, and the method is local training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.laboratory import Laboratory, Models, for_each, nbytes, put, sgd, take, weighted_mean
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Batch, Params
from fedhip.methods.trained.local_sgd import LocalSGD
from fedhip.simulation.orders import ALIGN, TRACE


@dataclass(frozen=True)
class FedASState:
    """The server's base, and every client's base and head."""

    base: Params
    own: Params


def embed(params: Params, x: Tensor) -> Tensor:
    """g(x) = relu(x U + c)."""
    return network.affine(x, params[0], params[1]).relu_()


@dataclass(frozen=True)
class Align:
    """A step of the base towards the class means (k, d, h) that are fixed."""

    rate: float

    def __call__(self, params: Params, fixed: Params, batch: Batch) -> None:
        """Descend on the sum over classes of the mean squared distance."""
        hidden, (means,) = embed(params, batch.x), fixed
        real = (batch.w > 0).to(batch.w.dtype)
        counts = batch.w.new_zeros(means.shape[:2]).scatter_add_(1, batch.y, real)
        weight = self.rate * 2 * real / (counts.gather(1, batch.y).clamp(min=1) * hidden.shape[2])
        targets = means.gather(1, batch.y.unsqueeze(2).expand(-1, -1, means.shape[2]))
        delta = (hidden - targets) * weight.unsqueeze(2) * (hidden > 0)
        network.descend(params, [(batch.x, delta)])


def add_trace(params: Params, fixed: Params, batch: Batch) -> None:
    """trace ← trace + ‖∇ CE(batch)‖², of the model that is fixed."""
    for slope in network.dense(network.gradient(fixed, batch)):
        params[0].add_(slope.square().flatten(1).sum(dim=1))


class FedAS(Method[FedASState]):
    """A shared first layer that is brought near the client's old one, and a personal last one."""

    name, title = "fedas", "FedAS"
    description = "a shared base aligned with each client's old one, a head of its own"
    declared = (
        Option("align_rate", 0.01, positive=True),
        Option("align_epochs", 1.0, whole=True),
        Option("align_batch", 16.0, whole=True),
    )

    @classmethod
    def of(cls, lab: Laboratory, options: Mapping[str, float]) -> Method[Any]:
        """Local training, where there is no base."""
        return cls(lab, options) if lab.protocol.head == "mlp" else FedASOnLinear(lab, options)

    def start(self) -> FedASState:
        """The common beginning."""
        theta = self.lab.initial()
        return FedASState(theta[:2], for_each(theta, self.lab.size))

    def round(self, state: FedASState, number: int, present: Sequence[int]) -> tuple[FedASState, Traffic]:
        """Align, train, weigh."""
        lab, options = self.lab, self.options
        old, received = take(state.own, present), for_each(state.base, len(present))
        aligned = lab.train(
            Align(options["align_rate"]),
            received,
            (lab.class_means(embed, old, present),),
            present=present,
            orders=lab.shuffled(number, int(options["align_epochs"]), ALIGN),
            rate=options["align_rate"],
            batch=int(options["align_batch"]),
        )
        trained = lab.train(sgd, (*aligned, *old[2:]), present=present, orders=lab.shuffled(number))
        traces = self.traces(trained, number, present)
        base = weighted_mean(trained[:2], trace_weights(traces, lab.shares(present)))
        traffic = Traffic(nbytes(*trained[:2], traces), nbytes(*received))
        return FedASState(base, put(state.own, present, trained)), traffic

    def traces(self, trained: Params, number: int, present: Sequence[int]) -> Tensor:
        """(k,)."""
        zero, orders = trained[-1].new_zeros(len(present)), self.lab.shuffled(number, 1, TRACE)
        return self.lab.train(add_trace, (zero,), trained, present=present, orders=orders, rate=1.0)[0]

    def models(self, state: FedASState, number: int) -> Models:
        """Each client's own."""
        return Models(state.own)


class FedASOnLinear(LocalSGD):
    """What is left of FedAS without a base."""

    title = FedAS.title

    @property
    def note(self) -> str | None:
        """Why it is as it is."""
        return "degenerates to local training on a linear head"


def trace_weights(traces: Tensor, shares: Tensor) -> Tensor:
    """trace_k / Σ trace; n_k / Σ n where that is no number."""
    weights = traces / traces.sum()
    return torch.where(torch.isfinite(weights).all(), weights, shares)
