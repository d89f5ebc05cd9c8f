"""Does leave-one-out find the right α? Against the best fixed α chosen with hindsight on the test rows.

    python scripts/study_alpha.py FEATURES.npz --out docs/alpha.json

For each number of clients and each λ: the mean test accuracy of the personalized models at every α of the grid, had all
clients used it; the best of these, which nobody can choose without the test rows; and that of each client's own choice
by leave-one-out on its training rows. β is chosen from the summed statistics. Nothing is written but the table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from fedhip.core import DEFAULT_ALPHAS, PersonalizationPath
from fedhip.core.fixedpoint import fraction_bits_for, round_features
from fedhip.data import FeatureSet, make_partition, read_features
from fedhip.parallel import in_order
from fedhip.phases import Client, Federation
from fedhip.simulation import add_up, clients_of, predict


def study(data: FeatureSet, num_clients: int, concentration: float, seed: int) -> dict[str, float]:
    """One cell of the table."""
    partition = make_partition(data.labels, "dirichlet", num_clients, seed=seed, concentration=concentration)
    clients = clients_of(data, partition)
    bits = fraction_bits_for(largest_feature(clients))
    total = add_up(in_order(lambda client: client.statistics(data.num_classes, bits), clients))
    federation = Federation.of(total, "auto")
    baseline = np.mean([accuracy(federation.G, client) for client in clients])

    def at_client(client: Client) -> tuple[list[float], float, float]:
        F = round_features(torch.tensor(client.train[0]), bits)
        path = PersonalizationPath(federation.total, F, client.train[1], federation.beta, client=client.name)
        curve = [accuracy(path.weights(alpha), client) for alpha in DEFAULT_ALPHAS]
        chosen = path.select()
        return curve, curve[DEFAULT_ALPHAS.index(chosen)], chosen

    found = list(in_order(at_client, clients))
    curve = np.mean([curve for curve, _, _ in found], axis=0)
    best = int(curve.argmax())
    return {
        "clients": num_clients,
        "concentration": concentration,
        "seed": seed,
        "beta": federation.beta,
        "global": float(baseline),
        "best_alpha": DEFAULT_ALPHAS[best],
        "best_fixed": float(curve[best]),
        "leave_one_out": float(np.mean([reached for _, reached, _ in found])),
        "median_alpha": float(np.median([chosen for _, _, chosen in found])),
    }


def accuracy(model: torch.Tensor, client: Client) -> float:
    """Share of the client's test rows that are classified right."""
    return float((predict(model, client.test[0]) == client.test[1]).mean())


def line(cell: dict[str, float]) -> str:
    """A cell as a line of text."""
    return (
        f"K = {cell['clients']:<4} λ = {cell['concentration']:<4g} seed {cell['seed']}  global {cell['global']:.2%}  "
        f"best fixed α {cell['best_alpha']:<5.3g} {cell['best_fixed']:.2%}  leave-one-out {cell['leave_one_out']:.2%}"
    )


def main() -> None:
    """Print a line for each cell, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--concentrations", type=float, nargs="+", default=[0.1, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    data = read_features(args.features)
    cells = []
    for num_clients in args.clients:
        for concentration in args.concentrations:
            for seed in args.seeds:
                cell = study(data, num_clients, concentration, seed)
                cells.append(cell)
                print(line(cell), flush=True)
                args.out.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
