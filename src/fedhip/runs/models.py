"""The models of a run, as they are written: functions of the sum and of a client's statistics."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from fedhip.core.lifts import Lift
from fedhip.features.reference import BackboneReference
from fedhip.models import Model
from fedhip.simulation import Federation


def personal_model(
    federation: Federation,
    client: str,
    weights: Tensor,
    alpha: float,
    own: str,
    local_classes: Tensor,
    *,
    class_names: tuple[str, ...],
    only_local_classes: bool,
    backbone: BackboneReference | None,
    lift: Lift | None = None,
) -> Model:
    """A client's model; `own` is the digest of its statistics."""
    return Model(
        client=client,
        weights=weights.cpu(),
        class_names=class_names,
        alpha=alpha,
        beta=federation.beta,
        temperature=None,
        local_classes=local_classes.cpu(),
        only_local_classes=only_local_classes,
        backbone=backbone,
        total=federation.digest,
        own=own,
        lift=lift,
    )


def global_model(
    federation: Federation,
    class_names: tuple[str, ...],
    backbone: BackboneReference | None,
    lift: Lift | None = None,
) -> Model:
    """The model of a client that nobody knows."""
    return Model(
        client=None,
        weights=federation.G.cpu(),
        class_names=class_names,
        alpha=None,
        beta=federation.beta,
        temperature=None,
        local_classes=torch.ones(len(class_names), dtype=torch.bool),
        only_local_classes=False,
        backbone=backbone,
        total=federation.digest,
        lift=lift,
    )


def models_digest(digests: Mapping[str | None, str]) -> str:
    """One hash for all models; the global one goes by no name."""
    lines = sorted(f"{'' if name is None else 'client ' + name}\0{digest}\n" for name, digest in digests.items())
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
