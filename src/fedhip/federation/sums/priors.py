"""What priors are chosen by, as vectors of whole numbers: the same at the sites and the server.

    temperature   of LDA: log-losses of the federation's scores of rows left out, over 20 temperatures
    scale         squared deviations of the scores of a site's own model, in four parts ‖ how many scores these are
    prior         of each method: log-losses over models, temperatures and smoothings ‖ rows right ‖ rows judged

`fedhip.core.choice.prior` says what they are, of which rows, and how a client chooses by its own and everybody's.
Temperature and scale are those of `fedhip run`: LDA's sites judge at the temperature whose means they take, and the
scale is two sums; a ridge's scores have one that everybody knows, and need no sum. Squares are as large as scores are,
so they go on a grid of 2^-64 in parts of 32 bits, whose sums cannot overflow: nothing is rounded but what a float64
rounds too. Losses go on the grid of all later sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.later import Ask, length, losses_of, losses_vector
from fedhip.federation.sums.vector import Vector

if TYPE_CHECKING:
    from fedhip.core.choice.prior import PriorLosses

_PARTS, _PART_BITS, _SQUARE_BITS = 4, 32, 64


def later_length(ask: Ask, agreement: Agreement) -> int:
    """How many numbers a site sends."""
    if ask is Ask.SCALE:
        return _PARTS + 1
    if ask is Ask.BETA:
        return math.prod(beta_shape())
    if ask is Ask.PRIOR:
        return sum(2 * models * _places() + 1 for models in models_of(agreement).values())
    if ask is Ask.TEMPERATURE and agreement.head == "lda":
        return len(lda_temperatures())
    return agreement.layout.size if ask is Ask.STATISTICS else length(ask, agreement.layout)


def beta_shape() -> tuple[int, int]:
    """Of what β is chosen by: the smoothed accuracy over β, of all rows and without each fold."""
    from fedhip.core.choice.selection import FOLDS
    from fedhip.simulation.federation import SCORED_BETAS

    return FOLDS + 1, SCORED_BETAS


def lda_temperatures() -> tuple[float, ...]:
    """What LDA's temperature is chosen among."""
    from fedhip.heads.lda import TEMPERATURES

    return TEMPERATURES


def models_of(agreement: Agreement) -> dict[str, int]:
    """How many models a site chooses among, by method: a ridge's α is chosen together with its prior."""
    from fedhip.simulation.priors import prior_alphas

    *beside, own = agreement.methods
    number = len(prior_alphas(agreement.alpha)[own]) if agreement.head == "ridge" else 1
    return {**dict.fromkeys(beside, 1), own: number}


def scales_of(agreement: Agreement, scale: float | None) -> dict[str, float]:
    """What temperatures are multiples of, by method; `scale` is the one that was summed, where one was."""
    from fedhip.simulation.priors import ridge_scale

    ridges = ridge_scale(len(agreement.classes))
    local, *others = agreement.methods
    return {local: ridges, **dict.fromkeys(others, ridges if scale is None else scale)}


def scale_vector(squares: float, number: int) -> Vector:
    """A site's two sums."""
    from fedhip.core.logistic.sums import LossError

    if not squares < 2.0 ** (_PARTS * _PART_BITS - _SQUARE_BITS):
        raise LossError(
            f"the scores of rows left out deviate by {squares:g}, squared and summed; "
            "look for features out of all proportion, and leave those rows out"
        )
    steps = int(math.ldexp(squares, _SQUARE_BITS))
    parts = [steps >> (_PART_BITS * at) & ((1 << _PART_BITS) - 1) for at in range(_PARTS)]
    return np.array([*parts, number], np.uint64)


def scale_of_sum(vector: Vector, rows: int, classes: int) -> float:
    """The scale, from the sum of all sites' vectors; refused where no scores of so many rows have it."""
    from fedhip.core.choice.prior import scale_from

    *parts, number = map(int, vector)
    if not 0 < number <= rows * classes:
        raise StatisticsError(f"there are {number} scores, of {rows} rows and {classes} classes")
    squares = sum(part << (_PART_BITS * at) for at, part in enumerate(parts))
    return scale_from(squares / (1 << _SQUARE_BITS), number)


def prior_vector(losses: Mapping[str, PriorLosses], sites: int) -> Vector:
    """A site's losses, method by method."""
    parts: list[Vector] = []
    for part in losses.values():
        right = part.right.numpy().reshape(-1).astype(np.uint64)
        parts += [losses_vector(part.losses, sites), right, np.array([part.rows], np.uint64)]
    return np.concatenate(parts)


def prior_losses_of(vector: Vector, agreement: Agreement, scale: float | None) -> dict[str, PriorLosses]:
    """The losses that a vector holds."""
    import torch

    from fedhip.core.choice.prior import SMOOTHINGS, TEMPERATURES, PriorLosses

    scales, found, start = scales_of(agreement, scale), {}, 0
    for method, models in models_of(agreement).items():
        shape, size = (models, len(TEMPERATURES), len(SMOOTHINGS)), models * _places()
        losses, right, rows = np.split(vector[start : start + 2 * size + 1], [size, 2 * size])
        hits = torch.from_numpy(right.astype(np.float64)).reshape(shape)
        found[method] = PriorLosses(losses_of(losses).reshape(shape), hits, int(rows[0]), scales[method])
        start += 2 * size + 1
    return found


def require_possible_losses(losses: Mapping[str, PriorLosses], rows: int) -> None:
    """Refuse a sum that no rows have, so many at most."""
    for method, part in losses.items():
        if not 0 <= part.rows <= rows or float(part.right.max()) > part.rows or float(part.losses.min()) < 0.0:
            raise StatisticsError(f"the losses of {method!r} over priors, or its rows right, are those of no rows")


def _places() -> int:
    """Of temperatures and smoothings."""
    from fedhip.core.choice.prior import SMOOTHINGS, TEMPERATURES

    return len(TEMPERATURES) * len(SMOOTHINGS)
