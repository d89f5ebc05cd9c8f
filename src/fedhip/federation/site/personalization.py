"""Phase 3 at a site: its own model and report, in a run folder that never leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.errors import FedHiPError
from fedhip.federation.agreement.agreement import COMPETING_FIELDS, LIFT_FIELDS, Agreement
from fedhip.federation.agreement.privacy import mechanism_of
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.head import federation_of_sites, fit_choice, fit_head, ridge_of
from fedhip.federation.sums.private import released
from fedhip.federation.sums.statistics import plan_of
from fedhip.federation.sums.table import VETO
from fedhip.federation.sums.traffic import traffic_of
from fedhip.federation.sums.vector import Vector
from fedhip.federation.sums.veto import doubt_in
from fedhip.utils.bounds import LARGEST

if TYPE_CHECKING:
    from fedhip.core.affine import AffineModel
    from fedhip.core.choice.prior import Prior
    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.data.tables import Description
    from fedhip.features.lifts.lift import Lift
    from fedhip.heads import Head
    from fedhip.heads.auto import ChoiceSums
    from fedhip.heads.model import Model
    from fedhip.privacy.public import PublicMap
    from fedhip.simulation.alone import LocalModel
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding
    from fedhip.simulation.federation import Federation
    from fedhip.simulation.outcome import ClientResult
    from fedhip.simulation.personalization import Personalization

#: α of a site that does not take the sum: all but its own rows counts nothing.
ALONE = LARGEST


@dataclass(frozen=True)
class PooledLosses:
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
class ReceivedSum:
    """What the server sends at last: the sum, its β, whose sum it is, and how rows became part of it.

    Where the sum alone does not give the head, also the head that is held; what the later sums were of; those that
    priors are chosen by, or models (`choice`, with whether this site `is_judge` among those whose shares it has); and
    what the rows behind the sum were lifted by. Where sites bring tables, what turned them into features, and what was
    done with each column of the one here. With differential privacy, what is public of rows, and the digest of what
    this site sent. `tried` is what is said of candidates with a lift, where those of the features alone are taken.
    """

    grid: GridStatistics
    beta: float
    sites: Sequence[str]
    encoding: RowEncoding
    fold_betas: tuple[float, ...] = ()
    held: Model | None = None
    asks: Sequence[str] = ()
    pooled: PooledLosses | None = None
    choice: ChoiceSums | None = None
    lift: Lift | None = None
    table: Description | None = None
    columns: Sequence[dict[str, Any]] = ()
    is_judge: bool = False
    public: PublicMap | None = None
    sent: str = ""
    tried: Mapping[str, Any] | None = None

    def terms(self, agreement: Agreement) -> Agreement:
        """What was agreed on of the features that models are of: with a lift beside them, where that has competed."""
        return agreement if self.lift is None or agreement.wide is None else agreement.wide

    def federation(self, agreement: Agreement) -> Federation:
        """The sum as the ridge sees it."""
        if self.public is not None:
            return released(agreement, self.grid, len(self.sites), self.public)
        return federation_of_sites(agreement, self.grid, self.beta, self.encoding, self.fold_betas)


def personalize(out: Path, client: Client, received: ReceivedSum, agreement: Agreement, data: Path) -> ClientResult:
    """Choose α and priors on the site's own rows, solve its model, and write all to `out`, whole or not at all."""
    from fedhip.core.choice.calibration import common_temperature
    from fedhip.simulation.alone import MAJORITY, local_model, majority_model
    from fedhip.simulation.testing import evaluate
    from fedhip.utils.parallel import one_thread
    from fedhip.utils.stopwatch import Stopwatch

    watch, agreed = Stopwatch(), agreement
    agreement = received.terms(agreed)
    federation = _federation(received, agreement)
    d, only_local = len(agreement.classes), agreement.only_local_classes
    with watch("personalization"), one_thread():
        try:
            made = _phase3(federation, client, agreement, received)
        except FedHiPError as error:
            raise SiteRefusalError(
                SiteCode.TOTAL, f"the sum that came does not fit this site's rows: {error}"
            ) from error
    with watch("models of one client alone"), one_thread():
        alone = local_model(made.raw, d, ridge_of(agreement), only_local_classes=only_local)
        if VETO.count(agreed):
            made = _or_alone(made, alone, client, received, agreement)
    local, own = agreement.methods[0], agreement.methods[-1]
    head, personal = made.head, made.personal
    models = {MAJORITY: majority_model(client, d), local: made.widened(alone), **made.beside, own: personal.model}
    temperatures = {
        local: common_temperature([alone.losses]),
        **made.temperatures,
        own: common_temperature([personal.log_losses], head.temperatures),
    }
    counts = federation.grid.counts
    result = evaluate(client, models, personal, d, only_local, made.priors, counts, own=own, temperatures=temperatures)
    try:
        _write(out, federation, result, made, received, agreed, data, watch.seconds, temperatures)
    except (FedHiPError, OSError) as error:
        raise SiteRefusalError(SiteCode.OUTPUT, str(error)) from error
    return result


def _or_alone(made: _Made, alone: LocalModel, client: Client, received: ReceivedSum, agreement: Agreement) -> _Made:
    """The model of the site's rows alone, where it has a veto: α is then so large that nothing but these rows counts.

    Whatever its own model seems to be worth: rows left out of a sum that lies judge a model by what the lies say.
    """
    from fedhip.core.affine import AffineModel
    from fedhip.utils import candidates

    personal, doubt = made.personal, doubt_in(received.grid, received.encoding, client, agreement)
    if not doubt.vetoes:
        return made
    model, expected = AffineModel(alone.weights, alone.bias), doubt.right_alone / doubt.rows
    kept = {method: prior for method, prior in made.priors.items() if method != agreement.methods[-1]}
    taken = replace(personal, model=model, alpha=ALONE, estimate=expected, log_losses=alone.losses, choice=None)
    chosen = None if made.chosen is None else {**made.chosen, "taken": candidates.ALONE}
    return replace(made, personal=taken, priors=kept, chosen=chosen)


def _federation(received: ReceivedSum, agreement: Agreement) -> Federation:
    try:
        return received.federation(agreement)
    except FedHiPError as error:
        raise SiteRefusalError(SiteCode.TOTAL, str(error)) from error


@dataclass(frozen=True)
class _Made:
    """A site's model with what is known of it, and the head.

    `raw` are its rows without a lift that has competed, and `widened` makes a model of these one of all columns.
    `beside` are the other models of the agreed methods, but for that of its rows alone, with the temperatures that make
    probabilities of their scores; `priors` are by method, where they are agreed on. `chosen` is what results.json says
    of a choice.
    """

    head: Head
    raw: Client
    personal: Personalization
    beside: Mapping[str, AffineModel]
    temperatures: Mapping[str, float | None]
    priors: dict[str, Prior]
    chosen: dict[str, Any] | None = None

    def widened(self, model: AffineModel) -> AffineModel:
        """A model of `raw` as one of all columns."""
        from fedhip.heads import Auto

        return self.head.plain.widened(model) if isinstance(self.head, Auto) else model


def _phase3(federation: Federation, client: Client, agreement: Agreement, received: ReceivedSum) -> _Made:
    from fedhip.core.choice.calibration import common_temperature

    if received.choice is not None:
        return _chosen(federation, client, agreement, received)
    personal, head, priors = _of_head(federation, client, agreement, received)
    everybody = agreement.methods[1]
    temperature = common_temperature([personal.global_log_losses], head.temperatures)
    return _Made(head, client, personal, {everybody: head.common}, {everybody: temperature}, priors)


def _chosen(federation: Federation, client: Client, agreement: Agreement, received: ReceivedSum) -> _Made:
    """The model that is chosen, beside the global ridge and the personalized one: all as in `fedhip run`.

    These two are of the features alone, whatever stands beside them.
    """
    from fedhip.core.choice.calibration import common_temperature
    from fedhip.federation.sums import choice
    from fedhip.heads.choice import HALVED
    from fedhip.simulation.personalization import Personalization

    sums = received.choice
    assert sums is not None  # noqa: S101  (who asks has looked)
    raw, plain, head = client, federation, None
    if agreement.kept:
        head = fit_choice(federation, agreement, [client], sums)
        (raw,), plain = head.plain.task.clients, head.plain.federation
    ridge = Personalization.of(
        plain, raw, agreement.alpha, only_local_classes=agreement.only_local_classes, keep=not agreement.kept
    )
    if head is None:
        looked = {} if ridge.looked is None else {client.name: ridge.looked}
        head = fit_choice(federation, agreement, [client], sums, looked)
    owns = head.personalize()
    if federation.grid.num_samples <= HALVED:  # a run counts these by halves; by folds too much would be expected
        owns = {name: (replace(own, estimate=None), prior) for name, (own, prior) in owns.items()}
    if received.is_judge:
        choice.require_others(sums, choice.vector_of(choice.SHARES, head, client, agreement))
    personal, prior = owns[client.name]
    _, everybody, paper, own = agreement.methods
    beside = {everybody: head.plain.widened(plain.common), paper: head.plain.widened(ridge.model)}
    temperatures = {
        everybody: common_temperature([ridge.global_log_losses]),
        paper: common_temperature([ridge.log_losses]),
    }
    priors = {own: prior} if agreement.prior == "client" else {}
    lift = received.lift if agreement.kept else None
    chosen = choice.to_dict(head, owns, lift, received.tried or {})
    return _Made(head, raw, personal, beside, temperatures, priors, chosen)


def _of_head(
    federation: Federation, client: Client, agreement: Agreement, received: ReceivedSum
) -> tuple[Personalization, Head, dict[str, Prior]]:
    """The site's model with what is known of it, the head, and priors by method, where they are agreed on."""
    from fedhip.federation.sums.priors import SitePriors
    from fedhip.simulation.priors import prior_alphas
    from fedhip.simulation.private import PrivateFederation, personalize_privately

    pooled, own = received.pooled, agreement.methods[-1]
    options = {} if pooled is None else pooled.options
    head = fit_head(federation, agreement, [client], received.held, options)
    if isinstance(federation, PrivateFederation):
        found = personalize_privately(
            federation, client, agreement.alpha, received.sent, only_local_classes=agreement.only_local_classes
        )
        return found, head, {}
    if pooled is None:
        return head.personalize()[client.name][0], head, {}
    chosen = SitePriors(head, client, agreement).choose(pooled.losses, pooled.scale)
    if agreement.head == "ridge":  # whose α is chosen together with its prior
        alpha = prior_alphas(agreement.alpha)[own][chosen[own].model]
        head = fit_head(federation, agreement, [client], known={"alpha": alpha})
    priors = {method: choice.prior for method, choice in chosen.items()}
    return head.personalize({client.name: chosen[own]})[client.name][0], head, priors


def _write(
    out: Path,
    federation: Federation,
    result: ClientResult,
    made: _Made,
    received: ReceivedSum,
    agreement: Agreement,
    data: Path,
    seconds: dict[str, float],
    temperatures: Mapping[str, float | None],
) -> None:
    from fedhip.heads.model import RIDGE
    from fedhip.runs import Ledger, new_run
    from fedhip.runs.folder import PUBLIC
    from fedhip.runs.measures import gains_of, put_gains
    from fedhip.runs.models import global_model, personal_model
    from fedhip.runs.results import add_lift, add_privacy, client_entry, details_of, refresh, results_of
    from fedhip.simulation.alone import MAJORITY
    from fedhip.simulation.outcome import Outcome
    from fedhip.utils.toml import write_toml

    personal, head = result.personal, made.head
    if personal is None:
        raise SiteRefusalError(SiteCode.NO_ROWS, "there is no row to train on")
    outcome = Outcome(federation, (), [result], seconds)
    sites = sorted(received.sites)
    config: dict[str, Any] = {**configuration(agreement), "site": result.client, "data": str(data)}
    config |= {"sum": federation.digest, "sum_of": sites}
    title = f"{agreement.name} · site {result.client}, one of {len(sites)} · {federation.grid.num_features} wide"
    results = results_of(outcome, config=config, title=title, seconds={})
    local, own = agreement.methods[0], agreement.methods[-1]
    spent = {local: "models of one client alone", own: "personalization"}
    for method in (MAJORITY, *agreement.methods):
        results["methods"][method] = {
            "accuracy": {},
            "per_client": [client_entry(result, method, own)],
            "seconds": round(seconds.get(spent.get(method, ""), 0.0), 3),
            **traffic_of(agreement, local if method == MAJORITY else method, received.asks),
            "temperature": temperatures.get(method),
        }
    put_gains(results, [gains_of(result.client, result.tested, own)])
    if head.name != RIDGE:
        results |= {"head": head.name, "settings": dict(head.settings)}
    if made.chosen is not None:
        results["choice"] = made.chosen
        results["methods"] = {own: results["methods"].pop(own), **results["methods"]}
    if received.lift is not None:
        add_lift(results, plan_of(received.terms(agreement)).to_dict(received.lift))
    details = details_of(outcome, agreement.classes, type(head))
    if received.public is not None:
        results |= privacy_of(agreement, len(sites))
        add_privacy(details)
    table = None if received.table is None else received.table.to_dict()
    if received.table is not None:
        details["table"] = list(received.columns)
    refresh(results, details)
    models = [
        global_model(federation, agreement.classes, agreement.backbone, head, received.lift, table=table),
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
            table=table,
            settings=None if personal.choice is None else personal.choice.settings,
        ),
    ]
    with new_run(out, force=True) as draft:
        if received.public is not None:
            received.public.to_file(draft.path / PUBLIC)
        if received.table is not None:
            draft.write_text("columns.toml", received.table.to_toml())
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


def privacy_of(agreement: Agreement, sites: int) -> dict[str, Any]:
    """What results.json says of a sum of so many sites that has noise in it."""
    from fedhip.runs.results import privacy_entry

    found = mechanism_of(agreement).of_survivors(sites)
    return {"feature_dim": agreement.width, "privacy": privacy_entry(found, found.sentence("site"))}


def configuration(agreement: Agreement) -> dict[str, Any]:
    """What a run folder says of the agreement."""
    logistic = {} if agreement.gradient_rounds is None else {"gradient_rounds": agreement.gradient_rounds}
    head = {} if agreement.head == "ridge" else {"head": agreement.head, **logistic}
    prior = {} if agreement.prior == "none" else {"prior": agreement.prior}
    of_lifts = COMPETING_FIELDS if agreement.lift == "none" else LIFT_FIELDS
    lift = {name: getattr(agreement, name) for name in of_lifts}
    lift = {name: value for name, value in lift.items() if value is not None}
    names = ("epsilon", "delta", "unit", "unit_rows", "clip", "public", "local_noise")
    privacy = {} if agreement.epsilon is None else {name: getattr(agreement, name) for name in names}
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
        **{name: value for name, value in privacy.items() if value not in (None, False)},
        "statistics": False,  # nobody's are in the folder
    }
