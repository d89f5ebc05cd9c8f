"""The grid of α: every α from one factorisation, with exact leave-one-out.

In whitened coordinates (A + βI = R Rᵀ, W = F_k R⁻ᵀ, U = R⁻¹B) the client's problem is a ridge path over α:

    W Wᵀ = E Λ Eᵀ, all eigenvalues in [0, 1]
    y_i − fit_i(α) = [E diag(1/(1 + αλ)) Eᵀ (Y_k − W U)]_i
    1 − h_i(α) = Σ_j E_ij² (1 − λ_j)/(1 + αλ_j)          h_i: the weight of row i in its own prediction
    y_i − loo_i(α) = (y_i − fit_i)/(1 − h_i)              loo_i: the prediction without row i, exactly

Leaving row i out takes it from both places it counts in: once in the sum over clients, α times on top. Both lines are
sums of terms of one sign, so that nothing cancels however large α is. Rows of one group are left out together, by the
same matrices (`fedhip.core.groups`). A row of weight w is one of features and targets times √w.

Classes are judged by margins, real targets by squared errors; a *table* (N_k, a) holds either, the larger the better.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedhip.core.choice.selection import margins_of, pick, soft_hits, without_fold
from fedhip.core.groups import checked_groups, classes_without, left_out_residuals
from fedhip.core.ridge.aggregation import GlobalSystem, global_system
from fedhip.core.ridge.personalization import client_rows
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import rank_tolerance, require_alpha
from fedhip.core.statistics import Statistics
from fedhip.core.targets import TargetRows
from fedhip.errors import InputError, NumericalWarning

#: 0 to 1000: zero, four to the decade from 0.1, and the values of the paper's Table II.
DEFAULT_ALPHAS: tuple[float, ...] = tuple(
    sorted({0.0, *(10.0 ** (i / 4) for i in range(-4, 13)), *(5.0 * i for i in range(13))})
)

#: Up to so many rows of a client, what is chosen for a fold is chosen by models that have not seen it.
REFOLDED = 256

#: Leave-one-out looks at as many values of α at a time as give this many scores, or at one.
_LOO_ENTRIES = 2**21


class PersonalizationPath:
    """All of one client's personalized models P̂_k(α), and how each does on rows it has not seen.

    Parameters
    ----------
    total : Statistics
        The sum over clients, this client included.
    features : (N_k, m)
    labels : (N_k,)
        The client's own rows.
    beta : float
        The federation's ridge penalty.
    client : str, optional
        Named in error messages.
    targets : (d,), optional
        What a row's target is in the column of its class, in place of 1. For rows that are weighted by class, the
        features times √w and √w here; scores are those of the rows without their weights.
    groups : (N_k,), optional
        Rows of one group are left out together: "one" in leave-one-out is then one group.

    Notes
    -----
    Cost: the federation's factorisation, O(m³), once for all clients; then O(N_k m² + r³) with
    r = min(N_k, m) for the client; then O(N_k r d) for each α.
    """

    def __init__(
        self,
        total: Statistics,
        features: ArrayLike,
        labels: ArrayLike,
        beta: float = 1.0,
        *,
        client: str | None = None,
        targets: Tensor | None = None,
        groups: ArrayLike | None = None,
    ) -> None:
        F, Y = client_rows(total, features, labels, client, targets)
        system = global_system(total, beta)
        rows = TargetRows(F, Y, Y.argmax(dim=1), groups=checked_groups(groups, len(F)))
        self._start(total, system, system.factor.whiten(F), rows)

    @classmethod
    def of(cls, total: Statistics, rows: TargetRows, beta: float = 1.0) -> PersonalizationPath:
        """Of rows with real targets, or with weights."""
        system = global_system(total, beta)
        return cls.whitened(total, system, system.factor.whiten(rows.F), rows)

    @classmethod
    def whitened(cls, total: Statistics, system: GlobalSystem, W: Tensor, rows: TargetRows) -> PersonalizationPath:
        """The same of a system that is solved, and of rows W = F R⁻ᵀ in its coordinates."""
        self = object.__new__(cls)
        self._start(total, system, W, rows)
        return self

    def _start(self, total: Statistics, system: GlobalSystem, W: Tensor, rows: TargetRows) -> None:
        self._system, self._W, self._Y, self._groups, self._scale = system, W, rows.Y, rows.groups, rows.scale
        Y = rows.Y
        # An intercept fits the only row of a federation whatever beta is: a warning would have no advice.
        self._warned = total.intercept and total.num_samples == 1
        #: What classes are; of real targets nothing asks for them.
        self._labels = Y.new_zeros(len(Y), dtype=torch.int64) if rows.labels is None else rows.labels
        self._real = rows.labels is None
        self._residuals = Y - W @ system.U
        self._folded: tuple[tuple[float, ...], Tensor, Tensor] | None = None

    @cached_property
    def _spectrum(self) -> _Spectrum:
        return _Spectrum.of(self._W, self._residuals)

    def weights(self, alpha: float) -> Tensor:
        """P̂_k(α), (m, d) float64."""
        alpha = require_alpha(alpha)
        if alpha == 0.0:
            return self._system.G.clone()
        return self._system.G + self._system.factor.unwhiten(self._spectrum.correction(self._W, alpha))

    def loo_scores(self, alpha: float) -> Tensor:
        """For each of the client's rows the scores (N_k, d) of the model fitted without that row.

        A row that alone determines its own prediction (a direction no other row has, and β = 0 or lost in
        rounding) gets zeros, counts as wrong, and is warned of: the others say nothing of it.
        """
        scores = self._leave_one_out([require_alpha(alpha)])[0][:, 0]
        if self._real or self._scale is not None:
            return scores if self._scale is None else scores / self._scale[:, None]
        return scores / self._Y.amax(dim=1, keepdim=True)

    def loo_accuracy(self, alphas: Sequence[float] = DEFAULT_ALPHAS, *, only_local_classes: bool = False) -> Tensor:
        """For each α the share of the client's rows that the models fitted without them classify right.

        With `only_local_classes` the models choose among the classes of the client's other rows.
        """
        return (self.loo_margins(alphas, only_local_classes=only_local_classes) > 0.0).double().mean(dim=0)

    def loo_error(self, alphas: Sequence[float] = DEFAULT_ALPHAS) -> Tensor:
        """For each α the mean over rows of ‖loo_i − y_i‖²."""
        errors = [(scores - self._Y[:, None]).square_().sum(dim=(0, 2)) for scores, _ in self._loo(alphas)]
        return torch.cat(errors) / len(self._W)

    def loo_table(self, alphas: Sequence[float] = DEFAULT_ALPHAS, *, only_local_classes: bool = False) -> Tensor:
        """What each row left out says of each α (N_k, a): its margin; of real targets, less its squared error."""
        if not self._real:
            return self.loo_margins(alphas, only_local_classes=only_local_classes)
        return torch.cat([self._errors(scores, known) for scores, known in self._loo(alphas)], dim=1)

    def credit(self, table: Tensor, at: Tensor | slice = slice(None)) -> Tensor:
        """What rows of a table (n, a) count in a choice: `at` are their places among all."""
        counted = table if self._real else soft_hits(table)
        return counted if self._scale is None else counted * self._scale[at].square()[:, None]

    def _errors(self, scores: Tensor, known: Tensor, at: Tensor | slice = slice(None)) -> Tensor:
        """−‖loo_i − y_i‖² (n, a) of scores (n, a, d); where nothing is known, at least that of the mean, 1 a target."""
        errors = (scores - self._Y[at][:, None]).square().sum(dim=2)
        if self._scale is not None:
            errors = errors / self._scale[at].square()[:, None]
        return -torch.where(known, errors, torch.maximum(errors, errors.new_tensor(float(self._Y.shape[1]))))

    def loo_margins(self, alphas: Sequence[float] = DEFAULT_ALPHAS, *, only_local_classes: bool = False) -> Tensor:
        """For each row and α the score of its own class less the best of the others (N_k, a), the row left out.

        With `only_local_classes` these are the classes of the client's other rows; a row of another class has −∞.
        """
        counts = (self._Y > 0.0).sum(dim=0)
        left = None if self._groups is None else classes_without(self._labels, self._groups, counts)
        found = []
        for scores, known in self._loo(alphas):
            if self._scale is not None:
                scores = scores / self._scale[:, None, None]
            if only_local_classes:
                scores.masked_fill_(counts == 0 if left is None else (left == 0)[:, None], -torch.inf)
            found.append(margins_of(scores, self._labels).masked_fill_(~known, -torch.inf))
        margins = torch.cat(found, dim=1)
        # Without its only row a class is not among the client's: no model of the others can name it.
        alone = counts[self._labels] == 1 if left is None else left.gather(1, self._labels[:, None])[:, 0] == 0
        return margins.masked_fill_(alone[:, None], -torch.inf) if only_local_classes else margins

    def fold_margins(self, alphas: Sequence[float], margins: Tensor, fold: int) -> Tensor:
        """Margins (N_k, a) by which the α for the rows of a fold is chosen, and those rows judged.

        Of all other rows without the fold's, too: what they say must not have learned from what is judged. In more than
        256 rows a few that have seen the fold make no difference: `margins`, from `loo_margins`, are taken.
        """
        others = without_fold(len(self._W), fold, self._groups).to(self._W.device)
        if not self.refolds or bool(others.all()) or not bool(others.any()):
            return margins
        scores, known = (part.transpose(0, 1) for part in self._without_fold(alphas, others))
        found = margins.clone()
        if self._real:
            found[others] = self._errors(scores, known, others)
            return found
        if self._scale is not None:
            scores = scores / self._scale[others][:, None, None]
        without = margins_of(scores.contiguous(), self._labels[others])
        hidden = torch.isinf(margins[others])  # of classes that the client has no other row of
        found[others] = without.masked_fill_(~known | hidden, -torch.inf)
        return found

    def fold_scores(self, alphas: Sequence[float], fold: int) -> Tensor:
        """Scores (a, n, d) of the rows of classes outside of a fold, each left out together with the fold.

        Zeros where the others say nothing of a row, as in `loo_scores`.
        """
        others = without_fold(len(self._W), fold, self._groups).to(self._W.device)
        scores, known = self._without_fold(alphas, others)
        return scores.masked_fill_(~known[:, :, None], 0.0) / self._Y[others].amax(dim=1, keepdim=True)

    @property
    def refolds(self) -> bool:
        """Whether what is chosen for a fold must be chosen by models that have not seen it."""
        return len(self._W) <= REFOLDED

    def _without_fold(self, alphas: Sequence[float], others: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (a, n, d) of the rows `others` (N_k,) bool without a row itself and all that are not among these.

        Without the row's group, where rows have groups: a fold holds whole ones.

        With S the fold and M = E diag((1 − λ)/(1 + αλ)) Eᵀ, leaving out S and then row j gives

            y_j − score_j = (r_j − M_jS M_SS⁻¹ r_S) / (M_jj − M_jS M_SS⁻¹ M_Sj)         r = y − fit(α)

        Beside them (a, n), which rows have any.
        """
        M, residuals = self._remainders(tuple(require_alpha(alpha) for alpha in alphas))
        columns = M[:, :, ~others]
        inside, across = columns[:, ~others], columns[:, others]
        solved = _right_solve(across, inside)
        left = residuals[:, others].sub_(solved @ residuals[:, ~others])
        tolerance = rank_tolerance(max(self._W.shape))
        if self._groups is None:
            remainder = M.diagonal(dim1=1, dim2=2)[:, others] - torch.einsum("ajs,ajs->aj", solved, across)
            known = remainder > tolerance
            left.div_(torch.where(known, remainder, 1.0)[:, :, None])
            return torch.sub(self._Y[others], left, out=left), known
        among = M[:, others][:, :, others] - solved @ across.mT
        groups = self._groups[others.cpu()]
        errors, found = left_out_residuals(groups, left.transpose(0, 1).contiguous(), _blocks_of(among), tolerance)
        return self._Y[others] - errors.transpose(0, 1), found.mT

    def _remainders(self, alphas: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """M (a, N_k, N_k) and r (a, N_k, d) of these α: the same for every fold, and made once for all of them."""
        if self._folded is None or self._folded[0] != alphas:
            at = torch.tensor(alphas, dtype=self._W.dtype, device=self._W.device)
            residuals = self._spectrum.residuals(at, self._residuals).transpose(0, 1)
            self._folded = alphas, self._spectrum.remainders(at), residuals
        return self._folded[1:]

    def select(self, alphas: Sequence[float] = DEFAULT_ALPHAS, *, only_local_classes: bool = False) -> float:
        """The α of highest smoothed leave-one-out accuracy (`core.choice.selection`); of several, the smallest."""
        ordered = sorted(checked_alphas(alphas))
        return ordered[pick(self.credit(self.loo_table(ordered, only_local_classes=only_local_classes)))]

    def _loo(self, alphas: Sequence[float]) -> Iterator[tuple[Tensor, Tensor]]:
        """`_leave_one_out` for some α at a time."""
        checked = checked_alphas(alphas)
        at_once = max(1, _LOO_ENTRIES // self._Y.numel())
        for start in range(0, len(checked), at_once):
            yield self._leave_one_out(checked[start : start + at_once])

    def _leave_one_out(self, alphas: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Scores (N_k, a, d) without the row itself, and which rows have any (N_k, a)."""
        rows = len(self._Y)
        if self._groups is not None:
            return self._leave_groups_out(alphas, self._groups)
        if not any(alphas):  # the global model needs no spectrum
            residuals = self._residuals[:, None].repeat(1, len(alphas), 1)
            remainder = (1.0 - self._W.square().sum(dim=1, keepdim=True)).expand(rows, len(alphas))
            most = torch.ones_like(remainder)
        else:
            at = torch.tensor(alphas, dtype=self._W.dtype, device=self._W.device)
            residuals = self._spectrum.residuals(at, self._residuals)
            remainder, most = self._spectrum.remainder(at)
        known = remainder > rank_tolerance(max(self._W.shape)) * most
        self._warn_of(known, alphas)
        errors = residuals.div_(remainder[:, :, None])
        scores = torch.sub(self._Y[:, None], errors, out=errors)
        return scores if bool(known.all()) else scores.masked_fill_(~known[:, :, None], 0.0), known

    def _leave_groups_out(self, alphas: Sequence[float], groups: Tensor) -> tuple[Tensor, Tensor]:
        """The same without all rows of the row's group."""
        at = torch.tensor(alphas, dtype=self._W.dtype, device=self._W.device)
        residuals = self._spectrum.residuals(at, self._residuals)

        def remainder(S: Tensor) -> tuple[Tensor, Tensor]:
            return self._spectrum.remainders(at, S), self._spectrum.most(at, S).mT

        found, known = left_out_residuals(groups, residuals, remainder, rank_tolerance(max(self._W.shape)))
        self._warn_of(known, alphas)
        return found.neg_().add_(self._Y[:, None]).masked_fill_(~known[:, :, None], 0.0), known

    def _warn_of(self, known: Tensor, alphas: Sequence[float]) -> None:
        """Warn once of rows that leave-one-out says nothing of."""
        if self._warned or bool(known.all()):
            return
        self._warned = True
        first = int((~known).any(dim=0).nonzero()[0])
        warnings.warn(
            f"{int((~known[:, first]).sum())} of {len(known)} rows alone determine their own prediction at alpha = "
            f"{alphas[first]:g}: leave-one-out says nothing of them, and they count as wrong; a larger beta helps",
            NumericalWarning,
            stacklevel=5,
        )


@dataclass(frozen=True)
class _Spectrum:
    """The client's rows in coordinates in which its own part of the equations is diagonal, with eigenvalues λ (r,).

    With fewer rows than features these are directions of the rows: W Wᵀ = E diag(λ) Eᵀ. Else they are directions of the
    features: WᵀW = Q diag(λ) Qᵀ, X = W Q. Nothing is divided by λ in either, however small.
    """

    values: Tensor
    basis: Tensor
    X: Tensor | None
    rotated: Tensor

    @classmethod
    def of(cls, W: Tensor, residuals: Tensor) -> _Spectrum:
        rows, width = W.shape
        if rows <= width:
            values, E = torch.linalg.eigh(W @ W.mT)
            return cls(values.clamp(0.0, 1.0), E, None, E.mT @ residuals)
        values, Q = torch.linalg.eigh(W.mT @ W)
        X = W @ Q
        return cls(values.clamp(0.0, 1.0), Q, X, X.mT @ residuals)

    def correction(self, W: Tensor, alpha: float) -> Tensor:
        """What the client's residuals add to the whitened global model (m, d)."""
        shrunk = self.rotated * (alpha / (1.0 + alpha * self.values))[:, None]
        return W.mT @ (self.basis @ shrunk) if self.X is None else self.basis @ shrunk

    def residuals(self, at: Tensor, before: Tensor) -> Tensor:
        """y − fit at each α (a,): (N_k, a, d); `before` (N_k, d) are those at α = 0."""
        rows, classes = before.shape
        if self.X is None:  # E diag(1/(1 + αλ)) Eᵀ (Y_k − W U); one product for all α
            shrunk = self.rotated[:, None] / self._growth(at)[:, :, None]
            return (self.basis @ shrunk.flatten(start_dim=1)).view(rows, len(at), classes)
        # (Y_k − W U) − X diag(α/(1 + αλ)) Xᵀ (Y_k − W U)
        shrunk = self.rotated[:, None] * (at / self._growth(at))[:, :, None]
        fitted = (self.X @ shrunk.flatten(start_dim=1)).view(rows, len(at), classes)
        return torch.sub(before[:, None], fitted, out=fitted)

    def remainder(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """1 − h_i at each α (N_k, a), and what its rounding is relative to."""
        growth = self._growth(at)
        if self.X is None:
            return self._squares @ ((1.0 - self.values)[:, None] / growth), self._squares @ (1.0 / growth)
        remainder = 1.0 - self._squares @ ((1.0 + at) / growth)
        return remainder, torch.ones_like(remainder)

    @cached_property
    def _squares(self) -> Tensor:
        return (self.basis if self.X is None else self.X).square()

    def remainders(self, at: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """1 − H at each α, over all pairs of rows (a, N_k, N_k), or of some."""
        if self.X is None:
            shares, basis = (1.0 - self.values)[:, None] / self._growth(at), self.basis[rows]
            return torch.einsum("ir,ra,jr->aij", basis, shares, basis)
        shares, X = (1.0 + at) / self._growth(at), self.X[rows]
        return torch.eye(len(X)).to(X) - torch.einsum("ir,ra,jr->aij", X, shares, X)

    def most(self, at: Tensor, rows: Tensor) -> Tensor:
        """What the rounding of `remainders` is relative to, for some rows (n, a)."""
        if self.X is None:
            return self.basis[rows].square() @ (1.0 / self._growth(at))
        return torch.ones((len(rows), len(at))).to(self.X)

    def _growth(self, at: Tensor) -> Tensor:
        """1 + αλ (r, a)."""
        return 1.0 + self.values[:, None] * at


def _right_solve(across: Tensor, inside: Tensor) -> Tensor:
    """`across` (a, n, s) times the inverses of `inside` (a, s, s), which are symmetric.

    Times the pseudo-inverse, where a fold alone spans a direction: nothing is left to predict it by.
    """
    factor, info = torch.linalg.cholesky_ex(inside)
    fine = (info == 0) & (factor.diagonal(dim1=1, dim2=2) > 1e-4).all(dim=1)  # of numbers up to 1
    solved: Tensor
    if bool(fine.all()):
        solved = torch.cholesky_solve(across.mT, factor).mT
    else:
        solved = across @ torch.linalg.pinv(inside, hermitian=True)
    return solved


def _blocks_of(M: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Blocks of matrices (a, n, n), for `left_out_residuals`."""
    return lambda S: (M[:, S][:, :, S], torch.ones((len(M), len(S))).to(M))


def checked_alphas(alphas: Sequence[float] | float) -> list[float]:
    """The values of α to choose from: finite, of at least 0, and at least one of them."""
    checked = [require_alpha(alpha) for alpha in ([alphas] if isinstance(alphas, float | int) else alphas)]
    if not checked:
        raise InputError("there is no alpha to choose from; give at least one")
    return checked
