"""The methods once more, the plain way: one torch module for each client, autograd, torch.optim.SGD, nested loops.

Only the starting point, and FedALA's slices, come from the package; orders of rows are found anew from their rule.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from fedhip.methods.engine.network import Params
from fedhip.methods.engine.protocol import Protocol
from fedhip.simulation.client import Client
from fedhip.simulation.orders import ALIGN, SHUFFLE, SLICE, TRACE, WARM_UP, draw

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


def order_of(rows: int, seed: int, client: str, round_: int, epoch: int, purpose: int = SHUFFLE) -> list[int]:
    """Rows by SplitMix64's numbers, whose state is what came before; all in Python's own integers."""

    def finalise(z: int) -> int:
        z %= 1 << 64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % (1 << 64)
        return z ^ (z >> 31)

    gamma, state = 0x9E3779B97F4A7C15, 0
    name = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "little")
    for word in (seed, purpose, name, round_, epoch):
        state = finalise(state + word + gamma)
    keys = []
    for _ in range(rows):
        state += gamma
        key = finalise(state)
        keys.append(key - (1 << 64) if key >> 63 else key)
    return sorted(range(rows), key=keys.__getitem__)


class World:
    """A client's rows as tensors, and its batches."""

    def __init__(self, clients: Sequence[Client], protocol: Protocol) -> None:
        self.protocol = protocol
        self.data = [(torch.from_numpy(c.train[0]).double(), torch.from_numpy(c.train[1])) for c in clients]
        self.names = [client.name for client in clients]
        self.sizes = [len(y) for _, y in self.data]

    def batches(
        self, k: int, round_: int, epoch: int, purpose: int = SHUFFLE, batch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.data[k]
        order = torch.tensor(order_of(len(y), self.protocol.seed, self.names[k], round_, epoch, purpose))
        for part in torch.split(order, batch or self.protocol.batch):
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
                loss.backward()  # type: ignore[no-untyped-call]
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


def step_down(parameters: Sequence[Tensor], slopes: Sequence[Tensor], rate: float) -> None:
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter -= rate * slope


def fedala(
    world: World, start: Params, *, rate: float, percent: float, tensors: int, threshold: float, cap: int
) -> list[Network]:
    """What would be trained on after the last round."""
    server = Network(start)
    own = [copy.deepcopy(server) for _ in world.data]
    A = [[torch.ones_like(p) for p in list(server.parameters())[-tensors:]] for _ in world.data]
    first = [True for _ in world.data]

    def merged(k: int, round_: int) -> Network:
        out = copy.deepcopy(server)
        if round_ == 0:
            return out
        (x, y), rows = world.data[k], world.sizes[k]
        length = max(1, int(rows * percent / 100))
        begin = int(draw(world.protocol.seed, SLICE, k, round_).integers(rows - length + 1))
        x, y = x[begin : begin + length], y[begin : begin + length]
        theirs = [p.detach().clone() for p in list(server.parameters())[-tensors:]]
        mine = [p.detach() for p in list(own[k].parameters())[-tensors:]]

        def blend() -> None:
            with torch.no_grad():
                for p, a, b, w in zip(list(out.parameters())[-tensors:], theirs, mine, A[k], strict=True):
                    p.copy_(b + (a - b) * w)

        blend()
        losses: list[float] = []
        for _ in range(cap):
            for at in range(0, length, world.protocol.batch):
                part = slice(at, at + world.protocol.batch)
                loss = cross_entropy(out(x[part]), y[part])
                slopes = torch.autograd.grad(loss, list(out.parameters())[-tensors:])
                for w, g, a, b in zip(A[k], slopes, theirs, mine, strict=True):
                    w.copy_((w - rate * g * (a - b)).clamp(0, 1))
                blend()
            losses.append(loss.item())
            if not first[k] or (len(losses) > 10 and np.std(losses[-10:]) < threshold):
                break
        first[k] = False
        return out

    for round_ in range(world.protocol.rounds):
        networks = [merged(k, round_) for k in range(len(world.data))]
        for k, network in enumerate(networks):
            world.sgd(network, k, round_)
        own = networks
        world.average(networks, server)
    return [merged(k, world.protocol.rounds) for k in range(len(world.data))]


def fedselect(
    world: World, start: Params, *, turns: int, every: int, percent: float, limit: float
) -> tuple[list[Network], list[list[Tensor]]]:
    """Trained models before the last mean, and their masks."""
    own = [Network(start) for _ in world.data]
    masks = [[torch.zeros_like(p) for p in network.parameters()] for network in own]
    before = [[p.detach().clone() for p in network.parameters()] for network in own]
    trained = own
    for round_ in range(world.protocol.rounds):
        for k, network in enumerate(own):
            params = list(network.parameters())
            for turn, personal in itertools.product(range(turns), (True, False)):
                for x, y in world.batches(k, round_, 2 * turn + (not personal)):
                    slopes = torch.autograd.grad(cross_entropy(network(x), y), params)
                    kept = [m if personal else 1 - m for m in masks[k]]
                    step_down(params, [g * m for g, m in zip(slopes, kept, strict=True)], world.protocol.learning_rate)
        trained = copy.deepcopy(own)
        in_force = [[m.clone() for m in mask] for mask in masks]
        if round_ and round_ % every == 0:
            for k, network in enumerate(trained):
                for p, mask, old in zip(network.parameters(), masks[k], before[k], strict=True):
                    if p.ndim == 2 and mask.mean() <= limit / 100:
                        drift = (p.detach() - old).abs()
                        values = drift[mask == 0].sort().values
                        mask[(mask == 0) & (drift >= values[round((1 - percent / 100) * len(values))])] = 1
                    old.copy_(p.detach())
        for i, copies in enumerate(zip(*(network.parameters() for network in own), strict=True)):
            shared = torch.stack([1 - mask[i] for mask in in_force])
            mean = (torch.stack([p.detach() for p in copies]) * shared).sum(0) / shared.sum(0).clamp(min=1)
            with torch.no_grad():
                for p, use in zip(copies, shared, strict=True):
                    p.copy_(torch.where(use == 1, mean, p))
    return trained, masks


def feddbe(world: World, start: Params, momentum: float, kappa: float) -> tuple[Network, list[Tensor]]:
    """The server's model and everybody's offset."""
    server, rate = Network(start), world.protocol.learning_rate
    offsets = [torch.zeros(start[-2].shape[0], dtype=start[-2].dtype, requires_grad=True) for _ in world.data]

    def local_round(
        network: Network, k: int, round_: int, mean: Tensor | None, z: Tensor, purpose: int = SHUFFLE
    ) -> Tensor:
        running = torch.zeros_like(z)
        params = [*network.parameters(), z]
        for epoch in range(world.protocol.epochs):
            for x, y in world.batches(k, round_, epoch, purpose):
                inner = network.base(x)
                running = (1 - momentum) * running.detach() + momentum * inner.mean(0)
                loss = cross_entropy(network.head(inner + z), y)
                if mean is not None:
                    loss = loss + kappa * (0.5 * (running - mean) ** 2).mean()
                slopes = torch.autograd.grad(loss, params)
                keep = len(params) if mean is not None else len(params) - 1
                step_down(params[:keep], slopes[:keep], rate)
        return running.detach()

    nothing = [torch.zeros_like(z, requires_grad=True) for z in offsets]
    found = [
        local_round(copy.deepcopy(server), k, 0, None, nothing[k], purpose=WARM_UP) for k in range(len(world.data))
    ]
    mean = sum(n / sum(world.sizes) * r for n, r in zip(world.sizes, found, strict=True))
    assert isinstance(mean, Tensor)
    for round_ in range(world.protocol.rounds):
        networks = [copy.deepcopy(server) for _ in world.data]
        for k, network in enumerate(networks):
            local_round(network, k, round_, mean, offsets[k])
        world.average(networks, server)
    return server, [z.detach() for z in offsets]


def fedas(world: World, start: Params, align_rate: float, align_batch: int) -> list[Network]:
    server = Network(start)
    own = [copy.deepcopy(server) for _ in world.data]
    for round_ in range(world.protocol.rounds):
        traces = []
        for k, network in enumerate(own):
            x, y = world.data[k]
            with torch.no_grad():
                hidden = network.base(x)
            means = {c: hidden[y == c].mean(0) for c in set(y.tolist())}
            base = copy.deepcopy(server.base)
            optimizer = torch.optim.SGD(base.parameters(), lr=align_rate)
            for rows, labels in world.batches(k, round_, 0, ALIGN, align_batch):
                out = base(rows)
                loss = torch.zeros((), dtype=out.dtype)
                for c in set(labels.tolist()):
                    mine = out[labels == c]
                    loss = loss + mse_loss(mine, means[c].expand_as(mine))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            network.base = base
            world.sgd(network, k, round_)
            trace = 0.0
            for rows, labels in world.batches(k, round_, 0, TRACE):
                slopes = torch.autograd.grad(cross_entropy(network(rows), labels), list(network.parameters()))
                trace += sum(float((g**2).sum()) for g in slopes)
            traces.append(trace)
        world.average(own, server, traces)
    return own


def fedpcl(world: World, start: Params, temperature: float, num_classes: int) -> tuple[list[nn.Module], list[Tensor]]:
    """Projections, and every client's own prototypes; rows of zeros where it has none."""
    projections: list[nn.Module] = [nn.Sequential(linear(*start), nn.ReLU()) for _ in world.data]
    prototypes: list[dict[int, Tensor]] = []
    for round_ in range(world.protocol.rounds):
        if round_:
            pooled = {}
            for c in range(num_classes):
                held = [own[c] for own in prototypes if c in own]
                if held:
                    pooled[c] = normalize(torch.stack(held).mean(0), dim=0)
            classes = sorted(pooled)
            every = [torch.stack([(own | {c: p for c, p in pooled.items() if c not in own})[c] for c in classes])
                     for own in prototypes]  # fmt: skip
            common = torch.stack([pooled[c] for c in classes])
            for k, projection in enumerate(projections):
                optimizer = torch.optim.SGD(projection.parameters(), lr=world.protocol.learning_rate)
                for epoch in range(world.protocol.epochs):
                    for x, y in world.batches(k, round_, epoch):
                        z = normalize(projection(x), dim=1)
                        target = torch.tensor([classes.index(int(c)) for c in y])
                        loss = cross_entropy(z @ common.T / temperature, target)
                        for theirs in every:
                            loss = loss + cross_entropy(z @ theirs.T / temperature, target) / len(every)
                        optimizer.zero_grad()
                        loss.backward()  # type: ignore[no-untyped-call]
                        optimizer.step()
        prototypes = []
        for projection, (x, y) in zip(projections, world.data, strict=True):
            with torch.no_grad():
                z = normalize(projection(x), dim=1)
            prototypes.append({c: normalize(z[y == c].mean(0), dim=0) for c in set(y.tolist())})
    tables = [torch.zeros(num_classes, start[0].shape[1], dtype=start[0].dtype) for _ in world.data]
    for table, own in zip(tables, prototypes, strict=True):
        for c, prototype in own.items():
            table[c] = prototype
    return projections, tables
