"""The models of a run, as they are written: functions of the sum and of a client's statistics."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.choice.prior import NO_PRIOR, Prior
from fedhip.core.exact.outweighing import unlike_training
from fedhip.errors import ColumnWarning
from fedhip.features.lifts.lift import Lift
from fedhip.features.reference import BackboneReference
from fedhip.heads.model import RIDGE, Model
from fedhip.simulation.federation import Federation

if TYPE_CHECKING:
    from fedhip.heads import Head
    from fedhip.runs.folder import Run


def personal_model(
    federation: Federation,
    client: str,
    model: AffineModel,
    alpha: float,
    own: str,
    local_classes: Tensor,
    *,
    class_names: tuple[str, ...],
    only_local_classes: bool,
    backbone: BackboneReference | None,
    head: Head | None = None,
    lift: Lift | None = None,
    task: str = "classification",
    table: Mapping[str, Any] | None = None,
    settings: Mapping[str, float] | None = None,
) -> Model:
    """A client's model; `own` is the digest of its statistics. A ridge, unless a head is given.

    `settings` are what it was solved with, where that is not the same for all clients.
    """
    return Model(
        client=client,
        class_names=class_names,
        alpha=alpha,
        temperature=None,
        local_classes=local_classes.cpu(),
        only_local_classes=only_local_classes,
        backbone=backbone,
        total=federation.digest,
        own=own,
        lift=lift,
        task=task,
        table=table,
        **_solved(federation, model, head, settings),
    )


def global_model(
    federation: Federation,
    class_names: tuple[str, ...],
    backbone: BackboneReference | None,
    head: Head | None = None,
    lift: Lift | None = None,
    task: str = "classification",
    table: Mapping[str, Any] | None = None,
) -> Model:
    """The model of a client that nobody knows. A ridge, unless a head is given."""
    return Model(
        client=None,
        class_names=class_names,
        alpha=None,
        temperature=None,
        local_classes=torch.ones(len(class_names), dtype=torch.bool),
        only_local_classes=False,
        backbone=backbone,
        total=federation.digest,
        lift=lift,
        task=task,
        table=table,
        **_solved(federation, federation.common if head is None else head.common, head),
    )


def _solved(
    federation: Federation, model: AffineModel, head: Head | None, settings: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The numbers of a model, and what they were solved with."""
    kind = {} if head is None else {"head": head.name, "settings": dict(settings or head.settings)}
    is_ridge = head is None or head.name == RIDGE
    # The paper's ridge has no intercept, and its file says nothing of one.
    intercept = None if is_ridge and not model.bias.any() else model.bias.cpu()
    return {
        "weights": model.weights.cpu(),
        "intercept": intercept,
        "beta": federation.beta if is_ridge else None,
        **kind,
    }


def answering(
    model: Model,
    temperature: float | None,
    prior: Prior = NO_PRIOR,
    own: Tensor | None = None,
    everybody: Tensor | None = None,
) -> Model:
    """The model as it answers: with a temperature, or with its client's prior, from class counts, and that one's."""
    if prior.is_none or own is None or everybody is None:
        return replace(model, temperature=temperature)
    return replace(model, temperature=prior.temperature, bias=prior.temperature * prior.shift(own, everybody))


def models_digest(digests: Mapping[str | None, str]) -> str:
    """One hash for all models; the global one goes by no name."""
    lines = sorted(f"{'' if name is None else 'client ' + name}\0{digest}\n" for name, digest in digests.items())
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def scores_of(run: Run, features: NDArray[Any], client: str | None) -> Tensor:
    """Scores (n, d) of rows by a client's model or the global one; a value far from all training rows is warned of."""
    model, rows = run.model(client), np.asarray(features, dtype=np.float64)
    scores = model.scores(rows)
    # With differential privacy the columns of the sum are not those of rows, and say nothing of where rows lie.
    if model.lift is None and run.details.get("columns") is not None and run.results.get("privacy") is None:
        columns, used = run.encoding.columns, model.weights.any(dim=1).numpy()
        unit = np.ldexp(1.0, columns.exponent.numpy())
        if (words := unlike_training(rows, columns.offset.numpy(), unit, used)) is not None:
            warnings.warn(words, ColumnWarning, stacklevel=4)
    return scores
