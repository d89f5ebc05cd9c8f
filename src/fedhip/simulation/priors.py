"""Every client's prior in a federation of ridges, by exact leave-one-out; see `fedhip.core.choice.prior`.

phase 3a   at each client: log-losses of its rows, each left out, over models (α), temperatures and smoothings
           at the server: their sum
phase 3b   at each client: the α, T and a of least loss, its own and everybody's

A client's choice depends on the others through that sum, and so on how rows are divided among them; its model for an α
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedhip.core.affine import masked
from fedhip.core.choice.prior import SMOOTHINGS, TEMPERATURES, Prior, PriorLosses, choose_priors, scale_of
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


def choose_client_priors(
    federation: Federation,
    clients: Sequence[Client],
    methods: Iterable[str],
    alpha: float | Literal["loo"],
    only_local_classes: bool,
    tell: Callable[[str, int, int], None],
) -> dict[str, dict[str, tuple[float, Prior]]]:
    """For each client and method its prior, and the α that goes with it (0 but for FedHiP)."""
    grid, methods = federation.grid, tuple(methods)
    alphas = prior_alphas(alpha)
    scales = dict.fromkeys(methods, ridge_scale(grid.num_classes))

    def losses(client: Client) -> dict[str, PriorLosses]:
        scores = left_out_scores(federation, client, {method: alphas[method] for method in methods})
        return prior_losses(scores, client, grid.counts, scales, only_local_classes)

    every = []
    for k, part in enumerate(in_order(losses, clients, grid.device), start=1):
        every.append(part)
        tell("3 choosing priors", k, len(clients))
    chosen = {method: choose_priors([part[method] for part in every]) for method in methods}
    return {
        client.name: {method: (alphas[method][chosen[method][k][0]], chosen[method][k][1]) for method in methods}
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
    scores: Sequence[Tensor | None], labels: Sequence[Tensor], own: Sequence[Tensor], everybody: Tensor
) -> list[Prior]:
    """Every client's, from scores of its rows by models that have not seen them; None where there are none."""
    scale = scale_of(part for part in scores if part is not None)
    losses = [
        None if part is None else PriorLosses.of([part], y, counts, everybody, scale)
        for part, y, counts in zip(scores, labels, own, strict=True)
    ]
    return [prior for _, prior in choose_priors(losses)]


def ridge_scale(num_classes: int) -> float:
    """The scores of a ridge on one-hot rows deviate by about as much as these rows."""
    return float(num_classes**-0.5)


def left_out_scores(
    federation: Federation, client: Client, alphas: Mapping[str, Sequence[float]]
) -> dict[str, Iterable[Tensor]]:
    """Scores (N_k, d) of a client's rows, each left out: for each method, of its ridges over α."""
    found, path = dict[str, Iterable[Tensor]](), federation.path(client)
    for method, values in alphas.items():
        if method == "local":
            found[method] = local_scores(client, federation)
        else:
            found[method] = map(path.loo_scores, values)
    return found


def local_scores(client: Client, federation: Federation) -> Iterable[Tensor]:
    """The same of the ridge of the client's rows alone."""
    grid = federation.grid
    alone = local_path(client, grid.num_classes, federation.standardize, federation.intercept, grid.device)
    return [alone.loo_scores(alone.select())]


def prior_losses(
    scores: Mapping[str, Iterable[Tensor]],
    client: Client,
    everybody: Tensor,
    scales: Mapping[str, float],
    only_local_classes: bool,
) -> dict[str, PriorLosses]:
    """Of each method, from scores of the client's rows left out and everybody's class counts (d,)."""
    labels = torch.as_tensor(client.train[1], device=everybody.device)
    own = torch.bincount(labels, minlength=len(everybody))
    found = {}
    for method, every in scores.items():
        parts = local_classes_only(every, client, len(everybody)) if only_local_classes else every
        found[method] = PriorLosses.of(parts, labels, own, everybody, scales[method])
    return found


def local_classes_only(scores: Iterable[Tensor], client: Client, num_classes: int) -> Iterator[Tensor]:
    """Scores (N_k, d) of a client's rows left out, in which it knows no class but its own."""
    for part in scores:
        labels = torch.as_tensor(client.train[1], device=part.device)
        yield left_out_classes(part, labels, torch.bincount(labels, minlength=num_classes))


def left_out_classes(scores: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Scores (N, d) with −∞ for the classes that the client has no other row of."""
    scores = masked(scores, counts > 0)
    alone = (counts[labels] == 1)[:, None]
    return torch.where(alone, scores.scatter(1, labels[:, None], -torch.inf), scores)
