"""FedHiP over grids of α and β: one sum of statistics, one factorisation for each β and client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedhip.core import DEFAULT_ALPHAS
from fedhip.core.affine import AffineModel
from fedhip.core.choice.selection import CHOSEN_BY
from fedhip.reproduce.bench import Bench
from fedhip.reproduce.cells import Cell, Json
from fedhip.reproduce.divisions import divide
from fedhip.reproduce.settings import Source
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.metrics import summarize
from fedhip.simulation.options import PAPER
from fedhip.simulation.testing import predict
from fedhip.utils.parallel import in_order
from fedhip.utils.progress import ReportProgress

#: None stands for leave-one-out (α) and for generalized cross-validation (β).
Pair = tuple[float | None, float | None]


def curve_cell(
    bench: Bench,
    source: Source,
    study: str,
    pairs: Sequence[Pair],
    num_clients: int,
    concentration: float,
    seed: int,
) -> Cell:
    """FedHiP with each pair (α, β) on one division, raw features."""
    only = bench.settings.only_local_classes

    def compute(checkpoint: Path, tell: ReportProgress) -> Json:
        clients = divide(source, num_clients, concentration, seed)
        return curve(clients, source.features.num_classes, pairs, only, bench.device, tell)

    key = {
        **source.identity,
        "division": {"clients": num_clients, "concentration": concentration, "seed": seed},
        "method": "fedhip over a grid",
        "pairs": [list(pair) for pair in pairs],
        "only_local_classes": only,
        "chosen_by": CHOSEN_BY,
    }
    label = f"{study} {source.name} K={num_clients} λ={concentration:g} seed {seed}"
    return Cell(label, "grid", key, compute)


def curve(
    clients: Sequence[Client],
    num_classes: int,
    pairs: Sequence[Pair],
    only_local_classes: bool,
    device: str,
    tell: ReportProgress,
) -> Json:
    """Test accuracies of FedHiP with each pair: mean over clients, over rows; and the α and β that were chosen."""
    training = [client for client in clients if len(client.train[1])]
    summed = federate(training, num_classes, ridge=PAPER, device=device)
    points: list[Json | None] = [None] * len(pairs)
    for beta in dict.fromkeys(beta for _, beta in pairs):
        federation = summed.with_beta(summed.beta_path().minimize_gcv() if beta is None else beta)
        _ = federation.common
        places = [place for place, pair in enumerate(pairs) if pair[1] == beta]
        alphas = [pairs[place][0] for place in places]

        def accuracies(
            client: Client, federation: Federation = federation, alphas: list[float | None] = alphas
        ) -> tuple[list[float | None], list[float | None]]:
            return _client(client, federation, alphas, only_local_classes)

        found = []
        for done, pair in enumerate(in_order(accuracies, clients, device), start=1):
            found.append(pair)
            tell("clients", done, len(clients))
        tests = [len(client.test[1]) for client in clients]
        for i, place in enumerate(places):
            means = summarize([values[i] for values, _ in found], tests)
            chosen = [used[i] for _, used in found if used[i] is not None]
            points[place] = {
                "mean": means["mean"],
                "weighted": means["weighted"],
                "beta": federation.beta,
                "median_alpha": float(np.median([a for a in chosen if a is not None])) if chosen else None,
            }
    return {"points": points}


def _client(
    client: Client, federation: Federation, alphas: Sequence[float | None], only_local_classes: bool
) -> tuple[list[float | None], list[float | None]]:
    """The client's accuracy with each α, and that α; a client without training rows has the global model."""
    if not len(client.test[1]):
        return [None] * len(alphas), [None] * len(alphas)
    if not len(client.train[1]):
        return [_accuracy(federation.common, client, None)] * len(alphas), [None] * len(alphas)
    path = federation.path(client)
    seen = np.bincount(client.train[1], minlength=federation.grid.num_classes) > 0
    mask = torch.from_numpy(seen).to(federation.grid.device) if only_local_classes else None
    used = [
        path.select(DEFAULT_ALPHAS, only_local_classes=only_local_classes) if alpha is None else alpha
        for alpha in alphas
    ]
    models = (federation.on_raw(path.weights(alpha)) for alpha in used)
    return [_accuracy(model, client, mask) for model in models], list(used)


def _accuracy(model: AffineModel, client: Client, mask: Tensor | None) -> float:
    features, labels = client.test
    return float((predict(model, features, mask) == labels).mean())
