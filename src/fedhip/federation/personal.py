"""Phase 3 at a site: its own model and report, in a run folder that never leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.core.errors import FedHiPError
from fedhip.federation.agreement import Agreement
from fedhip.federation.codes import SiteCode, SiteRefusalError

if TYPE_CHECKING:
    from fedhip.core.fixedpoint import GridStatistics
    from fedhip.simulation import Client, ClientResult, Federation

METHODS = ("local", "global", "fedhip")


@dataclass(frozen=True)
class Sum:
    """What the server sends at last: the sum, its β, and whose sum it is."""

    grid: GridStatistics
    beta: float
    sites: Sequence[str]


def personalize(out: Path, client: Client, received: Sum, agreement: Agreement, data: Path) -> ClientResult:
    """Choose α on the site's own rows, solve its model, and write everything to `out`, whole or not at all."""
    from fedhip.parallel import one_thread
    from fedhip.simulation import Federation, Personalization, Stopwatch, evaluate, local_model

    watch = Stopwatch()
    federation = Federation(received.grid, received.beta)
    d, only_local = len(agreement.classes), agreement.only_local_classes
    with watch("personalization"), one_thread():
        try:
            personal = Personalization.of(federation, client, agreement.alpha, only_local_classes=only_local, last=True)
        except FedHiPError as error:
            raise SiteRefusalError(
                SiteCode.TOTAL, f"the sum that came does not fit this site's rows: {error}"
            ) from error
    with watch("models of one client alone"), one_thread():
        alone = local_model(client, d)
    models = {"local": alone, "global": federation.G, "fedhip": personal.weights}
    result = evaluate(client, dict(models), personal, d, only_local)
    try:
        _write(out, federation, result, received.sites, agreement, data, watch.seconds)
    except (FedHiPError, OSError) as error:
        raise SiteRefusalError(SiteCode.OUTPUT, str(error)) from error
    return result


def _write(
    out: Path,
    federation: Federation,
    result: ClientResult,
    sites: Sequence[str],
    agreement: Agreement,
    data: Path,
    seconds: dict[str, float],
) -> None:
    from fedhip.experiments.report import RunRecord, render_report
    from fedhip.runs import Ledger, new_run
    from fedhip.runs.config import write_config
    from fedhip.runs.models import global_model, models_digest, personal_model
    from fedhip.runs.results import details_of, refresh, results_of
    from fedhip.simulation import Outcome

    personal = result.personal
    if personal is None:
        raise SiteRefusalError(SiteCode.NO_ROWS, "there is no row to train on")
    outcome = Outcome(federation, METHODS, [result], seconds)
    config: dict[str, Any] = {**configuration(agreement), "site": result.client, "data": str(data)}
    title = f"{agreement.name} · site {result.client}, one of {len(sites)} · {federation.grid.num_features} wide"
    results = results_of(outcome, config=config, title=title, seconds={})
    details = details_of(outcome, agreement.classes)
    refresh(results, details)
    models = [
        global_model(federation, agreement.classes, agreement.backbone),
        personal_model(
            federation,
            result.client,
            personal.weights,
            personal.alpha,
            personal.own,
            personal.local_classes,
            class_names=agreement.classes,
            only_local_classes=agreement.only_local_classes,
            backbone=agreement.backbone,
        ),
    ]
    with new_run(out, force=True) as draft:
        draft.path.chmod(0o700)  # the model tells of the rows, and the report shows some
        for model in models:
            draft.write_model(model)
        ledger = Ledger().with_entry(
            "run",
            client=None,
            rows=federation.grid.num_samples,
            term=None,
            clients={result.client: personal.own},
            sites=list(sites),
            total=federation.digest,
            beta=federation.beta,
            models=models_digest({model.client: model.digest() for model in models}),
            results=draft.write_json("results.json", results),
            details=draft.write_json("details.json", details),
        )
        text = write_config(config, title)
        draft.write_total(federation.grid)
        draft.write_text("config.toml", text)
        draft.write_ledger(ledger)
        record = RunRecord(out.absolute().name, results, details, text, list(ledger.entries))
        draft.write_text("report.html", render_report([record]))


def configuration(agreement: Agreement) -> dict[str, Any]:
    """What a run folder says of the agreement."""
    return {
        "federation": agreement.name,
        "agreement": agreement.digest(),
        "alpha": agreement.alpha,
        "beta": agreement.beta,
        "seed": agreement.seed,
        "only_local_classes": agreement.only_local_classes,
        "fraction_bits": agreement.fraction_bits,
        "secure_sum": agreement.secure_sum,
        "methods": list(METHODS),
        "statistics": False,  # nobody's are in the folder
    }
