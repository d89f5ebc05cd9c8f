"""What the server keeps of a round: the sum, the global model, the ledger, and the accuracies that sites tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip import __version__
from fedhip.data.tables.description import Description
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.privacy import public_of
from fedhip.federation.errors import MessageError
from fedhip.federation.server.checkpoint import RoundProgress
from fedhip.federation.site.personalization import configuration, privacy_of
from fedhip.federation.sums.statistics import plan_of
from fedhip.federation.sums.traffic import of_models, takes_lift, traffic_of
from fedhip.federation.sums.wide import wide_of
from fedhip.federation.transport.wire import Letter

if TYPE_CHECKING:
    from fedhip.heads.model import Model
    from fedhip.simulation.federation import Federation
    from fedhip.simulation.trust.doubt import Verdict


def write_result(
    out: Path,
    federation: Federation,
    model: Model,
    agreement: Agreement,
    progress: RoundProgress,
    *,
    dropped: Mapping[str, str],
    notes: Sequence[str],
    verdict: Verdict | None = None,
    seconds: Mapping[str, float],
    chosen: dict[str, Any] | None = None,
) -> None:
    """A run folder without any site's statistics; whole or not at all."""
    from fedhip.heads import head_named
    from fedhip.runs import Ledger, new_run
    from fedhip.runs.folder import PUBLIC, SCHEMA
    from fedhip.runs.results import add_lift, refresh
    from fedhip.utils.toml import write_toml

    sites = progress.summed
    reported = {site: answer for site, answer in progress.answers.items() if answer}
    methods: dict[str, Any] = {}
    for method in agreement.methods:
        methods[method] = {
            "accuracy": {},
            "per_client": [
                {"client": site, "train": None, "test": answer["test"], "accuracy": answer.get(method), "alpha": None}
                for site, answer in sorted(reported.items())
            ],
            "seconds": 0.0,
            **traffic_of(agreement, method, of_models(progress.asks)),
        }
    config = configuration(agreement)
    title = f"{agreement.name} · {len(sites)} sites · {federation.grid.num_features} wide"
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "fedhip": __version__,
        "title": title,
        "config": config,
        "seed": agreement.seed,
        "num_clients": len(sites),
        "num_classes": len(agreement.classes),
        "feature_dim": federation.grid.num_features,
        "beta": federation.beta,
        "fraction_bits": federation.grid.fraction_bits,
        "standardize": agreement.standardize,
        "intercept": agreement.intercept,
        "only_local_classes": agreement.only_local_classes,
        "methods": methods,
        "leave_one_out": None,
        "seconds": {phase: round(value, 3) for phase, value in seconds.items()},
        "stale": None,
        "sites": list(sites),
        "dropped": dict(dropped),
        "without_model": progress.without_model,
    }
    if agreement.epsilon is not None:
        results |= privacy_of(agreement, len(sites))
    if agreement.head != "ridge":
        results |= {"head": agreement.head, "settings": dict(model.settings)}
    if chosen is not None:
        results["choice"] = chosen
    if len(progress.sums) > 1:
        made = [{"ask": record.ask, "sites": list(record.sites)} for record in progress.sums]
        results |= {"sums": made, "notes": list(notes)}
    if verdict is not None:
        results["verdict"] = asdict(verdict)
    if model.lift is not None:
        terms = wide_of(agreement) if takes_lift(progress.asks) else agreement
        add_lift(results, plan_of(terms).to_dict(model.lift))
    details: dict[str, Any] = {
        "schema": SCHEMA,
        "class_names": list(agreement.classes),
        "alphas": list(head_named(agreement.head).alphas),
        "temperatures": list(head_named(agreement.head).temperatures),
        "columns": federation.encoding.columns.to_dict(),
        "fold_betas": list(federation.fold_betas),
        "clients": {},
        "examples": [],
        "stale": [],
    }
    refresh(results, details)
    results["num_clients"] = len(sites)
    with new_run(out, force=True) as draft:  # once more, where the sum was handed out to sites that had not got it
        draft.write_model(model)
        if agreement.epsilon is not None:
            public_of(agreement).to_file(draft.path / PUBLIC)
        if model.table is not None:
            draft.write_text("columns.toml", Description.from_dict(model.table).to_toml())
        draft.record(
            Ledger(),
            "run",
            federation,
            results,
            details,
            write_toml(config, title),
            clients={},
            sites=sites,
            dropped=dropped,
        )


def accuracies_in(letter: Letter, methods: Sequence[str]) -> dict[str, Any]:
    """Accuracies and test rows, or nothing."""
    if not letter.flag("told"):
        return {}
    answer: dict[str, Any] = {"test": letter.number("test", 1)}
    for method in methods:
        value = letter.real(method)
        if not 0.0 <= value <= 1.0:
            raise MessageError(f"an accuracy of {value} is none")
        answer[method] = value
    return answer
