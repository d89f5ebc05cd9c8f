"""Recording: a fitted round as the files of a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhip.core.balance import class_weights
from fedhip.data import Dataset, FeatureSet, Partition, client_parts, save_partition, split_of
from fedhip.features.reference import BackboneReference
from fedhip.heads import Auto
from fedhip.heads.budget import bytes_of
from fedhip.heads.choice import AUTO, PLAIN, Choice
from fedhip.heads.round import RIDGES
from fedhip.runs.draft import Draft
from fedhip.runs.folder import PUBLIC
from fedhip.runs.ledger import Ledger
from fedhip.runs.measures import gains_of, put_gains
from fedhip.runs.models import global_model, personal_model
from fedhip.runs.report import RunRecord
from fedhip.runs.report.findings import read_runs
from fedhip.runs.results import (
    add_balance,
    add_lift,
    add_privacy,
    details_of,
    privacy_entry,
    refresh,
    results_of,
    rival_entry,
)
from fedhip.runs.round.examples import worst_examples
from fedhip.runs.round.fitting import FittedRound
from fedhip.runs.round.prepare import Described
from fedhip.runs.round.settings import Resolved, RoundSettings
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.utils.toml import write_toml

Json = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """What a round was given, as its folder tells of it; see `fedhip.runs.run.run_round`."""

    features: FeatureSet
    partition: Partition
    clients: Sequence[Client]
    settings: RoundSettings
    resolved: Resolved
    title: str
    config: Json
    seconds: Mapping[str, float]
    images: Dataset | None = None
    backbone: BackboneReference | None = None
    table: Described | None = None


def record_round(draft: Draft, out: Path, given: Given, fitted: FittedRound) -> None:
    """Everything about the round, as the run folder `out` that `draft` is to be."""
    config = _config(given, fitted)
    results, details = _results(given, fitted, config), _details(given, fitted)
    refresh(results, details)
    features, partition = given.features, given.partition
    if given.table is not None:
        draft.write_text("columns.toml", given.table.description.to_toml())
    if given.images is not None and features.task == "classification" and fitted.privacy is None:
        (findings,) = read_runs([RunRecord("", results, details, "", [])])
        worst = [found.label for found in findings.worst_classes]
        details["examples"] = worst_examples(fitted.outcome, worst, given.images, _test_rows(features, partition))
    save_partition(draft.path / "partition.json", partition, data_split=features.split)
    if fitted.privacy is not None:
        fitted.privacy.public.to_file(draft.path / PUBLIC)
    _write_models(draft, given, fitted)
    draft.record(
        Ledger(),
        "run",
        fitted.outcome.federation,
        results,
        details,
        write_toml(config, f"{given.title}\nrepeat this run with: fedhip run config.toml --out FOLDER"),
        clients=fitted.terms,
        partition=hashlib.sha256((draft.path / "partition.json").read_bytes()).hexdigest(),
    )
    draft.write_report(out)


def _config(given: Given, fitted: FittedRound) -> Json:
    """The options that repeat the run, with what follows from those that were left out."""
    settings, resolved = given.settings, given.resolved
    if resolved.head == AUTO:
        filled = {**given.config, "methods": list(resolved.methods)}
    else:
        filled = {**given.config, "methods": list(settings.methods or RIDGES), "prior": resolved.prior}
    config = {name: value for name, value in filled.items() if value is not None}
    if fitted.privacy is not None:
        return config | {"statistics": False}
    return config | {"fraction_bits": fitted.ridges.federation.grid.fraction_bits}


def _results(given: Given, fitted: FittedRound, config: Json) -> Json:
    """results.json, but for what `refresh` finds."""
    ridges, settings = fitted.ridges, given.settings
    results = results_of(ridges, config=config, title=given.title, seconds={**given.seconds, **fitted.seconds})
    for rival in fitted.rivals:
        results["methods"][rival.name] = rival_entry(rival, ridges.clients)
    if fitted.fitted_head is not None:
        results |= {"head": fitted.head.name, "settings": dict(fitted.fitted_head.settings)}
    if fitted.choice is not None:
        _put_choice(results, fitted.choice, fitted.outcome.federation)
        if "budget" in config:
            upload = PLAIN if fitted.lift is None else f"{fitted.lift.kind} {fitted.lift.width}"
            told = {"bytes": bytes_of(config["budget"]), "upload": upload}
            room = fitted.ridges.federation.encoding.room
            results["choice"]["budget"] = told if room is None else {**told, "statistics_bytes": room}
    if fitted.lifted is not None:
        results["lift"] = dict(fitted.lifted)
        if settings.lift is not None:
            add_lift(results, results["lift"])
    if settings.ridge.balance:
        add_balance(results, class_weights(ridges.federation.grid.counts).tolist())
    if given.features.task != "classification":
        results["task"] = given.features.task
    if fitted.privacy is not None:
        results |= {
            "feature_dim": given.features.features.shape[1],
            "privacy": privacy_entry(fitted.privacy.mechanism(given.clients)),
        }
    put_gains(results, [gains_of(each.client, each.tested, fitted.head.method) for each in fitted.outcome.clients])
    return results


def _details(given: Given, fitted: FittedRound) -> Json:
    """details.json, but for what `refresh` finds. With differential privacy it says nothing of single rows."""
    details = details_of(fitted.outcome, given.features.class_names, fitted.head)
    if fitted.privacy is not None:
        add_privacy(details)
    elif given.table is not None:
        details["table"] = given.table.report
    return details


def _put_choice(results: Json, choice: Choice, federation: Federation) -> None:
    """The choice, its row first; and what of the folder's models is of the features that were chosen."""
    results["choice"] = choice.to_dict()
    methods = results["methods"]
    results["methods"] = {Auto.method: methods.pop(Auto.method), **methods}
    results |= {
        "feature_dim": federation.grid.num_features,
        "beta": federation.beta,
        "fraction_bits": federation.grid.fraction_bits,
    }


def _write_models(draft: Draft, given: Given, fitted: FittedRound) -> None:
    """Write the global model and every client's own."""
    federation, class_names = fitted.outcome.federation, given.features.class_names
    about: Json = {
        "backbone": given.backbone,
        "head": fitted.fitted_head,
        "lift": fitted.lift,
        "task": given.features.task,
        "table": None if given.table is None else given.table.description.to_dict(),
    }
    draft.write_model(global_model(federation, class_names, **about))
    for result in fitted.outcome.clients:
        if (personal := result.personal) is not None:
            draft.write_model(
                personal_model(
                    federation,
                    result.client,
                    personal.model,
                    personal.alpha,
                    personal.own,
                    personal.local_classes,
                    class_names=class_names,
                    only_local_classes=given.settings.only_local_classes,
                    settings=None if personal.choice is None else personal.choice.settings,
                    **about,
                )
            )


def _test_rows(features: FeatureSet, partition: Partition) -> dict[str, Sequence[int]]:
    """The rows of the data that each client was tested on."""
    parts = client_parts(partition, split_of(features.split, partition))
    return {client: test.tolist() for client, (_, test) in zip(partition.clients, parts, strict=True)}
