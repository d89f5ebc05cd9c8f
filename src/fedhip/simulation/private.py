"""A round with differential privacy: noise in the sum, a client's own rows clean.

phase 1   at each client: statistics of its clipped rows and its share of the noise, in whole numbers
phase 2   at the server: their sum. All that follows from it is free: counts, β, the global model
phase 3   at each client: from the sum less its own part, its own rows as they are beside it, α by leave-one-out

In phase 3 the sum is others' rows and noise, and α is how much more own rows weigh. At the largest α the others weigh
nothing, so that a client is never much below what it has alone: leave-one-out on its own rows would say so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core import DEFAULT_ALPHAS, PersonalizationPath, Statistics
from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice.calibration import common_temperature, log_losses
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.rows import one_hot
from fedhip.errors import InputError
from fedhip.privacy.accounting import require_delta, require_epsilon
from fedhip.privacy.mechanism import CONSTANT, DEFAULT_DELTA, UNITS, Mechanism, Unit
from fedhip.privacy.noise import Bytes
from fedhip.privacy.public import PublicMap
from fedhip.simulation.alone import MAJORITY, LocalModel, local_model, majority_model
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import RowEncoding
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import STANDARD, Alpha, Beta
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.personalization import Personalization, calibration_rows, choose_alpha
from fedhip.simulation.testing import evaluate
from fedhip.utils.parallel import in_order
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch

#: What α is chosen among: where the sum is mostly noise, up to where own rows alone count.
PRIVATE_ALPHAS: tuple[float, ...] = (*DEFAULT_ALPHAS, *(10.0 ** (i / 2) for i in range(7, 13)))
#: In which order a unit's rows are taken where it has too many: no row decides it.
_ORDER = 0


@dataclass(frozen=True)
class PrivacyOptions:
    """What was asked for: ε, δ, what is protected, how many rows of it count, and what is public of rows."""

    epsilon: float
    public: PublicMap
    delta: float = DEFAULT_DELTA
    unit: Unit = "row"
    unit_rows: int | None = None

    def mechanism(self, clients: Sequence[Client]) -> Mechanism:
        """The noise for these clients' sum."""
        require_epsilon(self.epsilon)
        # A rule that everybody can check beforehand; in a simulation all rows are here to check it by.
        require_delta(self.delta, sum(len(client.train[1]) for client in clients))
        if self.unit not in UNITS:
            raise InputError(f"unit is {self.unit!r}; give one of {', '.join(UNITS)}")
        if self.unit == "row" and self.unit_rows not in (None, 1):
            raise InputError(f"unit_rows is {self.unit_rows}, and the unit is a row; leave it out, or take another unit")
        if self.unit != "row" and self.unit_rows is None:
            raise InputError(
                f"the unit is a {self.unit}, which may have any number of rows; say how many of one count at most "
                "(--unit-rows N): noise grows with them"
            )
        if self.unit == "group":
            _require_groups(clients)
        # One of the others may look: its share is no secret to it. A client that is protected as a whole adds nothing.
        lost = 2 if self.unit == "client" else 1
        rows = 1 if self.unit_rows is None else self.unit_rows
        return Mechanism(
            float(self.epsilon), float(self.delta), self.unit, rows, self.public.width, len(clients), lost
        )


def _require_groups(clients: Sequence[Client]) -> None:
    """Refuse rows without groups, and groups of several clients, each of which would take its share of their rows."""
    owner: dict[int, str] = {}
    for client in clients:
        if client.groups is None:
            raise InputError("the unit is a group, and rows have none; name the groups (--group), or protect rows")
        for group in np.unique(client.groups).tolist():
            if owner.setdefault(group, client.name) != client.name:
                raise InputError(
                    f"the unit is a group, and clients {owner[group]!r} and {client.name!r} have rows of the same one: "
                    "neither knows what the other adds of it; give each client groups of its own"
                )


def counted_rows(client: Client, mechanism: Mechanism) -> NDArray[np.intp]:
    """The places of the training rows that go into the sum: of each unit as many as are agreed, in a fixed order."""
    rows = len(client.train[1])
    if mechanism.unit == "row":
        return np.arange(rows)
    unit = np.zeros(rows, np.int64) if mechanism.unit == "client" or client.groups is None else client.groups
    order = np.random.default_rng(_ORDER).permutation(rows)
    # The how-manieth of its unit each row is, in that order.
    sorted_ = order[np.argsort(unit[order], kind="stable")]
    first = np.flatnonzero(np.r_[True, np.diff(unit[sorted_]) != 0])
    rank = np.arange(rows) - np.repeat(first, np.diff(np.r_[first, rows]))
    return np.sort(sorted_[rank < mechanism.unit_rows])


@dataclass(frozen=True)
class PrivateFederation(Federation):
    """Phase 2 with noise: what every client receives.

    The last feature of the sum is the constant; its row of the sums by class are the counts. All that is here follows
    from the released sum and from what is public.
    """

    mechanism: Mechanism = None  # type: ignore[assignment]  # the fields before have defaults
    public: PublicMap = None  # type: ignore[assignment]

    @classmethod
    def released(
        cls, total: GridStatistics, mechanism: Mechanism, public: PublicMap, beta: Beta = "auto"
    ) -> PrivateFederation:
        """From the sum of the clients' noisy statistics; β is the noise's own size, unless it is given."""
        found = cls(total, 0.0, _encoding(mechanism), mechanism=mechanism, public=public)
        counts = found.sums[1][-1].round().clamp(min=0.0).to(torch.int64)
        grid = GridStatistics(total.gram, total.cross, counts, total.fraction_bits)
        chosen = mechanism.edge if isinstance(beta, str) else beta
        found = cls(grid, float(chosen), found.encoding, mechanism=mechanism, public=public)
        found.require_rows()
        return found

    def require_rows(self) -> None:
        """Refuse a sum that the noise buries; by the noisy count, so that this gives nothing away."""
        rows, needed = float(self.sums[0][-1, -1]), self.mechanism.edge
        if rows < needed:
            epsilon = self.mechanism.epsilon
            raise InputError(
                f"the federation is too small for epsilon = {epsilon:g}: its sum has about {max(rows, 0.0):,.0f} rows, "
                f"and the noise weighs as much as {needed:,.0f}; with that many rows it would do, or with epsilon = "
                f"{epsilon * needed / max(rows, 1.0):.2g}"
            )

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """G (w + 1, w + 1) and H (w + 1, d) of rows (z, 1), in which what is said twice is said alike.

        Σ z stands in the matrix's last column and is the sum over classes. Each has noise of its own; the two together
        have less.
        """
        step, sigma = 2.0**-self.grid.fraction_bits, self.mechanism.total_sigma
        G, H = self.grid.gram.to(torch.float64) * step, self.grid.cross.to(torch.float64) * step
        noise = torch.full((len(G),), sigma**2 / 2.0, dtype=torch.float64)
        noise[-1] = sigma**2
        noise /= CONSTANT**2
        missing = G[:, -1] / CONSTANT - H.sum(dim=1)
        H = H + (missing * sigma**2 / (H.shape[1] * sigma**2 + noise))[:, None]
        G = G.clone()
        G[:, -1] = G[-1] = H.sum(dim=1) * CONSTANT
        G[-1] /= CONSTANT
        G[:, -1] /= CONSTANT
        H[-1] /= CONSTANT
        return G, H

    @cached_property
    def total(self) -> Statistics:
        """The sum as the ridge sees it: as near to the released one as a matrix of rows can be."""
        G, H = self.sums
        counts = self.grid.counts.clone()
        if int(counts.sum()) == 0:
            counts[0] = 1
        return Statistics._of(positive(G), H, counts, intercept=True)

    @property
    def is_regression(self) -> bool:
        """Classes alone."""
        return False

    def on_raw(self, weights: Tensor) -> AffineModel:
        """A model on features as they came."""
        return self.public.on_raw(weights)

    def own_sums(self, client: Client) -> GridStatistics:
        """The client's part of the sum, without noise."""
        at = counted_rows(client, self.mechanism)
        features, labels = client.train
        d = self.grid.num_classes
        return self.mechanism.encoded(self.public, np.asarray(features)[at], np.asarray(labels)[at], d, client.name)

    def path(self, client: Client) -> PersonalizationPath:
        """All of a client's models: others' rows and noise from the sum, its own as they are, in all directions."""
        own, step = self.own_sums(client), 2.0**-self.grid.fraction_bits
        G, H = self.sums
        A, B = own.gram.to(torch.float64) * step, own.cross.to(torch.float64) * step
        for part in (A, A.mT, B):
            part[-1] /= CONSTANT
        rest, others = positive(G - A), H - B
        F = self.public.full(torch.as_tensor(np.asarray(client.train[0])))
        F = torch.cat((F, torch.ones_like(F[:, :1])), dim=1)
        labels = torch.as_tensor(np.asarray(client.train[1]))
        gram, cross = F.mT @ F, F.mT @ one_hot(labels, self.grid.num_classes)
        # What others' rows say is of the first w directions and the constant.
        at = torch.tensor([*range(self.public.width), len(gram) - 1])
        gram[at[:, None], at] += rest
        cross[at] += others
        own_counts = torch.bincount(labels, minlength=self.grid.num_classes)
        counts = torch.maximum(self.grid.counts, own_counts)
        total = Statistics._of((gram + gram.mT) / 2.0, cross, counts, intercept=True)
        return PersonalizationPath(total, F, labels, self.beta, client=client.name, groups=client.groups)

    def traffic(self, method: str) -> tuple[int, int, int]:
        """One round; nothing travels but the sum."""
        if method == "local":
            return 0, 0, 0
        w, d = self.grid.num_features, self.grid.num_classes
        size = 8 * (w * (w + 1) // 2 + w * d)
        return 1, size, size


@dataclass(frozen=True)
class _AtClient(PrivateFederation):
    """The same with one client's models at hand."""

    known: PersonalizationPath = None  # type: ignore[assignment]

    def path(self, client: Client) -> PersonalizationPath:
        """Those that were made."""
        return self.known


def positive(matrix: Tensor) -> Tensor:
    """The nearest matrix, in Frobenius norm, that rows can have: without its negative eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2.0)
    found = (vectors * values.clamp(min=0.0)) @ vectors.mT
    return cast(Tensor, (found + found.mT) / 2.0)


def _encoding(mechanism: Mechanism) -> RowEncoding:
    return RowEncoding(Columns.plain(mechanism.width + 1), mechanism.fraction_bits)


def federate_privately(
    clients: Sequence[Client],
    num_classes: int,
    options: PrivacyOptions,
    beta: Beta = "auto",
    *,
    report: ReportProgress | None = None,
    randomness: Bytes = os.urandom,
) -> tuple[PrivateFederation, dict[str, str]]:
    """Phases 1 and 2; beside the sum, the digest of what each client sent, by name."""
    if not clients:
        raise InputError("no client has training rows, so there is nothing to sum; give at least one some")
    if isinstance(beta, str) and beta != "auto":
        raise InputError(f"beta is {beta!r}; with epsilon, give 'auto' (from the size of the noise) or a number")
    options.public.require_width(np.asarray(clients[0].train[0]).shape[1])
    mechanism, tell = options.mechanism(clients), report or silent
    sent: dict[str, str] = {}
    total: GridStatistics | None = None

    def upload(client: Client) -> GridStatistics:
        at = counted_rows(client, mechanism)
        features, labels = (np.asarray(part)[at] for part in client.train)
        own = mechanism.encoded(options.public, features, labels, num_classes, client.name)
        return own + mechanism.noise(num_classes, randomness)

    for k, (client, own) in enumerate(zip(clients, in_order(upload, clients), strict=True), start=1):
        sent[client.name] = own.digest()
        total = own if total is None else total + own
        tell("1 local training", k, len(clients))
    assert total is not None
    return PrivateFederation.released(total, mechanism, options.public, beta), sent


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
    chosen, curve, estimate, scores, common, _ = choose_alpha(at, client, tried, only_local_classes)
    labels = torch.as_tensor(np.asarray(client.train[1]))
    local = torch.bincount(labels, minlength=federation.grid.num_classes) > 0
    judged = calibration_rows(len(labels)) if client.groups is None else torch.arange(len(labels))
    return Personalization(
        chosen,
        federation.on_raw(path.weights(chosen)),
        sent,
        local,
        curve if alpha == "loo" else None,
        estimate,
        log_losses(masked(scores, local if only_local_classes else None)[judged], labels[judged]).tolist(),
        log_losses(common[judged], labels[judged]).tolist(),
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
        federation, sent = federate_privately(
            training, num_classes, options, beta, report=report, randomness=randomness
        )
    with watch("aggregation"):
        _ = federation.common
        tell("2 aggregation", len(training), len(training))
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
            fits = in_order(lambda client: local_model(client, num_classes, STANDARD, "cpu", only_local_classes), training)
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
