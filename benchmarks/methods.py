"""A round of FedAvg by the engine, beside a loop over clients written by hand and one with autograd and a DataLoader.

    python benchmarks/methods.py [--quick] [--all] [--forms] [--clients 50] [--rows 50000] [--width 768] [--device cuda]

All three train the same heads on the same batches from the same start, one after another in this process, and must
agree. What counts are the ratios, of the best of a few repetitions of each. The loops run on one thread, which for
products this small is no slower than several, and costs the processor less; the one with autograd also on all threads,
as torch starts. With --all, what a round of every other method takes follows; with --forms, rounds of FedAvg, FedProx
and Ditto in dual form and by steps on the head, which must agree.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fedhip.methods import _GRADIENT, METHODS, Cohort, Head, Protocol
from fedhip.methods.engine import Laboratory, weighted_mean
from fedhip.methods.fedavg import FedAvg
from fedhip.parallel import one_thread
from fedhip.simulation import Client

Params = tuple[Tensor, ...]


def federation(clients: int, rows: int, width: int, classes: int) -> list[Client]:
    """Clients of uneven sizes (one in three small), with random features of overlapping classes."""
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


def measure(works: Sequence[Callable[[], object]], device: torch.device, repetitions: int) -> list[tuple[float, float]]:
    """Of each, least seconds on the clock and of the processor; in turn, so that a busy moment strikes them alike."""
    taken: list[list[tuple[float, float]]] = [[] for _ in works]
    for _ in range(repetitions):
        for work, times in zip(works, taken, strict=True):
            clock, processor = time.perf_counter(), time.process_time()
            work()
            wait(device)
            times.append((time.perf_counter() - clock, time.process_time() - processor))
    return [(min(wall for wall, _ in times), min(cpu for _, cpu in times)) for times in taken]


def compare_forms(clients: Sequence[Client], classes: int, protocol: Protocol, device: str, rounds: int = 20) -> None:
    """Milliseconds a round, in dual form and by steps on the head; the first two rounds record and are not counted."""
    cohort = Cohort(clients)
    print(f"{'a round, of ' + str(rounds):<28}{'dual':>9}{'steps':>12}")
    for name in ("fedavg", "fedprox", "ditto"):
        taken, ends = [], []
        for dual in (True, False):
            lab = Laboratory(cohort, classes, protocol, device, together=True, dual=dual)
            method: Any = _GRADIENT[name].of(lab, METHODS[name].defaults)
            state, everybody = method.start(), range(lab.size)
            for number in range(rounds + 2):
                if number == 2:
                    wait(lab.device)
                    began = time.perf_counter()
                state, _ = method.round(state, number, everybody)
            wait(lab.device)
            taken.append((time.perf_counter() - began) / rounds)
            ends.append(method.models(state, rounds + 2).personal)
        for a, b in zip(*ends, strict=True):
            assert torch.linalg.norm(a - b) < 1e-4 * torch.linalg.norm(b), name
        print(f"  {METHODS[name].title:<26}{1000 * taken[0]:7.2f} ms{1000 * taken[1]:9.2f} ms", flush=True)


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8,000 rows in 16 clients, and one epoch")
    for name, default in (("clients", 50), ("rows", 50_000), ("width", 768), ("classes", 100), ("repetitions", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--all", action="store_true", help="every method that trains by gradients, with both heads")
    parser.add_argument("--forms", action="store_true", help="dual form against steps on the head")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    protocol = Protocol(rounds=1)
    if args.quick:
        args.clients, args.rows, protocol = 16, 8_000, replace(protocol, epochs=1)
    clients = federation(args.clients, args.rows, args.width, args.classes)
    lab = Laboratory(clients, args.classes, protocol, args.device)
    everybody, device, start = range(lab.size), lab.device, lab.initial()
    fedavg = FedAvg(lab, {})
    state = fedavg.start()

    given: dict[str, Params] = {}
    contenders: dict[str, Callable[[], object]] = {
        "engine": lambda: given.update(engine=fedavg.round(state, 0, everybody)[0].theta),
        "loop by hand": lambda: given.update(hand=by_hand(lab, start)),
        "loop with autograd": lambda: given.update(autograd=by_autograd(lab, start)),
    }
    with one_thread():
        engine, hand, autograd = measure(list(contenders.values()), device, args.repetitions)
    (usual,) = measure([contenders["loop with autograd"]], device, args.repetitions)
    for name, theirs in given.items():
        for a, b in zip(given["engine"], theirs, strict=True):
            assert torch.linalg.norm(a - b) < 1e-4 * torch.linalg.norm(b), name
    print(
        f"FedAvg, {args.rows:,} × {args.width}, K = {args.clients}, d = {args.classes}, E = {protocol.epochs}, {device}"
    )
    print(f"{'':<28}{'clock':>9}{'processor':>12}")
    for name, (wall, cpu) in zip(contenders, (engine, hand, autograd), strict=True):
        print(f"{name:<28}{wall:8.2f} s{cpu:10.2f} s")
    print(f"{'the last on all threads':<28}{usual[0]:8.2f} s{usual[1]:10.2f} s")
    print(f"{'engine / by hand':<28}{engine[0] / hand[0]:8.2f} ×{engine[1] / hand[1]:10.2f} ×")
    print(f"{'autograd / engine':<28}{autograd[0] / engine[0]:8.2f} ×{autograd[1] / engine[1]:10.2f} ×")
    print(f"{'  on all threads / engine':<28}{usual[0] / engine[0]:8.2f} ×{usual[1] / engine[1]:10.2f} ×")

    if args.forms:
        compare_forms(clients, args.classes, protocol, args.device, 2 if device.type == "cpu" else 20)
    heads: tuple[Head, ...] = ("linear", "mlp") if args.all else ()
    for head in heads:
        lab.protocol = replace(protocol, head=head)
        print(f"second round, {head} head")
        for name, info in METHODS.items():
            if not info.gradient:
                continue
            method = _GRADIENT[name].of(lab, info.defaults)
            after, _ = method.round(method.start(), 0, everybody)
            # On a GPU the second time is a replay of what the first recorded.
            again = 1 if device.type == "cpu" else 3
            ((wall, cpu),) = measure([partial(method.round, after, 1, everybody)], device, again)
            print(f"  {info.title:<26}{wall:8.3f} s{cpu:10.3f} s", flush=True)


if __name__ == "__main__":
    main()
