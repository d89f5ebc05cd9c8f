"""Every client's prior in a federation of ridges, by exact leave-one-out; see `fedhip.core.choice.prior`.

phase 3a   at each client: log-losses of its rows, each left out, over models (α), temperatures and smoothings
           at the server: their sum
phase 3b   at each client: the α, T and a of least loss, its own and everybody's

A client's choice depends on the others through that sum, and so on how rows are divided among them; its model for an α
does not. What it may expect of it is counted on rows that had no part in the choice (`fedhip.core.choice.prior`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedhip.core import PersonalizationPath
from fedhip.core.affine import masked
from fedhip.core.choice.prior import (
    SMOOTHINGS,
    TEMPERATURES,
    FoldLosses,
    Prior,
    PriorChoice,
    PriorLosses,
    choose_every,
    choose_priors,
    scale_of,
)
from fedhip.core.choice.selection import without_fold
from fedhip.core.groups import classes_without
from fedhip.simulation.alone import local_path
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.utils.parallel import in_order

#: Whether models are tested with their clients' class priors.
PriorOption = Literal["none", "client"]
#: What α is chosen among where it is chosen together with the prior: two to the decade.
PRIOR_ALPHAS: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(-2, 6)))
#: What the scale of scores is found by: a sum of squares in four parts, and how many they are of.
SCALE_BYTES = 8 * 5


@dataclass(frozen=True)
class LeftOut:
    """Scores (N_k, d) of a client's rows, each left out, by the models that it chooses among.

    `without` gives scores of the rows outside of a fold by models that have not seen the fold either; None where a few
    rows that have make no difference. `folds` give other models that a fold's rows are judged by, and that the choice
    for them is made among: where more is chosen on rows than the prior, that too is chosen without them. They are made
    one after the other, for each may take as much room as the first.
    """

    scores: Iterable[Tensor]
    without: Callable[[int], Iterable[Tensor]] | None = None
    folds: Mapping[int, Callable[[], LeftOut]] = field(default_factory=dict)

    def losses(
        self,
        labels: Tensor,
        own: Tensor,
        everybody: Tensor,
        scale: float,
        only_local_classes: bool = False,
        groups: Tensor | None = None,
    ) -> FoldLosses:
        """Over priors, from everybody's class counts (d,) and the client's; it may know no class but its own.

        `groups` (N_k,) are those of its rows, where they are left out by group.
        """
        labels, own = labels.to(everybody.device), own.to(everybody.device)
        scores, without = self.scores, self.without
        if only_local_classes:
            scores = (left_out_classes(part, labels, own, groups) for part in scores)
            without = without and partial(_local_without, without, labels, own, groups)
        found = FoldLosses.of(scores, labels, own, everybody, scale, without, groups)
        tables = {  # several folds may have the same
            make: make().losses(labels, own, everybody, scale, only_local_classes, groups)
            for make in set(self.folds.values())
        }
        return found.taking({fold: tables[make] for fold, make in self.folds.items()})


def _local_without(
    without: Callable[[int], Iterable[Tensor]], labels: Tensor, own: Tensor, groups: Tensor | None, fold: int
) -> Iterable[Tensor]:
    others = without_fold(len(labels), fold, groups)
    kept, together = others.to(labels.device), None if groups is None else groups[others]
    left = own - torch.bincount(labels[~kept], minlength=len(own))
    return (left_out_classes(part, labels[kept], left, together) for part in without(fold))


def choose_client_priors(
    federation: Federation,
    clients: Sequence[Client],
    methods: Iterable[str],
    alpha: float | Literal["loo"],
    only_local_classes: bool,
    tell: Callable[[str, int, int], None],
) -> dict[str, dict[str, tuple[float, PriorChoice]]]:
    """For each client and method its prior, and the α that goes with it (0 but for FedHiP)."""
    grid, methods = federation.grid, tuple(methods)
    alphas = prior_alphas(alpha)
    scales = dict.fromkeys(methods, ridge_scale(grid.num_classes))

    def losses(client: Client) -> dict[str, FoldLosses]:
        scores = left_out_scores(federation, client, {method: alphas[method] for method in methods})
        return prior_losses(scores, client, grid.counts, scales, only_local_classes)

    every = []
    for k, part in enumerate(in_order(losses, clients, grid.device), start=1):
        every.append(part)
        tell("3 choosing priors", k, len(clients))
    chosen = {method: choose_every([part[method] for part in every]) for method in methods}
    return {
        client.name: {method: (alphas[method][chosen[method][k].model], chosen[method][k]) for method in methods}
        for k, client in enumerate(clients)
    }


def prior_alphas(alpha: float | Literal["loo"]) -> dict[str, tuple[float, ...]]:
    """The α of the ridges that a client chooses among, by method."""
    return {"global": (0.0,), "fedhip": PRIOR_ALPHAS if alpha == "loo" else (float(alpha),), "local": (0.0,)}


def losses_bytes(models: Iterable[int]) -> int:
    """What a client sends for priors of methods with so many models: losses and hits over the grid, and its rows."""
    return sum(8 * (2 * number * len(TEMPERATURES) * len(SMOOTHINGS) + 1) for number in models)


def prior_bytes(num_classes: int) -> int:
    """What a client sends for the prior of one model: losses, hits and rows, and its class counts."""
    return losses_bytes([1]) + 8 * num_classes


def traffic_with_priors(federation: Federation, method: str, models: Sequence[int]) -> tuple[int, int, int]:
    """`Federation.traffic` of a ridge whose prior is chosen by losses of so many models of each method."""
    rounds, up, down = federation.traffic(method)
    if rounds and models:  # priors are chosen by the sum itself, and by everybody's losses
        losses = losses_bytes(models)
        up, down = up + losses, federation.survey_bytes + federation.statistics_bytes + losses
    return rounds, up, down


def choose_scored_priors(
    scores: Sequence[Tensor | None],
    labels: Sequence[Tensor],
    own: Sequence[Tensor],
    everybody: Tensor,
    groups: Sequence[Tensor | None] | None = None,
) -> list[Prior]:
    """Every client's, from scores of its rows by models that have not seen them; None where there are none.

    `groups` are those of each client's rows, where they are left out of the counts by group.
    """
    scale = scale_of(part for part in scores if part is not None)
    together = [None] * len(scores) if groups is None else groups
    losses = [
        None if part is None else PriorLosses.of([part], y, counts, everybody, scale, of)
        for part, y, counts, of in zip(scores, labels, own, together, strict=True)
    ]
    return [prior for _, prior in choose_priors(losses)]


def choose_left_out(
    left_out: Sequence[LeftOut],
    labels: Sequence[Tensor],
    own: Sequence[Tensor],
    everybody: Tensor,
    only_local_classes: bool,
    groups: Sequence[Tensor | None] | None = None,
) -> list[PriorChoice]:
    """Every client's choice by its one model's scores, and those for the rows of each fold; `groups` as above."""

    def judged(part: LeftOut, y: Tensor, counts: Tensor, of: Tensor | None) -> Tensor:
        (scores,) = part.scores
        return left_out_classes(scores, y, counts, of) if only_local_classes else scores

    together = [None] * len(left_out) if groups is None else groups
    clients = list(zip(left_out, labels, own, together, strict=True))
    scale = scale_of(judged(*client) for client in clients)

    def losses(client: tuple[LeftOut, Tensor, Tensor, Tensor | None]) -> FoldLosses:
        part, y, counts, of = client
        return part.losses(y, counts, everybody, scale, only_local_classes, of)

    return choose_every(list(in_order(losses, clients, everybody.device)))


def ridge_scale(num_classes: int) -> float:
    """The scores of a ridge on one-hot rows deviate by about as much as these rows."""
    return float(num_classes**-0.5)


def left_out_scores(
    federation: Federation, client: Client, alphas: Mapping[str, Sequence[float]]
) -> dict[str, LeftOut]:
    """Scores (N_k, d) of a client's rows, each left out: for each method, of its ridges over α."""
    found, path = dict[str, LeftOut](), federation.path(client)
    for method, values in alphas.items():
        if method == "local":
            found[method] = local_scores(client, federation)
        elif method == "global":
            found[method] = LeftOut(map(path.loo_scores, values))
        else:
            others = {
                beta: partial(_at_beta, federation, beta, client, values)
                for beta in set(federation.fold_betas) - {federation.beta}
            }
            folds = {fold: others[beta] for fold, beta in enumerate(federation.fold_betas) if beta in others}
            found[method] = replace(_over_alphas(path, values), folds=folds)
    return found


def _over_alphas(path: PersonalizationPath, alphas: Sequence[float]) -> LeftOut:
    """By a client's ridges over α."""
    without = (lambda fold: path.fold_scores(alphas, fold)) if path.refolds else None
    return LeftOut(map(path.loo_scores, alphas), without)


def _at_beta(federation: Federation, beta: float, client: Client, alphas: Sequence[float]) -> LeftOut:
    return _over_alphas(federation.with_beta(beta).path(client), alphas)


def local_scores(client: Client, federation: Federation) -> LeftOut:
    """The same of the ridge of the client's rows alone."""
    grid = federation.grid
    alone = local_path(client, grid.num_classes, federation.standardize, federation.intercept, grid.device)
    return LeftOut([alone.loo_scores(alone.select())])


def prior_losses(
    scores: Mapping[str, LeftOut],
    client: Client,
    everybody: Tensor,
    scales: Mapping[str, float],
    only_local_classes: bool,
) -> dict[str, FoldLosses]:
    """Of each method, from scores of the client's rows left out and everybody's class counts (d,)."""
    labels = torch.as_tensor(client.train[1], device=everybody.device)
    own = torch.bincount(labels, minlength=len(everybody))
    return {
        method: found.losses(labels, own, everybody, scales[method], only_local_classes, client.group_tensor)
        for method, found in scores.items()
    }


def left_out_classes(scores: Tensor, labels: Tensor, counts: Tensor, groups: Tensor | None = None) -> Tensor:
    """Scores (N, d) with −∞ for the classes that the client has no other row of, or no row of another group."""
    if groups is not None:
        return scores.masked_fill(classes_without(labels, groups, counts.to(scores.device)) == 0, -torch.inf)
    scores = masked(scores, counts > 0)
    alone = (counts[labels] == 1)[:, None]
    return torch.where(alone, scores.scatter(1, labels[:, None], -torch.inf), scores)
