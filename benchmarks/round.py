"""One round on features of the paper's size: seconds by phase, and peak memory.

    python benchmarks/round.py [--rows 60000] [--width 768] [--clients 100]

Random features of classes that overlap; 8:2 split, every α of the default grid with leave-one-out, β from the sum. The
rate of the machine's own matrix product stands beside it, since seconds alone say nothing.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch

from fedhip.core import DEFAULT_ALPHAS
from fedhip.data import FeatureSet, make_partition
from fedhip.simulation import clients_of, simulate


def features(rows: int, width: int, classes: int) -> FeatureSet:
    """Overlapping classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows)
    means = 0.08 * rng.normal(size=(classes, width)).astype(np.float32)
    noise = rng.standard_normal(size=(rows, width), dtype=np.float32)
    return FeatureSet(means[labels] + noise, labels, tuple(map(str, range(classes))))


def matrix_rate(size: int = 2048) -> float:
    """Float64 operations a second in a matrix product."""
    a = torch.randn(size, size, dtype=torch.float64)
    begin = time.perf_counter()
    for _ in range(5):
        a @ a
    return 5 * 2 * size**3 / (time.perf_counter() - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 60_000), ("width", 768), ("clients", 100), ("classes", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    data = features(args.rows, args.width, args.classes)
    clients = clients_of(data, make_partition(data.labels, "dirichlet", args.clients))
    rate = matrix_rate()
    begin = time.perf_counter()
    outcome = simulate(clients, args.classes, device=args.device)
    seconds = time.perf_counter() - begin
    print(f"{args.rows:,} × {args.width}, K = {args.clients}, {len(DEFAULT_ALPHAS)} values of α")
    for phase, spent in outcome.seconds.items():
        print(f"{phase:<28}{spent:6.1f} s")
    print(f"{'all':<28}{seconds:6.1f} s   on a machine of {rate / 1e9:.0f} GFLOP/s in float64 matrix products")
    print(f"{'peak memory':<28}{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:6.2f} GB")
    means = [outcome.summary(method)["mean"] or 0.0 for method in ("global", "fedhip")]
    print(f"{'accuracy':<28}{means[0]:.1%} global, {means[1]:.1%} personalized")


if __name__ == "__main__":
    main()
