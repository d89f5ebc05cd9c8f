"""The default ridge against the paper's: what standardised features, an intercept and the choice of β are worth.

    fedhip extract sketches.npz --dataset sketches
    python -m benchmarks.defaults sketches.npz

Test accuracy in percent, mean over clients and seeds, of models of one client alone, the global model and the
personalized ones (α by leave-one-out), for each number of clients and each λ:

    paper    features as they came, no intercept, β by generalized cross-validation from the sum
    default  standardised features, an intercept, β by the clients' rows left out

and what leave-one-out says is to be expected of the personalized models, beside what the tests then give. A file with
clients of its own is divided by them. Nothing sees a test row but the test.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from fedhip.data import FeatureSet, make_partition, read_features
from fedhip.heads.round import RIDGES, simulate
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.options import PAPER, STANDARD, Beta, RidgeOptions

KINDS: dict[str, tuple[RidgeOptions, Beta]] = {"paper": (PAPER, "gcv"), "default": (STANDARD, "auto")}


def divided(data: FeatureSet, clients: int | None, concentration: float | None, seed: int) -> list[Client]:
    """The clients of one division."""
    if clients is None:
        return clients_of(data, make_partition(data.labels, "natural", clients=data.clients, seed=seed))
    return clients_of(data, make_partition(data.labels, "dirichlet", clients, seed=seed, concentration=concentration))


def measured(clients: Sequence[Client], classes: int, kind: str, device: str) -> list[float]:
    """Means over clients of each method, what is expected of the personalized ones, and β over the rows."""
    ridge, beta = KINDS[kind]
    outcome = simulate(clients, classes, beta=beta, device=device, **vars(ridge))
    means = [outcome.summary(method)["mean"] or 0.0 for method in RIDGES]
    owns = [result.personal for result in outcome.clients if result.personal is not None and result.test]
    expected = [own.estimate for own in owns if own.estimate is not None]
    return [*means, float(np.mean(expected)), outcome.beta / outcome.federation.grid.num_samples]


def main() -> None:
    """A line for each division and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features")
    parser.add_argument("--clients", type=int, nargs="+", default=[50])
    parser.add_argument("--concentrations", type=float, nargs="+", default=[0.1, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    data = read_features(args.features)
    natural = data.clients is not None
    divisions = [(None, None)] if natural else [(k, c) for k in args.clients for c in args.concentrations]
    print(f"{'division':18} {'ridge':8} {'alone':>6} {'global':>7} {'personal':>9} {'expected':>9} {'β / N':>9}")
    for clients, concentration in divisions:
        name = "its own clients" if clients is None else f"K = {clients}, λ = {concentration:g}"
        for kind in KINDS:
            rows = [
                measured(divided(data, clients, concentration, seed), data.num_classes, kind, args.device)
                for seed in args.seeds
            ]
            alone, common, personal, expected, _ = 100 * np.mean(rows, axis=0)
            penalty = np.median([row[-1] for row in rows])
            line = f"{alone:6.2f} {common:7.2f} {personal:9.2f} {expected:9.2f} {penalty:9.1e}"
            print(f"{name:18} {kind:8} {line}", flush=True)


if __name__ == "__main__":
    main()
