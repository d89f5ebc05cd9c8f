"""The grid of β: every β from one eigendecomposition of the sum, scored by clients or by the sum alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

import torch
from torch import Tensor

from fedhip.core.choice.selection import FOLDS, margins_of, pick, soft_hits, without_fold
from fedhip.core.groups import checked_groups
from fedhip.core.ridge.aggregation import GlobalSystem
from fedhip.core.ridge.alone import penalty_grid
from fedhip.core.ridge.path import REFOLDED, PersonalizationPath, checked_alphas
from fedhip.core.ridge.personalization import client_rows
from fedhip.core.rows import ArrayLike
from fedhip.core.solvers import EigenFactor, factorize, rank_tolerance, require_beta, truncated
from fedhip.core.statistics import Statistics
from fedhip.core.targets import TargetRows
from fedhip.errors import FedHiPWarning, InputError

#: A share of the smoothed accuracy that is no reason for a smaller β.
_NO_REASON = 5e-4

#: A table (N, a) of rows left out, that by which a fold's α is chosen, and the mean squared error at an α.
#: And what rows count in a choice.
_Look = tuple[Tensor, Callable[[int], Tensor], Callable[[Sequence[float]], Tensor], Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class LooScore:
    """How models over a grid of β do on a client's rows, each left out in turn. Scores of clients add.

    Parameters
    ----------
    betas : B values
    soft : (6, B)
        Smoothed accuracy (`fedhip.core.choice.selection`), summed over all rows; and over all but those of each fold.
    right, squared_error : (B,)
        Rows classified right, and the sum of ‖loo_i − y_i‖².
    rows : int
    """

    betas: tuple[float, ...]
    soft: Tensor
    right: Tensor
    squared_error: Tensor
    rows: int

    def __add__(self, other: LooScore) -> LooScore:
        if self.betas != other.betas:
            raise InputError("scores over different grids of beta do not add; every client must score the same grid")
        return LooScore(
            self.betas,
            self.soft + other.soft,
            self.right + other.right,
            self.squared_error + other.squared_error,
            self.rows + other.rows,
        )

    def __radd__(self, other: object) -> LooScore:
        return self if other == 0 else NotImplemented

    @property
    def accuracy(self) -> Tensor:
        """Share of rows classified right, for each β."""
        return self.right / self.rows

    @property
    def error(self) -> Tensor:
        """Mean squared error over rows, for each β."""
        return self.squared_error / self.rows


def choose_betas(betas: Sequence[float], soft: Tensor) -> tuple[float, ...]:
    """The largest β of nearly the highest smoothed accuracy: by all rows, and without those of each fold.

    `soft` (6, B) is that of `LooScore`, summed over clients.
    """
    ordered = sorted(range(len(betas)), key=lambda at: -betas[at])
    chosen = []
    for sums in soft.tolist():
        best = max(sums)
        enough = best * (1.0 - _NO_REASON if best >= 0.0 else 1.0 + _NO_REASON)  # errors count below 0
        chosen.append(next(betas[at] for at in ordered if sums[at] >= enough))
    return tuple(chosen)


class RegularizationPath:
    """Every global model Ĝ(β) from one eigendecomposition A = V diag(λ) Vᵀ of the summed Gram matrix.

    β belongs to the federation, so all clients choose it together: each scores the grid on its own rows by
    leave-one-out, and only the scores are summed. `targets` as in `PersonalizationPath`;
    `squares` are ‖Y‖² of real targets or of weighted rows, for generalized cross-validation.

        path = RegularizationPath(total)
        beta = path.select(path.score(F_k, y_k) for F_k, y_k in clients)
    """

    def __init__(
        self,
        total: Statistics,
        betas: Sequence[float] | None = None,
        *,
        targets: Tensor | None = None,
        squares: float | None = None,
    ) -> None:
        if total.num_samples == 0:
            raise InputError("the sum holds no rows; add at least one client's statistics")
        self._total, self._targets, self._squares = total, targets, squares
        self._values, self._V, self._penalized = _eigenpairs(total)
        self._rotated_cross = self._V.mT @ total.cross
        self.betas = tuple(sorted(require_beta(beta) for beta in (default_betas(total) if betas is None else betas)))
        if not self.betas:
            raise InputError("there is no beta to choose from; give at least one")

    def weights(self, beta: float) -> Tensor:
        """Ĝ(β) = V diag(1/(λ + β)) VᵀB, (m, d) float64."""
        return self._system(self._factor(require_beta(beta))).G

    def score(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        alphas: Sequence[float] = (0.0,),
        *,
        client: str | None = None,
        groups: ArrayLike | None = None,
    ) -> LooScore:
        """Score every β on one client's rows by exact leave-one-out; of `groups` (N,), one group at a time.

        With the default α = 0 the global model is scored. With several `alphas` the client is scored at the
        α it would select at that β, which is the personalized model the federation is after; that costs an
        eigendecomposition for each β, and with one α a Cholesky factorisation.
        """
        F, Y = client_rows(self._total, features, labels, client, self._targets)
        return self.score_rows(TargetRows(F, Y, Y.argmax(dim=1), groups=checked_groups(groups, len(F))), alphas)

    def score_rows(self, rows: TargetRows, alphas: Sequence[float] = (0.0,)) -> LooScore:
        """The same of rows as the ridge sees them, with real targets or with weights too."""
        F, ordered, together = rows.F, sorted(checked_alphas(alphas)), rows.groups
        simple = rows.labels is not None and rows.scale is None
        one_model = len(ordered) == 1 and ordered[0] > 0.0 and len(F) > REFOLDED and simple
        looks = self._one_model(rows, ordered[0]) if one_model else self._whole_paths(rows, ordered)
        soft, right, error = [], [], []
        for table, fold_table, mean_error, credit in looks:
            sums = [credit(table).sum(dim=0).max()]
            for fold in range(FOLDS):  # its rows have no say in what the others count
                others = without_fold(len(F), fold, together).to(F.device)
                sums.append(credit(fold_table(fold))[others].sum(dim=0).max())
            soft.append(torch.stack(sums))
            best = pick(credit(table))
            right.append((table[:, best] > 0.0).sum().to(torch.float64))
            error.append(mean_error([ordered[best]])[0] * len(F))
        return LooScore(self.betas, torch.stack(soft, dim=1), torch.stack(right), torch.stack(error), len(F))

    def _whole_paths(self, rows: TargetRows, alphas: Sequence[float]) -> Iterator[_Look]:
        """For each β the client's models at every α, by an eigendecomposition."""
        rotated = rows.F @ self._V
        for beta in self.betas:
            factor = self._factor(beta)
            W = rotated[:, self._kept(factor)] / factor.values.sqrt()
            path = PersonalizationPath.whitened(self._total, self._system(factor), W, rows)
            table = path.loo_table(alphas)
            yield table, partial(path.fold_margins, alphas, table), path.loo_error, path.credit

    def _one_model(self, rows: TargetRows, alpha: float) -> Iterator[_Look]:
        """For each β the client's model at this α, by a Cholesky factorisation; of classes whose rows weigh alike."""
        F, Y = rows.F, rows.Y
        labels, total = Y.argmax(dim=1), self._total
        gram, cross = torch.add(total.gram, F.mT @ F, alpha=alpha), torch.add(total.cross, F.mT @ Y, alpha=alpha)
        for beta in self.betas:
            system = GlobalSystem.of(factorize(gram.clone, total.penalty(beta)), cross)
            scores = system.left_out(F, Y, 1.0 + alpha, rows.groups)
            margins, error = margins_of(scores, labels)[:, None], (scores - Y).square().sum()[None] / len(F)
            yield margins, lambda fold, same=margins: same, lambda alphas, same=error: same, soft_hits  # type: ignore[misc]

    def gcv(self) -> Tensor:
        """Generalized cross-validation for each β, from the summed statistics alone; smaller is better.

        N·RSS/(N − df)², with RSS = ‖Y‖² − 2 tr(ĜᵀB) + tr(ĜᵀAĜ), ‖Y‖² = N since every one-hot row has norm 1, and
        df = Σ λ/(λ + β). Where the model interpolates (df = N) there is nothing to judge it by: infinity.
        """
        N, values = self._total.num_samples, self._values
        counts = self._total.counts.to(values)
        squares = N if self._targets is None else float((counts * self._targets.to(values).square()).sum())
        if self._squares is not None:
            squares = self._squares
        power = self._rotated_cross.square().sum(dim=1)
        scores = []
        for beta in self.betas:
            factor = self._factor(beta)
            inverse = torch.zeros_like(values)
            inverse[self._kept(factor)] = 1.0 / factor.values
            residual = squares - (power * (2.0 * inverse - values * inverse.square())).sum()
            left = N - self._freedom(factor)
            interpolates = left <= rank_tolerance(max(N, len(values))) * N
            scores.append(torch.where(interpolates, torch.inf, N * residual.clamp(min=0.0) / left.square()))
        return torch.stack(scores)

    def minimize_gcv(self) -> float:
        """The β of smallest generalized cross-validation, from the sum alone; of several, the largest.

        At an N so small that every β interpolates, the largest. With fewer rows than features small values of β fit
        all rows, and generalized cross-validation prefers them for no reason: there β leaves half of the rows' degrees
        of freedom at least, or is the largest, and a `FedHiPWarning` says so.
        """
        scores, N = self.gcv(), self._total.num_samples
        m = len(self._values) - self._total.intercept
        if m > N:
            freedom = torch.stack([self._freedom(self._factor(beta)) for beta in self.betas])
            enough = 2.0 * freedom <= N
            enough[-1] = True
            scores = scores.masked_fill(~enough, torch.inf)
            warnings.warn(
                f"the sum is of {N} rows with {m} features: generalized cross-validation says little there, and a beta "
                'was taken that cannot fit them all; choose beta on rows left out ("auto"), or give it',
                FedHiPWarning,
                stacklevel=3,
            )
        return self.betas[int((scores == scores.min()).nonzero()[-1])]

    def _freedom(self, factor: EigenFactor) -> Tensor:
        """df = Σ λ/(λ + β)."""
        return (self._values[self._kept(factor)] / factor.values).sum()

    def select(self, scores: LooScore | Iterable[LooScore]) -> float:
        """The β of highest smoothed leave-one-out accuracy over all clients' rows; of several, the largest."""
        terms = [scores] if isinstance(scores, LooScore) else list(scores)
        if not terms:
            raise InputError("no client scored the grid, so there is nothing to choose beta by")
        return choose_betas(terms[0].betas, reduce(add, terms).soft)[0]

    def _factor(self, beta: float) -> EigenFactor:
        return truncated(self._values + beta * self._penalized, self._V)

    def _system(self, factor: EigenFactor) -> GlobalSystem:
        return GlobalSystem(factor, self._rotated_cross[self._kept(factor)] / factor.values.sqrt()[:, None])

    def _kept(self, factor: EigenFactor) -> slice:
        """The eigenvalues ascend: the kept ones are the last."""
        return slice(len(self._values) - len(factor.values), None)


def _eigenpairs(total: Statistics) -> tuple[Tensor, Tensor, Tensor]:
    """λ ascending and V with A = V diag(λ) Vᵀ, and where there is a penalty (m,): nowhere on an intercept.

    Standardised features have the mean 0 over the federation, so that nothing connects them with the intercept: it is
    a coordinate of its own, and comes last, for it is the one that is always kept.
    """
    if not total.intercept:
        values, V = torch.linalg.eigh(total.gram)
        return values, V, torch.ones_like(values)
    m = total.num_features - 1
    values, V = torch.linalg.eigh(total.gram[:m, :m])
    return torch.cat((values, total.gram[m:, m])), torch.block_diag(V, V.new_ones((1, 1))), total.penalty(1.0)  # type: ignore[no-untyped-call]


def default_betas(total: Statistics) -> tuple[float, ...]:
    """Two to the decade, from 1e-6 to 10 times the mean square of the features summed over rows.

    Features that are 0 in all rows, and the intercept, do not count.
    """
    squares = total.gram.diagonal()[: total.num_features - total.intercept]
    return penalty_grid(float(squares.sum() / (squares > 0.0).sum().clamp(min=1)))
