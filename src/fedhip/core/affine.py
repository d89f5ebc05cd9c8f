"""scores = F W + b: what every linear head comes down to, on the features as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core.rows import ArrayLike
from fedhip.core.standardization import Standardization
from fedhip.errors import InputError


@dataclass(frozen=True)
class AffineModel:
    """weights (m, d) and bias (d,). A class that is never to be chosen has the bias −∞."""

    weights: Tensor
    bias: Tensor

    @classmethod
    def of_standardized(cls, weights: Tensor, standardization: Standardization) -> AffineModel:
        """From weights of standardised features with an intercept as last row (m + 1, d)."""
        return cls(weights[:-1], weights[-1]).on_raw(standardization)

    def on_raw(self, standardization: Standardization) -> AffineModel:
        """The same scores from features that are not standardised: ((F − μ)/s) W + b = F (W/s) + (b − (μ/s) W)."""
        mean, scale = standardization.mean.to(self.weights), standardization.scale.to(self.weights)
        weights = self.weights / scale[:, None]
        return AffineModel(weights, self.bias - mean @ weights)

    def on_standardized(self, standardization: Standardization) -> Tensor:
        """The way back from `of_standardized`: weights of standardised features, the intercept last (m + 1, d)."""
        mean, scale = standardization.mean.to(self.weights), standardization.scale.to(self.weights)
        weights = torch.where(standardization.used.to(self.weights.device)[:, None], self.weights * scale[:, None], 0.0)
        return torch.cat((weights, (self.bias + mean @ self.weights)[None]))

    def scores(self, features: ArrayLike) -> Tensor:
        """(n, d) for features (n, m)."""
        F = torch.as_tensor(features).to(self.weights)
        if F.ndim != 2 or F.shape[1] != len(self.weights):
            raise InputError(
                f"features have shape {tuple(F.shape)}; this model takes rows that are {len(self.weights)} wide"
            )
        return F @ self.weights + self.bias


def masked(scores: Tensor, classes: Tensor | None) -> Tensor:
    """Scores with −∞ for every class that is not among `classes` (d,) bool; None keeps all."""
    return scores if classes is None else scores.masked_fill(~classes.to(scores.device), -torch.inf)
