"""Accuracies of many clients in four numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def summarize(accuracies: Sequence[float | None], test_rows: Sequence[int]) -> dict[str, float | None]:
    """Mean over clients, mean over test rows, deviation over clients, and the mean over the worst tenth of them.

    Clients without an accuracy are left out; None where that leaves nobody.
    """
    pairs = [(value, rows) for value, rows in zip(accuracies, test_rows, strict=True) if value is not None]
    if not pairs:
        return dict.fromkeys(("mean", "weighted", "std", "worst_decile"))
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    worst = np.sort(values)[: max(1, round(len(values) / 10))]
    return {
        "mean": float(values.mean()),
        "weighted": float(np.average(values, weights=weights)),
        "std": float(values.std()),
        "worst_decile": float(worst.mean()),
    }
