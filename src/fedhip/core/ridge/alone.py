"""One client alone: every ridge penalty from one eigendecomposition, with exact leave-one-out.

With fewer rows than features in directions of the rows, F Fᵀ = E diag(s) Eᵀ, and else in those of the features,
FᵀF = Q diag(s) Qᵀ, X = F Q:

    y_i − fit_i(β) = [E diag(β/(s + β)) Eᵀ Y]_i              = [Y − X diag(1/(s + β)) XᵀY]_i
    1 − h_i(β)     = Σ_j E_ij² β/(s_j + β)                   = 1 − Σ_j X_ij² /(s_j + β)
    y_i − loo_i(β) = (y_i − fit_i)/(1 − h_i)

An intercept is a direction of the rows that no penalty is on: features and targets are centred, and 1/N is each row's
weight in the mean. Rows of weight w are centred by their weighted mean and then multiplied by √w; the direction is √w.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.choice.selection import margins_of, pick, soft_hits
from fedhip.core.groups import checked_groups, left_out_residuals
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.solvers import rank_tolerance, require_beta
from fedhip.core.standardization import Standardization, copied_columns
from fedhip.core.targets import TargetRows
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
    groups : (N,), optional
        Rows of one group are left out together.
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
        groups: ArrayLike | None = None,
    ) -> None:
        F, Y = Rows.checked(features, labels, num_classes, client).matrices()
        self._start(
            TargetRows(F, Y.to(F.device), Y.argmax(dim=1), None, checked_groups(groups, len(F))), standardize, intercept
        )

    @classmethod
    def of(cls, rows: TargetRows, *, standardize: bool = False, intercept: bool = False) -> RidgePath:
        """Of rows with real targets, or with weights; F and Y are as they came, and `scale` (N,) is √w."""
        self = object.__new__(cls)
        self._start(rows, standardize, intercept)
        return self

    def _start(self, given: TargetRows, standardize: bool, intercept: bool) -> None:
        F, self._groups, self._labels = given.F, given.groups, given.labels
        self._Y, w = given.Y, None if given.scale is None else given.scale.square()
        self._units = _units(F, standardize, intercept, w)
        self._F = self._units.features(F)
        self._centre = _mean(self._Y, w) if intercept else torch.zeros_like(self._Y[0])
        #: The weight of a row in the intercept, where it is not taken out of the basis.
        self._share: float | Tensor = 1.0 / len(F) if intercept else 0.0
        targets = self._Y - self._centre
        self._root = given.scale
        if self._root is not None and w is not None:
            self._F, targets = self._F * self._root[:, None], targets * self._root[:, None]
            self._share = w / w.sum() if intercept else 0.0
        rows, width = self._F.shape
        if rows <= width:
            kernel = self._F @ self._F.mT
            if intercept:  # rows of ones are nobody else's direction, and the last: the intercept fits all of it
                size = 1.0 + 4.0 * float(kernel.diagonal().sum())
                kernel += size / rows if self._root is None else size * self._direction[:, None] * self._direction
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
            residuals = self._Y - self._centre
            residuals = residuals if self._root is None else residuals * self._root[:, None]
            residuals = residuals - self._X @ (inverse[:, None] * self._rotated)
            remainder = 1.0 - self._X.square() @ inverse - self._share
        if self._groups is not None:
            return self._without_groups(residuals, inverse, beta, self._groups)
        # A row that alone determines its own prediction: the others say nothing of it.
        known = remainder > rank_tolerance(max(self._F.shape))
        return self._left_out(residuals / torch.where(known, remainder, 1.0)[:, None], known)

    def _left_out(self, residuals: Tensor, known: Tensor) -> Tensor:
        """Scores (N, d) from residuals of rows times √w."""
        scores = self._Y - (residuals if self._root is None else residuals / self._root[:, None])
        # Of real targets it is the mean that the others would say.
        return torch.where(known[:, None], scores, 0.0 if self._labels is not None else self._centre)

    @property
    def _direction(self) -> Tensor:
        """The intercept's direction of the rows (N,), of length 1."""
        root = torch.ones_like(self._F[:, 0]) if self._root is None else self._root
        direction: Tensor = root / root.norm()
        return direction

    def _without_groups(self, residuals: Tensor, inverse: Tensor, beta: float, groups: Tensor) -> Tensor:
        """Scores (N, d) by models without the row's group."""
        X = self._basis if self._X is None else self._X

        def remainder(S: Tensor) -> tuple[Tensor, Tensor]:
            if self._X is None:
                M = (X[S] * (beta * inverse)) @ X[S].mT
            else:
                M = torch.eye(len(S)).to(X) - (X[S] * inverse) @ X[S].mT
                if isinstance(self._share, Tensor):
                    M = M - self._direction[S][:, None] * self._direction[S]
                else:
                    M = M - self._share
            return M[None], torch.ones((1, len(S))).to(X)

        found, known = left_out_residuals(groups, residuals[:, None], remainder, rank_tolerance(max(self._F.shape)))
        return self._left_out(found[:, 0], known[:, 0])

    def loo_accuracy(self, betas: Sequence[float]) -> Tensor:
        """For each β the share of rows that the models fitted without them classify right."""
        return (self._margins(betas) > 0.0).double().mean(dim=0)

    def select(self, betas: Sequence[float] | None = None) -> float:
        """The β of highest smoothed leave-one-out accuracy (`core.choice.selection`); of several, the largest."""
        ordered = self.penalties() if betas is None else sorted(betas, reverse=True)
        return ordered[pick(self.credit(ordered))]

    def penalties(self) -> list[float]:
        """What β is chosen among, the largest first."""
        squares = self._F.square().sum(dim=0)
        return sorted(penalty_grid(float(squares.sum() / (squares > 0.0).sum().clamp(min=1))), reverse=True)

    def _margins(self, betas: Sequence[float]) -> Tensor:
        labels = self._Y.argmax(dim=1)
        return torch.stack([margins_of(self.loo_scores(beta), labels) for beta in betas], dim=1)

    def credit(self, betas: Sequence[float]) -> Tensor:
        """What each row counts for each β (N, B): real targets less their squared errors, in their deviations."""
        if self._labels is not None:
            counted = soft_hits(self._margins(betas))
        else:
            w = None if self._root is None else self._root.square()
            size = _mean((self._Y - _mean(self._Y, w)).square(), w)
            size = torch.where(size > 0.0, size, 1.0)
            errors = [((self.loo_scores(beta) - self._Y).square() / size).sum(dim=1) for beta in betas]
            counted = -torch.stack(errors, dim=1)
        return counted if self._root is None else counted * self._root.square()[:, None]

    def _inverse(self, beta: float) -> Tensor:
        """1/(s + β); 0 in directions that the rows do not have."""
        damped = self._s + beta
        largest = float(self._s[-1]) if len(self._s) else 0.0  # of one row with an intercept nothing is left
        none = damped <= rank_tolerance(max(self._F.shape)) * largest
        return torch.where(none, 0.0, 1.0 / torch.where(none, 1.0, damped))


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Over rows (N, …), weighted by (N,)."""
    if weights is None:
        return values.mean(dim=0)
    return (values * weights[:, None]).sum(dim=0) / weights.sum()


def _units(F: Tensor, standardize: bool, intercept: bool, weights: Tensor | None = None) -> Standardization:
    """How the ridge sees features: centred where there is an intercept, scaled where that is asked for."""
    mean = _mean(F, weights) if standardize or intercept else torch.zeros_like(F[0])
    scale = torch.ones_like(mean)
    if standardize:
        centred = F - mean
        deviation = _mean(centred.square(), weights).sqrt()
        size = F.abs().amax(dim=0)
        # Twice rounding: the mean of equal values may differ from them in the last digit.
        constant = deviation <= 4 * torch.finfo(F.dtype).eps * size
        scale = torch.where(constant, torch.inf, deviation)
        Z = centred / scale
        if weights is not None:
            Z = Z * (weights * (len(F) / weights.sum())).sqrt()[:, None]
        scale[copied_columns(Z)] = torch.inf
    return Standardization(mean, scale, intercept=False)


def penalty_grid(scale: float) -> tuple[float, ...]:
    """Two to the decade, from 1e-6 to 10 times `scale`, the mean square of the features summed over rows."""
    return tuple((scale or 1.0) * 10.0 ** (i / 2) for i in range(-12, 3))
