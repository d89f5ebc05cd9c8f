"""Phases 1 to 3 in one process, as `fedhip.simulation.driver` does them without noise.

In phase 3 the sum is others' rows and noise, and α is how much more own rows weigh. At the largest α the others weigh
nothing, so that a client is never much below what it has alone: leave-one-out on its own rows would say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedhip.core import DEFAULT_ALPHAS, PersonalizationPath
from fedhip.core.affine import masked
from fedhip.core.choice.calibration import common_temperature, log_losses
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.privacy.noise import Bytes
from fedhip.simulation.alone import MAJORITY, LocalModel, local_model, majority_model
from fedhip.simulation.client import Client
from fedhip.simulation.driver import add_up
from fedhip.simulation.options import Alpha, Beta
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.personalization import Personalization, calibration_rows, choose_alpha
from fedhip.simulation.private.federation import PrivateFederation
from fedhip.simulation.private.units import PrivacyOptions, part_of
from fedhip.simulation.testing import evaluate
from fedhip.utils.parallel import in_order
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch

#: What α is chosen among: where the sum is mostly noise, up to where own rows alone count.
PRIVATE_ALPHAS: tuple[float, ...] = (*DEFAULT_ALPHAS, *(10.0 ** (i / 2) for i in range(7, 13)))


@dataclass(frozen=True)
class _AtClient(PrivateFederation):
    """The same with one client's models at hand."""

    known: PersonalizationPath = None  # type: ignore[assignment]

    def path(self, client: Client) -> PersonalizationPath:
        """Those that were made."""
        return self.known


def federate_privately(
    clients: Sequence[Client],
    num_classes: int,
    options: PrivacyOptions,
    beta: Beta = "auto",
    *,
    report: ReportProgress | None = None,
    randomness: Bytes = os.urandom,
) -> tuple[PrivateFederation, dict[str, str]]:
    """Phases 1 and 2; beside the sum, the digest of what each client sent, by name.

    A client without training rows adds its share of the noise as all others do: whether it has any is not told.
    """
    if not any(len(client.train[1]) for client in clients):
        raise InputError("no client has training rows, so there is nothing to sum; give at least one some")
    if isinstance(beta, str) and beta != "auto":
        raise InputError(f"beta is {beta!r}; with epsilon, give 'auto' (from the size of the noise) or a number")
    options.public.require_width(np.asarray(clients[0].train[0]).shape[1])
    mechanism, tell = options.mechanism(clients), report or silent
    sent: dict[str, str] = {}

    def upload(client: Client) -> GridStatistics:
        return part_of(client, mechanism, options.public, num_classes) + mechanism.noise(num_classes, randomness)

    def uploads() -> Iterator[GridStatistics]:
        for k, (client, own) in enumerate(zip(clients, in_order(upload, clients), strict=True), start=1):
            sent[client.name] = own.digest()
            yield own
            tell("1 local training", k, len(clients))

    return PrivateFederation.released(add_up(uploads()), mechanism, options.public, beta), sent


def personalize_privately(
    federation: PrivateFederation,
    client: Client,
    alpha: Alpha = "loo",
    sent: str = "",
    *,
    only_local_classes: bool = False,
) -> Personalization:
    """Phase 3 at one client: α by leave-one-out on its own rows, of models that others' noisy sum is part of.

    Nothing of it is told to anybody. `sent` is the digest of what the client sent.
    """
    path = federation.path(client)
    at = _AtClient(**{name: getattr(federation, name) for name in federation.__dataclass_fields__}, known=path)
    tried = PRIVATE_ALPHAS if alpha == "loo" else (float(alpha),)
    found = choose_alpha(at, client, tried, only_local_classes)
    labels = torch.as_tensor(np.asarray(client.train[1]))
    local = torch.bincount(labels, minlength=federation.grid.num_classes) > 0
    judged = calibration_rows(len(labels)) if client.groups is None else torch.arange(len(labels))
    return Personalization(
        found.alpha,
        federation.on_raw(path.weights(found.alpha)),
        sent,
        local,
        found.curve if alpha == "loo" else None,
        found.estimate,
        log_losses(masked(found.scores, local if only_local_classes else None)[judged], labels[judged]).tolist(),
        log_losses(found.common[judged], labels[judged]).tolist(),
    )


def simulate_privately(
    clients: Sequence[Client],
    num_classes: int,
    options: PrivacyOptions,
    *,
    alpha: Alpha = "loo",
    beta: Beta = "auto",
    methods: Sequence[str] = (),
    only_local_classes: bool = False,
    report: ReportProgress | None = None,
    randomness: Bytes = os.urandom,
) -> tuple[Outcome, dict[str, str]]:
    """A whole round in one process, as `simulate`; beside it, the digest of what each client sent.

    Nothing is summed over clients but the noisy statistics: every client has a temperature of its own.
    """
    watch, tell = Stopwatch(), report or silent
    training = [client for client in clients if len(client.train[1])]
    with watch("local training"):
        federation, sent = federate_privately(clients, num_classes, options, beta, report=report, randomness=randomness)
    with watch("aggregation"):
        _ = federation.common
        tell("2 aggregation", len(clients), len(clients))
    personal: dict[str, Personalization] = {}
    if "fedhip" in methods:
        with watch("personalization"):
            found = in_order(
                lambda client: personalize_privately(
                    federation, client, alpha, sent[client.name], only_local_classes=only_local_classes
                ),
                training,
            )
            for k, (client, own) in enumerate(zip(training, found, strict=True), start=1):
                personal[client.name] = own
                tell("3 personalization", k, len(training))
    local: dict[str, LocalModel] = {}
    if "local" in methods:
        with watch("models of one client alone"):
            fits = in_order(
                lambda client: local_model(client, num_classes, only_local_classes=only_local_classes), training
            )
            for k, (client, fit) in enumerate(zip(training, fits, strict=True), start=1):
                local[client.name] = fit
                tell("trained alone", k, len(training))
    with watch("tests"):
        results = []
        for client in clients:
            mine = personal.get(client.name)
            alone = local.get(client.name)
            models = {
                MAJORITY: majority_model(client, num_classes),
                "local": alone,
                "global": federation.common,
                "fedhip": federation.common if mine is None else mine.model,
            }
            temperatures = {
                "local": None if alone is None else common_temperature([alone.losses]),
                "global": None if mine is None else common_temperature([mine.global_log_losses]),
                "fedhip": None if mine is None else common_temperature([mine.log_losses]),
            }
            results.append(
                evaluate(
                    client,
                    {method: models[method] for method in methods},
                    mine,
                    num_classes,
                    only_local_classes,
                    temperatures=temperatures,
                )
            )
    return Outcome(federation, tuple(methods), results, watch.seconds), sent
