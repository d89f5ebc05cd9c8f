"""The agreed head: fitted to the sum by server and sites alike; and as it travels, where the sum does not give it.

What travels is the logistic head: the federation's model, and the settings that it was fitted with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fedhip.federation.errors import MessageError
from fedhip.federation.sums.vector import require_length

if TYPE_CHECKING:
    from fedhip.core.affine import AffineModel
    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.core.logistic.fit import LogisticFit, LogisticHead
    from fedhip.core.standardization import Standardization
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.transport.wire import Arrays, Body, Letter
    from fedhip.heads import Auto, Head
    from fedhip.heads.auto import ChoiceSums
    from fedhip.heads.model import Model
    from fedhip.heads.task import Task
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding
    from fedhip.simulation.federation import Federation
    from fedhip.simulation.options import RidgeOptions
    from fedhip.simulation.personalization import Looked

#: ρ, T₀ and the mean curvature κ.
_SETTINGS = ("penalty", "temperature", "curvature")


def federation_of_sites(
    agreement: Agreement,
    grid: GridStatistics,
    beta: float,
    encoding: RowEncoding,
    fold_betas: tuple[float, ...] = (),
) -> Federation:
    """The sum as the agreed ridge sees it."""
    from fedhip.simulation.federation import Federation

    return Federation(grid, beta, encoding, agreement.standardize, agreement.intercept, fold_betas)


def ridge_of(agreement: Agreement) -> RidgeOptions:
    """What ridges are of."""
    from fedhip.simulation.options import RidgeOptions

    return RidgeOptions(agreement.standardize, agreement.intercept)


def fit_head(
    federation: Federation,
    agreement: Agreement,
    clients: Sequence[Client] = (),
    held: Model | None = None,
    known: Mapping[str, float] = MappingProxyType({}),
) -> Head:
    """The agreed head, of the sum or as it came; for clients whose rows are here.

    `known` are options that follow from everybody's rows.
    """
    from fedhip.heads import head_named

    task = task_of(agreement, clients)
    return head_named(agreement.head).fit(federation, replace(task, options={**task.options, **known}), held)


def fit_choice(
    federation: Federation,
    agreement: Agreement,
    clients: Sequence[Client],
    sums: ChoiceSums,
    looked: Mapping[str, Looked] = MappingProxyType({}),
) -> Auto:
    """The choice among the agreed candidates, by what all sites have summed up so far; for clients whose rows are here.

    `looked` is what α was chosen by, where that is known.
    """
    from fedhip.heads import Auto

    task = replace(task_of(agreement, clients), prior=agreement.prior, looked=looked)
    return Auto(federation, task, sums=sums, candidates=agreement.members_of_candidates)


def task_of(agreement: Agreement, clients: Sequence[Client]) -> Task:
    """What a head is given, of clients whose rows are here."""
    from fedhip.heads import head_named
    from fedhip.heads.options import options_of
    from fedhip.heads.task import Task

    return Task(
        clients,
        len(agreement.classes),
        options_of(head_named(agreement.head), agreement.alpha, {}),
        ridge=ridge_of(agreement),
        only_local_classes=agreement.only_local_classes,
        seed=agreement.seed,
        release=True,
        kept=agreement.kept,
    )


def known_temperature(fit: LogisticFit) -> float:
    """T₀, once it is chosen."""
    from fedhip.errors import InputError

    if fit.temperature is None:
        raise InputError("LDA's temperature is not known yet; its losses are summed first")
    return fit.temperature


def logistic_model(head: LogisticHead, agreement: Agreement, total: str, units: Standardization) -> Model:
    """The federation's model; `total` is the digest of the statistics' sum, `units` are those of its columns."""
    settings = {"penalty": head.rho, "temperature": known_temperature(head.fit), "curvature": head.curvature}
    return _model(head.model.on_raw(units), settings, agreement, total)


def head_to_message(model: Model) -> tuple[Body, Arrays]:
    """Settings and weights; the intercept is the last row."""
    affine = model.affine
    rows = np.concatenate((affine.weights.numpy(), affine.bias.numpy()[None]))
    return dict(model.settings), {"weights": rows.reshape(-1).view(np.uint64)}


def head_from_message(letter: Letter, agreement: Agreement, total: str) -> Model:
    """What `head_to_message` wrote, strictly."""
    import torch

    from fedhip.core.affine import AffineModel

    layout = agreement.layout
    vector = require_length(letter.array("weights"), (layout.m + 1) * layout.d)
    rows = torch.from_numpy(vector.view(np.float64).reshape(layout.m + 1, layout.d).copy())
    settings = {name: letter.real(name) for name in _SETTINGS}
    if not bool(torch.isfinite(rows).all()) or min(settings.values()) <= 0.0:
        raise MessageError("the head's weights are not finite numbers, or its settings not above 0")
    return _model(AffineModel(rows[:-1], rows[-1]), settings, agreement, total)


def head_digest(letter: Letter, agreement: Agreement) -> str:
    """Which head a message is about: by β, by LDA's temperature, or by settings and weights."""
    names: tuple[str, ...]
    names = {"ridge": ("beta",), "lda": ("temperature",), "logistic": _SETTINGS, "auto": ("beta",)}[agreement.head]
    if agreement.head == "auto" and agreement.chooses_beta:
        from fedhip.core.choice.selection import FOLDS

        names = (*names, *(f"beta-{fold}" for fold in range(FOLDS)))
    sha = hashlib.sha256(repr([letter.real(name) for name in names]).encode())
    if agreement.head == "logistic":
        sha.update(np.ascontiguousarray(letter.array("weights")).data)
    return sha.hexdigest()


def _model(affine: AffineModel, settings: dict[str, float], agreement: Agreement, total: str) -> Model:
    import torch

    from fedhip.heads.model import Model

    return Model(
        client=None,
        weights=affine.weights,
        class_names=agreement.classes,
        alpha=None,
        beta=None,
        temperature=None,
        local_classes=torch.ones(len(agreement.classes), dtype=torch.bool),
        only_local_classes=False,
        backbone=agreement.backbone,
        total=total,
        head=agreement.head,
        intercept=affine.bias,
        settings=settings,
    )
