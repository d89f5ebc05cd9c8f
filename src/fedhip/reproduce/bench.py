"""What every study works with: the data, the settings, the finished cells; and the cell of a method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedhip import methods
from fedhip.core.choice.selection import CHOSEN_BY
from fedhip.methods.engine.clients import CheckedClients
from fedhip.methods.engine.protocol import MethodRun, Protocol
from fedhip.reproduce.cells import Cell, Json, Store
from fedhip.reproduce.divisions import WITH_INTERCEPT, divide, standardize
from fedhip.reproduce.settings import Regime, Settings, Source, known_methods
from fedhip.simulation.client import Client
from fedhip.simulation.metrics import summarize
from fedhip.simulation.options import PAPER, STANDARD
from fedhip.utils.candidates import CANDIDATES
from fedhip.utils.progress import ReportProgress

#: Methods whose ridge is that of `fedhip run`, standardised and with an intercept, and not the paper's.
OURS = ("auto",)


def chosen_by(method: str) -> Json:
    """What a method in closed form chooses by: a part of its cells' names, so that a changed rule has new cells."""
    candidates = ["+".join(members) for members in CANDIDATES]
    return {"chosen_by": CHOSEN_BY, **({"candidates": candidates} if method in OURS else {})}


@dataclass(frozen=True)
class Bench:
    """Data, settings, finished cells, and where to compute."""

    sources: tuple[Source, ...]
    settings: Settings
    store: Store
    device: str = "cpu"
    _standardized: dict[tuple[str, bool], list[Client]] = field(default_factory=dict)
    _cohorts: list[tuple[Sequence[Client], CheckedClients]] = field(default_factory=list)

    def standardized(self, which: str, clients: Sequence[Client], intercept: bool) -> list[Client]:
        """The clients with standardised features; the last two divisions are kept, as many methods ask for them."""
        key = (which, intercept)
        if key not in self._standardized:
            while len(self._standardized) >= 2:
                self._standardized.pop(next(iter(self._standardized)))
            self._standardized[key] = standardize(clients, intercept=intercept)
        return self._standardized[key]

    def cohort(self, clients: Sequence[Client]) -> CheckedClients:
        """The same for the same list; the last two are kept, so that their rows are moved to the device once."""
        for known, cohort in self._cohorts:
            if known is clients:
                return cohort
        del self._cohorts[:-1]
        self._cohorts.append((clients, CheckedClients(clients)))
        return self._cohorts[-1][1]

    def result(self, cell: Cell) -> Json:
        """The result of a cell."""
        return self.store.obtain(cell)


@dataclass(frozen=True)
class Setting:
    """What a method is told beyond the protocol: a learning rate (None: the protocol's) and options of its own."""

    learning_rate: float | None
    options: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        parts = [] if self.learning_rate is None else [f"learning rate {self.learning_rate:g}"]
        return ", ".join([*parts, *(f"{name} {value:.3g}" for name, value in self.options)]) or "as it comes"


def method_cell(
    bench: Bench,
    source: Source,
    method: str,
    regime: Regime,
    num_clients: int,
    concentration: float,
    seed: int,
    setting: Setting = Setting(None),  # noqa: B008 (frozen)
) -> Cell:
    """A method on K clients by Dirichlet(λ), tested on their test rows."""
    protocol = bench.settings.protocol(seed)
    label = f"{source.name} K={num_clients} λ={concentration:g} seed {seed} {method} {regime}"
    key = {"division": {"clients": num_clients, "concentration": concentration, "seed": seed}}

    def clients() -> list[Client]:
        return divide(source, num_clients, concentration, seed)

    return cell_of(bench, source, method, regime, protocol, setting, label, key, clients)


def cell_of(
    bench: Bench,
    source: Source,
    method: str,
    regime: Regime,
    protocol: Protocol,
    setting: Setting,
    label: str,
    key: Mapping[str, Any],
    clients: Any,
    probe: int = 0,
) -> Cell:
    """A method on the clients that `clients()` gives, standardised where the protocol is the tuned one.

    `probe` is how many numbers to keep of the first client's scores on its test rows.
    """
    if setting.learning_rate is not None:
        protocol = replace(protocol, learning_rate=setting.learning_rate)
    # A method in closed form is the same whatever the rounds and the learning rate: it need not be run again.
    told: Json = protocol.to_dict()
    if not known_methods()[method].gradient:
        told = {name: told[name] for name in ("seed", "only_local_classes", "prior") if name in told}
        told |= chosen_by(method)

    def compute(checkpoint: Path, tell: ReportProgress) -> Json:
        given = clients()
        if regime == "tuned":
            which = json.dumps({**source.identity, **key}, sort_keys=True)
            given = bench.standardized(which, given, method in WITH_INTERCEPT)
        found = run_method(bench, source, method, protocol, setting, given, checkpoint, tell, probe)
        return {**found, "device": bench.device}

    full = {
        **source.identity,
        **key,
        "method": method,
        "options": dict(setting.options),
        "features_are": "raw" if regime == "paper" else "standardised",
        "protocol": told,
        **({"ridge": "standard"} if method in OURS else {}),
        **({"probe": probe} if probe else {}),
    }
    return Cell(label, method, full, compute)


def run_method(
    bench: Bench,
    source: Source,
    method: str,
    protocol: Protocol,
    setting: Setting,
    clients: Sequence[Client],
    checkpoint: Path,
    tell: ReportProgress,
    probe: int = 0,
) -> Json:
    """Run it, and give what a cell keeps of it."""
    run: MethodRun = methods.run_method(
        method,
        bench.cohort(clients),
        source.features.num_classes,
        protocol,
        options=dict(setting.options) or None,
        device=bench.device,
        report=tell,
        checkpoint=checkpoint if known_methods()[method].gradient else None,
        probe=probe,
        ridge=STANDARD if method in OURS else PAPER,
    )
    if source.lift is not None:
        run = with_exchange(run, source.lift.exchange)
    return plain(run, [len(client.test[1]) for client in clients])


def with_exchange(run: MethodRun, exchange: int) -> MethodRun:
    """A method's run with the bytes of the lift's exchange, from its first test on."""
    return replace(
        run,
        upload_bytes_per_client=run.upload_bytes_per_client + exchange,
        download_bytes_per_client=run.download_bytes_per_client + exchange,
        history=[
            replace(
                point,
                upload_bytes_per_client=point.upload_bytes_per_client + exchange,
                download_bytes_per_client=point.download_bytes_per_client + exchange,
            )
            for point in run.history
        ],
    )


def plain(run: MethodRun, test_rows: Sequence[int]) -> Json:
    """A run as plain values, with the mean over clients (the paper's metric) and over test rows."""
    accuracy = [None] * len(test_rows) if run.diverged is not None else [_finite(value) for value in run.accuracy]
    means = summarize(accuracy, test_rows)
    return {
        "accuracy": accuracy,
        "test": list(test_rows),
        "mean": means["mean"],
        "weighted": means["weighted"],
        "rounds": run.rounds,
        "seconds": run.seconds,
        "upload": run.upload_bytes_per_client,
        "download": run.download_bytes_per_client,
        "options": dict(run.options),
        "alphas": run.alphas,
        # [temperature, smoothing] of each client; no smoothing: no prior.
        "priors": run.priors
        and [None if prior is None else [prior.temperature, _finite(prior.smoothing)] for prior in run.priors],
        "history": [
            [e.round, _finite(e.accuracy), e.seconds, e.upload_bytes_per_client, e.download_bytes_per_client]
            for e in run.history
        ],
        "diverged": run.diverged,
        "note": run.note,
        "probe": run.probe and [_finite(value) for value in run.probe],
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN: what is no number is nothing."""
    return value if value is not None and math.isfinite(value) else None
