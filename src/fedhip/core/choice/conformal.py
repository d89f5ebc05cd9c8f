"""Prediction sets: how far from right rows left out were says how wide an answer must be to hold the truth so often.

A row's *miss* is how far its truth is from the answer: of a class, how far its score is behind the highest; of a real
target, |y − prediction|. Misses of a client's training rows are known by exact leave-one-out, so that all rows both
train and calibrate. An answer of coverage c holds everything that is missed by no more than

    q = the least value with     #{own misses ≤ q} + n₀ · share{others' misses ≤ q}  ≥  c (n + n₀ + 1)

The 1 is the row that is asked for. n₀ rows' worth of the other clients' misses, each client counting alike, steady the
quantile of a client with few rows; with n₀ = 0 it is the jackknife, the client's own rows alone. How much the others
say is told by how much clients differ. At the quantile of all, a client's rows beyond it are x_k of n_k. If its share
is drawn from a Beta distribution of mean p = 1 − c and weight n₀, they vary by

    var(x_k / n_k) = p (1 − p) (1/n_k + (1 − 1/n_k) ρ),     ρ = 1/(n₀ + 1)

and ρ follows from the moments: clients that are all alike lend each other all they have, those that differ nothing.
Misses of classes are counted in the deviation of the client's scores there, for α decides how large these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.errors import InputError

Values = Sequence[float] | NDArray[np.float64]

#: n₀ is no more than this, however alike clients are.
MOST_POOLED = 1000.0


def require_coverage(coverage: float) -> float:
    """The coverage, if it is one."""
    if not 0.0 < coverage < 1.0:
        raise InputError(f"coverage is {coverage!r}; give a share between 0 and 1, such as 0.9")
    return float(coverage)


def class_misses(scores: Tensor, labels: Tensor) -> Tensor:
    """How far the score of its own class is behind the highest (n,), 0 where it is the highest; of scores (n, d)."""
    own = scores.gather(1, labels.to(scores.device)[:, None])[:, 0]
    behind = scores.amax(dim=1) - own
    return torch.where(behind.isnan(), torch.inf, behind)


def score_scale(scores: Tensor) -> float:
    """How far scores (n, d) deviate within a row, over all rows: what misses of classes are counted in.

    It differs from client to client with α, and says nothing of how often they are right.
    """
    known = scores.masked_fill(scores.isinf(), torch.nan)
    within = (known - known.nanmean(dim=1, keepdim=True)).square().nanmean(dim=1)
    size = float(within.nanmean().sqrt()) if len(scores) else 0.0
    return size if math.isfinite(size) and size > 0.0 else 1.0


def target_misses(predicted: Tensor, truth: Tensor) -> Tensor:
    """|y − prediction| (n, t)."""
    return (truth - predicted).abs()


def pooled_rows(clients: Sequence[Values], coverage: float) -> float:
    """n₀, from the misses of all clients."""
    known = [np.asarray(part, np.float64) for part in clients if len(part)]
    if len(known) < 2:
        return 0.0
    q = _quantile(np.concatenate(known), np.concatenate([np.full(len(k), 1.0 / len(k)) for k in known]), 0.0, coverage)
    n = np.array([len(part) for part in known], np.float64)
    beyond = np.array([(part > q).mean() for part in known])
    p = float(np.average(beyond, weights=n))
    if not 0.0 < p < 1.0:
        return MOST_POOLED
    excess = float((n * np.square(beyond - p)).sum()) / (p * (1.0 - p)) - (len(known) - 1.0)
    spread = excess / max(float((n - 1.0).sum()), 1.0)
    return MOST_POOLED if spread <= 1.0 / (MOST_POOLED + 1.0) else max(1.0 / spread - 1.0, 0.0)


def threshold(own: Values, others: Sequence[Values], coverage: float, pooled: float | None = None) -> float:
    """q for a client of these misses, and those of the other clients; infinite where the rows are too few to say.

    `pooled` is n₀; without it, it follows from how much the clients differ.
    """
    coverage = require_coverage(coverage)
    known = [np.asarray(part, np.float64) for part in others if len(part)]
    if pooled is None:
        pooled = pooled_rows([own, *known], coverage)
    lent = pooled if known else 0.0
    values = [np.asarray(own, np.float64), *known]
    weights = [np.ones(len(own)), *(np.full(len(part), lent / (len(known) * len(part))) for part in known)]
    return _quantile(np.concatenate(values), np.concatenate(weights), coverage * (len(own) + lent + 1.0))


def common_threshold(clients: Sequence[Values], coverage: float) -> float:
    """q for the global model, for a row of any client: all rows alike."""
    values = np.concatenate([np.asarray(part, np.float64) for part in clients]) if clients else np.empty(0)
    return _quantile(values, np.ones(len(values)), require_coverage(coverage) * (len(values) + 1.0))


def _quantile(values: NDArray[np.float64], weights: NDArray[np.float64], needed: float, share: float = 0.0) -> float:
    """The least of the values that these and smaller ones weigh at least `needed` by, or this share of all."""
    order = np.argsort(values, kind="stable")
    needed = max(needed, share * float(weights.sum()))
    reached = np.cumsum(weights[order]) >= needed * (1.0 - 1e-12)
    return float(values[order][reached.argmax()]) if reached.any() else math.inf


def classes_within(scores: Tensor, q: float) -> Tensor:
    """Which classes (n, d) bool are no farther than q behind the highest score; never none."""
    best = scores.amax(dim=1, keepdim=True)
    return (best - scores <= q) & ~scores.isneginf() | (scores == best)
