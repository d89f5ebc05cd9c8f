"""A round of the methods that train by gradients, against a loop over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Setup, best_seconds
from benchmarks.table import Line, faster, share
from fedhip.methods import GRADIENT, METHODS, Network, Protocol
from fedhip.methods.engine.laboratory import Laboratory, weighted_mean
from fedhip.methods.trained.fedavg import FedAvg
from fedhip.simulation.client import Client
from fedhip.utils.parallel import one_thread

Params = tuple[Tensor, ...]


def section(setup: Setup) -> Iterator[Line]:
    """A round of the methods that train by gradients, against a loop over clients.

    All sides train the same heads on the same batches from the same start, and must agree. The loops run on one
    thread, which for products this small is no slower than several; the one with autograd also as torch starts.
    """
    small, large = (16, 8_000, 768, 100, 1), (50, 50_000, 768, 100, 3)
    K, N, m, d, epochs = setup.pick(toy=(3, 100, 8, 3, 1), quick=small, full=large)
    clients, protocol = federation(K, N, m, d), Protocol(rounds=1, epochs=epochs)
    yield from against_loops(setup, Laboratory(clients, d, protocol, setup.device))
    # Rounds of all methods side by side need no more rows than that.
    if setup.device.type != "cuda" and setup.size == "full":
        K, N, m, d, epochs = small
        clients, protocol = federation(K, N, m, d), Protocol(rounds=1, epochs=epochs)
    heads: tuple[Network, ...] = setup.pick(toy=("linear",), quick=("linear",), full=("linear", "mlp"))
    for head in heads:
        yield from rounds_of_all(setup, Laboratory(clients, d, replace(protocol, head=head), setup.device))


def against_loops(setup: Setup, lab: Laboratory) -> Iterator[Line]:
    """FedAvg."""
    fedavg, start, given = FedAvg(lab, {}), lab.initial(), dict[str, Params]()
    state, everybody = fedavg.start(), range(lab.size)
    sides: list[Callable[[], object]] = [
        lambda: given.update(engine=fedavg.round(state, 0, everybody)[0].theta),
        lambda: given.update(hand=by_hand(lab, start)),
        lambda: given.update(autograd=by_autograd(lab, start)),
    ]
    repeats = setup.pick(toy=1, quick=2, full=2)
    with one_thread():
        engine, hand, autograd = best_seconds(setup, *sides, repeats=repeats, warm=setup.device.type == "cuda")
    for name, theirs in given.items():
        for a, b in zip(given["engine"], theirs, strict=True):
            assert torch.linalg.norm(a - b) < 1e-4 * torch.linalg.norm(b), name
    sizes = f"K = {lab.size}, {sum(lab.rows):,} × {lab.width}, d = {lab.num_classes}, E = {lab.protocol.epochs}"
    yield faster(f"FedAvg, {sizes}", engine, "a loop by hand, gradients in closed form", hand)
    yield faster("FedAvg", engine, "a loop with autograd and a DataLoader", autograd)
    if setup.device.type == "cpu":
        again, usual = best_seconds(setup, sides[0], sides[2], repeats=repeats, warm=False)
        yield faster("FedAvg", again, "the same on all threads, as torch starts", usual)


def rounds_of_all(setup: Setup, lab: Laboratory) -> Iterator[Line]:
    """A second round of every method, in FedAvg's."""
    everybody, taken = range(lab.size), {}
    for name, method_type in GRADIENT.items():
        method: Any = method_type.of(lab, METHODS[name].defaults)
        after, _ = method.round(method.start(), 0, everybody)
        # On a GPU the second time is a replay of what the first recorded.
        (taken[name],) = best_seconds(
            setup,
            lambda: method.round(after, 1, everybody),  # noqa: B023
            repeats=2,
            warm=setup.device.type == "cuda",
        )
        if name != "fedavg":
            what = f"{METHODS[name].title}, {lab.protocol.head} head"
            yield share(
                what, taken[name] / taken["fedavg"], "a round of FedAvg", ours=taken[name], fedavg=taken["fedavg"]
            )


def federation(clients: int, rows: int, width: int, classes: int) -> list[Client]:
    """Clients of uneven sizes, with random features of overlapping classes."""
    rng = np.random.default_rng(0)
    means = 0.3 * rng.standard_normal((classes, width), dtype=np.float32)
    sizes = rng.dirichlet(np.full(clients, 5.0)) * rows
    found = []
    for k, size in enumerate(np.maximum(1, sizes.astype(int))):
        labels = rng.integers(0, classes, size)
        features = means[labels] + rng.standard_normal((size, width), dtype=np.float32)
        found.append(Client(str(k), (features, labels), (features[:20], labels[:20])))
    return found


def by_hand(lab: Laboratory, start: Params) -> Params:
    """Client after client, gradients in closed form."""
    protocol, trained = lab.protocol, []
    orders = lab.shuffled(0)
    for k in range(lab.size):
        W, b = (tensor.clone() for tensor in start)
        F = lab.features[lab.starts[k] : lab.starts[k] + lab.rows[k]]
        y = lab.labels[lab.starts[k] : lab.starts[k] + lab.rows[k]]
        for order in orders(k):
            rows = torch.from_numpy(order).to(lab.device)
            for at in range(0, len(rows), protocol.batch):
                part = rows[at : at + protocol.batch]
                x = F[part]
                delta = torch.addmm(b, x, W).softmax(dim=1)
                delta[torch.arange(len(part), device=lab.device), y[part]] -= 1
                W.addmm_(x.T, delta, alpha=-protocol.learning_rate / len(part))
                b.sub_(delta.mean(dim=0), alpha=protocol.learning_rate)
        trained.append((W, b))
    return weighted_mean(tuple(map(torch.stack, zip(*trained, strict=True))), lab.shares(range(lab.size)))


def by_autograd(lab: Laboratory, start: Params) -> Params:
    """As it is usually written: a module, an optimizer and a DataLoader for each client."""
    protocol, trained = lab.protocol, []
    orders = lab.shuffled(0)
    for k in range(lab.size):
        span = slice(lab.starts[k], lab.starts[k] + lab.rows[k])
        data = TensorDataset(lab.features[span], lab.labels[span])
        model = torch.nn.Linear(lab.width, lab.num_classes, device=lab.device)
        model.load_state_dict({"weight": start[0].T, "bias": start[1]})
        optimizer = torch.optim.SGD(model.parameters(), lr=protocol.learning_rate)
        for order in orders(k):
            for x, y in DataLoader(data, batch_size=protocol.batch, sampler=order.tolist()):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        trained.append((model.weight.detach().T, model.bias.detach()))
    return weighted_mean(tuple(map(torch.stack, zip(*trained, strict=True))), lab.shares(range(lab.size)))
