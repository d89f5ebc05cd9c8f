"""Theorem 3 on real data: one client's rows stay, the others' are divided anew, and its model should not move.

P̂_k depends on the other clients through the sum of their statistics alone, and a sum does not know how its terms were
divided. One client keeps its rows; the training rows of all others are divided among them by Dirichlet(λ) for every λ
of a grid. The change is ‖P(λ) − P(λ₀)‖ / ‖P(λ₀)‖ with λ₀ the first of the grid: P the weights of a ridge, and of every
other method the scores of its model on a few rows of the fixed client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhip.core import DEFAULT_ALPHAS
from fedhip.core.affine import AffineModel
from fedhip.core.choice.prior import Prior
from fedhip.core.choice.selection import CHOSEN_BY
from fedhip.reproduce.bench import Bench, Setting, cell_of
from fedhip.reproduce.cells import Cell, Json, PlannedCell
from fedhip.reproduce.divisions import divide_around, standardize
from fedhip.reproduce.settings import Regime, Source, known_methods
from fedhip.reproduce.studies import tuning
from fedhip.reproduce.studies.notes import (
    backbone_notes,
    list_notes,
    prior_notes,
    protocol_name,
    protocol_notes,
    quick_notes,
)
from fedhip.reproduce.studies.table1 import numbered, sentence
from fedhip.reproduce.tables import DIVERGED, NOTHING, Entry, Row, Table
from fedhip.simulation.alone import local_model
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import PAPER
from fedhip.simulation.priors import choose_client_priors
from fedhip.simulation.testing import evaluate
from fedhip.utils.progress import ReportProgress

#: Methods whose models are solved here, so that their weights can be compared; of the others scores are.
SOLVED = ("fedhip", "global", "local")
#: How many numbers of a model's scores a cell keeps.
PROBE = 1024


def base(bench: Bench, seed: int) -> tuple[int, float, int]:
    """The division that the fixed client comes from."""
    return bench.settings.clients[0], bench.settings.concentrations[0], seed


def steps(bench: Bench) -> list[PlannedCell]:
    """The cells: for every protocol, data set and seed the solved methods together, the others λ by λ."""
    s = bench.settings
    found: list[PlannedCell] = []

    def solved(source: Source, regime: Regime, seed: int) -> PlannedCell:
        identity = ("solved", source.name, regime, seed)
        return PlannedCell("solved", identity, lambda: solved_cell(bench, source, regime, seed))

    def trained(source: Source, regime: Regime, seed: int, moved: float, method: str) -> PlannedCell:
        identity = ("around", source.name, regime, seed, moved, method)
        return PlannedCell(method, identity, lambda: trained_cell(bench, source, regime, seed, moved, method))

    for regime, source in product(s.regimes, bench.sources):
        for method in s.methods:
            if regime == "tuned":
                found += tuning.steps(bench, source, s.concentrations[0], method)
        for seed in s.seeds:
            if any(method in SOLVED for method in s.methods):
                found.append(solved(source, regime, seed))
            for moved, method in product(s.moved_concentrations, s.methods):
                if method not in SOLVED:
                    found.append(trained(source, regime, seed, moved, method))
    return found


def _setting(bench: Bench, source: Source, regime: Regime, method: str) -> Setting:
    if regime == "paper":
        return Setting(None)
    return tuning.choose(bench, source, bench.settings.concentrations[0], method).setting


def trained_cell(bench: Bench, source: Source, regime: Regime, seed: int, moved: float, method: str) -> Cell:
    """A method on the fixed client and the others, divided by Dirichlet(moved)."""
    clients, concentration, _ = base(bench, seed)

    def rows() -> list[Client]:
        fixed, others = divide_around(source, clients, concentration, seed, moved)
        return [fixed, *others]

    label = f"invariance {source.name} K={clients} seed {seed} λ={moved:g} {method} {regime}"
    key = {"around": {"clients": clients, "concentration": concentration, "seed": seed, "moved": moved}}
    setting = _setting(bench, source, regime, method)
    return cell_of(bench, source, method, regime, bench.settings.protocol(seed), setting, label, key, rows, PROBE)


def solved_cell(bench: Bench, source: Source, regime: Regime, seed: int) -> Cell:
    """FedHiP, the global ridge and the ridge of the client alone, for every λ of the grid."""
    clients, concentration, _ = base(bench, seed)
    grid, only = bench.settings.moved_concentrations, bench.settings.only_local_classes
    prior = bench.settings.prior == "client"
    betas: dict[str, float | None] = {
        method: dict(_setting(bench, source, regime, method).options).get("beta")
        for method in ("fedhip", "global")
        if method in bench.settings.methods
    }

    def compute(checkpoint: Path, tell: ReportProgress) -> Json:
        models: dict[str, list[Any]] = {method: [] for method in SOLVED}
        found: list[Json] = []
        for done, moved in enumerate(grid, start=1):
            fixed, others = divide_around(source, clients, concentration, seed, moved)
            everyone = [fixed, *others]
            if regime == "tuned":
                everyone = standardize(everyone, intercept=True)
            solved = solve(everyone, source.features.num_classes, betas, only, prior, bench.device)
            for method, model in solved.models.items():
                models[method].append(model.weights)
            found.append({"moved": moved, "alpha": solved.alpha, **tested(solved, everyone[0], only)})
            tell("λ", done, len(grid))
        for method, by_place in models.items():
            for place, entry in enumerate(found):
                entry[f"change_{method}"] = change(by_place[place], by_place[0])
        return {"points": found, "test": len(divide_around(source, clients, concentration, seed, grid[0])[0].test[1])}

    key = {
        **source.identity,
        "around": {"clients": clients, "concentration": concentration, "seed": seed, "moved": list(grid)},
        "method": "solved",
        "betas": betas,
        "features_are": "raw" if regime == "paper" else "standardised",
        "only_local_classes": only,
        "chosen_by": CHOSEN_BY,
        **({"prior": "client"} if prior else {}),
    }
    return Cell(f"invariance {source.name} K={clients} seed {seed} solved {regime}", "solved", key, compute)


@dataclass(frozen=True)
class Solved:
    """Models of the first client, its α, its priors if they are asked for, and everybody's class counts."""

    models: dict[str, AffineModel]
    alpha: float
    priors: dict[str, Prior]
    counts: torch.Tensor


def solve(
    clients: list[Client],
    num_classes: int,
    betas: dict[str, float | None],
    only_local_classes: bool,
    prior: bool,
    device: str,
) -> Solved:
    """With α by leave-one-out on the client's own training rows; together with its prior, if there is one."""
    fixed = clients[0]
    summed = federate([client for client in clients if len(client.train[1])], num_classes, ridge=PAPER, device=device)

    def federation(method: str) -> Federation:
        beta = betas.get(method)
        return summed.with_beta(summed.beta_path().minimize_gcv() if beta is None else beta)

    priors: dict[str, Prior] = {}
    own = federation("fedhip")
    path = own.path(fixed)
    alpha = path.select(DEFAULT_ALPHAS, only_local_classes=only_local_classes)
    for method in SOLVED if prior else ():
        training = [client for client in clients if len(client.train[1])]
        every = choose_client_priors(
            federation(method), training, (method,), "loo", only_local_classes, lambda phase, done, total: None
        )
        chosen, choice = every[fixed.name][method]
        priors[method] = choice.prior
        alpha = chosen if method == "fedhip" else alpha
    models = {
        "fedhip": own.on_raw(path.weights(alpha)),
        "global": federation("global").common,
        "local": local_model(fixed, num_classes, PAPER, device),
    }
    return Solved(models, alpha, priors, summed.grid.counts)


def tested(solved: Solved, client: Client, only_local_classes: bool) -> Json:
    """Each model's accuracy on the client's test rows."""
    found = evaluate(
        client, dict(solved.models), None, len(solved.counts), only_local_classes, solved.priors, solved.counts
    )
    return {f"accuracy_{method}": accuracy for method, accuracy in found.accuracy.items()}


def change_of_scores(results: Sequence[Json]) -> float | None:
    """The largest change of the scores of a model against the first; None where one diverged or has none."""
    probes = [result.get("probe") for result in results]
    if not all(probe and None not in probe for probe in probes):
        return None
    first, *others = (torch.tensor(probe, dtype=torch.float64) for probe in probes)
    return max((change(other, first) for other in others), default=0.0)


def change(weights: torch.Tensor, reference: torch.Tensor) -> float:
    """‖P − P₀‖ / ‖P₀‖; 0 where both are 0."""
    moved = torch.linalg.norm(weights - reference)
    return float(moved / torch.linalg.norm(reference)) if moved > 0 else 0.0


def accuracies(
    bench: Bench, source: Source, regime: Regime, method: str
) -> tuple[list[list[float | None]], list[float | None], list[str]]:
    """The fixed client's accuracy by λ and seed; the largest change of its model by seed; where a method diverged."""
    s = bench.settings
    if method in SOLVED:
        by_seed = [bench.result(solved_cell(bench, source, regime, seed))["points"] for seed in s.seeds]
        found: list[list[float | None]] = [
            [points[place][f"accuracy_{method}"] for points in by_seed] for place in range(len(s.moved_concentrations))
        ]
        return found, [max(point[f"change_{method}"] for point in points) for points in by_seed], []
    found, remarks, title = [], [], known_methods()[method].title
    by_moved = [
        [bench.result(trained_cell(bench, source, regime, seed, moved, method)) for seed in s.seeds]
        for moved in s.moved_concentrations
    ]
    for moved, results in zip(s.moved_concentrations, by_moved, strict=True):
        found.append([result["accuracy"][0] for result in results])
        remarks += [
            f"{title}, λ = {moved:g}, seed {seed}: diverged: {result['diverged']}."
            for result, seed in zip(results, s.seeds, strict=True)
            if result["diverged"] is not None
        ]
        remarks += [sentence(title, result["note"]) for result in results if result["note"]]
    changes = [change_of_scores(results) for results in zip(*by_moved, strict=True)]
    return found, changes, list(dict.fromkeys(remarks))


def spread(by_moved: list[list[float | None]]) -> float | None:
    """Highest less lowest accuracy over the grid, mean over seeds."""
    if any(value is None for values in by_moved for value in values):
        return None
    return float(np.ptp(np.array(by_moved, dtype=np.float64), axis=0).mean())


def name_of(bench: Bench, source: Source, regime: Regime) -> str:
    """The name of the files."""
    return f"invariance-{regime}" + (f"-{source.name}" if len(bench.sources) > 1 else "")


def tables(bench: Bench) -> list[Table]:
    """A table for each protocol and data set."""
    return [_table(bench, source, regime) for regime, source in product(bench.settings.regimes, bench.sources)]


def _table(bench: Bench, source: Source, regime: Regime) -> Table:
    s, known = bench.settings, known_methods()
    where = "accuracy of the fixed client, the others divided with"
    columns = [(where, f"λ = {moved:g}") for moved in s.moved_concentrations]
    columns += [("over the grid", "highest − lowest, points"), ("over the grid", "largest change of its model")]
    rows, records, footnotes = [], [], list[str]()
    for method in s.methods:
        by_moved, changes, remarks = accuracies(bench, source, regime, method)
        entries = [
            Entry(text=DIVERGED if None in values else None, values=tuple(v for v in values if v is not None))
            for values in by_moved
        ]
        width = spread(by_moved)
        known_changes = [value for value in changes if value is not None]
        worst = max(known_changes) if len(known_changes) == len(changes) else None
        entries.append(Entry(text=NOTHING if width is None else f"{100 * width:.2f}"))
        entries.append(Entry(text=shown_change(worst)))
        rows.append(Row(known[method].title, tuple(entries), numbered(footnotes, remarks), rule=method == "fedhip"))
        for moved, values in zip(s.moved_concentrations, by_moved, strict=True):
            records.append(
                {
                    "data": source.name, "backbone": source.backbone, "protocol": regime, "method": method,
                    "clients": s.clients[0], "fixed_concentration": s.concentrations[0], "moved_concentration": moved,
                    "seeds": list(s.seeds), "accuracy": values, "largest_change": changes, "quick": s.quick,
                }
            )  # fmt: skip
    title = f"Heterogeneity invariance: {source.title}, {s.clients[0]} clients, {protocol_name(bench, regime)}"
    notes = list_notes(
        quick_notes(bench),
        _notes(bench),
        prior_notes(bench),
        protocol_notes(bench, regime),
        backbone_notes(bench, "invariance", regime),
    )
    name = name_of(bench, source, regime)
    return Table(name, title, "Method", tuple(columns), tuple(rows), tuple(records), notes, tuple(footnotes))


def shown_change(value: float | None) -> str:
    """A share in percent; what is tiny with its exponent, what is nothing as 0."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    return f"{value:.1e}".replace("-", "−") if value < 1e-4 else f"{100 * value:.3g} %"


def _notes(bench: Bench) -> list[str]:
    s = bench.settings
    return [
        f"One client's rows stay: the one with the median number of training rows of a division with λ = "
        f"{s.concentrations[0]:g}. The training rows of the {s.clients[0] - 1} others are divided among them anew with "
        f"every λ; the same rows are trained on in every column. Accuracy in percent on the fixed client's test rows, "
        + (
            f"mean ± sample deviation over seeds {', '.join(map(str, s.seeds))}."
            if len(s.seeds) > 1
            else f"seed {s.seeds[0]}."
        ),
        "Change of its model: the norm of the difference to the model of the first λ over the norm of that one, the "
        "largest of the grid and of the seeds. Of FedHiP, the global and the local ridge it is that of the weights: "
        "FedHiP sums statistics as whole numbers, so that the sum, β, the client's α (by its own leave-one-out) and "
        "its model are the same bits; with standardised features the same to rounding, as mean and deviation are sums "
        "of floating-point numbers. The global ridge shares that; a client alone does not know of the others. Of all "
        f"other methods it is that of the model's scores, less their mean over classes, on test rows of the fixed "
        f"client (up to {PROBE} scores, kept to nine digits). With the same seed, what moves them is the division of "
        "rows that are not the client's. An accuracy is of few test rows: where it stays, the model may have moved.",
        *(
            ["With a prior, a client's α and prior weigh everybody's losses too, and may move with the division."]
            if s.prior == "client"
            else []
        ),
    ]
