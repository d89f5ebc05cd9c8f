"""What a client can do alone: the ridge of its own rows, and its most frequent class, or mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedhip.core import RidgePath
from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice.calibration import log_losses
from fedhip.core.rows import one_hot
from fedhip.core.targets import TargetRows
from fedhip.simulation.client import Client
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.simulation.personalization import calibration_rows

#: Every client's own most frequent class, or the mean of its real targets, as a model to compare with.
MAJORITY = "majority"


def local_path(
    client: Client,
    num_classes: int,
    standardize: bool = True,
    intercept: bool = True,
    device: str | torch.device = "cpu",
) -> RidgePath:
    """All ridges of the client's rows alone."""
    features = torch.tensor(client.train[0], device=device)
    if client.train[1].ndim == 2 or client.weights is not None:
        F, labels = features.to(torch.float64), None
        Y = torch.tensor(client.train[1], device=device)
        if Y.ndim == 1:
            Y, labels = one_hot(Y, num_classes), Y
        root = None if client.weights is None else torch.tensor(client.weights, device=device).sqrt()
        rows = TargetRows(F, Y.to(torch.float64), labels, root, client.group_tensor)
        return RidgePath.of(rows, standardize=standardize, intercept=intercept)
    return RidgePath(
        features,
        client.train[1],
        num_classes,
        client=client.name,
        standardize=standardize,
        intercept=intercept,
        groups=client.groups,
    )


@dataclass(frozen=True)
class LocalModel(AffineModel):
    """The ridge of a client's rows alone, and its log-losses over temperatures of rows left out; [] of real targets."""

    losses: list[float]


def local_model(
    client: Client,
    num_classes: int,
    ridge: RidgeOptions = STANDARD,
    device: str | torch.device = "cpu",
    only_local_classes: bool = False,
) -> LocalModel:
    """The ridge of the client's rows alone, its penalty chosen by leave-one-out on them."""
    path = local_path(client, num_classes, ridge.standardize, ridge.intercept, device)
    chosen = path.select()
    model, judged = path.model(chosen), calibration_rows(len(client.train[1]))
    if client.train[1].ndim == 2:
        return LocalModel(model.weights, model.bias, [])
    labels = torch.as_tensor(client.train[1])
    mask = torch.bincount(labels, minlength=num_classes) > 0 if only_local_classes else None
    losses = log_losses(masked(path.loo_scores(chosen)[judged], mask), labels[judged]).tolist()
    return LocalModel(model.weights, model.bias, losses)


def majority_model(client: Client, num_classes: int) -> AffineModel | None:
    """A model that answers with the client's most frequent class, the first of several; None without rows.

    Of real targets it answers with their mean, and so with the more frequent answer to each of several labels. Rows
    count by their weights.
    """
    features, labels = client.train
    if not len(labels):
        return None
    if labels.ndim == 2:
        bias = torch.as_tensor(np.average(np.asarray(labels, np.float64), axis=0, weights=client.weights))
    else:
        bias = torch.zeros(num_classes, dtype=torch.float64)
        bias[int(np.bincount(labels, client.weights, minlength=num_classes).argmax())] = 1.0
    return AffineModel(torch.zeros((features.shape[1], num_classes), dtype=torch.float64), bias)
