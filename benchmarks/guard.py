"""What choosing a head on training rows costs against the best head in hindsight: the table of docs/beyond.md.

    fedhip extract --dataset sketches --out sketches.npz
    python -m benchmarks.guard sketches.npz --seeds 1 2 --out guard.md

K clients by Dirichlet(λ), 8:2 split, everybody with its prior. `--rows` keeps so many training rows of a client in the
mean, drawn at random; those not kept are tested on as well, since with 2,000 test rows hindsight itself would err by a
point. Accuracies are means over clients in percent: of each head with all kept rows on the test rows, and in brackets
of the training rows that were held out. Cells are kept beside the table as they are done (`guard.md.cells.json`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.beyond import write
from fedhip.data import FeatureSet, make_partition, read_features
from fedhip.heads import HEADS
from fedhip.heads.recommendation import judge_heads
from fedhip.methods import CheckedClients, Protocol, run_method
from fedhip.simulation.client import Client, clients_of

Cell = dict[str, Any]
#: All of them.
ALL = 0


def thinned(clients: Sequence[Client], rows: int, seed: int) -> list[Client]:
    """Clients with a share of their training rows, `rows` in the mean over clients; the others are tested on."""
    share = rows * len(clients) / sum(len(client.train[1]) for client in clients)
    if rows == ALL or share >= 1.0:
        return list(clients)
    found = []
    for k, client in enumerate(clients):
        (F, y), (T, t) = client.train, client.test
        order = np.random.default_rng((seed, k)).permutation(len(y))
        number = min(len(y), max(1, round(share * len(y))))
        kept, others = np.sort(order[:number]), np.sort(order[number:])
        tested = np.concatenate((T, F[others])), np.concatenate((t, y[others]))
        found.append(Client(client.name, (F[kept], y[kept]), tested))
    return found


def cell(data: FeatureSet, number: int, concentration: float, rows: int, seed: int, device: str) -> Cell:
    """What was recommended, and what every head reaches."""
    partition = make_partition(data.labels, "dirichlet", number, seed=seed, concentration=concentration)
    cohort = CheckedClients.of(thinned(clients_of(data, partition), rows, seed))
    protocol = Protocol(seed=seed, prior="client")
    told = judge_heads(cohort, data.num_classes, seed=seed, prior="client", device=device).to_dict()
    tested = [k for k, client in enumerate(cohort) if len(client.test[1])]
    reached = {}
    for name, head in HEADS.items():
        run = run_method(head.method, cohort, data.num_classes, protocol, device=device)
        reached[name] = 100 * np.array([run.accuracy[k] for k in tested], dtype=float)
    best = max(reached, key=lambda name: float(reached[name].mean()))
    lost = reached[best] - reached[told["head"]]
    return {
        "recommendation": told,
        "reached": {name: float(found.mean()) for name, found in reached.items()},
        "lost": float(lost.mean()),
        "error": float(lost.std() / len(lost) ** 0.5),
        "train": sum(len(client.train[1]) for client in cohort) / number,
        "test": sum(len(client.test[1]) for client in cohort),
    }


def table(cells: Mapping[str, Cell]) -> str:
    """A line for each cell that is done."""
    heads = ["K", "λ", "rows of a client", "seed", *HEADS, "chosen", "lost"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for key, found in cells.items():
        number, concentration, _, seed = key.split()
        judged = found["recommendation"]["heads"]
        shown = [f"{found['reached'][name]:.2f} ({100 * judged[name]['share']:.2f})" for name in HEADS]
        lost = f"{found['lost']:.2f} ± {found['error']:.2f}" if found["lost"] > 0.0 else "0"
        cells_shown = [
            number,
            concentration,
            f"{found['train']:.0f}",
            seed,
            *shown,
            found["recommendation"]["head"],
            lost,
        ]
        lines.append("| " + " | ".join(cells_shown) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Cell by cell; the table is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features")
    parser.add_argument("--clients", nargs="+", type=int, default=[50])
    parser.add_argument("--concentrations", nargs="+", type=float, default=[0.1, 1.0])
    parser.add_argument("--rows", nargs="+", type=int, default=[38, 96, ALL], help=f"of a client; {ALL}: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)  # clients run beside each other
    data = read_features(args.features)
    told = {"features": hashlib.sha256(data.features.tobytes()).hexdigest()}
    kept = args.out.with_name(args.out.name + ".cells.json")
    saved: dict[str, Any] = (
        json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"told": told, "cells": {}}
    )
    if saved["told"] != told:
        parser.error(f"{kept} holds cells of other features; give another --out")
    for seed, number, concentration, rows in product(args.seeds, args.clients, args.concentrations, args.rows):
        key = f"{number} {concentration:g} {rows} {seed}"
        if key not in saved["cells"]:
            saved["cells"][key] = cell(data, number, concentration, rows, seed, args.device)
            write(kept, json.dumps(saved))
        write(args.out, table(saved["cells"]))
        print(table({key: saved["cells"][key]}).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
