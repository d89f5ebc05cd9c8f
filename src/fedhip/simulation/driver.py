"""Phases 1 and 2 in one process: every client's rows are here, and each phase sees only what it would see.

phase 0   at each client: a survey of its columns (`encoding.py`)
phase 1   at each client: statistics of its own training rows, on the grid
phase 2   at the server: their sum (`federation.py`); β, by the sum of what clients found on rows left out (`beta.py`)

Phase 3 is the heads': `fedhip.heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.simulation.beta import SCORING_ALPHAS, choose_beta
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import encoding_of
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import STANDARD, Alpha, Beta, RidgeOptions
from fedhip.utils.parallel import MEMINFO, is_elsewhere, memory_available, summed
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch

#: Statistics of all clients are held from phase 1 to 3 while they take no more than this part of the free memory.
_HELD = 0.25


def federate(
    clients: Sequence[Client],
    num_classes: int,
    beta: Beta = 0.0,
    ridge: RidgeOptions = STANDARD,
    device: str | torch.device = "cpu",
    *,
    alpha: Alpha = "loo",
    alphas: Sequence[float] = SCORING_ALPHAS,
    report: ReportProgress | None = None,
    watch: Stopwatch | None = None,
    keep_digest: Callable[[Client, str], None] | None = None,
    keep_statistics: Callable[[Client, GridStatistics], None] | None = None,
    uploads: dict[str, GridStatistics] | None = None,
    kept: int = 0,
) -> Federation:
    """Phases 1 and 2 of clients with training rows: their sum, and β, which is given or chosen.

    β is chosen for models of this α, or of the best of `alphas`. `keep_digest` is told the digest of each client's
    upload, `keep_statistics` the upload, and `uploads` takes them for phase 3, by name, if there is room for all.
    `kept` of the last columns are the features themselves, beside a lift of them.
    """
    tell, watch = report or silent, watch or Stopwatch()
    with watch("local training"):
        encoding = encoding_of(clients, num_classes, ridge)
        # Who works elsewhere makes them anew there.
        room = uploads is not None and not is_elsewhere() and _room(clients, num_classes)
        digests, whole = keep_digest is not None, room or keep_statistics is not None
        done = 0

        def look(client: Client, own: GridStatistics) -> tuple[str | None, GridStatistics | None]:
            return own.digest() if digests else None, own if whole else None

        def seen(client: Client, found: tuple[Any, Any]) -> None:
            nonlocal done
            digest, own = found
            if keep_digest is not None:
                keep_digest(client, digest)
            if keep_statistics is not None:
                keep_statistics(client, own)
            if uploads is not None and room:
                uploads[client.name] = own
            done += 1
            tell("1 local training", done, len(clients))

        total = require_terms(
            summed(
                lambda client: encoding.statistics(client, num_classes, device), clients, device, look=look, seen=seen
            )
        )
    with watch("aggregation"):
        given = 0.0 if beta == "auto" else beta
        federation = Federation.of(total, given, encoding, standardize=ridge.standardize, intercept=ridge.intercept)
        federation.warn_of_labels(kept)
        return choose_beta(federation, clients, alpha, tell, alphas) if beta == "auto" else federation


def add_up(uploads: Iterable[GridStatistics]) -> GridStatistics:
    """The sum of the clients' statistics, one at a time."""
    total: GridStatistics | None = None
    for own in uploads:
        total = own if total is None else total + own
    return require_terms(total)


def require_terms(total: GridStatistics | None) -> GridStatistics:
    """The sum, if there is anything in it."""
    if total is None:
        raise InputError("no client has training rows, so there is nothing to sum; give at least one some")
    return total


def _room(clients: Sequence[Client], num_classes: int) -> bool:
    """Whether all clients' statistics may be held at once."""
    if not clients:
        return False
    width, free = clients[0].train[0].shape[1], memory_available(MEMINFO)
    needed = 8 * len(clients) * width * (width + num_classes)
    return bool(needed <= _HELD * (2**30 if free is None else free))
