"""What the logistic head's personal step is worth: a federation with α = 0, and with each client's own α.

    fedhip extract styled.npz --dataset sketches --styles --clients 50 --concentration 0.5 --seed 1
    python benchmarks/step.py styled.npz --seed 1

`--largest 10000` lengthens the grid of α, two to the decade, to that.

Accuracy in percent, mean over clients, of one fit with the clients' priors; and how many clients chose which α. Clients
are those of the file; where it has none, rows are divided by Dirichlet(λ).
"""

from __future__ import annotations

import argparse
import math
from collections import Counter

import numpy as np
import torch

from fedhip.core.logistic.personal import LOGISTIC_ALPHAS
from fedhip.data import make_partition, read_features
from fedhip.heads.logistic import Logistic, LogisticRun
from fedhip.methods.engine.closed import ClosedTask
from fedhip.simulation.client import clients_of


def main() -> None:
    """One line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--concentration", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--largest", type=float, default=LOGISTIC_ALPHAS[-1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = read_features(args.features)
    if data.clients is None:
        number, scheme, concentration = args.clients, "dirichlet", args.concentration
    else:
        number, scheme, concentration = None, "natural", None
    partition = make_partition(
        data.labels, scheme, number, seed=args.seed, concentration=concentration, clients=data.clients
    )
    task = ClosedTask(clients_of(data, partition), data.num_classes, prior="client", seed=args.seed)
    run = LogisticRun(task, Logistic.federate(task))
    fit = run.statistics()
    run.temperature(fit)
    run.gradients(fit, 5)
    head = fit.head()
    common = run.on_raw(head.model)
    priors = {name: choice.prior for name, choice in run.priors(head).items()}
    without, with_step, chosen = [], [], []
    alphas = [0.0, *(10.0 ** (i / 2) for i in range(round(2 * math.log10(args.largest)) + 1))]
    for client in task.training:
        step = run.step(head, client, priors[client.name])
        alpha = step.select(alphas)
        model = run.on_raw(step.model(alpha))
        chosen.append(alpha)
        without.append(task.accuracy(client, common.scores, priors[client.name]))
        with_step.append(task.accuracy(client, model.scores, priors[client.name]))
    means = [100 * float(np.mean([a for a in accuracies if a is not None])) for accuracies in (without, with_step)]
    counts = ", ".join(f"{alpha:.3g}: {number}" for alpha, number in sorted(Counter(chosen).items()))
    print(f"α = 0: {means[0]:.2f}; with the step: {means[1]:.2f}; clients by α: {counts}")


if __name__ == "__main__":
    main()
