"""The ridge of one client's rows alone."""

from __future__ import annotations

import torch

from fedhip.core import RidgePath
from fedhip.core.affine import AffineModel
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
    return RidgePath(
        features, client.train[1], num_classes, client=client.name, standardize=standardize, intercept=intercept
    )


def local_model(
    client: Client, num_classes: int, ridge: RidgeOptions = STANDARD, device: str | torch.device = "cpu"
) -> AffineModel:
    """The ridge of the client's rows alone, its penalty chosen by leave-one-out on them."""
    path = local_path(client, num_classes, ridge.standardize, ridge.intercept, device)
    return path.model(path.select())
