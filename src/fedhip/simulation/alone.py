"""The ridge of one client's rows alone."""

from __future__ import annotations

import torch

from fedhip.core import RidgePath
from fedhip.core.affine import AffineModel
from fedhip.core.rows import one_hot
from fedhip.core.targets import TargetRows
from fedhip.simulation.client import Client
from fedhip.simulation.options import STANDARD, RidgeOptions


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


def local_model(
    client: Client, num_classes: int, ridge: RidgeOptions = STANDARD, device: str | torch.device = "cpu"
) -> AffineModel:
    """The ridge of the client's rows alone, its penalty chosen by leave-one-out on them."""
    path = local_path(client, num_classes, ridge.standardize, ridge.intercept, device)
    return path.model(path.select())
