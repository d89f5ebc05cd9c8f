"""The logistic head as it travels to the sites: the federation's model, and what it was fitted with."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.errors import MessageError
from fedhip.federation.sums.later import known_temperature
from fedhip.federation.sums.vector import require_length
from fedhip.federation.transport.wire import Arrays, Body, Letter

if TYPE_CHECKING:
    from fedhip.core.affine import AffineModel
    from fedhip.core.logistic.fit import LogisticHead
    from fedhip.core.standardization import Standardization
    from fedhip.heads.model import Model

#: ρ, T₀ and the mean curvature κ.
_SETTINGS = ("penalty", "temperature", "curvature")


def held_model(head: LogisticHead, agreement: Agreement, total: str, units: Standardization) -> Model:
    """The federation's model; `total` is the digest of the statistics' sum, `units` are those of its columns."""
    settings = {"penalty": head.rho, "temperature": known_temperature(head.fit), "curvature": head.curvature}
    return _model(head.model.on_raw(units), settings, agreement, total)


def head_letter(model: Model) -> tuple[Body, Arrays]:
    """Settings and weights; the intercept is the last row."""
    affine = model.affine
    rows = np.concatenate((affine.weights.numpy(), affine.bias.numpy()[None]))
    return dict(model.settings), {"weights": rows.reshape(-1).view(np.uint64)}


def head_in(letter: Letter, agreement: Agreement, total: str) -> Model:
    """What `head_letter` wrote, strictly."""
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
    """Which head a letter tells of: by β, by LDA's temperature, or by settings and weights."""
    names = {"ridge": ("beta",), "lda": ("temperature",), "logistic": _SETTINGS}[agreement.head]
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
