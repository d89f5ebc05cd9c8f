"""One round, from features to a run folder."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fedhip.core.balance import class_weights
from fedhip.core.fixedpoint import GridStatistics
from fedhip.core.lifts import Lift
from fedhip.data import Dataset, FeatureSet, Partition, client_parts, save_partition, split_of
from fedhip.experiments.report import RunRecord
from fedhip.experiments.report.findings import read_runs
from fedhip.features.reference import BackboneReference
from fedhip.lifting import LiftSettings, lift_clients
from fedhip.methods import Protocol, run_method
from fedhip.methods.protocol import PriorOption
from fedhip.runs import Ledger, RunFolder, new_run
from fedhip.runs.config import write_config
from fedhip.runs.errors import MethodNameError
from fedhip.runs.folder import Draft
from fedhip.runs.models import global_model, models_digest, personal_model
from fedhip.runs.results import add_balance, add_lift, details_of, refresh, results_of, rival_entry
from fedhip.simulation import BALANCED, METHODS, Alpha, Beta, Client, Outcome, Stopwatch, clients_of, simulate

Json = dict[str, Any]
#: Images shown of each of the worst classes, and their size in pixels.
EXAMPLES, THUMBNAIL = 2, 64


@dataclass(frozen=True)
class RoundSettings:
    """What the three phases are told."""

    alpha: Alpha = "loo"
    beta: Beta = "auto"
    methods: tuple[str, ...] = METHODS
    rounds: int = 200
    only_local_classes: bool = False
    prior: PriorOption = "none"
    fraction_bits: int | None = None
    keep_statistics: bool = True
    lift: LiftSettings | None = None
    balance: bool = False

    def __post_init__(self) -> None:
        if not self.balance:
            return
        if others := [name for name in self.methods if name not in METHODS]:
            raise MethodNameError(
                f"balanced classes are for the methods {' and '.join(BALANCED)}, whose sum is weighted in closed form; "
                f"leave out {', '.join(others)}, or --balance"
            )
        if self.prior == "client":
            raise MethodNameError(
                "a client's prior corrects for how often the federation has a class, and balanced classes are equally "
                "frequent by construction; give --balance or --prior client, not both"
            )


def run_round(
    out: Path,
    features: FeatureSet,
    partition: Partition,
    settings: RoundSettings,
    *,
    title: str,
    config: Json,
    render: Callable[[str, Json, Json, str, list[Json]], str],
    images: Dataset | None = None,
    backbone: BackboneReference | None = None,
    seconds: Mapping[str, float] | None = None,
    device: str | torch.device = "cpu",
    force: bool = False,
    report: Callable[[str, int, int], None] | None = None,
) -> tuple[RunFolder, Outcome]:
    """Simulate the round, and write everything about it to the folder `out`, whole or not at all.

    `config` are the options that repeat it, `seconds` what was spent before, `images` those behind the features, for
    the report's examples.
    """
    clients, lift, lifted, watch = clients_of(features, partition), None, None, Stopwatch()
    if settings.lift is not None:
        plan = settings.lift.plan(features.features.shape[1], features.num_classes)
        with watch("lift"):
            lift = plan.draw(clients, device, report)
            clients, lifted = lift_clients(lift, clients, device), plan.told(lift)
    with new_run(out, force=force) as draft:
        terms: dict[str, str] = {}

        def keep(client: Client, own: GridStatistics) -> None:
            terms[client.name] = own.digest()
            if settings.keep_statistics:
                draft.write_statistics(client.name, own)

        outcome = simulate(
            clients,
            features.num_classes,
            alpha=settings.alpha,
            beta=settings.beta,
            methods=[name for name in settings.methods if name in METHODS],
            only_local_classes=settings.only_local_classes,
            prior=settings.prior == "client",
            fraction_bits=settings.fraction_bits,
            balance=settings.balance,
            device=device,
            report=report,
            keep_statistics=keep,
        )
        protocol = Protocol(
            rounds=settings.rounds,
            seed=config["seed"],
            only_local_classes=settings.only_local_classes,
            prior=settings.prior,
        )
        rivals = [
            run_method(name, clients, features.num_classes, protocol, device=device, report=report)
            for name in settings.methods
            if name not in METHODS
        ]
        config = {**config, "fraction_bits": outcome.federation.grid.fraction_bits}
        results = results_of(outcome, config=config, title=title, seconds={**(seconds or {}), **watch.seconds})
        for rival in rivals:
            results["methods"][rival.name] = rival_entry(rival, outcome.clients)
        if lifted is not None:
            add_lift(results, lifted)
        if settings.balance:
            add_balance(results, class_weights(outcome.federation.grid.counts).tolist())
        details = details_of(outcome, features.class_names)
        refresh(results, details)
        if images is not None:
            (findings,) = read_runs([RunRecord("", results, details, "", [])])
            worst = [found.label for found in findings.worst_classes]
            details["examples"] = worst_examples(outcome, worst, images, _test_rows(features, partition))
        ledger = Ledger().with_entry(
            "run",
            client=None,
            rows=outcome.federation.grid.num_samples,
            term=None,
            clients=terms,
            total=outcome.federation.digest,
            beta=outcome.beta,
            models=_write_models(draft, outcome, features.class_names, settings.only_local_classes, backbone, lift),
            results=draft.write_json("results.json", results),
            details=draft.write_json("details.json", details),
        )
        text = write_config(config, f"{title}\nrepeat this run with: fedhip run config.toml --out FOLDER")
        draft.write_total(outcome.federation.grid)
        save_partition(draft.path / "partition.json", partition, data_split=features.split)
        draft.write_text("config.toml", text)
        draft.write_ledger(ledger)
        draft.write_text("report.html", render(out.absolute().name, results, details, text, list(ledger.entries)))
    return RunFolder.open(out), outcome


def _write_models(
    draft: Draft,
    outcome: Outcome,
    class_names: tuple[str, ...],
    only_local_classes: bool,
    backbone: BackboneReference | None,
    lift: Lift | None,
) -> str:
    """Write the global model and every client's own; one hash of them all."""
    digests: dict[str | None, str] = {}
    models = [global_model(outcome.federation, class_names, backbone, lift)]
    for result in outcome.clients:
        if (personal := result.personal) is not None:
            models.append(
                personal_model(
                    outcome.federation,
                    result.client,
                    personal.weights,
                    personal.alpha,
                    personal.own,
                    personal.local_classes,
                    class_names=class_names,
                    only_local_classes=only_local_classes,
                    backbone=backbone,
                    lift=lift,
                )
            )
    for model in models:
        draft.write_model(model)
        digests[model.client] = model.digest()
    return models_digest(digests)


def _test_rows(features: FeatureSet, partition: Partition) -> dict[str, Sequence[int]]:
    """The rows of the data that each client was tested on."""
    parts = client_parts(partition, split_of(features.split, partition))
    return {client: test.tolist() for client, (_, test) in zip(partition.clients, parts, strict=True)}


def worst_examples(
    outcome: Outcome, worst_classes: Sequence[int], images: Dataset, test_rows: Mapping[str, Sequence[int]]
) -> list[Json]:
    """Test images of these classes that the personalized models get wrong."""
    room = dict.fromkeys(worst_classes, EXAMPLES)
    examples = []
    for result in outcome.clients:
        for place, predicted in result.mistakes:
            row = test_rows[result.client][place]
            true = int(images.labels[row])
            if room.get(true, 0) > 0:
                room[true] -= 1
                image = _data_url(images, row)
                examples.append({"client": result.client, "true": true, "predicted": predicted, "image": image})
    return examples


def _data_url(images: Dataset, row: int) -> str:
    buffer = io.BytesIO()
    Image.fromarray(images.read([row], THUMBNAIL)[0]).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
