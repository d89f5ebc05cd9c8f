"""FedHiP as in the paper, and what goes beyond it: the table of docs/beyond.md.

    fedhip extract sketches.npz --dataset sketches
    python benchmarks/beyond.py sketches.npz --out table.md

Mean accuracy over clients, in percent, for every number of clients and concentration, with the deviation over seeds;
rounds, and the MB that one client sends and receives. Cells are kept in a file beside the table as they are done
(`table.md.cells.json`), and a run that was stopped goes on from there.

Clients that see things otherwise:

    python benchmarks/beyond.py sketches --styles --clients 50 --concentrations 0.5 1 --out styles.md

`--styles` takes a data set by name in place of features, and gives every client's images a style of its own
(`fedhip.data.partitions.styles`); features are extracted for every cell, and kept. `--shift s` gives every client an
offset and a scale of its own for each feature (of s and 0.3 s deviations).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhip.data import FeatureSet, Partition, draw_styles, load_dataset, make_partition, read_features, styled
from fedhip.features import extract, load_backbone
from fedhip.methods import CheckedClients, Protocol, run_method
from fedhip.simulation.client import Client, clients_of

Cell = dict[str, Any]
#: Title, method, prior, and options.
ROWS: tuple[tuple[str, str, str, dict[str, float]], ...] = (
    ("FedHiP (paper)", "fedhip", "none", {}),
    ("FedHiP + prior", "fedhip", "client", {}),
    ("FedHiP-LDA + prior", "fedhip-lda", "client", {}),
    ("FedHiP-logistic + prior", "fedhip-logistic", "client", {}),
)
#: Where clients see things otherwise: what the personal step is worth.
WITHOUT_STEP = ("FedHiP-logistic + prior, α = 0", "fedhip-logistic", "client", {"alpha": 0.0})


def moved(clients: Sequence[Client], shift: float, seed: int) -> list[Client]:
    """Each client's features with an offset and a scale of its own, the same for its training and test rows."""
    deviation = np.concatenate([client.train[0] for client in clients]).std(axis=0)
    found = []
    for k, client in enumerate(clients):
        rng = np.random.default_rng((seed, k))
        offset = shift * deviation * rng.normal(size=deviation.shape)
        scale = np.exp(0.3 * shift * rng.normal(size=deviation.shape))
        train, test = (((F * scale + offset).astype(np.float32), y) for F, y in (client.train, client.test))
        found.append(Client(client.name, train, test))
    return found


def in_styles(name: str, number: int, concentration: float, seed: int, device: str) -> tuple[FeatureSet, Partition]:
    """The features of a data set's images in the clients' styles."""
    images = load_dataset(name)
    partition = make_partition(images.labels, "dirichlet", number, seed=seed, concentration=concentration)
    images = styled(images, partition, draw_styles(number, seed))
    features = extract(load_backbone("fedhip-vit", device=device), images, dtype=torch.float32)
    return FeatureSet(features, images.labels, images.class_names), partition


def cell(source: FeatureSet | str, number: int, concentration: float, seed: int, shift: float, device: str) -> Cell:
    """Every row of the table for one division of features, or of a data set by name with styles."""
    if isinstance(source, str):
        data, partition = in_styles(source, number, concentration, seed, device)
    else:
        data = source
        partition = make_partition(data.labels, "dirichlet", number, seed=seed, concentration=concentration)
    clients = clients_of(data, partition)
    cohort = CheckedClients.of(moved(clients, shift, seed) if shift else clients)
    found = {}
    for title, method, prior, options in (*ROWS, WITHOUT_STEP) if shift or isinstance(source, str) else ROWS:
        protocol = Protocol(seed=seed, prior="client" if prior == "client" else "none")
        run = run_method(method, cohort, data.num_classes, protocol, options=options, device=device)
        known = [value for value in run.accuracy if value is not None]
        found[title] = {
            "accuracy": 100 * float(np.mean(known)),
            "rounds": run.rounds,
            "up": run.upload_bytes_per_client,
            "down": run.download_bytes_per_client,
            "alphas": run.alphas,
        }
    return found


def table(cells: dict[str, Any], numbers: Sequence[int], concentrations: Sequence[float], seeds: Sequence[int]) -> str:
    """Of the cells that are done: a column for each division."""
    columns = []
    for number, concentration in product(numbers, concentrations):
        done = [cells[key] for seed in seeds if (key := f"{number} {concentration:g} {seed}") in cells]
        if done:
            columns.append((f"K = {number}, λ = {concentration:g}", done))
    heads = ["method", "rounds", "MB up", "MB down", *(title for title, _ in columns)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for title in columns[0][1][0] if columns else ():
        first = columns[0][1][0][title]
        shown = [title, str(first["rounds"]), f"{first['up'] / 1e6:.1f}", f"{first['down'] / 1e6:.1f}"]
        for _, done in columns:
            values = [part[title]["accuracy"] for part in done]
            spread = f" ± {np.std(values):.2f}" if len(values) > 1 else ""
            shown.append(f"{np.mean(values):.2f}{spread}")
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def main() -> None:
    """Cell by cell; the table is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a feature file; with --styles, a data set by name")
    parser.add_argument("--styles", action="store_true", help="each client's images in a style of its own")
    parser.add_argument("--clients", nargs="+", type=int, default=[50, 100])
    parser.add_argument("--concentrations", nargs="+", type=float, default=[0.1, 0.5, 1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--shift", type=float, default=0.0, help="of the clients' features, in deviations")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)  # clients run beside each other
    source = args.source if args.styles else read_features(args.source)
    known = source if args.styles else hashlib.sha256(source.features.tobytes()).hexdigest()
    told = {"features": known, "shift": args.shift}
    kept = args.out.with_name(args.out.name + ".cells.json")
    saved = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"told": told, "cells": {}}
    if saved["told"] != told:
        parser.error(f"{kept} holds cells of other features or another shift; give another --out")
    for seed, number, concentration in product(args.seeds, args.clients, args.concentrations):
        key = f"{number} {concentration:g} {seed}"
        if key not in saved["cells"]:
            saved["cells"][key] = cell(source, number, concentration, seed, args.shift, args.device)
            write(kept, json.dumps(saved))
        write(args.out, table(saved["cells"], args.clients, args.concentrations, args.seeds))
        accuracies = ", ".join(f"{title} {found['accuracy']:.2f}" for title, found in saved["cells"][key].items())
        print(f"K = {number}, λ = {concentration:g}, seed {seed}: {accuracies}", flush=True)


if __name__ == "__main__":
    main()
