"""Accuracy against ε: the global and the personalized model, beside training alone, no noise, and DP-FedAvg.

    fedhip extract sketches.npz --dataset sketches
    python -m benchmarks.privacy --heart DIR --features sketches.npz --out benchmarks/results/privacy.json \
        --figure docs/pictures/privacy.svg

In pieces: `--first-seed 1 --seeds 2` measures seeds 1 and 2, `--only rival` DP-FedAvg alone, and `--more FILE …` puts
what earlier pieces kept (`--out`) beside it, in table, figure and file.

`--heart` is a folder of UCI's four files, `--features` a feature file of the embedded backbone. Everything is a mean
over clients of accuracies on test rows, and over seeds; each seed divides the rows anew and draws noise anew, from the
operating system. DP-FedAvg is full gradients of a softmax regression, each row's cut to length 1, with Gaussian noise
of the same ρ over its rounds, on the same clipped rows and with the same shares of noise. Rounds and learning rate are
the best of twenty choices on the training rows, and nothing is paid for that choice: in its favour.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhip.data import read_features
from fedhip.data.federations.heart import load_heart
from fedhip.errors import InputError
from fedhip.features.backbones import EMBEDDED, embedded_moments
from fedhip.heads.round import simulate
from fedhip.privacy.accounting import rho_of
from fedhip.privacy.public import PublicMap, PublicMoments
from fedhip.runs.privacy import map_of_table, with_public_fills
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.private import PrivacyOptions, simulate_privately
from fedhip.simulation.tasks import divide

Json = dict[str, Any]
METHODS = ("local", "global", "fedhip")
#: What DP-FedAvg is tuned over.
ROUNDS, RATES = (10, 30, 100, 300), (0.25, 1.0, 4.0, 16.0, 64.0)
DELTA = 1e-5


def heart(folder: Path, seed: int) -> tuple[list[Client], int, PublicMap]:
    """Four hospitals; the ranges are those of the description that comes with the loader."""
    rows = with_public_fills(load_heart(folder))
    partition = divide(rows, None, None, seed=seed, concentration=None, shards_per_client=None, min_rows=1)
    features, description = rows.divided(partition)
    return clients_of(features, partition), features.num_classes, map_of_table(description)


def of_features(path: Path, clients: int, concentration: float, seed: int) -> tuple[list[Client], int, PublicMap]:
    """A feature file among clients by Dirichlet(λ); what is public is of the backbone's own pool."""
    features = read_features(path)
    partition = divide(
        features, "dirichlet", clients, seed=seed, concentration=concentration, shards_per_client=None, min_rows=1
    )
    public = PublicMap.of_moments(PublicMoments.from_file(embedded_moments()), EMBEDDED)
    return clients_of(features, partition), features.num_classes, public


def mean(outcome: Any, method: str) -> float:
    """In percent, over clients."""
    return 100.0 * float(outcome.summary(method)["mean"])


def dp_fedavg(
    clients: Sequence[Client],
    classes: int,
    public: PublicMap,
    epsilon: float,
    seed: int,
    choices: Sequence[tuple[int, float]] = tuple(product(ROUNDS, RATES)),
) -> Iterator[tuple[float, float, int, float]]:
    """For each choice: training rows that the global model has right, its mean accuracy over clients in percent.

    Then rounds and rate.
    """

    def placed(rows: np.ndarray[Any, Any], clip: bool) -> Tensor:
        F = torch.from_numpy(np.asarray(rows, np.float64))
        z = public.clipped(F) if clip else (F - public.mean) @ public.directions
        return torch.cat((z, torch.full_like(z[:, :1], 0.5)), dim=1).float()

    training = [client for client in clients if len(client.train[1])]
    Z = torch.cat([placed(client.train[0], clip=True) for client in training])
    Y = torch.eye(classes)[np.concatenate([client.train[1] for client in training])]
    tests = [(placed(c.test[0], clip=False), torch.from_numpy(c.test[1])) for c in clients if len(c.test[1])]
    lengths, answers = torch.linalg.vector_norm(Z, dim=1, keepdim=True), Y.argmax(dim=1)
    for rounds, rate in choices:
        # Gradients of all rounds together cost ρ; shares as in FedHiP's sum.
        sigma = math.sqrt(rounds / (2.0 * rho_of(epsilon, DELTA))) * math.sqrt(len(training) / (len(training) - 1))
        W, generator = torch.zeros((Z.shape[1], classes)), torch.Generator().manual_seed(1000 * seed + rounds)
        for _ in range(rounds):
            E = torch.softmax(Z @ W, dim=1) - Y
            size = lengths * torch.linalg.vector_norm(E, dim=1, keepdim=True)
            noise = torch.randn(W.shape, generator=generator) * sigma
            W -= rate * (Z.mT @ (E / size.clamp(min=1.0)) + noise) / len(Z) * 10.0
        found = [float(((X @ W).argmax(dim=1) == y).double().mean()) for X, y in tests]
        right = float(((Z @ W).argmax(dim=1) == answers).double().mean())
        yield right, 100.0 * float(np.mean(found)), rounds, rate


def rivals(
    data: tuple[list[Client], int, PublicMap],
    epsilons: Sequence[float],
    seed: int,
    choices: Sequence[tuple[int, float]] = tuple(product(ROUNDS, RATES)),
    chosen: dict[float, tuple[int, float]] | None = None,
) -> Iterator[Json]:
    """DP-FedAvg's accuracy for each ε: rounds and learning rate by the training rows, or as they were `chosen` before.

    What is chosen is put there.
    """
    for epsilon in epsilons:
        known = None if chosen is None else chosen.get(epsilon)
        _, accuracy, rounds, rate = max(dp_fedavg(*data, epsilon, seed, choices if known is None else [known]))
        if chosen is not None:
            chosen[epsilon] = rounds, rate
        yield {"epsilon": epsilon, "dp_fedavg": accuracy, "rounds": rounds, "rate": rate}


def measured(data: tuple[list[Client], int, PublicMap], epsilons: Sequence[float]) -> Iterator[Json]:
    """A line for each ε, and one without noise."""
    clients, classes, public = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = simulate(clients, classes, methods=METHODS)
        alone = mean(exact, "local")
        yield {"epsilon": None, "alone": alone, "global": mean(exact, "global"), "personal": mean(exact, "fedhip")}
        for epsilon in epsilons:
            line: Json = {"epsilon": epsilon, "alone": alone}
            try:
                options = PrivacyOptions(epsilon, public, DELTA)
                found, _ = simulate_privately(clients, classes, options, methods=("global", "fedhip"))
                line |= {"global": mean(found, "global"), "personal": mean(found, "fedhip")}
            except InputError as error:
                line["refused"] = str(error)
            yield line


def together(lines: Sequence[Json]) -> list[Json]:
    """One line for each cell, seed and ε, in their order, of all that was measured there."""
    found: dict[tuple[Any, ...], Json] = {}
    for line in lines:
        found.setdefault((line["cell"], line["seed"], line["epsilon"]), {}).update(line)
    cells = list(dict.fromkeys(line["cell"] for line in lines))
    order = sorted(found, key=lambda at: (cells.index(at[0]), at[1], at[2] is not None, at[2] or 0.0))
    return [found[at] for at in order]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heart", type=Path, metavar="DIR")
    parser.add_argument("--features", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--concentrations", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", choices=("ours", "rival"), help="measure one of the two (default: both)")
    parser.add_argument("--rounds", type=int, nargs="+", default=ROUNDS, help="of DP-FedAvg, to choose among")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="its learning rates")
    parser.add_argument(
        "--choose-once",
        action="store_true",
        help="choose DP-FedAvg's rounds and rate for the first division of a file, and keep them for the others",
    )
    parser.add_argument("--more", type=Path, nargs="+", default=[], metavar="FILE", help="what earlier pieces kept")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args(arguments)
    cells: list[tuple[str, Any]] = []
    if args.heart is not None:
        cells.append(("heart", lambda seed: heart(args.heart, seed)))
    for path in args.features:
        for value in args.concentrations:
            name = f"{path.stem}, λ = {value:g}"
            cells.append((name, lambda seed, p=path, c=value: of_features(p, args.clients, c, seed)))
    lines: list[Json] = []
    for path in args.more:
        lines += json.loads(path.read_text(encoding="utf-8"))["lines"]
    choices = tuple(product(args.rounds, args.rates))
    chosen: dict[str, dict[float, tuple[int, float]]] = {}
    for name, load in cells:
        once = chosen.setdefault(name.split(",")[0], {}) if args.choose_once else None
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            data = load(seed)
            for line in chain(
                measured(data, args.epsilons) if args.only != "rival" else (),
                rivals(data, args.epsilons, seed, choices, once) if args.only != "ours" else (),
            ):
                lines.append({"cell": name, "seed": seed, **line})
                print(json.dumps(lines[-1]), flush=True)
    lines = together(lines)
    print_table(lines)
    if args.out is not None:
        args.out.write_text(json.dumps({"delta": DELTA, "lines": lines}, indent=1) + "\n", encoding="utf-8")
    if args.figure is not None:
        draw(lines, args.figure)
    return 0


COLUMNS = ("alone", "global", "personal", "dp_fedavg")


def averages(lines: Sequence[Json]) -> dict[str, dict[float | None, dict[str, float | None]]]:
    """Means over seeds, by cell and ε."""
    found: dict[str, dict[float | None, dict[str, float | None]]] = {}
    for line in lines:
        found.setdefault(line["cell"], {}).setdefault(line["epsilon"], {})
    for cell, by_epsilon in found.items():
        for epsilon in by_epsilon:
            at = [line for line in lines if line["cell"] == cell and line["epsilon"] == epsilon]
            for name in COLUMNS:
                values = [line[name] for line in at if name in line]
                by_epsilon[epsilon][name] = float(np.mean(values)) if len(values) == len(at) else None
    return found


def print_table(lines: Sequence[Json]) -> None:
    """As a table in Markdown."""
    print("\n| data | ε | alone | global | personalized | DP-FedAvg |\n|---|---|---|---|---|---|")
    for cell, by_epsilon in averages(lines).items():
        for epsilon, found in sorted(by_epsilon.items(), key=lambda item: item[0] or math.inf):
            shown = (f"{value:.1f}" if (value := found[name]) is not None else "–" for name in COLUMNS)
            print(f"| {cell} | {'no noise' if epsilon is None else f'{epsilon:g}'} | {' | '.join(shown)} |")


def draw(lines: Sequence[Json], path: Path) -> None:
    """Accuracy against ε, a panel for each cell."""
    import matplotlib.pyplot as plt

    found = averages(lines)
    figure, panels = plt.subplots(1, len(found), figsize=(3.4 * len(found), 3.2), squeeze=False, layout="constrained")
    for axes, (cell, by_epsilon) in zip(panels[0], found.items(), strict=True):
        epsilons = sorted(epsilon for epsilon in by_epsilon if epsilon is not None)
        for name, style in (("personal", "o-"), ("global", "s-"), ("dp_fedavg", "^--")):
            values = [by_epsilon[epsilon][name] for epsilon in epsilons]
            if any(value is not None for value in values):
                label = {"personal": "personalized", "global": "global", "dp_fedavg": "DP-FedAvg"}[name]
                axes.plot(epsilons, [np.nan if value is None else value for value in values], style, label=label)
        exact = by_epsilon[None]
        axes.axhline(float(exact["alone"] or 0.0), color="0.4", linestyle=":", label="alone")
        axes.axhline(float(exact["personal"] or 0.0), color="C0", linestyle=":", label="personalized, no noise")
        axes.set(xscale="log", xlabel="ε", title=cell)
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
    panels[0][0].set_ylabel("accuracy in %")
    panels[0][0].legend(fontsize=7)
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
