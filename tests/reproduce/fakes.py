"""Methods for the tests: closed forms as they are, and one that only pretends to train, but on the rows it is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.data import FeatureSet
from fedhip.heads.round import simulate
from fedhip.methods.engine.protocol import Evaluation, MethodRun, Protocol
from fedhip.reproduce import Bench, Settings, Source, Store
from fedhip.simulation.client import Client
from fedhip.simulation.options import PAPER, RidgeOptions

#: The pretended training does best with this learning rate.
BEST_RATE = 0.02


@dataclass(frozen=True)
class Info:
    name: str
    title: str
    description: str
    defaults: Mapping[str, float]
    gradient: bool
    differs: str = ""


METHODS = {
    info.name: info
    for info in (
        Info("fedhip", "FedHiP", "", {}, False),
        Info("global", "Global ridge", "", {}, False),
        Info("local", "Local ridge", "", {}, False),
        Info("ditto", "Ditto", "", {"mu": 1.0}, True),
        Info("fedavg", "FedAvg", "", {}, True),
        Info("fedprox", "FedProx", "", {"mu": 0.01}, True),
    )
}


@dataclass
class Methods:
    """Stands in for fedhip.methods, and remembers what it was asked."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    diverge: Callable[[str, Protocol], bool] = lambda name, protocol: False
    notes: dict[str, str] = field(default_factory=dict)
    stop_after: int | None = None

    def run_method(
        self,
        name: str,
        clients: Sequence[Client],
        num_classes: int,
        protocol: Protocol,
        *,
        options: Mapping[str, float] | None = None,
        device: str = "cpu",
        report: Callable[[str, int, int], None] | None = None,
        checkpoint: Path | None = None,
        probe: int = 0,
        ridge: RidgeOptions = PAPER,
    ) -> MethodRun:
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        given = dict(options or {})
        self.calls.append(
            {"name": name, "clients": clients, "protocol": protocol, "options": given, "checkpoint": checkpoint}
        )
        if name in ("fedhip", "global", "local"):
            beta = given.get("beta")
            outcome = simulate(
                clients, num_classes, methods=(name,), beta="gcv" if beta is None else beta,
                only_local_classes=protocol.only_local_classes, **vars(ridge),
            )  # fmt: skip
            accuracy = [result.accuracy[name] for result in outcome.clients]
            return MethodRun(name, accuracy, 1, 0.5, 1000, 1000, given, note=self.notes.get(name))
        assert checkpoint is not None
        checkpoint.write_bytes(b"half-way")
        if self.diverge(name, protocol):
            words = f"round 3, learning rate {protocol.learning_rate:g}"
            return MethodRun(name, [], 3, 1.0, 0, 0, given, diverged=words)
        share = 1 - abs(math.log10(protocol.learning_rate / BEST_RATE)) / 10 + 0.01 * given.get("mu", 0.0)
        accuracy = [None if a is None else share * a for a in nearest_means(clients, num_classes)]
        mean = float(np.mean([a for a in accuracy if a is not None]))
        step = protocol.evaluate_every or protocol.rounds
        history = [
            Evaluation(r, mean * r / protocol.rounds, 0.1 * r, 4000 * r, 4000 * r)
            for r in range(step, protocol.rounds + 1, step)
        ]
        bytes_ = 4000 * protocol.rounds
        seconds = 0.1 * protocol.rounds
        return MethodRun(
            name, accuracy, protocol.rounds, seconds, bytes_, bytes_, given, history=history,
            note=self.notes.get(name), probe=[float(len(clients[1].train[1])), 3.0][:probe] or None,
        )  # fmt: skip


def nearest_means(clients: Sequence[Client], num_classes: int) -> list[float | None]:
    """Accuracy of the nearest class mean of all training rows."""
    features = np.concatenate([client.train[0] for client in clients])
    labels = np.concatenate([client.train[1] for client in clients])
    means = np.stack([features[labels == c].mean(axis=0) if (labels == c).any() else features[0] * np.inf
                      for c in range(num_classes)])  # fmt: skip
    found: list[float | None] = []
    for client in clients:
        rows, truth = client.test
        distances = np.nan_to_num(((rows[:, None] - means) ** 2).sum(axis=2), nan=np.inf)
        found.append(float((distances.argmin(axis=1) == truth).mean()) if len(truth) else None)
    return found


def pretend(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Methods:
    """Put the fake in the place of fedhip.methods."""
    methods = Methods(**options)
    monkeypatch.setattr("fedhip.methods.METHODS", METHODS, raising=False)
    monkeypatch.setattr("fedhip.methods.run_method", methods.run_method, raising=False)
    return methods


def rows(number: int = 300, seed: int = 0, classes: int = 5, width: int = 8) -> FeatureSet:
    """Features of classes that can be told apart, mostly."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, number)
    features = random.normal(size=(classes, width))[labels] + random.normal(size=(number, width))
    return FeatureSet(features, labels, tuple(f"c{i}" for i in range(classes)))


def bench_of(folder: Path, data: FeatureSet | None = None, **options: Any) -> Bench:
    """A small bench."""
    small: dict[str, Any] = {
        "methods": ("fedavg", "ditto", "global", "fedhip"), "clients": (4, 6), "concentrations": (0.1, 1.0),
        "seeds": (0, 1), "rounds": 10, "budget": 4, "tuning_rounds": 5, "moved_concentrations": (0.1, 1.0, 100.0),
    }  # fmt: skip
    return Bench((Source("mine", data or rows()),), Settings(**(small | options)), Store(folder / "cells"))
