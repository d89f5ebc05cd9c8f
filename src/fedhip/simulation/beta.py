"""Phase 2: β for the federation, by the sum of what clients find on rows left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core import LooScore, RegularizationPath, Statistics, default_betas
from fedhip.core.choice.selection import FOLDS
from fedhip.core.ridge.regularization import choose_betas
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha
from fedhip.utils.parallel import in_order, one_thread
from fedhip.utils.progress import ReportProgress

#: What β is chosen with: a client is scored at the best of these.
SCORING_ALPHAS: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(-2, 7)))
#: Of many clients so many score β, evenly spread over the list of their names.
MOST_SCORERS = 16


def scoring_betas(total: Statistics) -> tuple[float, ...]:
    """What β is chosen among: one to the decade, from 1e-6 to 10 times the mean square of the features."""
    return default_betas(total)[::2]


def scorers(names: Iterable[str]) -> set[str]:
    """Which of the clients score β: all, or 16 spread evenly over the list of their names."""
    ordered = sorted(names)
    if len(ordered) <= MOST_SCORERS:
        return set(ordered)
    return {ordered[at * len(ordered) // MOST_SCORERS] for at in range(MOST_SCORERS)}


def score_betas(
    federation: Federation,
    path: RegularizationPath,
    client: Client,
    alpha: Alpha,
    alphas: Sequence[float] = SCORING_ALPHAS,
) -> LooScore:
    """At a client: how every β does on its rows left out, at the α that it would choose with it among `alphas`."""
    if federation.encoding.targets is not None:
        return path.score_rows(federation.target_rows(client), alphas if alpha == "loo" else (float(alpha),))
    return score_rows(federation.rows(client), path, client.name, alpha, alphas, client.groups)


def score_rows(
    rows: tuple[Tensor, Tensor],
    path: RegularizationPath,
    client: str,
    alpha: Alpha,
    alphas: Sequence[float] = SCORING_ALPHAS,
    groups: NDArray[np.int64] | None = None,
) -> LooScore:
    """The same of rows as the ridge sees them, and their labels."""
    return path.score(*rows, alphas if alpha == "loo" else (float(alpha),), client=client, groups=groups)


def choose_beta(
    federation: Federation,
    clients: Sequence[Client],
    alpha: Alpha,
    tell: ReportProgress,
    alphas: Sequence[float] = SCORING_ALPHAS,
) -> Federation:
    """The β of highest smoothed leave-one-out accuracy of the models that clients are given, summed over clients.

    Of real targets, the one of least squared error of the global model.

    `alphas` are what clients choose among where α is "loo"; a coarser grid stands for the default one.
    """
    if federation.is_regression:
        # A personalized model takes β/(1 + α) with its α: what is good for it shrinks the global model to nothing, and
        # of real targets, unlike of classes, the size of a prediction matters.
        alpha = 0.0
    with one_thread():
        path = federation.beta_path(scoring_betas(federation.total))
    names = scorers(client.name for client in clients)
    scoring = [client for client in clients if client.name in names]
    found = in_order(
        lambda client: score_betas(federation, path, client, alpha, alphas), scoring, federation.grid.device
    )
    soft = torch.zeros((FOLDS + 1, len(path.betas)), dtype=torch.float64, device=federation.grid.device)
    for done, score in enumerate(found, start=1):
        soft += score.soft
        tell("2 choosing beta", done, len(scoring))
    beta, *without = choose_betas(path.betas, soft)
    return federation.with_beta(beta, tuple(without))
