"""One client alone: every ridge penalty from one eigendecomposition, with exact leave-one-out.

F Fᵀ = E S Eᵀ (or FᵀF, whichever is smaller)
y_i − fit_i(β) = [E diag(β/(s + β)) Eᵀ Y]_i + what of Y lies outside of E
1 − h_i(β) = Σ_j E_ij² β/(s_j + β) + the share of row i outside of E
y_i − loo_i(β) = (y_i − fit_i)/(1 − h_i)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhip.core.errors import BetaError
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.solvers import rank_tolerance


class RidgePath:
    """All ridge models (FᵀF + βI)⁻¹FᵀY, β > 0, of one set of rows, and how each does on rows it has not seen.

    Parameters
    ----------
    features : (N, m)
    labels : (N,)
    num_classes : int
    client : str, optional
        Named in error messages.
    """

    def __init__(self, features: ArrayLike, labels: ArrayLike, num_classes: int, *, client: str | None = None) -> None:
        self._F, self._Y = Rows.checked(features, labels, num_classes, client).matrices()
        self._Y = self._Y.to(self._F.device)
        rows, width = self._F.shape
        if rows <= width:
            self._s, self._E = torch.linalg.eigh(self._F @ self._F.mT)
            self._s = self._s.clamp(min=0.0)
        else:
            s, Q = torch.linalg.eigh(self._F.mT @ self._F)
            kept = s > rank_tolerance(rows) * s[-1]  # the rest is rounding, and outside
            self._s, self._E = s[kept], (self._F @ Q[:, kept]) / s[kept].sqrt()
        self._rotated = self._E.mT @ self._Y
        self._outside = self._Y - self._E @ self._rotated if rows > len(self._s) else torch.zeros_like(self._Y)
        self._share_outside = (1.0 - self._E.square().sum(dim=1)).clamp(min=0.0) if rows > len(self._s) else 0.0

    def weights(self, beta: float) -> Tensor:
        """(FᵀF + βI)⁻¹FᵀY = FᵀE diag(1/(s + β)) EᵀY, (m, d) float64."""
        weights: Tensor = self._F.mT @ (self._E @ (self._rotated / (self._s + beta)[:, None]))
        return weights

    def loo_scores(self, beta: float) -> Tensor:
        """For each row the scores (N, d) of the model fitted without that row."""
        if not beta > 0.0:
            raise BetaError(f"beta is {beta!r}; give numbers above 0")
        shrinkage = beta / (self._s + beta)
        residuals = self._E @ (shrinkage[:, None] * self._rotated) + self._outside
        remainder = self._E.square() @ shrinkage + self._share_outside
        scores: Tensor = self._Y - residuals / remainder[:, None]
        return scores

    def loo_accuracy(self, betas: Sequence[float]) -> Tensor:
        """For each β the share of rows that the models fitted without them classify right."""
        labels = self._Y.argmax(dim=1)
        return torch.stack([(self.loo_scores(beta).argmax(dim=1) == labels).double().mean() for beta in betas])

    def select(self, betas: Sequence[float] | None = None) -> float:
        """The β of highest leave-one-out accuracy; of several, the largest."""
        ordered = sorted(penalty_grid(float(self._F.square().sum(dim=0).mean())) if betas is None else betas)
        accuracy = self.loo_accuracy(ordered)
        return ordered[int((accuracy == accuracy.max()).nonzero()[-1])]


def penalty_grid(scale: float) -> tuple[float, ...]:
    """Two to the decade, from 1e-6 to 10 times `scale`, the mean square of the features summed over rows."""
    return tuple((scale or 1.0) * 10.0 ** (i / 2) for i in range(-12, 3))
