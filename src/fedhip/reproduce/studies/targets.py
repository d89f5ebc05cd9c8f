"""Real federations with real targets: the ridges, beside each client's own mean. Other methods know classes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedhip.core.intervals import Z
from fedhip.heads.round import RIDGES, simulate
from fedhip.reproduce.cells import Json
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.client import Client
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.simulation.outcome import ClientResult
from fedhip.simulation.tasks import METRICS, summarize_metrics
from fedhip.utils.progress import ReportProgress, silent

#: The measure of the table; R² and MAE are kept beside it.
MEASURE = "rmse"
#: The methods that know real targets.
METHODS = (MAJORITY, *RIDGES)


def run_on_targets(
    method: str,
    clients: Sequence[Client],
    ridge: RidgeOptions = STANDARD,
    device: str = "cpu",
    report: ReportProgress = silent,
) -> Json:
    """R², RMSE and MAE of every client's test rows, as plain values; `spread` is what intervals need."""
    targets = clients[0].train[1].shape[1]
    outcome = simulate(clients, targets, methods=(method,), **vars(ridge), device=device, report=report)
    rounds, up, down = outcome.traffic(method)
    entries = [{**found.metrics.get(method, {}), "test": found.test} for found in outcome.clients]
    means = summarize_metrics(entries, METRICS["regression"])
    return {
        **{metric: [entry.get(metric) for entry in entries] for metric in METRICS["regression"]},
        **{f"mean_{metric}": means[metric]["mean"] for metric in METRICS["regression"]},
        "test": [found.test for found in outcome.clients],
        "spread": [_spread(found, method) for found in outcome.clients],
        "mean": means[MEASURE]["mean"],
        "weighted": means[MEASURE]["weighted"],
        "rounds": rounds,
        "seconds": sum(seconds for phase, seconds in outcome.seconds.items() if phase != "tests"),
        "upload": up,
        "download": down,
        "alphas": [found.alpha for found in outcome.clients],
        "diverged": None,
        "note": None,
    }


def _spread(found: ClientResult, method: str) -> float | None:
    """Σ (e²/ē² − 1)² over the client's test rows, ē² being the mean of its squared errors e²."""
    squares = np.square(found.tested[method].gain) if method in found.tested else np.zeros(0)
    if not squares.any():
        return None
    return float(np.square(squares / squares.mean() - 1.0).sum())


def interval_of_errors(results: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """95 % around the mean over clients of their RMSE: for these clients, by the number of test rows of each.

    mean ± 1.96 √(Σ_k RMSE_k² g / (4 n_k)) / K. g is the variance of e²/σ², one for all clients: the sum of their
    spreads Σ (e²/ē² − 1)², by Σ_k n_k (n_k − 1)/(n_k + 2). Of normal errors that is 2, however few rows a client has.
    Test rows of several seeds overlap, and count once.
    """
    rows = np.array(results[0]["test"], dtype=float)
    kept = rows > 0
    errors = np.array([result["rmse"] for result in results], dtype=float)[:, kept]
    spreads = np.array([result["spread"] for result in results], dtype=float)[:, kept]
    rows = rows[kept]
    expected = (rows * (rows - 1) / (rows + 2)).sum()
    if not kept.any() or np.isnan(errors).any() or expected == 0.0:
        return None
    g = float(np.nansum(spreads, axis=1).mean() / expected)
    half = Z * math.sqrt(float((np.square(errors).mean(axis=0) * g / (4 * rows)).sum())) / len(rows)
    mean = float(errors.mean())
    return max(0.0, mean - half), mean + half
