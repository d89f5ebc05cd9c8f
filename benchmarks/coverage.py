"""Whether prediction sets hold the truth as often as they say, and how large they are.

    python -m benchmarks.coverage --features sketches.npz --out coverage.json

Beside the sets of `fedhip.core.choice.conformal` (n₀ rows' worth of other clients' misses) stand split-conformal ones
with the same score: a client trains on half of its training rows and calibrates on the other half, by its own rows.
Clients have 25, 50 or 100 training rows; all other rows of theirs are tested on. Without --features the federation is
constructed: Gaussian classes, or a linear target, with a shift of each client's own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core.choice.conformal import class_misses, classes_within, target_misses, threshold
from fedhip.data import make_partition, read_features
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.personalization import Personalization

COVERAGE = 0.9
#: n₀; None: from how much the clients differ, as a run does.
POOLED = (None, 0.0)
ROWS = (25, 50, 100)


def constructed(clients: int, rows: int, seed: int, regression: bool, differing: float) -> list[Client]:
    """Clients whose rows are shifted, each in its own way; their noise is up to `differing` more or less than 1."""
    rng = np.random.default_rng(seed)
    width, classes, test = 20, 10, 1000
    means, weights = 0.5 * rng.normal(size=(classes, width)), rng.normal(size=(width, 1))
    found = []
    for k in range(clients):
        n = rows + test
        noise = rng.uniform(1.0 - differing, 1.0 + differing)
        Y: NDArray[Any]
        if regression:
            F = rng.normal(size=(n, width))
            own = weights + 0.5 * rng.normal(size=(width, 1))
            Y = F @ own + noise * rng.standard_t(5, size=(n, 1)) + rng.normal()
        else:
            Y = rng.choice(classes, size=n, p=rng.dirichlet(np.full(classes, 1.0)))
            F = means[Y] + noise * rng.normal(size=(n, width)) + 0.4 * rng.normal(size=width)
        found.append(Client(f"{k:03d}", (F[:rows], Y[:rows]), (F[rows:], Y[rows:])))
    return found


def divided(path: Path, clients: int, rows: int, seed: int) -> list[Client]:
    """A feature file's rows among clients by Dirichlet(0.5); so many train, the others test."""
    data = read_features(path)
    partition = make_partition(data.labels, "dirichlet", clients, seed=seed, concentration=0.5, min_rows=2 * rows)
    rng, found = np.random.default_rng(seed), []
    for name, own in zip(partition.clients, partition.rows, strict=True):
        order = rng.permutation(own)
        train, test = order[:rows], order[rows:]
        parts = [(data.features[at], data.labels[at]) for at in (train, test)]
        found.append(Client(name, parts[0], parts[1]))
    return found


def measure(clients: Sequence[Client], num_classes: int) -> dict[str, dict[str, float]]:
    """Coverage and size of each rule."""
    owns = personalized(clients, num_classes)
    misses = [np.array(own.misses[0]) / own.miss_scale for own in owns]
    found = {}
    for pooled in POOLED:
        thresholds = [
            owns[k].miss_scale * threshold(own, [other for j, other in enumerate(misses) if j != k], COVERAGE, pooled)
            for k, own in enumerate(misses)
        ]
        found["leave-one-out" + ("" if pooled is None else f", n0 = {pooled:g}")] = judged(clients, owns, thresholds)
    halves = [split_in_half(client) for client in clients]
    owns = personalized(halves, num_classes)
    thresholds = []
    for client, own in zip(halves, owns, strict=True):
        scores = own.model.scores(client.test[0])
        thresholds.append(threshold(_misses(scores, client.test[1]), [], COVERAGE, 0.0))
    found["split"] = judged(clients, owns, thresholds)
    return found


def personalized(clients: Sequence[Client], num_classes: int) -> list[Personalization]:
    """Everybody's model."""
    federation = federate(clients, num_classes, "auto")
    return [Personalization.of(federation, client) for client in clients]


def split_in_half(client: Client) -> Client:
    """Half of the training rows to train on, and half to calibrate on."""
    held = np.arange(len(client.train[1])) % 2 == 1
    return client.testing(held)


def _misses(scores: torch.Tensor, truth: np.ndarray) -> list[float]:
    values = torch.from_numpy(np.ascontiguousarray(truth))
    if truth.ndim == 2:
        return target_misses(scores, values)[:, 0].tolist()
    return class_misses(scores, values).tolist()


def judged(clients: Sequence[Client], owns: Sequence[Personalization], thresholds: Sequence[float]) -> dict[str, float]:
    """Mean coverage over clients, that of the worst tenth, and the mean size: classes, or the interval's width."""
    coverage, sizes = [], []
    for client, own, q in zip(clients, owns, thresholds, strict=True):
        scores = own.model.scores(client.test[0])
        coverage.append(float(np.mean(np.array(_misses(scores, client.test[1])) <= q)))
        sizes.append(
            2.0 * q if client.test[1].ndim == 2 else float(classes_within(scores, q).sum(dim=1).double().mean())
        )
    worst = np.sort(coverage)[: max(1, round(len(coverage) / 10))]
    return {
        "coverage": float(np.mean(coverage)),
        "worst_tenth": float(worst.mean()),
        "size": float(np.mean(sizes)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, help="a feature file, such as that of the sketches")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kinds = ["classes", "target", "classes, noise differs", "target, noise differs"]
    if args.features is not None:
        kinds = [args.features.stem]
    results: dict[str, Any] = {}
    for kind in kinds:
        for rows in ROWS:
            runs = []
            for seed in range(args.seeds):
                if args.features is not None:
                    clients = divided(args.features, args.clients, rows, seed)
                    num_classes = read_features(args.features).num_classes
                else:
                    real, differing = kind.startswith("target"), 0.3 if kind.endswith("differs") else 0.0
                    clients = constructed(args.clients, rows, seed, real, differing)
                    num_classes = 1 if real else 10
                runs.append(measure(clients, num_classes))
            for rule in runs[0]:
                mean = {name: float(np.mean([run[rule][name] for run in runs])) for name in runs[0][rule]}
                results.setdefault(kind, {}).setdefault(str(rows), {})[rule] = mean
                print(
                    f"{kind}, {rows} rows, {rule}: coverage {mean['coverage']:.1%}, worst tenth "
                    f"{mean['worst_tenth']:.1%}, size {mean['size']:.2f}",
                    flush=True,
                )
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
