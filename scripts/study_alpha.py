"""How well are α and β chosen? Against the best single pair for all clients, chosen with hindsight on the test rows.

    python scripts/study_alpha.py FEATURES.npz [--out TABLE.json]
    python scripts/study_alpha.py --noise [--head HEAD] [--prior client] [--divisions 40]
    python scripts/study_alpha.py --noise --head auto --prior client   # what a run without options says
    python scripts/study_alpha.py --noise --head auto --prior client --folds   # the same of more than 2,048 rows

For each number of clients and each λ, over seeds: the mean test accuracy of the personalized models at every pair of
α and β of the grids, had all clients used it; the best of these, which nobody can choose without the test rows; and
what rules without test rows reach, each with its own choice of α for each client and of β for all:

    soft accuracy   a row left out counts σ(margin / 0.08): the rule in use (`fedhip.core.choice.selection`)
    accuracy        the share of rows left out that are classified right; of several α, the smallest
    one error       the smallest α whose accuracy is within a standard error of the best
    likelihood      −log(1 + e^(−4 margin)): the right class against the strongest other
    squares         the least squared error of rows left out

and, at the β of the rule in use, with what the clients' curves of it say together:

    one for all     the α of the highest sum over clients
    pooled 20, 80   a client's own sum, and everybody's mean for a row as if it were that of 20 or 80 rows more

A file with clients of its own is divided by them. Nothing is written but the table. With `--noise`, labels that are
pure noise: what leave-one-out says of them, nested and, where there is a curve, as the best over α.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.choice.selection import soft_hits
from fedhip.data import FeatureSet, make_partition, read_features
from fedhip.heads import HEADS, Auto
from fedhip.heads.choice import choose
from fedhip.heads.options import options_of
from fedhip.heads.round import run_head
from fedhip.heads.task import Task
from fedhip.simulation.beta import SCORING_ALPHAS, scoring_betas
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.priors import PriorOption
from fedhip.simulation.testing import predict
from fedhip.utils.parallel import in_order

#: From margins (N, a) and squared errors (N, a): which α, and what it is worth.
Rule = Callable[[Tensor, Tensor], tuple[int, float]]
#: For each rule: what a client's choice is worth, and the test accuracy it reaches; the accuracy at every α; and the
#: sums over rows of the rule in use at every α, with their number.
Seen = tuple[dict[str, tuple[float, float]], list[float], tuple[NDArray[np.float64], int]]
#: Rows that everybody's curve counts as, beside a client's own.
POOLED = {"one for all": np.inf, "pooled 20": 20.0, "pooled 80": 80.0}


def best(counted: Tensor) -> tuple[int, float]:
    """The highest of sums over rows (N, a)."""
    sums = counted.double().sum(dim=0)
    return int(sums.argmax()), float(sums.max())


def one_error(margins: Tensor, _: Tensor) -> tuple[int, float]:
    """The first within a standard error of the most rows right."""
    right = (margins > 0).double()
    at = best(right)[0]
    behind = right[:, [at]] - right
    close = behind.sum(dim=0) <= behind.std(dim=0, correction=0) * len(right) ** 0.5
    chosen = int(close.nonzero()[0])
    return chosen, float(right[:, chosen].sum())


RULES: dict[str, Rule] = {
    "soft accuracy": lambda margins, _: best(soft_hits(margins)),
    "accuracy": lambda margins, _: best(margins > 0),
    "one error": one_error,
    "likelihood": lambda margins, _: best(torch.nn.functional.logsigmoid(4.0 * margins)),
    "squares": lambda _, errors: best(-errors),
}


def at_client(federation: Federation, client: Client) -> Seen:
    """What every rule chooses at this β."""
    path = federation.path(client)
    labels = torch.as_tensor(client.train[1])
    margins = path.loo_margins(SCORING_ALPHAS)
    targets = torch.eye(federation.grid.num_classes, dtype=torch.float64)[labels]
    errors = torch.stack([(path.loo_scores(a) - targets).square().sum(dim=1) for a in SCORING_ALPHAS], dim=1)
    models = (federation.on_raw(path.weights(alpha)) for alpha in SCORING_ALPHAS)
    tested = [float((predict(model, client.test[0]) == client.test[1]).mean()) for model in models]
    chosen = {name: rule(margins, errors) for name, rule in RULES.items()}
    curve = soft_hits(margins).sum(dim=0).numpy(), len(labels)
    return {name: (worth, tested[at]) for name, (at, worth) in chosen.items()}, tested, curve


def pooled(found: list[Seen], rows: float) -> float:
    """The mean test accuracy where everybody's curve counts as so many rows beside a client's own."""
    everybody = np.sum([sums for _, _, (sums, _) in found], axis=0) / sum(number for *_, (_, number) in found)
    reached = []
    for _, tested, (sums, _) in found:
        counted = everybody if np.isinf(rows) else sums + rows * everybody
        reached.append(tested[int(counted.argmax())])
    return float(np.mean(reached))


def study(data: FeatureSet, num_clients: int | None, concentration: float | None, seed: int) -> dict[str, object]:
    """One division: the table over β and α, and what each rule reaches."""
    if num_clients is None:
        partition = make_partition(data.labels, "natural", clients=data.clients, seed=seed)
    else:
        partition = make_partition(data.labels, "dirichlet", num_clients, seed=seed, concentration=concentration)
    clients = [client for client in clients_of(data, partition) if len(client.train[1]) and len(client.test[1])]
    summed = federate(clients, data.num_classes)
    table = []
    worth: dict[str, list[float]] = {name: [] for name in RULES}
    reached: dict[str, list[float]] = {name: [] for name in RULES}
    together: dict[str, list[float]] = {name: [] for name in POOLED}
    betas = scoring_betas(summed.total)
    for beta in betas:
        federation = summed.with_beta(beta)
        _ = federation.common  # factored once, before the clients share it
        found = list(in_order(partial(at_client, federation), clients))
        table.append(np.mean([tested for _, tested, _ in found], axis=0).tolist())
        for name, rows in POOLED.items():
            together[name].append(pooled(found, rows))
        for name in RULES:
            worth[name].append(sum(chosen[name][0] for chosen, *_ in found))
            reached[name].append(float(np.mean([chosen[name][1] for chosen, *_ in found])))
    in_use = int(np.argmax(worth["soft accuracy"]))
    rules = {name: reached[name][int(np.argmax(worth[name]))] for name in RULES}
    rules |= {name: values[in_use] for name, values in together.items()}
    chosen = {name: betas[int(np.argmax(worth[name]))] for name in RULES}
    return {"seed": seed, "betas": list(betas), "table": table, "rules": rules, "beta_of": chosen}


def line(name: str, cells: list[dict[str, object]]) -> str:
    """Means over seeds in percent: the best pair in hindsight, and how far each rule is behind it."""
    tables: NDArray[np.float64] = np.array([cell["table"] for cell in cells]).mean(axis=0)
    at = np.unravel_index(int(tables.argmax()), tables.shape)
    share = cells[0]["betas"][int(at[0])] / cells[0]["betas"][-1] * 10.0  # type: ignore[index]
    words = [f"{name}  hindsight {100 * tables.max():.2f} (α = {SCORING_ALPHAS[int(at[1])]:.3g}, β = {share:.0e} N)"]
    for rule in (*RULES, *POOLED):
        mean = float(np.mean([cell["rules"][rule] for cell in cells]))  # type: ignore[index]
        words.append(f"{rule} {100 * mean:.2f} ({100 * (mean - float(tables.max())):+.2f})")
    return "  ".join(words)


def noise(rows: int, head: str, prior: PriorOption, divisions: range, least: int, folds: bool) -> str:
    """Four classes, labels that follow from nothing: what is said of them.

    The standard error is that of the means of divisions, whose clients have a sum in common.
    """
    kind, estimates, flattering = HEADS[head], [], []
    for seed in divisions:
        rng = np.random.default_rng([rows, seed])
        clients = []
        for k in range(max(least // rows, 6)):
            F, y = rng.normal(size=(rows, 12)), rng.integers(0, 4, rows)
            clients.append(Client(f"{k:02}", (F, y), (F[:0], y[:0])))
        task = Task(clients, 4, options_of(kind, "loo", {}), prior=prior)
        if kind is Auto and not folds:  # on wider features too, as a run without options
            owns = [own for own, _ in choose(task).best.owns.values()]
        else:
            owns = [result.personal for result in run_head(kind, task).clients if result.personal is not None]
        estimates.append(np.mean([own.estimate for own in owns if own.estimate is not None]))
        flattering += [max(own.curve) for own in owns if own.curve is not None]
    error = np.std(estimates, ddof=1) / len(estimates) ** 0.5
    best = f"  best over α {np.mean(flattering):.3f}" if flattering else ""
    return f"{head}, prior {prior}, {rows} rows  nested {np.mean(estimates):.3f} ± {error:.3f}{best}"


def main() -> None:
    """Print a line for each cell, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("--noise", action="store_true", help="of labels that are pure noise, in place of a file")
    parser.add_argument("--head", choices=tuple(HEADS), default="ridge", help="with --noise (default: %(default)s)")
    parser.add_argument("--prior", choices=("none", "client"), default="none", help="with --noise")
    parser.add_argument("--divisions", type=int, default=40, help="with --noise: how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="with --noise: the number of the first division")
    parser.add_argument("--least", type=int, default=200, help="with --noise: rows of a division, at least")
    parser.add_argument("--folds", action="store_true", help="with --noise: count by folds, whatever the rows")
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 20, 50, 200], help="with --noise: of a client")
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--concentrations", type=float, nargs="+", default=[0.1, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.noise:
        for rows in args.rows:
            numbers = range(args.first, args.first + args.divisions)
            print(noise(rows, args.head, args.prior, numbers, args.least, args.folds), flush=True)
        return
    if args.features is None:
        parser.error("give a file of features, or --noise")
    data = read_features(args.features)
    divisions = [(k, c) for k in args.clients for c in args.concentrations] if data.clients is None else [(None, None)]
    cells = []
    for num_clients, concentration in divisions:
        found = [study(data, num_clients, concentration, seed) for seed in args.seeds]
        name = args.features.stem if num_clients is None else f"K = {num_clients} λ = {concentration:g}"
        print(line(name, found), flush=True)
        cells.append({"clients": num_clients, "concentration": concentration, "seeds": found})
    if args.out is not None:
        args.out.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
