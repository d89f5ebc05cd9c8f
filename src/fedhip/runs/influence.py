"""Influence: what each client's rows do to the held-out accuracy of all others, exactly, by subtraction.

The sum less a client's statistics is the sum of the others, to the bit. So the federation's ridge with a client and the
one without it are both known, and each says of every training row of the others whether it is right about that row when
the row is left out. Both are judged on the same rows, none of them the client's own, and none a test row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.paired import LEVEL, compare_rows, holm
from fedhip.errors import InputError
from fedhip.runs.change import are_its_rows, lift_client
from fedhip.runs.folder import Run
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.personalization import common_scores
from fedhip.utils.parallel import one_thread
from fedhip.utils.progress import ReportProgress, silent


@dataclass(frozen=True)
class Influence:
    """What the others gain by one client: their rows right with it less those without it, as a share of `rows`.

    `better` are the others' rows, or groups of rows, that are right only with the client, `worse` those that are right
    only without it; `p` is that of the exact sign test of the two, corrected for the number of clients (Holm). `low`
    and `high` are the 95 % interval of this client alone.
    """

    client: str
    train: int
    rows: int
    difference: float
    low: float | None
    high: float | None
    better: int
    worse: int
    p: float

    @property
    def verdict(self) -> str:
        """Whether the others gain or lose beyond chance."""
        if self.p > LEVEL:
            return "no difference beyond chance"
        return "contributes" if self.difference > 0.0 else "harms"

    def to_dict(self) -> dict[str, Any]:
        """For JSON and CSV."""
        return {**asdict(self), "verdict": self.verdict}


def left_out_hits(federation: Federation, client: Client) -> NDArray[np.bool_]:
    """Whether the federation's ridge without a row is right about it (N,), of a client's training rows."""
    labels = torch.as_tensor(client.train[1])
    found: NDArray[np.bool_] = (common_scores(federation, client).cpu().argmax(dim=1) == labels).numpy()
    return found


def influences(
    federation: Federation,
    clients: Sequence[Client],
    statistics: Mapping[str, Callable[[], GridStatistics]],
    report: ReportProgress | None = None,
) -> list[Influence]:
    """The influence of every client whose `statistics` are there, on those of `clients`, whose rows are."""
    tell, judges = report or silent, [client for client in clients if len(client.train[1])]
    if federation.is_regression or any(client.multilabel for client in judges):
        raise InputError("influence counts rows right, and a regression or several labels have none; run with classes")
    if len(statistics) < 2:
        raise InputError("influence is on the other clients, and there are none; run with two clients or more")
    with one_thread():
        every = {client.name: left_out_hits(federation, client) for client in judges}
        found = []
        for k, (name, read) in enumerate(statistics.items(), start=1):
            own, others = read(), [client for client in judges if client.name != name]
            if not others:
                raise InputError(f"nobody's rows but those of client {name!r} are at hand, so nobody can judge it")
            rest = replace(federation, grid=federation.grid - own, fold_betas=())
            hits = [left_out_hits(rest, client) for client in others]
            groups = [_groups(client, at) for at, client in enumerate(others)]
            pair = compare_rows(
                np.concatenate([every[client.name] for client in others]).astype(np.float64),
                np.concatenate(hits).astype(np.float64),
                None if all(client.groups is None for client in others) else np.concatenate(groups),
            )
            rows = sum(len(part) for part in hits)
            found.append(
                Influence(name, int(own.num_samples), rows, pair.difference, pair.low, pair.high, pair.better,
                          pair.worse, pair.p)
            )  # fmt: skip
            tell("influence", k, len(statistics))
    corrected = holm([each.p for each in found])
    return [replace(each, p=p) for each, p in zip(found, corrected, strict=True)]


def influence_in(run: Run, clients: Mapping[str, Client], report: ReportProgress | None = None) -> list[Influence]:
    """The influence of every client of a run; those judge whose training rows are among `clients`."""
    run.require_exact()
    run.require_personalized()
    if run.task != "classification":
        raise InputError(f"influence counts rows right, and a {run.task} has none; run with classes")
    lifted = (lift_client(run, client) for name, client in clients.items() if name in run.clients)
    judges = [client for client in lifted if len(client.train[1]) and are_its_rows(run, client)]
    if not judges:
        raise InputError("these are the training rows of none of the run's clients; give those that it was made from")
    statistics = {name: partial(run.statistics, name) for name in run.clients}
    return influences(run.federation(), judges, statistics, report)


def _groups(client: Client, at: int) -> NDArray[np.int64]:
    """Groups of a client's rows (N,), of no other client's; where it has none, each row is one."""
    groups = np.arange(len(client.train[1])) if client.groups is None else client.groups
    return groups.astype(np.int64) + (at << 32)
