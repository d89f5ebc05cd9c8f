"""What the server keeps of a round: the sum, the global model, the ledger, and the accuracies that sites tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip import __version__
from fedhip.federation.agreement import Agreement
from fedhip.federation.errors import MessageError
from fedhip.federation.personal import METHODS, configuration
from fedhip.federation.wire import Letter

if TYPE_CHECKING:
    from fedhip.simulation import Federation


def write_result(
    out: Path,
    federation: Federation,
    agreement: Agreement,
    *,
    sites: Sequence[str],
    dropped: Mapping[str, str],
    told: Mapping[str, Mapping[str, Any]],
    more: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> None:
    """A run folder without any site's statistics; whole or not at all."""
    from fedhip.core import DEFAULT_ALPHAS
    from fedhip.core.calibration import TEMPERATURES
    from fedhip.runs import Ledger, new_run
    from fedhip.runs.config import write_config
    from fedhip.runs.folder import SCHEMA
    from fedhip.runs.models import global_model, models_digest
    from fedhip.runs.results import refresh
    from fedhip.simulation import Outcome

    outcome = Outcome(federation, METHODS, [], {})
    methods: dict[str, Any] = {}
    for method in METHODS:
        rounds, up, down = outcome.traffic(method)
        methods[method] = {
            "accuracy": {},
            "per_client": [
                {"client": site, "train": None, "test": answer["test"], "accuracy": answer.get(method), "alpha": None}
                for site, answer in sorted(told.items())
            ],
            "rounds": rounds,
            "seconds": 0.0,
            "upload_bytes_per_client": up,
            "download_bytes_per_client": down,
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
        "feature_dim": agreement.width,
        "beta": federation.beta,
        "fraction_bits": agreement.fraction_bits,
        "only_local_classes": agreement.only_local_classes,
        "methods": methods,
        "leave_one_out": None,
        "seconds": {phase: round(value, 3) for phase, value in seconds.items()},
        "stale": None,
        "sites": list(sites),
        "dropped": dict(dropped),
        **more,
    }
    details: dict[str, Any] = {
        "schema": SCHEMA,
        "class_names": list(agreement.classes),
        "alphas": list(DEFAULT_ALPHAS),
        "temperatures": list(TEMPERATURES),
        "clients": {},
        "examples": [],
        "stale": [],
    }
    refresh(results, details)
    results["num_clients"] = len(sites)
    model = global_model(federation, agreement.classes, agreement.backbone)
    with new_run(out) as draft:
        draft.write_model(model)
        ledger = Ledger().with_entry(
            "run",
            client=None,
            rows=federation.grid.num_samples,
            term=None,
            clients={},
            sites=list(sites),
            dropped=dict(dropped),
            total=federation.digest,
            beta=federation.beta,
            models=models_digest({None: model.digest()}),
            results=draft.write_json("results.json", results),
            details=draft.write_json("details.json", details),
        )
        draft.write_total(federation.grid)
        draft.write_text("config.toml", write_config(config, title))
        draft.write_ledger(ledger)


def accuracies_in(letter: Letter) -> dict[str, Any]:
    """Accuracies and test rows, or nothing."""
    if not letter.flag("told"):
        return {}
    answer: dict[str, Any] = {"test": letter.number("test", 1)}
    for method in METHODS:
        value = letter.real(method)
        if not 0.0 <= value <= 1.0:
            raise MessageError(f"an accuracy of {value} is none")
        answer[method] = value
    return answer
