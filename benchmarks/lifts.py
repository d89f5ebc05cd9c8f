"""FedHiP on lifted features, in one layer and in two: the table of docs/lifts.md.

    fedhip extract sketches.npz --dataset sketches
    python benchmarks/lifts.py sketches.npz --out lifts.md

Mean accuracy over clients in percent, with the deviation over seeds where there are several, and the MB that one client
sends. α is chosen by leave-one-out on each client's training rows, β by generalized cross-validation from the sum, σ is
1: nothing sees a test row. Cells are kept beside the table as they are done (`lifts.md.cells.json`), and a run that was
stopped goes on from there.

Two layers, both in closed form:

    random      a ReLU lift of a ReLU lift, both W wide; ridge
    stacked     a ReLU lift of W/2 features; ridge; a ReLU lift of its scores to W/2 more features; ridge on all W.
                A training row's scores are those of the model without it, exactly
    folds       the same with scores of the model without a fifth of the rows, for which clients send five sums
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhip.core import PersonalizationPath
from fedhip.core.affine import AffineModel
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data import FeatureSet, make_partition, read_features
from fedhip.features.lifts.budget import upload_bytes
from fedhip.features.lifts.kinds import KINDS, LiftKind
from fedhip.simulation.client import Client, LabelledRows, clients_of
from fedhip.simulation.driver import add_up, federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.lifting import LiftSettings, lift_clients
from fedhip.simulation.testing import predict
from fedhip.utils.parallel import in_order

WIDTHS = (1024, 2048, 4096)
FOLDS = 5


@dataclass(frozen=True)
class Ridge:
    """The federation's sum for some clients, β chosen from it."""

    clients: Sequence[Client]
    federation: Federation

    @classmethod
    def of(cls, clients: Sequence[Client], num_classes: int) -> Ridge:
        """Sum and solve."""
        summed = federate(clients, num_classes)
        federation = summed.with_beta(summed.beta_path().minimize_gcv())
        _ = federation.common  # factored once, before the clients share it
        return cls(clients, federation)

    def path(self, client: Client) -> PersonalizationPath:
        """All personalized models of a client."""
        return self.federation.path(client)

    def accuracy(self) -> float:
        """Mean over clients of their personalized models, α by leave-one-out."""

        def one(client: Client) -> float:
            path = self.path(client)
            model = self.federation.on_raw(path.weights(path.select()))
            return float((predict(model, client.test[0]) == client.test[1]).mean())

        return float(np.mean(list(in_order(one, [client for client in self.clients if len(client.test[1])]))))

    def scored(self, by_folds: bool) -> list[Client]:
        """The clients with scores for features: of the global model, and of one without the row where it trained on it.

        That is the model without this row, or `by_folds` without a fifth of all rows.
        """
        models = [self.without(fold) for fold in range(FOLDS)] if by_folds else []

        def one(client: Client) -> Client:
            tested = self.federation.common.scores(client.test[0])
            if by_folds:
                every = torch.stack([model.scores(client.train[0]) for model in models])
                rows = torch.arange(len(client.train[1]))
                trained = every[rows % FOLDS, rows]
            else:
                trained = self.path(client).loo_scores(0.0)
            return Client(client.name, (trained.numpy(), client.train[1]), (tested.numpy(), client.test[1]))

        return list(in_order(one, self.clients))

    def without(self, fold: int) -> AffineModel:
        """The global model without one of the folds."""
        federation, grid = self.federation, self.federation.grid

        def part(client: Client) -> GridStatistics:
            chosen = (client.train[0][fold::FOLDS], client.train[1][fold::FOLDS])
            return federation.encoding.statistics(Client(client.name, chosen, client.test), grid.num_classes)

        having = [client for client in self.clients if len(client.train[1]) > fold]
        return Federation(grid - add_up(in_order(part, having)), federation.beta, federation.encoding).common


def lifted(clients: Sequence[Client], kind: LiftKind, width: int, d: int, seed: int) -> tuple[list[Client], int]:
    """The clients' rows, lifted, and the bytes of the exchange."""
    plan = LiftSettings(kind, width, seed=seed).plan(clients[0].train[0].shape[1], d)
    return lift_clients(plan.draw(clients), clients), plan.exchange


def side_by_side(clients: Sequence[Client], others: Sequence[Client]) -> list[Client]:
    """Two sets of features of the same rows as one."""

    def joined(a: LabelledRows, b: LabelledRows) -> LabelledRows:
        return np.concatenate((a[0], b[0]), axis=1), a[1]

    return [
        Client(one.name, joined(one.train, other.train), joined(one.test, other.test))
        for one, other in zip(clients, others, strict=True)
    ]


def plain(clients: Sequence[Client], d: int, seed: int) -> tuple[float, int]:
    """No lift."""
    return Ridge.of(clients, d).accuracy(), upload_bytes(clients[0].train[0].shape[1], d)


def one_layer(kind: LiftKind, width: int, clients: Sequence[Client], d: int, seed: int) -> tuple[float, int]:
    """Ridge on a lift."""
    wide, exchange = lifted(clients, kind, width, d, seed)
    return Ridge.of(wide, d).accuracy(), exchange + upload_bytes(width, d)


def random_layers(width: int, clients: Sequence[Client], d: int, seed: int) -> tuple[float, int]:
    """Ridge on a lift of a lift."""
    first, exchange = lifted(clients, "relu", width, d, seed)
    second, again = lifted(first, "relu", width, d, seed + 1000)
    return Ridge.of(second, d).accuracy(), exchange + again + upload_bytes(width, d)


def stacked_layers(width: int, by_folds: bool, clients: Sequence[Client], d: int, seed: int) -> tuple[float, int]:
    """Ridge on a lift and on a lift of its ridge's scores."""
    half = width // 2
    first, exchange = lifted(clients, "relu", half, d, seed)
    second, again = lifted(Ridge.of(first, d).scored(by_folds), "relu", half, d, seed + 1000)
    both = Ridge.of(side_by_side(first, second), d)
    sums = FOLDS if by_folds else 1
    return both.accuracy(), exchange + again + sums * upload_bytes(half, d) + upload_bytes(width, d)


Row = Callable[[Sequence[Client], int, int], tuple[float, int]]


def rows_of_table(widths: Sequence[int], layers: Sequence[int]) -> dict[str, Row]:
    """Every row by its title, the cheap ones first."""
    rows: dict[str, Row] = {"FedHiP, no lift": plain}
    for width, kind in product(widths, KINDS):
        rows[f"{kind} {width}"] = lambda *args, kind=kind, width=width: one_layer(kind, width, *args)
    for width in layers:
        rows[f"two layers, random {width}"] = lambda *args, width=width: random_layers(width, *args)
        rows[f"two layers, stacked {width}"] = lambda *args, width=width: stacked_layers(width, False, *args)
        rows[f"two layers, folds {width}"] = lambda *args, width=width: stacked_layers(width, True, *args)
    return rows


def table(cells: dict[str, Any], titles: Sequence[str], concentrations: Sequence[float], seeds: Sequence[int]) -> str:
    """Of the cells that are done: a row for each lift, a column for each λ."""
    heads = ["features", "MB up", *(f"λ = {concentration:g}" for concentration in concentrations)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for title in titles:
        found = [
            [cells[key] for seed in seeds if (key := f"{title}, λ = {concentration:g}, seed {seed}") in cells]
            for concentration in concentrations
        ]
        sent = {f"{cell['up'] / 1e6:.1f}" for part in found for cell in part}
        if sent:
            lines.append("| " + " | ".join([title, *sent, *map(shown, found)]) + " |")
    return "\n".join(lines) + "\n"


def shown(cells: Sequence[dict[str, Any]]) -> str:
    """Mean and deviation over seeds; of how many, where not all are there."""
    values = [cell["accuracy"] for cell in cells]
    if not values:
        return "–"
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values):.2f}" if len(values) > 1 else "")


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def divided(data: FeatureSet, clients: int, concentration: float, seed: int) -> list[Client]:
    """K clients by Dirichlet(λ); those without training rows are left out."""
    partition = make_partition(data.labels, "dirichlet", clients, seed=seed, concentration=concentration)
    return [client for client in clients_of(data, partition) if len(client.train[1])]


def main() -> None:
    """Cell by cell; the table is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--concentrations", nargs="+", type=float, default=[0.1, 0.5, 1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="of the division, and of the lifts")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--layers", nargs="*", type=int, default=[1024, 2048], help="widths of two layers")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose titles begin so (default: all)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    data, rows = read_features(args.features), rows_of_table(args.widths, args.layers)
    told = {"features": data.fingerprint, "clients": args.clients}
    kept = args.out.with_name(args.out.name + ".cells.json")
    saved = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"told": told, "cells": {}}
    if saved["told"] != told:
        parser.error(f"{kept} holds cells of other features or another number of clients; give another --out")
    wanted = [(title, row) for title, row in rows.items() if title.startswith(tuple(args.only))]
    for (title, row), seed, concentration in product(wanted, args.seeds, args.concentrations):
        key = f"{title}, λ = {concentration:g}, seed {seed}"
        if key not in saved["cells"]:
            clients = divided(data, args.clients, concentration, seed)
            accuracy, up = row(clients, data.num_classes, seed)
            saved["cells"][key] = {"accuracy": 100 * accuracy, "up": up}
            write(kept, json.dumps(saved, ensure_ascii=False, indent=1))
            print(f"{key}: {100 * accuracy:.2f} %, {up / 1e6:.1f} MB", flush=True)
        write(args.out, table(saved["cells"], list(rows), args.concentrations, args.seeds))


if __name__ == "__main__":
    main()
