"""One client alone: every ridge penalty from one eigendecomposition, with exact leave-one-out.

With fewer rows than features in directions of the rows, F Fᵀ = E diag(s) Eᵀ, and else in those of the features,
FᵀF = Q diag(s) Qᵀ, X = F Q:

    y_i − fit_i(β) = [E diag(β/(s + β)) Eᵀ Y]_i              = [Y − X diag(1/(s + β)) XᵀY]_i
    1 − h_i(β)     = Σ_j E_ij² β/(s_j + β)                   = 1 − Σ_j X_ij² /(s_j + β)
    y_i − loo_i(β) = (y_i − fit_i)/(1 − h_i)

An intercept is a direction of the rows that no penalty is on: features and targets are centred, and 1/N is each row's
weight in the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.choice.selection import margins_of, select
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.solvers import rank_tolerance, require_beta
from fedhip.core.standardization import Standardization, copied_columns
from fedhip.errors import InputError


class RidgePath:
    """All ridge models (FᵀF + βI)⁻¹FᵀY of one set of rows, and how each does on rows it has not seen.

    Parameters
    ----------
    features : (N, m)
    labels : (N,)
    num_classes : int
    client : str, optional
        Named in error messages.
    standardize : bool
        Whether the ridge is on features of mean 0 and deviation 1 over these rows; mean and deviation stay as they are
        when a row is left out.
    intercept : bool
        Whether there is an intercept, which is not penalised.
    """

    def __init__(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        num_classes: int,
        *,
        client: str | None = None,
        standardize: bool = False,
        intercept: bool = False,
    ) -> None:
        F, Y = Rows.checked(features, labels, num_classes, client).matrices()
        self._Y = Y.to(F.device)
        self._units = _units(F, standardize, intercept)
        self._F = self._units.features(F)
        self._centre = self._Y.mean(dim=0) if intercept else torch.zeros_like(self._Y[0])
        #: The weight of a row in the intercept, where it is not taken out of the basis.
        self._share = 1.0 / len(F) if intercept else 0.0
        targets = self._Y - self._centre
        rows, width = self._F.shape
        if rows <= width:
            kernel = self._F @ self._F.mT
            if intercept:  # rows of ones are nobody else's direction, and the last: the intercept fits all of it
                kernel += (1.0 + 4.0 * float(kernel.diagonal().sum())) / rows
            s, E = torch.linalg.eigh(kernel)
            s, self._basis = (s[:-1], E[:, :-1]) if intercept else (s, E)
            self._X, self._rotated = None, self._basis.mT @ targets
        else:
            s, self._basis = torch.linalg.eigh(self._F.mT @ self._F)
            self._X = self._F @ self._basis
            self._rotated = self._X.mT @ targets
        self._s = s.clamp(min=0.0)

    def weights(self, beta: float) -> Tensor:
        """(FᵀF + βI)⁻¹FᵀY, (m, d) float64, of features as the ridge sees them; at β = 0 the one of least norm."""
        damped = self._rotated * self._inverse(require_beta(beta))[:, None]
        weights: Tensor = self._basis @ damped if self._X is not None else self._F.mT @ (self._basis @ damped)
        return weights

    def model(self, beta: float) -> AffineModel:
        """The same on features as they came, with the intercept."""
        return AffineModel(self.weights(beta), self._centre).on_raw(self._units)

    def loo_scores(self, beta: float) -> Tensor:
        """For each row the scores (N, d) of the model fitted without that row."""
        if not require_beta(beta) > 0.0:
            raise InputError(f"beta is {beta!r}; give numbers above 0")
        inverse = self._inverse(beta)
        if self._X is None:
            shrinkage = beta * inverse
            residuals = self._basis @ (shrinkage[:, None] * self._rotated)
            remainder = self._basis.square() @ shrinkage
        else:
            residuals = self._Y - self._centre - self._X @ (inverse[:, None] * self._rotated)
            remainder = 1.0 - self._X.square() @ inverse - self._share
        # A row that alone determines its own prediction: the others say nothing of it.
        known = remainder > rank_tolerance(max(self._F.shape))
        scores: Tensor = self._Y - residuals / torch.where(known, remainder, 1.0)[:, None]
        return scores.masked_fill_(~known[:, None], 0.0)

    def loo_accuracy(self, betas: Sequence[float]) -> Tensor:
        """For each β the share of rows that the models fitted without them classify right."""
        return (self._margins(betas) > 0.0).double().mean(dim=0)

    def select(self, betas: Sequence[float] | None = None) -> float:
        """The β of highest smoothed leave-one-out accuracy (`core.choice.selection`); of several, the largest."""
        ordered = sorted(self._grid() if betas is None else betas, reverse=True)
        return ordered[select(self._margins(ordered))]

    def _grid(self) -> tuple[float, ...]:
        squares = self._F.square().sum(dim=0)
        return penalty_grid(float(squares.sum() / (squares > 0.0).sum().clamp(min=1)))

    def _margins(self, betas: Sequence[float]) -> Tensor:
        labels = self._Y.argmax(dim=1)
        return torch.stack([margins_of(self.loo_scores(beta), labels) for beta in betas], dim=1)

    def _inverse(self, beta: float) -> Tensor:
        """1/(s + β); 0 in directions that the rows do not have."""
        damped = self._s + beta
        largest = float(self._s[-1]) if len(self._s) else 0.0  # of one row with an intercept nothing is left
        none = damped <= rank_tolerance(max(self._F.shape)) * largest
        return torch.where(none, 0.0, 1.0 / torch.where(none, 1.0, damped))


def _units(F: Tensor, standardize: bool, intercept: bool) -> Standardization:
    """How the ridge sees features: centred where there is an intercept, scaled where that is asked for."""
    mean = F.mean(dim=0) if standardize or intercept else torch.zeros_like(F[0])
    scale = torch.ones_like(mean)
    if standardize:
        centred = F - mean
        deviation = centred.square().mean(dim=0).sqrt()
        size = F.abs().amax(dim=0)
        # Twice rounding: the mean of equal values may differ from them in the last digit.
        constant = deviation <= 4 * torch.finfo(F.dtype).eps * size
        scale = torch.where(constant, torch.inf, deviation)
        scale[copied_columns(centred / scale)] = torch.inf
    return Standardization(mean, scale, intercept=False)


def penalty_grid(scale: float) -> tuple[float, ...]:
    """Two to the decade, from 1e-6 to 10 times `scale`, the mean square of the features summed over rows."""
    return tuple((scale or 1.0) * 10.0 ** (i / 2) for i in range(-12, 3))
