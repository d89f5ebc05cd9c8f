"""What a logistic head should be drawn towards: zero, by ‖W‖², or LDA, in the metric of the covariance within classes.

    fedhip extract sketches.npz --dataset sketches
    python benchmarks/penalty.py sketches.npz

Accuracy in percent, mean over clients, of one head for all without priors. For ‖W‖² at each of six penalties: the best
is hindsight, which no choice may use. For LDA the penalty is chosen by leave-one-out, as `fedhip-logistic` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from fedhip.data import make_partition, read_features
from fedhip.heads.logistic import Logistic, LogisticRun
from fedhip.heads.task import Task
from fedhip.simulation.client import Client, clients_of

PENALTIES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0)


def accuracy(clients: list[Client], scores: Callable[[Tensor], Tensor]) -> float:
    """Mean over clients, in percent."""
    found = []
    for client in clients:
        predicted = scores(torch.from_numpy(client.test[0].astype(np.float64))).argmax(dim=1).numpy()
        found.append(float((predicted == client.test[1]).mean()))
    return 100 * float(np.mean(found))


def towards_zero(X: Tensor, y: Tensor, classes: int, rho: float, start: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logistic regression of rows X with penalty ½ρ‖W‖², from `start` (as a vector)."""

    def objective(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logs = torch.log_softmax(X @ torch.from_numpy(w.reshape(X.shape[1], classes)).float(), dim=1)
        slopes = X.mT @ (logs.exp() - torch.nn.functional.one_hot(y, classes))
        value = -float(logs.gather(1, y[:, None]).sum()) + rho / 2 * float((w**2).sum())
        return value, slopes.double().numpy().ravel() + rho * w

    found: NDArray[np.float64] = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 40}).x
    return found


def main() -> None:
    """A line for each head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--concentration", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    data = read_features(args.features)
    partition = make_partition(data.labels, "dirichlet", args.clients, seed=args.seed, concentration=args.concentration)
    clients, classes = clients_of(data, partition), data.num_classes
    task = Task(clients, classes)
    run = LogisticRun(task, Logistic.federate(task))
    fit = run.statistics()
    units = run.columns.standardization
    run.temperature(fit)
    run.gradients(fit, 5)
    print(f"towards LDA: {accuracy(clients, run.on_raw(fit.head().model).scores):.2f}", flush=True)
    print(
        f"LDA itself: {accuracy(clients, lambda F: fit.standardization.features(units.features(F)) @ fit.lda):.2f}",
        flush=True,
    )
    rows = torch.from_numpy(np.concatenate([client.train[0] for client in clients]).astype(np.float64))

    def seen(F: Any) -> Tensor:
        return fit.standardization.features(units.features(torch.as_tensor(F)))

    X, y = seen(rows).float(), np.concatenate([client.train[1] for client in clients])
    w = np.zeros(X.shape[1] * classes)
    for rho in PENALTIES:
        w = towards_zero(X, torch.from_numpy(y), classes, rho, w)
        W = torch.from_numpy(w.reshape(X.shape[1], classes))
        found = accuracy(clients, lambda F, W=W: seen(F) @ W)  # type: ignore[misc]
        print(f"towards zero, ρ = {rho:g}: {found:.2f}", flush=True)


if __name__ == "__main__":
    main()
