"""Phase 3 at a site: its own model and report, in a run folder that never leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedhip.core.errors import FedHiPError
from fedhip.federation.agreement.agreement import LIFT_FIELDS, Agreement
from fedhip.federation.codes import SiteCode, SiteRefusalError
from fedhip.federation.server.traffic import traffic_of
from fedhip.federation.sums.lifts import plan_of
from fedhip.federation.sums.vector import Vector

if TYPE_CHECKING:
    from fedhip.core.fixedpoint import GridStatistics
    from fedhip.core.lifts import Lift
    from fedhip.core.prior import Prior, PriorChoice
    from fedhip.heads import Head
    from fedhip.models import Model
    from fedhip.phases import Client, Federation, Personalization, RowEncoding
    from fedhip.simulation import ClientResult, RidgeOptions


@dataclass(frozen=True)
class Pooled:
    """What a prior is chosen by beside the site's own rows: everybody's losses, and the scale of the scores.

    `temperature` is that of LDA's scores, at which a site judges whose means it takes.
    """

    losses: Vector
    scale: float | None
    temperature: float | None = None

    @property
    def options(self) -> dict[str, float]:
        """Of the head: LDA's temperature, which is everybody's."""
        return {} if self.temperature is None else {"temperature": self.temperature}


@dataclass(frozen=True)
class Sum:
    """What the server sends at last: the sum, its β, whose sum it is, and how rows became part of it.

    Where the sum alone does not give the head, also the head that is held; what the later sums were of; those that
    priors are chosen by; and what the rows behind the sum were lifted by.
    """

    grid: GridStatistics
    beta: float
    sites: Sequence[str]
    encoding: RowEncoding
    fold_betas: tuple[float, ...] = ()
    held: Model | None = None
    asks: Sequence[str] = ()
    pooled: Pooled | None = None
    lift: Lift | None = None


def personalize(out: Path, client: Client, received: Sum, agreement: Agreement, data: Path) -> ClientResult:
    """Choose α and priors on the site's own rows, solve its model, and write all to `out`, whole or not at all."""
    from fedhip.simulation import Stopwatch, evaluate, local_model
    from fedhip.utils.parallel import one_thread

    watch = Stopwatch()
    federation = federation_of(agreement, received.grid, received.beta, received.encoding, received.fold_betas)
    d, only_local = len(agreement.classes), agreement.only_local_classes
    with watch("personalization"), one_thread():
        try:
            personal, head, priors = _phase3(federation, client, agreement, received)
        except FedHiPError as error:
            raise SiteRefusalError(
                SiteCode.TOTAL, f"the sum that came does not fit this site's rows: {error}"
            ) from error
    with watch("models of one client alone"), one_thread():
        alone = local_model(client, d, ridge_of(agreement))
    local, everybody, own = agreement.methods
    common = federation.common if head is None else head.common
    models = {local: alone, everybody: common, own: personal.model}
    result = evaluate(client, models, personal, d, only_local, priors, federation.grid.counts, own=own)
    try:
        _write(out, federation, result, head, received, agreement, data, watch.seconds)
    except (FedHiPError, OSError) as error:
        raise SiteRefusalError(SiteCode.OUTPUT, str(error)) from error
    return result


def _phase3(
    federation: Federation, client: Client, agreement: Agreement, received: Sum
) -> tuple[Personalization, Head | None, dict[str, Prior]]:
    """The site's model with what is known of it, the head, and priors by method, where they are agreed on.

    A ridge is a function of the sum, and needs no head; its α is chosen together with its prior.
    """
    from fedhip.core.prior import NO_CHOICE
    from fedhip.federation.site.priors import SitePriors
    from fedhip.phases import Personalization
    from fedhip.priors import prior_alphas

    alpha, only_local, pooled = agreement.alpha, agreement.only_local_classes, received.pooled
    own, ridge, chosen = agreement.methods[-1], agreement.head == "ridge", dict[str, "PriorChoice"]()
    options = {} if pooled is None else pooled.options
    head = None if ridge and pooled is None else fit_head(federation, agreement, [client], received.held, options)
    if head is not None and pooled is not None:
        chosen = SitePriors(head, client, agreement).choose(pooled.losses, pooled.scale)
        alpha = prior_alphas(alpha)[own][chosen[own].model] if ridge else alpha
    priors = {method: choice.prior for method, choice in chosen.items()}
    if head is None or ridge:
        personal = Personalization.of(federation, client, alpha, only_local_classes=only_local, last=True)
        return personal.with_prior(chosen.get(own, NO_CHOICE), len(client.train[1])), None, priors
    kept = {client.name: chosen[own]} if chosen else None
    return head.personalize(kept)[client.name][0], head, priors


def federation_of(
    agreement: Agreement,
    grid: GridStatistics,
    beta: float,
    encoding: RowEncoding,
    fold_betas: tuple[float, ...] = (),
) -> Federation:
    """The sum as the agreed ridge sees it."""
    from fedhip.phases import Federation

    return Federation(grid, beta, encoding, agreement.standardize, agreement.intercept, fold_betas)


def ridge_of(agreement: Agreement) -> RidgeOptions:
    """What ridges are of."""
    from fedhip.simulation import RidgeOptions

    return RidgeOptions(agreement.standardize, agreement.intercept)


def fit_head(
    federation: Federation,
    agreement: Agreement,
    clients: Sequence[Client] = (),
    held: Model | None = None,
    known: Mapping[str, float] = MappingProxyType({}),
) -> Head:
    """The agreed head, of the sum or as it is held; for clients whose rows are here.

    `known` are options that follow from everybody's rows.
    """
    from fedhip.heads import head_named
    from fedhip.heads.options import options_of
    from fedhip.heads.task import Task

    kind = head_named(agreement.head)
    task = Task(
        clients,
        len(agreement.classes),
        {**options_of(kind, agreement.alpha, {}), **known},
        ridge=ridge_of(agreement),
        only_local_classes=agreement.only_local_classes,
        seed=agreement.seed,
    )
    return kind.fit(federation, task, held)


def _write(
    out: Path,
    federation: Federation,
    result: ClientResult,
    head: Head | None,
    received: Sum,
    agreement: Agreement,
    data: Path,
    seconds: dict[str, float],
) -> None:
    from fedhip.heads import head_named
    from fedhip.runs import Ledger, new_run
    from fedhip.runs.models import global_model, personal_model
    from fedhip.runs.results import add_lift, client_entry, details_of, refresh, results_of
    from fedhip.simulation import Outcome
    from fedhip.utils.toml import write_toml

    personal = result.personal
    if personal is None:
        raise SiteRefusalError(SiteCode.NO_ROWS, "there is no row to train on")
    outcome = Outcome(federation, (), [result], seconds)
    sites = sorted(received.sites)
    config: dict[str, Any] = {**configuration(agreement), "site": result.client, "data": str(data)}
    config |= {"sum": federation.digest, "sum_of": sites}
    title = f"{agreement.name} · site {result.client}, one of {len(sites)} · {federation.grid.num_features} wide"
    results = results_of(outcome, config=config, title=title, seconds={})
    local, everybody, own = agreement.methods
    spent = {local: "models of one client alone", own: "personalization"}
    for method in (local, everybody, own):
        results["methods"][method] = {
            "accuracy": {},
            "per_client": [client_entry(result, method, own)],
            "seconds": round(seconds.get(spent.get(method, ""), 0.0), 3),
            **traffic_of(agreement, method, received.asks),
        }
    if head is not None:
        results |= {"head": head.name, "settings": dict(head.settings)}
    if received.lift is not None:
        add_lift(results, plan_of(agreement).told(received.lift))
    details = details_of(outcome, agreement.classes, head_named(agreement.head))
    refresh(results, details)
    models = [
        global_model(federation, agreement.classes, agreement.backbone, head, received.lift),
        personal_model(
            federation,
            result.client,
            personal.model,
            personal.alpha,
            personal.own,
            personal.local_classes,
            class_names=agreement.classes,
            only_local_classes=agreement.only_local_classes,
            backbone=agreement.backbone,
            head=head,
            lift=received.lift,
        ),
    ]
    with new_run(out, force=True) as draft:
        for model in models:
            draft.write_model(model)
        draft.record(
            Ledger(),
            "run",
            federation,
            results,
            details,
            write_toml(config, title),
            clients={result.client: personal.own},
            sites=sites,
        )
        draft.write_report(out)


def configuration(agreement: Agreement) -> dict[str, Any]:
    """What a run folder says of the agreement."""
    logistic = {} if agreement.gradient_rounds is None else {"gradient_rounds": agreement.gradient_rounds}
    head = {} if agreement.head == "ridge" else {"head": agreement.head, **logistic}
    prior = {} if agreement.prior == "none" else {"prior": agreement.prior}
    lift = {} if agreement.lift == "none" else {name: getattr(agreement, name) for name in LIFT_FIELDS}
    lift = {name: value for name, value in lift.items() if value is not None}
    return {
        "federation": agreement.name,
        "agreement": agreement.digest(),
        "alpha": agreement.alpha,
        "beta": agreement.beta,
        "standardize": agreement.standardize,
        "intercept": agreement.intercept,
        "seed": agreement.seed,
        "only_local_classes": agreement.only_local_classes,
        "fraction_bits": agreement.fraction_bits,
        "secure_sum": agreement.secure_sum,
        "methods": list(agreement.methods),
        **head,
        **prior,
        **lift,
        "statistics": False,  # nobody's are in the folder
    }
