"""A round of very many clients, from features to a run folder whose models are in packs.

What it does is the ordinary round with `--head ridge --methods global,fedhip --no-statistics`, to the bits of sum and
models; what it leaves out is said in docs/scale.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedhip import __version__
from fedhip.core import DEFAULT_ALPHAS
from fedhip.core.choice.calibration import TEMPERATURES, choose_temperature
from fedhip.core.intervals import Estimate, over_clients, wilson
from fedhip.core.metrics import SCALES
from fedhip.data import save_partition
from fedhip.heads import Ridge
from fedhip.runs.draft import Draft
from fedhip.runs.folder import SCHEMA
from fedhip.runs.ledger import Ledger
from fedhip.runs.models import global_model
from fedhip.runs.packs.pack import Pack
from fedhip.runs.round.recording import Given
from fedhip.simulation.federation import Federation
from fedhip.simulation.many.personalization import Personalized, personalize_many
from fedhip.simulation.many.phases import federate_many
from fedhip.simulation.many.rows import ManyClients
from fedhip.simulation.metrics import summarize
from fedhip.simulation.outcome import Outcome
from fedhip.utils.parallel import in_order
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch
from fedhip.utils.toml import write_toml

Json = dict[str, Any]

#: From so many clients on, models are in packs.
MANY = 10_000
#: The methods that such a run knows.
METHODS = ("global", "fedhip")


def is_many(given: Given) -> bool:
    """Whether a round is of so many clients, and asks for nothing that packs do not have."""
    settings, data = given.settings, given.features
    return (
        given.partition.num_clients >= MANY
        and settings.head in (None, Ridge.name)
        and (settings.methods is None or set(settings.methods) <= set(METHODS))
        and settings.alpha == "loo"
        and settings.prior in (None, "none")
        and settings.ridge.standardize
        and settings.ridge.intercept
        and not settings.ridge.balance
        and not settings.only_local_classes
        and settings.lift is None
        and settings.privacy is None
        and settings.budget is None
        and settings.max_rounds == 1
        and data.task == "classification"
        and data.weights is None
        and data.groups is None
        and given.images is None
    )


class _Tally:
    """What is said of all clients together, from each pack as it comes."""

    def __init__(self) -> None:
        self.curve, self.estimate, self.with_model = torch.zeros(len(DEFAULT_ALPHAS), dtype=torch.float64), 0.0, 0
        self.losses = {name: torch.zeros(len(TEMPERATURES), dtype=torch.float64) for name in ("fedhip", "global")}
        self.alphas: list[Tensor] = []
        self.tests: list[Tensor] = []
        self.right: dict[str, list[Tensor]] = {"fedhip": [], "global": []}

    def add(self, found: Personalized) -> None:
        known = ~found.alpha.isnan()
        self.curve += found.curve[known].sum(dim=0)
        self.estimate += float(found.estimate[known].nansum())
        self.with_model += int(known.sum())
        self.losses["fedhip"] += found.log_losses.sum(dim=0)
        self.losses["global"] += found.global_log_losses.sum(dim=0)
        self.alphas.append(found.alpha[known])
        self.tests.append(found.tests)
        self.right["fedhip"].append(found.right)
        self.right["global"].append(found.global_right)

    def accuracy(self, method: str) -> Json:
        """Over clients with test rows, as `summarize` and the intervals of other runs have it."""
        tests, right = torch.cat(self.tests), torch.cat(self.right[method])
        pairs = [(r, n) for r, n in zip(right.tolist(), tests.tolist(), strict=True) if n]
        each = {pair: Estimate(pair[0] / pair[1], *wilson(pair[0] / pair[1], pair[1])) for pair in set(pairs)}
        ends = over_clients([each[pair] for pair in pairs], SCALES["accuracy"])
        return {
            **summarize([each[pair].value for pair in pairs], [n for _, n in pairs]),
            "low": ends["low"],
            "high": ends["high"],
        }


def record_many(draft: Draft, given: Given, report: ReportProgress | None = None) -> Outcome:
    """The round, and everything about it as the run folder that `draft` is to be."""
    watch, tell, settings = Stopwatch(), report or silent, given.settings
    clients = ManyClients.of(given.features, given.partition)
    federation = federate_many(clients, settings.beta, settings.ridge, report=report, watch=watch)
    table = None if given.table is None else given.table.description.to_dict()
    common = global_model(federation, given.features.class_names, given.backbone, table=table)
    draft.write_model(common)
    tally, packs, done = _Tally(), clients.packs, 0
    with watch("personalization"):
        for number, found in enumerate(in_order(partial(personalize_many, federation, clients), packs)):
            names = tuple(clients.names[k] for k in found.clients)
            draft.write_pack(number, Pack(names, found, common))
            tally.add(found)
            done += len(names)
            tell("3 personalization", done, len(clients))
    config = _config(given, federation)
    results, details = (
        _results(given, federation, tally, config, watch.seconds, len(packs)),
        _details(given, federation, tally),
    )
    if given.table is not None:
        draft.write_text("columns.toml", given.table.description.to_toml())
        details["table"] = given.table.report
    save_partition(draft.path / "partition.json", given.partition, data_split=given.features.split)
    draft.record(
        Ledger(),
        "run",
        federation,
        results,
        details,
        write_toml(config, f"{given.title}\nrepeat this run with: fedhip run config.toml --out FOLDER"),
        clients={},
        partition=hashlib.sha256((draft.path / "partition.json").read_bytes()).hexdigest(),
    )
    return Outcome(federation, METHODS, [], watch.seconds)


def _config(given: Given, federation: Federation) -> Json:
    kept = {name: value for name, value in given.config.items() if value is not None}
    named = {"head": Ridge.name, "methods": list(METHODS), "prior": "none", "statistics": False}
    return kept | named | {"fraction_bits": federation.grid.fraction_bits}


def _results(
    given: Given, federation: Federation, tally: _Tally, config: Json, seconds: Mapping[str, float], packs: int
) -> Json:
    methods = {}
    for method in METHODS:
        rounds, up, down = federation.traffic(method)
        phases = ("local training", "aggregation", "personalization")[: 2 + (method == "fedhip")]
        methods[method] = {
            "accuracy": tally.accuracy(method),
            "per_client": [],
            "rounds": rounds,
            "seconds": round(sum(seconds.get(phase, 0.0) for phase in phases), 3),
            "upload_bytes_per_client": up,
            "download_bytes_per_client": down,
            "temperature": choose_temperature(tally.losses[method]),
        }
    alphas = torch.cat(tally.alphas)
    return {
        "schema": SCHEMA,
        "fedhip": __version__,
        "title": given.title,
        "config": config,
        "seed": config["seed"],
        "num_clients": given.partition.num_clients,
        "num_classes": federation.grid.num_classes,
        "feature_dim": federation.grid.num_features,
        "beta": federation.beta,
        "fraction_bits": federation.grid.fraction_bits,
        "standardize": federation.standardize,
        "intercept": federation.intercept,
        "only_local_classes": False,
        "packs": packs,
        "alpha": {"low": float(alphas.min()), "median": float(alphas.median()), "high": float(alphas.max())},
        "methods": methods,
        "leave_one_out": {
            "alphas": sorted(DEFAULT_ALPHAS),
            "accuracy": (tally.curve / tally.with_model).tolist(),
            "chosen": tally.estimate / tally.with_model,
        },
        "seconds": {phase: round(value, 3) for phase, value in {**given.seconds, **seconds}.items()},
        "stale": None,
    }


def _details(given: Given, federation: Federation, tally: _Tally) -> Json:
    return {
        "schema": SCHEMA,
        "class_names": list(given.features.class_names),
        "alphas": sorted(DEFAULT_ALPHAS),
        "temperatures": list(TEMPERATURES),
        "temperature": {method: choose_temperature(tally.losses[method]) for method in METHODS},
        "clients": {},
        "columns": federation.encoding.columns.to_dict(),
        "fold_betas": list(federation.fold_betas),
        "examples": [],
        "stale": [],
    }
