"""Whole numbers in given proportions, none above its limit."""

import numpy as np
from numpy.typing import NDArray


def apportion(total: int, weights: NDArray[np.float64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """c_k = min(room_k, t·weights_k) with the t for which they sum to `total`, rounded to whole numbers.

    Needs total ≤ Σ room. Water rises at a speed of weights_k in vessels of size room_k: those that are full
    in the end are the ones with the smallest room_k / weights_k, so sorting by it gives t in closed form.
    Rounding goes down, and what is missing goes one each to the largest remainders. Where the vessels with a
    weight are all full, the rest goes to the others by their room.
    """
    weights = weights / max(weights.sum(), np.finfo(float).tiny) + 1e-12 * room / max(room.sum(), 1)
    open_ = np.flatnonzero(room > 0)
    speed, size = weights[open_], room[open_].astype(np.float64)
    order = np.argsort(size / speed, kind="stable")
    speed, size = speed[order], size[order]
    full_before = np.concatenate(([0.0], np.cumsum(size)[:-1]))
    speed_left = np.cumsum(speed[::-1])[::-1]
    level = (total - full_before) / speed_left  # t, if the vessels before this one are the full ones
    rises = level * speed < size
    first = int(np.argmax(rises)) if rises.any() else len(size)
    exact = size.copy()
    exact[first:] = level[first] * speed[first:] if first < len(size) else 0.0
    counts = np.zeros(len(room), dtype=np.int64)
    whole = np.minimum(np.floor(exact), size).astype(np.int64)
    remainders = np.where(whole < size, exact - whole, -1.0)
    missing = total - int(whole.sum())
    whole[np.argsort(-remainders, kind="stable")[:missing]] += 1
    counts[open_[order]] = whole
    return counts
