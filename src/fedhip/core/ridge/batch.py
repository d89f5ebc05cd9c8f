"""Leave-one-out over α for many clients with equally many rows: what `path.py` does for one, for all of them at once.

A client of ten rows has matrices of ten by ten, and what it costs is the calls, not the arithmetic. Here a call is for
hundreds of clients. The formulas are those of `PersonalizationPath`; the numbers are the same but for the last bits, in
which sums of another order differ. A client of which there is more to say (a row that leave-one-out says nothing of, a
fold that alone spans a direction) is not `plain`, and is for `PersonalizationPath`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhip.core.choice.selection import margins_of, without_fold
from fedhip.core.ridge.aggregation import GlobalSystem
from fedhip.core.rows import one_hot
from fedhip.core.solvers import rank_tolerance

#: A fold whose remainder has a pivot below this is not plain; `path.py` asks for more than 1e-4 of a root.
_PIVOT = 1e-6


class BatchPath:
    """The models over α of c clients with n rows each, n ≤ m, and how each does on its rows left out.

    Parameters
    ----------
    system : GlobalSystem
        The federation's equations, solved.
    F : (c, n, m) float64
        Rows as the ridge sees them.
    labels : (c, n) int64
    num_classes : int
    alphas : sequence of float
    """

    def __init__(
        self, system: GlobalSystem, F: Tensor, labels: Tensor, num_classes: int, alphas: Sequence[float]
    ) -> None:
        c, n, m = F.shape
        W = system.factor.whiten(F.reshape(c * n, m))
        self._width = W.shape[1]
        self._Y = one_hot(labels.reshape(-1), num_classes).view(c, n, num_classes)
        self._labels = labels
        residuals = self._Y - (W @ system.U).view(c, n, num_classes)
        W = W.view(c, n, -1)
        values, self._E = torch.linalg.eigh(W @ W.mT)
        values = values.clamp_(0.0, 1.0)[:, :, None]
        growth = 1.0 + values * torch.tensor(alphas, dtype=torch.float64)
        shrunk = (self._E.mT @ residuals)[:, :, None] / growth[..., None]
        #: y − fit at each α (c, n, a, d), and (1 − λ)/(1 + αλ) (c, r, a).
        self._residuals = (self._E @ shrunk.flatten(2)).view(c, n, -1, num_classes)
        self._shares = (1.0 - values) / growth
        squares = self._E.square()
        self._remainder = squares @ self._shares
        known = self._remainder > rank_tolerance(max(n, W.shape[2])) * (squares @ (1.0 / growth))
        #: Of whom nothing has to be said (c,) bool.
        self.plain = known.flatten(1).all(dim=1)

    def scores(self) -> Tensor:
        """Of each row and α (c, n, a, d) the scores of the model without that row."""
        found: Tensor = self._residuals.div(self._remainder[..., None]).neg_().add_(self._Y[:, :, None])
        return found

    def margins(self, scores: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Of scores (c, n, a, d) of some rows the own class's less the best of the others (c, n, a)."""
        labels = self._labels[:, rows].reshape(-1)
        return margins_of(scores.flatten(0, 1), labels).view(scores.shape[:3])

    def fold_margins(self, margins: Tensor, fold: int) -> Tensor:
        """Margins (c, n, a) by which the α for the rows of a fold is chosen, as `PersonalizationPath.fold_margins`."""
        c, n, a, _ = self._residuals.shape
        others = without_fold(n, fold)
        if bool(others.all()) or not bool(others.any()):
            return margins
        left_out, o = (~others).nonzero()[:, 0], int(others.sum())
        pairs = self._E[:, left_out, None] * torch.cat((self._E[:, left_out], self._E[:, others]), dim=1)[:, None]
        M = (pairs.flatten(1, 2) @ self._shares).view(c, n - o, n, a)
        across = M[:, :, n - o :].clone()
        solved, fine = _eliminated(M)
        remainder = self._remainder[:, others] - (across * solved).sum(dim=1)
        known = remainder > rank_tolerance(max(n, self._width))
        self.plain &= fine & known.flatten(1).all(dim=1)
        scores = self._residuals[:, others]
        for at, row in enumerate(left_out.tolist()):
            scores.addcmul_(solved[:, at, :, :, None], self._residuals[:, None, row], value=-1.0)
        scores.div_(remainder[..., None]).neg_().add_(self._Y[:, others, None])
        found = margins.clone()
        found[:, others] = self.margins(scores, others)
        return found


def _eliminated(joint: Tensor) -> tuple[Tensor, Tensor]:
    """A⁻¹B of [A, B] (c, s, s + o, a), with A small, symmetric and positive; and of whom every pivot is large enough.

    By elimination without pivoting, which definite matrices do not need: a call for each row of A, where LAPACK takes
    one for each matrix. `joint` is written over.
    """
    c, s = joint.shape[:2]
    fine = torch.ones(c, dtype=torch.bool)
    for k in range(s):
        pivot = joint[:, k, k].clone()
        fine &= (pivot > _PIVOT).all(dim=1)
        row = joint[:, k, k:] / pivot[:, None]
        joint[:, :, k:].addcmul_(joint[:, :, k, None].clone(), row[:, None], value=-1.0)
        joint[:, k, k:] = row
    return joint[:, :, s:], fine
