"""FedHiP's three phases on scikit-learn's handwritten digits: 20 clients, each with its own mix of classes.

Prints, client by client, the test accuracy of a model trained on the client's rows alone, of the global model, and of
the client's personalized model, whose α was chosen by leave-one-out on the client's training rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

from fedhip import PersonalizationPath, Statistics, aggregate, solve_global
from fedhip.core import RegularizationPath

CLIENTS, CONCENTRATION, SEED = 20, 0.1, 0

Array = npt.NDArray[Any]
Rows = tuple[Array, Array]


def main() -> None:
    """Run the round and print the table."""
    digits = load_digits()
    features, labels, num_classes = digits.data / 16.0, digits.target, 10
    rng = np.random.default_rng(SEED)
    clients = [train_test_split(features[rows], labels[rows], rng) for rows in dirichlet(labels, rng)]

    # Phase 1, at the clients: statistics of their own rows. Phase 2, at the server: their sum.
    statistics = [Statistics.from_data(*train, num_classes) for train, _ in clients]
    total = aggregate(statistics)

    # β for the federation: every client scores the grid on its own rows, the scores are summed.
    grid = RegularizationPath(total)
    beta = grid.select(grid.score(*train) for train, _ in clients)
    global_model = solve_global(total, beta)

    table = Table(title=f"{CLIENTS} clients, Dirichlet({CONCENTRATION}), one round, β = {beta:.2g}")
    for column in ("client", "train", "test", "classes", "local", "global", "personalized", "α"):
        table.add_column(column, justify="right")
    accuracies = []
    for k, (train, test) in enumerate(clients):
        # Phase 3, at the client: α by leave-one-out, then the model.
        path = PersonalizationPath(total, *train, beta)
        alpha = path.select()
        models = solve_global(statistics[k], beta), global_model, path.weights(alpha)
        accuracies.append([accuracy(model.numpy(), test) for model in models])
        sizes = [str(len(train[1])), str(len(test[1])), str(len(np.unique(train[1])))]
        table.add_row(str(k), *sizes, *(f"{value:.1%}" for value in accuracies[-1]), f"{alpha:.3g}")
    table.add_section()
    means = [f"[bold]{value:.1%}[/bold]" for value in np.mean(accuracies, axis=0)]
    table.add_row("[bold]mean[/bold]", "", "", "", *means, "")
    Console(width=None if Console().is_terminal else 80).print(table)


def dirichlet(labels: Array, rng: np.random.Generator) -> list[Array]:
    """Deal each class out over the clients with Dirichlet shares; every client gets at least five rows."""
    owner = np.empty(len(labels), dtype=int)
    for c in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == c))
        cuts = np.cumsum(rng.dirichlet([CONCENTRATION] * CLIENTS))[:-1] * len(rows)
        for k, part in enumerate(np.split(rows, cuts.round().astype(int))):
            owner[part] = k
    for k in range(CLIENTS):
        while (owner == k).sum() < 5:
            largest = np.bincount(owner, minlength=CLIENTS).argmax()
            owner[rng.choice(np.flatnonzero(owner == largest))] = k
    return [np.flatnonzero(owner == k) for k in range(CLIENTS)]


def train_test_split(features: Array, labels: Array, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Eight of ten rows to train on, the rest to test."""
    order = rng.permutation(len(labels))
    cut = round(0.8 * len(labels))
    return (features[order[:cut]], labels[order[:cut]]), (features[order[cut:]], labels[order[cut:]])


def accuracy(model: Array, test: Rows) -> float:
    """Share of rows whose highest score is that of their class."""
    features, labels = test
    return float(((features @ model).argmax(axis=1) == labels).mean())


if __name__ == "__main__":
    main()
