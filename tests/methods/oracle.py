"""The methods once more, the plain way: one torch module for each client, autograd, torch.optim.SGD, nested loops.

Only the starting point and the orders of rows come from the package.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedhip.methods.engine import SHUFFLE, client_order
from fedhip.methods.heads import Params
from fedhip.methods.protocol import Protocol
from fedhip.simulation import Client

Extra = Callable[[nn.Module], Tensor]


class Network(nn.Module):
    """base (if any) and head."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.base: nn.Module = nn.Identity()
        if len(params) == 4:
            self.base = nn.Sequential(linear(*params[:2]), nn.ReLU())
        self.head = linear(*params[-2:])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))  # type: ignore[no-any-return]


def linear(W: Tensor, b: Tensor) -> nn.Linear:
    layer = nn.Linear(W.shape[0], W.shape[1], dtype=W.dtype)
    with torch.no_grad():
        layer.weight.copy_(W.T)
        layer.bias.copy_(b)
    return layer


def flat(network: nn.Module) -> list[Tensor]:
    """Parameters as the package has them: weights (inputs, outputs)."""
    return [p.detach().T if p.ndim == 2 else p.detach() for p in network.parameters()]


class World:
    """A client's rows as tensors, and its batches."""

    def __init__(self, clients: Sequence[Client], protocol: Protocol) -> None:
        self.protocol = protocol
        self.data = [(torch.from_numpy(c.train[0]).double(), torch.from_numpy(c.train[1])) for c in clients]
        self.sizes = [len(y) for _, y in self.data]

    def batches(
        self, k: int, round_: int, epoch: int, purpose: int = SHUFFLE, batch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.data[k]
        order = torch.from_numpy(client_order(len(y), self.protocol.seed, k, round_, epoch, purpose))
        for part in torch.split(order, batch or self.protocol.batch):  # type: ignore[no-untyped-call]
            yield x[part], y[part]

    def sgd(
        self, network: nn.Module, k: int, round_: int, epochs: Sequence[int] | None = None, extra: Extra | None = None
    ) -> None:
        optimizer = torch.optim.SGD(network.parameters(), lr=self.protocol.learning_rate)
        for epoch in range(self.protocol.epochs) if epochs is None else epochs:
            for x, y in self.batches(k, round_, epoch):
                loss = cross_entropy(network(x), y)
                if extra is not None:
                    loss = loss + extra(network)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def average(self, networks: Sequence[nn.Module], into: nn.Module, weights: Sequence[float] | None = None) -> None:
        weights = self.sizes if weights is None else weights
        with torch.no_grad():
            for target, *sources in zip(into.parameters(), *(n.parameters() for n in networks), strict=True):
                target.zero_()
                for source, weight in zip(sources, weights, strict=True):
                    target += weight / sum(weights) * source


def prox(centre: nn.Module, mu: float) -> Extra:
    """μ/2 ‖θ − centre‖²."""
    held = [p.detach().clone() for p in centre.parameters()]
    return lambda network: (
        mu
        / 2
        * sum(  # type: ignore[return-value]
            ((p - q) ** 2).sum() for p, q in zip(network.parameters(), held, strict=True)
        )
    )


def fedavg(world: World, start: Params, mu: float = 0.0) -> Network:
    server = Network(start)
    for round_ in range(world.protocol.rounds):
        networks = [copy.deepcopy(server) for _ in world.data]
        for k, network in enumerate(networks):
            world.sgd(network, k, round_, extra=prox(server, mu) if mu else None)
        world.average(networks, server)
    return server


def fine_tuned(world: World, server: Network, epochs: int, mu: float = 0.0) -> list[Network]:
    networks = [copy.deepcopy(server) for _ in world.data]
    for k, network in enumerate(networks):
        world.sgd(network, k, world.protocol.rounds, range(epochs), prox(server, mu) if mu else None)
    return networks


def ditto(world: World, start: Params, mu: float, personal_epochs: int) -> list[Network]:
    server = Network(start)
    personal = [copy.deepcopy(server) for _ in world.data]
    for round_ in range(world.protocol.rounds):
        networks = [copy.deepcopy(server) for _ in world.data]
        for k, network in enumerate(networks):
            world.sgd(personal[k], k, round_, range(personal_epochs), prox(server, mu))
            world.sgd(network, k, round_)
        world.average(networks, server)
    return personal


def local_sgd(world: World, start: Params) -> list[Network]:
    networks = [Network(start) for _ in world.data]
    for round_ in range(world.protocol.rounds):
        for k, network in enumerate(networks):
            world.sgd(network, k, round_)
    return networks
