"""From scores to probabilities: softmax(score / T), with T from leave-one-out scores.

The scores of a ridge classifier estimate probabilities, but too flat ones. One number mends that, the temperature T of
highest likelihood on rows that the model has not seen. Log-losses over a grid of T add, like everything else here: the
clients' sums give the temperature of the global model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedhip.utils.grids import LOSS_BITS

#: Five to the decade, from 0.001 (nearly the highest score alone) to 10 (nearly uniform).
TEMPERATURES: tuple[float, ...] = tuple(10.0 ** (i / 5) for i in range(-15, 6))


def log_losses(scores: Tensor, labels: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> Tensor:
    """−Σ_i log softmax(scores_i / T)[label_i] for each T; the sums of clients add.

    Parameters
    ----------
    scores : (N, d)
    labels : (N,) int64
        A class that a model leaves out has the score −∞.
    temperatures : sequence of float
    """
    labels = labels.to(scores.device)[:, None]
    return torch.stack(
        [-torch.log_softmax(scores / temperature, dim=1).gather(1, labels).sum() for temperature in temperatures]
    )


def on_grid(losses: Tensor) -> Tensor:
    """Losses as they are summed over clients: in whole steps, whose sums are the same in any order."""
    return torch.round(losses * 2.0**LOSS_BITS) * 2.0**-LOSS_BITS


def choose_temperature(losses: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> float:
    """The T of smallest loss: the lowest point of a parabola in log T, through the best of the grid and its neighbours.

    At an end of the grid, that end.
    """
    best = int(losses.argmin())
    if best in (0, len(temperatures) - 1):
        return temperatures[best]
    left, middle, right = (float(loss) for loss in losses[best - 1 : best + 2])
    bend = left - 2.0 * middle + right
    offset = 0.5 * (left - right) / bend if bend > 0.0 else 0.0
    ratio = temperatures[best + 1] / temperatures[best]
    return float(temperatures[best] * ratio**offset)


def common_temperature(
    losses: Iterable[Sequence[float] | None], temperatures: Sequence[float] = TEMPERATURES
) -> float | None:
    """The T of smallest loss of all clients that have any, from each one's sums over T; None where nobody has."""
    known = [found for found in losses if found is not None and len(found)]
    return choose_temperature(torch.tensor(known, dtype=torch.float64).sum(dim=0), temperatures) if known else None


def probabilities(scores: Tensor, temperature: float) -> Tensor:
    """softmax(scores / T), row by row."""
    return torch.softmax(scores / temperature, dim=1)
