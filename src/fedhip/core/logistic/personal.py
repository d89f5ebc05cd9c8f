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
is a logistic regression of size min(N_k, m + 1) with penalty ½‖·‖², solved by `fedhip.core.logistic.steps`. Steps that
judge are fitted together, each α from those before it, in single precision; the client's own is fitted once, from the
mean of those that judged its α.

**How a row is left out.** A fifth of the client's rows at a time, this one among them: of the federation's head to
first order (`HeadRows.without`), of the client's step by fitting it again, to the scores of that head:

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
from functools import cached_property

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.logistic.fit import HeadRows
from fedhip.core.logistic.steps import Solved, Steps, extrapolated
from fedhip.core.solvers import require_alpha
from fedhip.errors import InputError, NumericalWarning

#: None, and two to the decade from 1 to 1,000. Beyond, rows left out promise what fresh rows do not keep.
LOGISTIC_ALPHAS: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(7)))

#: Parts of a client's rows; the step is fitted without one to judge that one.
FOLDS = 5  # by class, unlike selection's: a step fitted without a class would score it by chance

#: Evaluations of a step at most: up to α = 100 some forty do, and for an α that is given, as 10,000, two hundred.
_STEPS = 400
#: Those in single precision at most.
_SINGLE_STEPS = 100
_TOLERANCE = 1e-5
#: Of a step that only judges.
_JUDGES_TOLERANCE = 1e-2


class PersonalLogistic:
    """A client's heads over α, and how each does on rows it has not seen.

    Parameters
    ----------
    rows : HeadRows
        The client's own rows, as the federation's head sees them (`LogisticHead.rows`). They are part of its objective.
    temperature, shift : float, Tensor (d,), optional
        The client's prior: scores are divided by the one and the other is added.
    loo_shift : Tensor (N_k, d), optional
        The shift as it would be without each row; `shift` if not given.
    gone : Tensor (N_k,) bool, optional
        Rows that the heads are as if there had never been them: the federation's to first order, the client's exactly.
        `gone_scores` judges them.
    near : PersonalLogistic, optional
        Another of the same rows, whose steps are a start for these.
    """

    def __init__(
        self,
        rows: HeadRows,
        *,
        temperature: float = 1.0,
        shift: Tensor | None = None,
        loo_shift: Tensor | None = None,
        gone: Tensor | None = None,
        near: PersonalLogistic | None = None,
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0.0):
            raise InputError(f"temperature is {temperature!r}; give a number above 0")
        self.rows, self._head, self._T, self._near = rows, rows.head, temperature, near
        self._who, self._warned = f"client {rows.client!r}: " if rows.client is not None else "", False
        y, d = rows.labels, rows.head.weights.shape[1]
        self._shift = torch.zeros(d).to(rows.scores) if shift is None else shift.to(rows.scores)
        self._loo_shift = self._shift if loo_shift is None else loo_shift.to(rows.scores)
        if self._shift.shape != (d,) or self._loo_shift.shape not in ((d,), (len(y), d)):
            raise InputError(
                f"shifts have shapes {tuple(self._shift.shape)} and {tuple(self._loo_shift.shape)}; "
                f"give ({d},) and ({len(y)}, {d})"
            )
        self._gone = torch.zeros_like(y, dtype=torch.bool) if gone is None else gone.to(y.device)
        self._Z = rows.scores if gone is None else rows.without(self._gone)
        self._y = y[:, None]
        # Each class's rows dealt out in turn.
        left = (~self._gone).nonzero()[:, 0]
        self._fold = torch.full_like(y, -1).index_copy_(
            0, left[torch.argsort(y[left], stable=True)], torch.arange(len(left)).to(y) % FOLDS
        )
        #: θ (r, 1, d) of all rows and (r, p, d) without each fold, by α.
        self._whole: dict[float, Tensor] = {}
        self._judges: dict[float, Tensor] = {}
        #: Scores of rows left out, by α.
        self._left_out: dict[float, Tensor] = {}

    @cached_property
    def _without(self) -> Tensor:
        """For each fold that has rows the scores of all rows by the federation's head without it (N_k, p, d)."""
        folds = range(min(FOLDS, int((~self._gone).sum())))
        found = [self.rows.without(self._gone | (self._fold == fold)) for fold in folds]
        return torch.stack(found, dim=1) if found else self._Z[:, None][:, :0]

    @cached_property
    def _steps(self) -> Steps:
        """Of all rows."""
        return self._fitted_to(~self._gone[:, None], self._Z[:, None])

    @cached_property
    def _judging(self) -> Steps:
        """Without each fold."""
        p = self._without.shape[1]
        kept = ~self._gone[:, None] & (self._fold[:, None] != torch.arange(p).to(self._fold))
        return self._fitted_to(kept, self._without)

    def _fitted_to(self, kept: Tensor, scores: Tensor) -> Steps:
        S, values = self.rows.basis
        return Steps(S, values, self._y, self._head.spread, self._T, kept, scores / self._T + self._shift)

    @property
    def shift(self) -> Tensor:
        """The client's prior (d,)."""
        return self._shift

    def weights(self, alpha: float) -> Tensor:
        """P̂_k(α) of standardised features, the intercept last (m + 1, d)."""
        alpha = require_alpha(alpha)
        return self._head.weights if alpha == 0.0 else self._head.weights + self.rows.back @ self._change(alpha)

    def model(self, alpha: float) -> AffineModel:
        """On raw features, without prior: that is added to its scores."""
        return AffineModel.of_standardized(self.weights(alpha), self._head.fit.standardization)

    def loo_scores(self, alpha: float) -> Tensor:
        """For each of the client's rows its scores without it (see the module), and without prior: (N_k, d)."""
        alpha = require_alpha(alpha)
        if alpha not in self._left_out:
            scores = self._Z.clone()
            for fold in range(self._without.shape[1]):
                at = self._fold == fold
                scores[at] = self._without[at, fold]
                if alpha > 0.0:
                    scores[at] += self.rows.basis[0][at] @ (self._judges_of(alpha)[:, fold] @ self._head.spread)
            self._left_out[alpha] = scores
        return self._left_out[alpha]

    def gone_scores(self, alpha: float) -> Tensor:
        """Of the rows that are gone, in their order and without prior: (n, d)."""
        alpha = require_alpha(alpha)
        scores = self._Z[self._gone]
        return scores if alpha == 0.0 else scores + self.rows.basis[0][self._gone] @ self._change(alpha)

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

    def objective(self, alpha: float, theta: Tensor) -> tuple[float, Tensor]:
        """Value and gradient in whitened coordinates θ (r, d), of all rows."""
        values, gradient = self._steps.evaluate(alpha, theta[:, None])
        return float(values), gradient[:, 0]

    def solution(self, alpha: float) -> Tensor:
        """θ (r, d) at the optimum."""
        if alpha not in self._whole:
            solved = self._steps.solve(alpha, self._start(self._whole, alpha, 1), _TOLERANCE, _STEPS)
            if not solved.converged:
                self._warn(alpha, "the step", solved)
            self._whole[alpha] = solved.theta
        return self._whole[alpha][:, 0]

    def _change(self, alpha: float) -> Tensor:
        """What is added to the federation's weights, in coordinates of the rows (r, d)."""
        return self.solution(alpha) @ self._head.spread

    def _judges_of(self, alpha: float) -> Tensor:
        """θ (r, p, d) fitted without each fold."""
        if alpha not in self._judges:
            self._judges[alpha] = self._solve_judges(alpha)
        return self._judges[alpha]

    def _solve_judges(self, alpha: float) -> Tensor:
        """In single precision, and on from there in double where that was not enough."""
        steps = self._judging
        start = self._start(self._judges, alpha, steps.kept.shape[1])
        if not start.numel():
            return start
        single = steps.to(torch.float32).solve(alpha, start.float(), _JUDGES_TOLERANCE, min(_SINGLE_STEPS, _STEPS))
        solved = Solved(single.theta.double(), *single[1:])
        if not solved.converged:
            solved = steps.solve(alpha, solved.theta, _JUDGES_TOLERANCE, _STEPS)
        if not solved.converged:
            self._warn(alpha, "a step fitted without a fifth of the rows, which judges", solved)
        return solved.theta

    def _start(self, known: dict[float, Tensor], alpha: float, parts: int) -> Tensor:
        """Of so many parts: what judged this α, here or near; or what is known of smaller ones."""
        for judges in (self._judges, {} if self._near is None else self._near._judges):
            if parts == 1 and alpha in judges and judges[alpha].shape[1]:
                return judges[alpha].mean(dim=1, keepdim=True)
        found = extrapolated(known, alpha)
        r, d = self.rows.basis[0].shape[1], len(self._head.spread)
        return torch.zeros((r, parts, d)).to(self._Z) if found is None else found

    def _warn(self, alpha: float, what: str, solved: Solved) -> None:
        """Once for a client: where one α is too large for so many steps, so are those beyond it."""
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"{self._who}{what} with alpha = {alpha:g} has not converged in {_STEPS} evaluations: its slope is "
            f"{solved.slope:.1e}, and {solved.wanted:.1e} was wanted; the best weights so far are taken. A smaller "
            "alpha takes fewer",
            NumericalWarning,
            stacklevel=4,
        )
