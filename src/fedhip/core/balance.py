"""Classes that count alike in the federation's sum, however many rows each has.

    w_c = N / (d n_c)         n_c rows of class c over all clients, N in all, d classes that have any
    P̂ = argmin Σ_i w_y(i) ‖y_i − x_i P‖² + β‖P‖²,   a client's own rows times 1 + α on top

The weights of all rows add up to N, so that β means what it means without them. A class without rows weighs 1.

They follow from summed counts alone: one exchange of d numbers before the round. Then each client sends the ordinary
statistics of the rows √w_y x, rounded to the grid like any row, so that sums are the same bits for any division. Of the
target √w_y y the row's label tells all: the cross terms of class c are those that were sent, times √w_c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedhip.core.statistics import Statistics
from fedhip.errors import InputError


def class_weights(counts: Tensor) -> Tensor:
    """w_c (d,) float64 of summed counts n_c (d,)."""
    n = counts.to(torch.float64)
    if not bool(n.any()):
        raise InputError("the sum holds no rows; add at least one client's counts")
    return torch.where(n > 0, n.sum() / ((n > 0).sum() * n.clamp(min=1.0)), 1.0)


def weighted_statistics(statistics: Statistics, scale: Tensor) -> Statistics:
    """Σ w x xᵀ and Σ w x yᵀ from the statistics of the rows √w_y x; `scale` (d,) is √w_c."""
    return Statistics._of(statistics.gram, statistics.cross * scale.to(statistics.cross), statistics.counts)
