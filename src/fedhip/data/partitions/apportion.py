"""Whole numbers in given proportions, none above its limit."""

import numpy as np
from numpy.typing import NDArray


def apportion(total: int, log_weights: NDArray[np.float64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """c_k = min(room_k, t·exp(log_weights_k)) with the t for which they sum to `total`, in whole numbers.

    Needs total ≤ Σ room and finite log-weights. Clients whose share exceeds their room are filled, and what is
    left is shared anew among the others, until all shares fit. Each time the shares are taken relative to the
    largest weight still open, so that weights of any ratio keep their order: none is ever lost to underflow.
    Rounding goes down, and what is missing goes one each to the largest remainders.
    """
    counts = np.zeros(len(room), dtype=np.int64)
    open_ = np.flatnonzero(room > 0)
    left = total
    while left > 0:
        shares = np.exp(log_weights[open_] - log_weights[open_].max())
        exact = shares * (left / shares.sum())
        full = exact >= room[open_]
        if not full.any():
            whole = np.floor(exact).astype(np.int64)
            missing = left - int(whole.sum())
            whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
            counts[open_] = whole
            break
        counts[open_[full]] = room[open_[full]]
        left -= int(room[open_[full]].sum())
        open_ = open_[~full]
    return counts
