"""One client's logistic head: the federation's, corrected by the client's own rows.

    P̂_k(α) = Ĝ + D̂C,    D̂ = argmin_D  α · (−Σ_{i of k} log softmax(x_i (Ĝ + DC) / T + shift)[y_i]) + ½ ‖D‖²_H

α weighs the client's rows, as in FedHiP; the others' stand in by the curvature H = κA + ρM of the federation's
objective. The shift is the client's prior, so that the correction need not learn what the class frequencies say; T is
the temperature that goes with it.

**What the classes share.** A client that sees things otherwise, by its camera or its hand, sees all classes so: its
features are others', x → x + xR, and one R changes the scores of all classes, by x R Ĝ. Weights of each class by itself
are a hundred times as free, and have few rows to a class. So a change is spread over the classes by

    C ∝ ĜᵀMĜ,    DC = RĜ  for  R ∝ D ĜᵀM

the covariance of the scores within classes: scores that rise and fall together from row to row do so from client to
client. (Ĝ without its intercept, and without its mean over classes, which no probability knows of; the mean of the
diagonal of C² is 1, so that α means what it would without C.)

In whitened coordinates of the client's rows (x_i H^-½ = S_i, SᵀS = diag(Λ)) and of the classes (C = U diag(c) Uᵀ) this
is a logistic regression of size min(N_k, m + 1) with penalty ½‖·‖², solved by the quasi-Newton steps of
`fedhip.core.logistic.lbfgs`, each α from the one before.

**How a row is left out.** A fifth of the client's rows at a time, this one among them: of the federation's head to
first order (`LogisticHead.without`), of the client's step by fitting it again, to the scores of that head:

    z_i without i's fifth ≈ x_i Ĝ_{without} + S_i θ_{without}(α) diag(c) Uᵀ

Both must go together. A head that has seen the row has its class's scores up for all rows that look like it, first of
all the client's own; a step fitted to these takes them down, and the row is judged too low.

A first-order correction of the step too (one curvature κ for all classes and rows) is optimistic where α is large: the
rows pull as if each had its mean curvature, and their own pull is taken off too little. It promised ever more from
ever larger α where refits lose. A step fitted to four fifths gains a little less than one fitted to all.

α starts at 0, the federation's head, and goes up to a larger one only where that lowers the mean loss on rows left out
by more than one standard error of the rows' gains. It is the client's own choice, so its model depends on no division
of others' rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.logistic.fit import HeadRows, LogisticHead
from fedhip.core.logistic.lbfgs import Point, best_of, propose
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import require_alpha
from fedhip.errors import InputError, NumericalWarning
from fedhip.utils.lazy import lazy

#: None, and two to the decade from 1 to 1,000. Beyond, rows left out promise what fresh rows do not keep.
LOGISTIC_ALPHAS: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(7)))

#: Parts of a client's rows; the step is fitted without one to judge that one.
FOLDS = 5  # by class, unlike selection's: a step fitted without a class would score it by chance

#: Evaluations of a step at most: up to α = 100 some forty do, and for an α that is given, as 10,000, two hundred.
_STEPS = 400
_TOLERANCE = 1e-5
#: Of a step that only judges.
_JUDGES_TOLERANCE = 1e-2


class PersonalLogistic:
    """A client's heads over α, and how each does on rows it has not seen.

    Parameters
    ----------
    head : LogisticHead
        The federation's, whose objective these rows are part of.
    features : (N_k, m)
    labels : (N_k,)
        The client's own rows, raw.
    temperature, shift : float, Tensor (d,), optional
        The client's prior: scores are divided by the one and the other is added.
    loo_shift : Tensor (N_k, d), optional
        The shift as it would be without each row; `shift` if not given.
    client : str, optional
        Named in error messages.
    gone : Tensor (N_k,) bool, optional
        Rows that the heads are as if there had never been them: the federation's to first order, the client's exactly.
        `gone_scores` judges them.
    """

    def __init__(
        self,
        head: LogisticHead,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        temperature: float = 1.0,
        shift: Tensor | None = None,
        loo_shift: Tensor | None = None,
        client: str | None = None,
        gone: Tensor | None = None,
    ) -> None:
        self._who = f"client {client!r}: " if client is not None else ""
        self._start(head.rows(features, labels, client=client), temperature, shift, loo_shift, gone)

    def with_others(
        self, temperature: float, shift: Tensor, loo_shift: Tensor, gone: Tensor | None = None
    ) -> PersonalLogistic:
        """The same rows with another prior, or as if some had never been there: what does not change stays."""
        found = object.__new__(type(self))
        found._who = self._who
        found._start(self._rows, temperature, shift, loo_shift, gone)
        return found

    def _start(
        self, rows: HeadRows, temperature: float, shift: Tensor | None, loo_shift: Tensor | None, gone: Tensor | None
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0.0):
            raise InputError(f"temperature is {temperature!r}; give a number above 0")
        self._rows, self._head, self._T, self._warned = rows, rows.head, temperature, False
        F, y = rows.features, rows.labels
        d = self._head.weights.shape[1]
        self._shift = torch.zeros(d).to(F) if shift is None else shift.to(F)
        self._loo_shift = self._shift if loo_shift is None else loo_shift.to(F)
        if self._shift.shape != (d,) or self._loo_shift.shape not in ((d,), (len(F), d)):
            raise InputError(
                f"shifts have shapes {tuple(self._shift.shape)} and {tuple(self._loo_shift.shape)}; "
                f"give ({d},) and ({len(F)}, {d})"
            )
        self._gone = torch.zeros_like(y, dtype=torch.bool) if gone is None else gone.to(y.device)
        self._Z = rows.scores if gone is None else rows.without(self._gone)
        self._y = y[:, None]
        # Each class's rows dealt out in turn.
        left = (~self._gone).nonzero()[:, 0]
        self._fold = torch.full_like(y, -1).index_copy_(
            0, left[torch.argsort(y[left], stable=True)], torch.arange(len(left)).to(y) % FOLDS
        )
        self._found: dict[tuple[int | None, float], Tensor] = {}
        self._others: dict[int | None, tuple[Tensor, Tensor, Tensor]] = {}

    @lazy
    def _without(self) -> list[Tensor]:
        """For each fold the scores (N_k, d) of all rows by the federation's head without it."""
        return [self._rows.without(self._gone | (self._fold == fold)) for fold in range(FOLDS)]

    @property
    def shift(self) -> Tensor:
        """The client's prior (d,)."""
        return self._shift

    def weights(self, alpha: float) -> Tensor:
        """P̂_k(α) of standardised features, the intercept last (m + 1, d)."""
        alpha = require_alpha(alpha)
        return self._head.weights if alpha == 0.0 else self._head.weights + self._rows.basis[2] @ self._change(alpha)

    def model(self, alpha: float) -> AffineModel:
        """On raw features, without prior: that is added to its scores."""
        return AffineModel.of_standardized(self.weights(alpha), self._head.fit.standardization)

    def loo_scores(self, alpha: float) -> Tensor:
        """For each of the client's rows its scores without it (see the module), and without prior: (N_k, d)."""
        alpha = require_alpha(alpha)
        scores = self._Z.clone()
        for fold in range(FOLDS):
            at = self._fold == fold
            scores[at] = self._without[fold][at]
            if alpha > 0.0 and bool(at.any()):
                scores[at] += self._rows.basis[0][at] @ self._change(alpha, fold)
        return scores

    def gone_scores(self, alpha: float) -> Tensor:
        """Of the rows that are gone, in their order and without prior: (n, d)."""
        alpha = require_alpha(alpha)
        scores = self._Z[self._gone]
        return scores if alpha == 0.0 else scores + self._rows.basis[0][self._gone] @ self._change(alpha)

    def loo_losses(self, alpha: float) -> Tensor:
        """The log-losses (N_k,) of the client's rows left out, with its prior."""
        logits = self.loo_scores(alpha) / self._T + self._loo_shift
        return -torch.log_softmax(logits, dim=1).gather(1, self._y)[:, 0]

    def select(self, alphas: Sequence[float] = LOGISTIC_ALPHAS, judges: Tensor | None = None) -> float:
        """From 0 upwards, each α that lowers the loss on rows left out by more than a standard error of the change.

        All rows that are not gone judge, or of these the `judges` (N_k,) bool.
        """
        judging = ~self._gone if judges is None else ~self._gone & judges.to(self._gone.device)
        plain = self.loo_losses(0.0)[judging]
        best, chosen, rows = plain, 0.0, len(plain)
        for alpha in sorted({require_alpha(alpha) for alpha in alphas} - {0.0}):
            losses = self.loo_losses(alpha)[judging]
            gains = best - losses
            if rows > 1 and float(gains.mean()) > float(gains.std()) / math.sqrt(rows):
                best, chosen = losses, alpha
            elif float(losses.sum()) > float(plain.sum()):
                break  # Losses fall and then rise with α.
        return chosen

    def objective(self, alpha: float, theta: Tensor, fold: int | None = None) -> tuple[float, Tensor]:
        """Value and gradient in whitened coordinates θ (r, d), of all rows but those of a fold."""
        (S, Z, y), (_, spread) = self._kept(fold), self._head.spread
        logs = torch.log_softmax((Z + S @ (theta @ spread)) / self._T + self._shift, dim=1)
        value = -alpha * float(logs.gather(1, y).sum()) + 0.5 * float(theta.square().sum())
        residuals = logs.exp().scatter_add_(1, y, -torch.ones_like(logs[:, :1]))
        return value, (alpha / self._T) * (S.mT @ residuals @ spread.mT) + theta

    def _kept(self, fold: int | None) -> tuple[Tensor, Tensor, Tensor]:
        if fold not in self._others:
            at = ~self._gone if fold is None else ~self._gone & (self._fold != fold)
            scores = self._Z if fold is None else self._without[fold]
            self._others[fold] = self._rows.basis[0][at], scores[at], self._y[at]
        return self._others[fold]

    def _change(self, alpha: float, fold: int | None = None) -> Tensor:
        """What is added to the federation's weights, in coordinates of the rows (r, d)."""
        return self._solve(alpha, fold) @ self._head.spread[1]

    def _solve(self, alpha: float, fold: int | None = None) -> Tensor:
        """θ at the optimum, from that of the nearest smaller α."""
        if (fold, alpha) in self._found:
            return self._found[fold, alpha]
        S, values, _ = self._rows.basis
        smaller = [known for part, known in self._found if part == fold and known < alpha]
        start = self._found[fold, max(smaller)] if smaller else torch.zeros((len(values), self._Z.shape[1])).to(S)
        scale = (1.0 + alpha * self._head.curvature * torch.outer(values, self._head.spread[0].square())).sqrt()
        tolerance = _TOLERANCE if fold is None else _JUDGES_TOLERANCE
        history: list[Point] = []
        point = scale * start
        for _ in range(_STEPS):
            value, gradient = self.objective(alpha, point / scale, fold)
            history.append(Point(point, value, gradient / scale))
            history = history[-12:] if best_of(history) in history[-12:] else history
            best = best_of(history)
            slope, enough = float(best.gradient.norm()), tolerance * max(1.0, math.sqrt(max(best.value, 0.0)))
            if slope <= enough:
                break
            point = propose(history)
        else:
            self._warn(alpha, fold, slope, enough)
        self._found[fold, alpha] = best.point / scale
        return self._found[fold, alpha]

    def _warn(self, alpha: float, fold: int | None, slope: float, enough: float) -> None:
        """Once for a client: where one α is too large for so many steps, so are those beyond it."""
        if self._warned:
            return
        self._warned = True
        what = "the step" if fold is None else "a step fitted without a fifth of the rows, which judges"
        warnings.warn(
            f"{self._who}{what} with alpha = {alpha:g} has not converged in {_STEPS} evaluations: its slope is "
            f"{slope:.1e}, and {enough:.1e} was wanted; the best weights so far are taken. A smaller alpha takes fewer",
            NumericalWarning,
            stacklevel=4,
        )
