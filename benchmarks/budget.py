"""Accuracy against the bytes that a client may send: the table and the figure of docs/choice.md.

    fedhip extract --dataset sketches --out sketches.npz
    python -m benchmarks.budget sketches.npz --concentrations 0.1 1 --seeds 0 1 2 --out docs/results/budget.csv

Each cell is the choice (`--head auto`) in one round within a budget, a share of what it takes with none. What is in the
file is not computed again; the table and `budget.svg` beside the file are of all that is there.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from fedhip.core.exact.columns import Survey
from fedhip.data import make_partition, read_features
from fedhip.features.lifts.budget import upload_bytes
from fedhip.heads.auto import Auto, choosing_bytes
from fedhip.heads.budget import within
from fedhip.heads.choice import choose
from fedhip.heads.options import options_of
from fedhip.heads.round import tested
from fedhip.heads.task import Task
from fedhip.simulation.client import clients_of
from fedhip.simulation.federation import SCORES_BYTES
from fedhip.simulation.lifting import lift_clients, lifted_grid
from fedhip.utils.candidates import CANDIDATES

SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
HEADS = ("data", "clients", "concentration", "seed", "share", "bytes", "width", "accuracy")
Cell = dict[str, str]


def measure(path: str, number: int, concentration: float, seed: int, share: float) -> Cell:
    """One cell."""
    data = read_features(path)
    partition = make_partition(data.labels, "dirichlet", number, seed=seed, concentration=concentration)
    clients, width, d = clients_of(data, partition), data.features.shape[1], data.num_classes
    task = Task(clients, d, options_of(Auto, "loo", {}), prior="client", seed=seed)
    rows = [len(client.train[1]) for client in clients]
    today = 8 * Survey.size(width) + upload_bytes(width, d) + SCORES_BYTES + choosing_bytes(CANDIDATES, prior=True)
    exchange, found = 0, within(int(share * today), width, d, rows, prior=True)
    if (lift := found.lift) is not None:
        plan = lift.plan(width, d)
        drawn = plan.draw(clients)
        clients, exchange = lift_clients(drawn, clients), plan.exchange
        grid = replace(lifted_grid(clients, kind=lift.kind), room=found.room)
        task, width = replace(task, clients=clients, ridge=grid), plan.width
    choice = choose(task, wider=False)
    accuracy = [value for value in tested(choice.best.head, choice.best.owns, 0.0).accuracy if value is not None]
    sent = choice.traffic[1] + exchange
    values = (Path(path).stem, number, concentration, seed, share, sent, width, f"{100 * np.mean(accuracy):.2f}")
    return dict(zip(HEADS, map(str, values), strict=True))


def table(cells: list[Cell]) -> str:
    """Mean over seeds; in brackets, what is lost against all bytes over the same seeds."""
    of: dict[tuple[str, str], dict[float, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for cell in cells:
        of[cell["data"], cell["concentration"]][float(cell["share"])][cell["seed"]] = cell
    shares = sorted({float(cell["share"]) for cell in cells}, reverse=True)
    lines = [
        "| federation | seeds | " + " | ".join(f"{share:.0%}" for share in shares) + " |",
        "|---" * (2 + len(shares)) + "|",
    ]
    for (name, concentration), found in of.items():
        shown = []
        for share in shares:
            seeds = found[share].keys() & found[1.0].keys()
            here, full = (
                np.mean([float(found[at][seed]["accuracy"]) for seed in seeds]) if seeds else np.nan
                for at in (share, 1.0)
            )
            some = next(iter(found[share].values()), None)
            lost = "" if share == 1.0 else f" ({here - full:+.1f})"
            shown.append(
                "–"
                if some is None
                else f"{here:.1f}{lost}; {int(some['width'])} wide, {int(some['bytes']) / 1e6:.2f} MB"
            )
        lines.append(f"| {name}, λ = {float(concentration):g} | {len(found[1.0])} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def draw(cells: list[Cell], path: Path) -> None:
    """The figure."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 3.6))
    lines: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        title = f"{cell['data']}, λ = {float(cell['concentration']):g}"
        lines[title][cell["share"]].append((int(cell["bytes"]) / 1e6, float(cell["accuracy"])))
    for title, points in lines.items():
        means = sorted(tuple(np.mean(seeds, axis=0)) for seeds in points.values())
        axis.plot(*zip(*means, strict=True), marker="o", label=title)
    axis.set(xscale="log", xlabel="MB that a client sends in all", ylabel="mean accuracy over clients, %")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure what is missing, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="*")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--concentrations", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[Cell] = []
    if args.out.exists():
        with args.out.open(newline="", encoding="utf-8") as file:
            cells = list(csv.DictReader(file))
    known = {tuple(cell[name] for name in HEADS[:5]) for cell in cells}
    for path, seed, concentration, share in product(args.features, args.seeds, args.concentrations, args.shares):
        if (Path(path).stem, str(args.clients), str(concentration), str(seed), str(share)) in known:
            continue
        cells.append(measure(path, args.clients, concentration, seed, share))
        print(cells[-1], flush=True)
        with args.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, HEADS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(cells)
    print(table(cells))
    draw(cells, args.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
