"""Fitting: the ridges of every client, the head whose models the run keeps, the rivals; nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data import FeatureSet
from fedhip.errors import InputError
from fedhip.features.lifts.lift import Lift
from fedhip.heads import Auto, Head, Ridge, head_named
from fedhip.heads.choice import Choice, choose
from fedhip.heads.options import options_of
from fedhip.heads.round import RIDGES, HeadRound, run_head, simulate, tested
from fedhip.heads.task import Task, check_clients
from fedhip.methods import MethodRun, Protocol, run_method
from fedhip.methods.engine.closed import row_of
from fedhip.runs.round.settings import Resolved, RoundSettings
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.client import Client
from fedhip.simulation.lifting import lift_clients, lifted_grid
from fedhip.simulation.options import RidgeOptions
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.personalization import Looked
from fedhip.simulation.private import PrivacyOptions, require_own_groups, simulate_privately
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch

#: The methods that the ridges' round gives, whatever is predicted.
OF_RIDGES = (MAJORITY, *RIDGES)
#: Called with each client's statistics, as they enter the sum.
KeepStatistics = Callable[[Client, GridStatistics], None]


@dataclass(frozen=True)
class FittedRound:
    """What a round gave.

    `outcome` has the models that the run keeps, `ridges` those in closed form that stand beside them in the table, with
    `rivals`. `head` is the kind of the models; `fitted_head` the head itself, where it is not the ridge of `ridges`.
    `terms` are the digests of what clients sent, `seconds` what was spent beside the ridges. `lifted` says what `lift`
    is.
    """

    outcome: Outcome
    ridges: Outcome
    head: type[Head]
    terms: Mapping[str, str]
    fitted_head: Head | None = None
    rivals: Sequence[MethodRun] = ()
    choice: Choice | None = None
    lift: Lift | None = None
    lifted: Mapping[str, Any] | None = None
    privacy: PrivacyOptions | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def fit_round(
    clients: Sequence[Client],
    features: FeatureSet,
    settings: RoundSettings,
    resolved: Resolved,
    *,
    seed: int,
    keep_statistics: KeepStatistics | None,
    device: str | torch.device,
    report: ReportProgress | None,
) -> FittedRound:
    """The round without noise. Where the choice widens the features, statistics of the wider ones are kept too."""
    watch, num_classes, ridge = Stopwatch(), features.num_classes, settings.ridge
    lift: Lift | None = None
    lifted: Mapping[str, Any] | None = None
    if settings.lift is not None:
        plan = settings.lift.plan(features.features.shape[1], num_classes)
        plan.require_memory(len(features))
        with watch("lift"):
            lift = plan.draw(clients, device, report)
            clients, lifted = lift_clients(lift, clients, device), plan.to_dict(lift)
        ridge = lifted_grid(clients, ridge, settings.lift.kind)
    head = head_named(resolved.head)
    check_clients(clients, num_classes)
    terms: dict[str, str] = {}

    def keep_digest(client: Client, digest: str) -> None:
        terms[client.name] = digest

    ridges = simulate(
        clients,
        num_classes,
        alpha=settings.alpha,
        beta=settings.beta,
        methods=[name for name in resolved.table if name in OF_RIDGES],
        only_local_classes=settings.only_local_classes,
        prior=resolved.prior == "client",
        **vars(ridge),
        device=device,
        report=report,
        keep_digest=keep_digest,
        keep_statistics=keep_statistics,
        keep_looked=head is Auto,
    )
    rivals = _rivals(clients, num_classes, settings, resolved, head, ridge, seed, device, report)
    if head is Ridge:
        return FittedRound(ridges, ridges, head, terms, None, rivals, None, lift, lifted, seconds=watch.seconds)
    task = Task(
        clients,
        num_classes,
        options_of(head, settings.alpha, settings.head_options),
        device,
        report or silent,
        ridge,
        only_local_classes=settings.only_local_classes,
        prior=resolved.prior,
        seed=seed,
        beside=("local", "global"),
    )
    if head is not Auto:
        found = run_head(head, task, ridges.federation)
        rivals.append(row_of(found))
        outcome = with_head_results(ridges, found)
        return FittedRound(outcome, ridges, head, terms, found.head, rivals, None, lift, lifted, seconds=watch.seconds)
    with watch("choice"):
        choice = choose(
            replace(task, looked=_looked(ridges), prior=settings.prior or "client"),
            ridges.federation,
            wider=settings.wider and settings.lift is None and settings.ridge.columns is None,
            max_rounds=settings.max_rounds,
        )
    best = choice.best
    found = tested(best.head, best.owns, sum(each.seconds for each in choice.tried))
    rounds, up, down = choice.traffic
    row = row_of(found)
    rivals.append(
        replace(row, name=Auto.method, rounds=rounds, upload_bytes_per_client=up, download_bytes_per_client=down)
    )
    if type(found.head) is not Auto:  # its row goes on when clients come and go
        rivals.append(row)
    if best.plan is not None and best.lift is not None:
        lift, lifted = best.lift, best.plan.to_dict(best.lift)
        for client in found.head.task.training:
            wide = found.head.statistics(client)
            keep_digest(client, wide.digest())
            if keep_statistics is not None:
                keep_statistics(client, wide)
    outcome = with_head_results(ridges, found)
    return FittedRound(
        outcome, ridges, type(found.head), terms, found.head, rivals, choice, lift, lifted, seconds=watch.seconds
    )


def fit_privately(
    clients: Sequence[Client],
    features: FeatureSet,
    settings: RoundSettings,
    resolved: Resolved,
    options: PrivacyOptions,
    *,
    report: ReportProgress | None,
) -> FittedRound:
    """The round with differential privacy: one sum with noise, and the ridge from it."""
    outcome, sent = simulate_privately(
        clients,
        features.num_classes,
        options,
        alpha=settings.alpha,
        beta=settings.beta,
        methods=resolved.table,
        only_local_classes=settings.only_local_classes,
        report=report,
    )
    return FittedRound(outcome, outcome, Ridge, sent, privacy=options)


def require_private(clients: Sequence[Client], features: FeatureSet, unit: str) -> None:
    """Refuse rows that a round with differential privacy is not for."""
    if features.task != "classification" or features.weights is not None:
        what = f"--task {features.task}" if features.task != "classification" else "rows with weights"
        raise InputError(
            f"--epsilon is for classes of rows that count alike, and not for {what}: leave one of them out"
        )
    check_clients(clients, features.num_classes)
    if unit == "group":
        require_own_groups(clients)


def with_head_results(outcome: Outcome, found: HeadRound) -> Outcome:
    """The outcome of a round with the models of another head as the clients' own, tested beside the others."""
    clients = [
        replace(
            own,
            accuracy=before.accuracy | own.accuracy,
            priors=before.priors | own.priors,
            tested=before.tested | own.tested,
            metrics=before.metrics | own.metrics,
        )
        for before, own in zip(outcome.clients, found.clients, strict=True)
    ]
    return replace(outcome, clients=clients, federation=found.head.federation)


def _rivals(
    clients: Sequence[Client],
    num_classes: int,
    settings: RoundSettings,
    resolved: Resolved,
    head: type[Head],
    ridge: RidgeOptions,
    seed: int,
    device: str | torch.device,
    report: ReportProgress | None,
) -> list[MethodRun]:
    """The methods that are asked for beside the ridges and the head."""
    protocol = Protocol(
        rounds=settings.rounds, seed=seed, only_local_classes=settings.only_local_classes, prior=resolved.prior
    )
    return [
        run_method(name, clients, num_classes, protocol, device=device, report=report, ridge=ridge)
        for name in resolved.methods
        if name not in (MAJORITY, *RIDGES, head.method)
    ]


def _looked(outcome: Outcome) -> dict[str, Looked]:
    """What the ridges' α were chosen by, by client."""
    return {
        result.client: result.personal.looked
        for result in outcome.clients
        if result.personal is not None and result.personal.looked is not None
    }
