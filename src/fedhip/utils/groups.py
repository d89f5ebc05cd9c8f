"""Names of groups as numbers: what rows belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def group_numbers(names: Any) -> NDArray[np.int64]:
    """Whole numbers from 0 for names (N,), in the order in which they first appear."""
    _, first, inverse = np.unique(np.asarray(names), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.asarray(rank[inverse.reshape(-1)], dtype=np.int64)
