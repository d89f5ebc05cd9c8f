"""The client's class prior: scores of rows it has not seen, plus what the client knows of its classes.

Where clients differ in which classes they have, and not in what a class looks like, the best scores for client k are

    log softmax(s / T)_y + log π_k(y) − log π(y),     π_k(y) = (n_ky + a π(y)) / (n_k + a)

with s the scores of a model, T the temperature that makes probabilities of them, π the federation's class frequencies
and n_ky the client's rows of class y. The smoothing a is a number of rows, drawn from the federation, that the client
is lent: a = 0 is its own frequencies, a = ∞ the federation's, that is, no prior.

T and a are chosen by likelihood on rows that the model has not seen (left out one by one, or held out), and the row's
own label is left out of all counts. Log-losses over a grid add. A client's own are weighed against those of all:

    (T, a) = argmin  Σ_{own rows} loss(T, a) + n₀ · mean_{all rows} loss(T, a)

so that a client with few rows does as the others do, and one with many as its own rows say. a = ∞ is among the values:
where the counts are noise, the scores stay as they are. So they do where the likelihood rises and fewer of these rows
are classified right, own and everybody's weighed likewise: a model that knows its client's classes already may be
better calibrated by the prior, and no better.

What was chosen on rows says too much of them. So a client keeps its losses fold by fold (see
`fedhip.core.choice.selection`): for the rows of a fold it chooses again by everything but them, its own losses and
everybody's less those of the fold, and counts the rows of the fold that this choice has right. Both are in its hands;
nothing more is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Self

import torch
from torch import Tensor

from fedhip.core.choice.calibration import on_grid
from fedhip.core.choice.selection import FOLDS, fold_of
from fedhip.core.groups import members
from fedhip.errors import InputError

#: Five to the decade, in units of the scores' deviation: from nearly the highest score alone to nearly uniform.
TEMPERATURES: tuple[float, ...] = tuple(10.0 ** (i / 5) for i in range(-8, 5))
#: Rows lent to a client: two to the decade, and none of its own prior at all.
SMOOTHINGS: tuple[float, ...] = (*(10.0 ** (i / 2) for i in range(-2, 7)), math.inf)
#: How many places there are to choose among.
PLACES = len(TEMPERATURES) * len(SMOOTHINGS)
#: n₀, the rows' worth of everybody's losses in a client's choice.
POOLED_ROWS = 50.0
#: The same for rows classified right, of which one says less than a loss.
POOLED_HITS = 500.0

#: Models are judged together while their scores are no more numbers than this.
_AT_ONCE = 2**16

_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Prior:
    """What a client adds to its scores, and what it divides them by before."""

    temperature: float
    smoothing: float

    @property
    def is_none(self) -> bool:
        """Whether the scores stay as they are."""
        return math.isinf(self.smoothing)

    def shift(self, own: Tensor, everybody: Tensor) -> Tensor:
        """log π_k − log π (d,), from the client's and everybody's numbers of rows by class."""
        own, everybody = own.to(everybody.device, torch.float64), everybody.to(torch.float64)
        if self.is_none:
            return torch.zeros_like(own)
        lifted = _lifted(own, _frequencies(everybody, everybody.sum()), [self.smoothing])[:, 0]
        return (lifted / (own.sum() + self.smoothing)).log()

    def left_out_shifts(self, labels: Tensor, own: Tensor, everybody: Tensor, groups: Tensor | None = None) -> Tensor:
        """The shift (N, d) as it would be without each of the client's rows, from their labels (N,).

        Of `groups` (N,), without all rows of the row's group.
        """
        if groups is not None:
            shifts = torch.empty((len(labels), len(own)), dtype=torch.float64, device=everybody.device)
            for S in members(groups):
                gone = torch.bincount(labels[S.to(labels.device)], minlength=len(own)).to(everybody.device)
                shifts[S.to(everybody.device)] = self.shift(own.to(everybody.device) - gone, everybody - gone)
            return shifts
        classes, at = torch.unique(labels, return_inverse=True)
        rows = torch.eye(len(own)).to(everybody.device, torch.float64)[classes.to(everybody.device)]
        return torch.stack([self.shift(own - row, everybody - row) for row in rows])[at.to(everybody.device)]

    def apply(self, scores: Tensor, own: Tensor, everybody: Tensor) -> Tensor:
        """Scores (N, d) with the client's prior, up to a number for each row; unchanged where there is none."""
        if self.is_none:
            return scores
        return scores / self.temperature + self.shift(own, everybody).to(scores)


NO_PRIOR = Prior(1.0, math.inf)


@dataclass(frozen=True)
class PriorLosses:
    """Log-losses (V, T, A) of a client's models over temperatures and smoothings, and rows right; sums over its rows.

    V are the models that it may choose among, one or several. Sums of clients add.
    """

    losses: Tensor
    right: Tensor
    rows: int
    scale: float

    def __add__(self, other: PriorLosses) -> PriorLosses:
        self._require_same_grid(other)
        right = self.right + other.right
        return PriorLosses(self.losses + other.losses, right, self.rows + other.rows, self.scale)

    def __sub__(self, other: PriorLosses) -> PriorLosses:
        self._require_same_grid(other)
        right = self.right - other.right
        return PriorLosses(self.losses - other.losses, right, self.rows - other.rows, self.scale)

    def _require_same_grid(self, other: PriorLosses) -> None:
        if self.scale != other.scale or self.losses.shape != other.losses.shape:
            raise InputError("losses over different grids do not add; every client must score the same models")

    @classmethod
    def of(
        cls,
        scores: Iterable[Tensor],
        labels: Tensor,
        own: Tensor,
        everybody: Tensor,
        scale: float,
        groups: Tensor | None = None,
    ) -> PriorLosses:
        """Of one client; the parameters are those of `FoldLosses.of`."""
        return FoldLosses.of(scores, labels, own, everybody, scale, groups=groups).every

    def on_grid(self) -> PriorLosses:
        """As they are summed: losses in whole steps."""
        return replace(self, losses=on_grid(self.losses))

    def of_model(self, at: int) -> PriorLosses:
        """Those of one model alone."""
        return replace(self, losses=self.losses[at : at + 1], right=self.right[at : at + 1])

    def scaled(self, scale: float) -> PriorLosses:
        """As those of scores that many times as large."""
        return replace(self, scale=self.scale * scale)

    def right_with(self, model: int, prior: Prior) -> float:
        """The rows right of one of the models with a prior of the grid."""
        if prior.is_none:
            return float(self.right[model, 0, -1])  # the same at every temperature
        wanted = prior.temperature / self.scale
        temperature = min(range(len(TEMPERATURES)), key=lambda t: abs(math.log(TEMPERATURES[t] / wanted)))
        return float(self.right[model, temperature, SMOOTHINGS.index(prior.smoothing)])


@dataclass(frozen=True)
class FoldLosses:
    """A client's losses: of all its rows, of those of each fold, and of those outside of it.

    What is said of a fold's rows is chosen by the `others`, and counted by those `inside`.
    """

    every: PriorLosses
    inside: tuple[PriorLosses, ...]
    others: tuple[PriorLosses, ...]

    @classmethod
    def of(
        cls,
        scores: Iterable[Tensor],
        labels: Tensor,
        own: Tensor,
        everybody: Tensor,
        scale: float,
        without: Callable[[int], Iterable[Tensor]] | None = None,
        groups: Tensor | None = None,
    ) -> Self:
        """Of one client.

        Parameters
        ----------
        scores : V tensors (N, d)
            Of rows that the model which gave them has not seen. −∞ for classes it leaves out; a row whose label is
            among these is left out here (of all models' scores alike).
        labels : (N,) int64
        own, everybody : (d,)
            Numbers of rows by class, of the client and of the federation; these rows are in both.
        scale : float
            What the temperatures are multiples of; see `scale_of`.
        without : fold to V tensors, optional
            Scores of the rows outside of a fold by models that have not seen the fold either, where that matters.
        groups : (N,), optional
            A row leaves its whole group out of the counts, and a fold holds whole groups; without them, rows.
        """
        device = everybody.device
        own, everybody, y = own.to(device, torch.float64), everybody.to(torch.float64), labels.to(device)
        alike = [_one_by_one(y, own, everybody)] if groups is None else _by_group(y, own, everybody, groups)
        fold, tables, rows = fold_of(len(y), groups).to(device), [], torch.zeros(FOLDS + 1)
        for stack in _batches(scores, len(y), len(own)):
            S = stack.to(device, torch.float64)
            judged = ~S[0].gather(1, y[:, None])[:, 0].isneginf()
            rows = _by_fold(judged[None, :, None], fold)[:, 0, 0]
            sums = []
            for part in alike:
                known = judged[part.rows]
                at = part.rows[known]
                sums.append(_judge(S[:, at] / scale, y[at], part.R, part.added[known], part.logs[known], fold[at]))
            tables.append([torch.stack(found).sum(dim=0) for found in zip(*sums, strict=True)])
        losses, right = (torch.cat(parts, dim=1) for parts in zip(*tables, strict=True))
        every, *inside = (
            PriorLosses(loss, hits, int(number), scale)
            for loss, hits, number in zip(losses, right, rows.tolist(), strict=True)
        )
        if without is None:
            return cls(every, tuple(inside), tuple(every - part for part in inside))
        others = []
        for number in range(FOLDS):
            kept = fold != number
            gone = torch.bincount(y[~kept], minlength=len(own))
            left = None if groups is None else groups.to(device)[kept]
            others.append(PriorLosses.of(without(number), y[kept], own - gone, everybody - gone, scale, left))
        return cls(every, tuple(inside), tuple(others))

    def on_grid(self) -> FoldLosses:
        """As they are summed: losses in whole steps, so that whatever is chosen by sums is the same everywhere."""
        return self._each(PriorLosses.on_grid)

    def of_model(self, at: int) -> FoldLosses:
        """Those of one model alone."""
        return self._each(lambda part: part.of_model(at))

    def scaled(self, scale: float) -> FoldLosses:
        """As those of scores that many times as large."""
        return self._each(lambda part: part.scaled(scale))

    def _each(self, change: Callable[[PriorLosses], PriorLosses]) -> FoldLosses:
        inside, others = (tuple(change(part) for part in parts) for parts in (self.inside, self.others))
        return FoldLosses(change(self.every), inside, others)

    def taking(self, folds: Mapping[int, FoldLosses]) -> FoldLosses:
        """With what is said of some folds by other models."""
        at = range(len(self.inside))
        inside = tuple(folds[f].inside[f] if f in folds else self.inside[f] for f in at)
        return replace(
            self, inside=inside, others=tuple(folds[f].others[f] if f in folds else self.others[f] for f in at)
        )


@dataclass(frozen=True)
class _LeftOutAlike:
    """Rows (n,) whose ratios r_y(a) without them differ from R (d, A) in their own class alone.

    There they are larger by `added` (n, A), and `logs` (n, A) are the logarithms of what they are.
    """

    rows: Tensor
    R: Tensor
    added: Tensor
    logs: Tensor


def _one_by_one(y: Tensor, own: Tensor, everybody: Tensor) -> _LeftOutAlike:
    """Every row leaves one row out: the sums are less by 1 for all classes, the counts for the row's own alone.

    Terms of a row that are the same for all classes drop out, and are not written.
    """
    R = _lifted(own, _frequencies(everybody, everybody.sum() - 1.0))
    left_out = _lifted(own - 1.0, _frequencies(everybody - 1.0, everybody.sum() - 1.0))[y]
    return _LeftOutAlike(torch.arange(len(y), device=y.device), R, left_out - R[y], left_out.log())


def _by_group(y: Tensor, own: Tensor, everybody: Tensor, groups: Tensor) -> list[_LeftOutAlike]:
    """Every row leaves its group out; those of groups with the same numbers of rows by class do so alike."""
    if not len(y):
        return [_one_by_one(y, own, everybody)]
    _, at = torch.unique(groups.to(y.device), return_inverse=True)
    gone = torch.zeros((int(at.max()) + 1, len(own)), dtype=own.dtype, device=y.device)
    gone.index_put_((at, y), torch.ones_like(y, dtype=own.dtype), accumulate=True)
    patterns, which = torch.unique(gone, dim=0, return_inverse=True)
    found = []
    for less, rows in zip(patterns, members(which[at]), strict=True):
        rest = everybody - less
        R = _lifted(own - less, _frequencies(rest, rest.sum()))
        ours = R[y[rows]]
        found.append(_LeftOutAlike(rows, R, torch.zeros_like(ours), ours.log()))
    return found


def _batches(scores: Iterable[Tensor], rows: int, classes: int) -> Iterator[Tensor]:
    """The scores (N, d) of models, as many at a time as are few numbers: (v, N, d)."""
    waiting: list[Tensor] = []
    for part in scores:
        if part.shape != (rows, classes):
            raise InputError(
                f"scores have shape {tuple(part.shape)}; give ({rows}, {classes}), for {rows} labels of "
                f"{classes} classes"
            )
        waiting.append(part)
        if len(waiting) * part.numel() >= _AT_ONCE:
            yield torch.stack(waiting)
            waiting = []
    if waiting:
        yield torch.stack(waiting)


def _judge(S: Tensor, y: Tensor, R: Tensor, added: Tensor, logs: Tensor, fold: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i log Σ_y e^{s_iy/T} r_iy(a) − s_i,y_i/T − log r_i,y_i(a), r the ratios without row i; and rows right.

    Of scores S (v, N, d), each (1 + folds, v, T, A): over all rows, and over those of each fold.
    """
    at = y[:, None].expand(*S.shape[:-1], 1)
    S = S - S.amax(dim=-1, keepdim=True)
    others, log_ratios = S.scatter(-1, at, -torch.inf), R.log()
    losses, right = [], []
    for temperature in TEMPERATURES:
        logits = S / temperature
        E, own = logits.exp(), logits.gather(-1, at) + logs
        # All a in one product; then the row's own term as it is without the row.
        sums = E @ R + E.gather(-1, at) * added
        losses.append(_by_fold(sums.clamp(min=_TINY).log() - own, fold))
        rivals = others / temperature
        highest = torch.stack([(rivals + ratios).amax(dim=-1) for ratios in log_ratios.unbind(1)], dim=-1)
        right.append(_by_fold(own > highest, fold))
    return torch.stack(losses, dim=2), torch.stack(right, dim=2).to(torch.float64)


def _by_fold(values: Tensor, fold: Tensor) -> Tensor:
    """Sums (1 + folds, v, …) over all rows of values (v, N, …), and over those of each fold."""
    return torch.stack([values.sum(dim=1), *(values[:, fold == number].sum(dim=1) for number in range(FOLDS))])


def scale_of(scores: Iterable[Tensor]) -> float:
    """The deviation of the scores within a row, over the rows of all clients: two sums of each client's."""
    squares, number = 0.0, 0
    for part in scores:
        more = deviations(part)
        squares, number = squares + more[0], number + more[1]
    return scale_from(squares, number)


def deviations(scores: Tensor) -> tuple[float, int]:
    """One client's two sums: squared deviations of its scores (N, d) within a row, and how many scores these are."""
    S = scores.to(torch.float64)
    known = ~S.isneginf()
    mean = S.masked_fill(~known, 0.0).sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True).clamp(min=1)
    return float((S - mean).masked_fill(~known, 0.0).square().sum()), int(known.sum())


def scale_from(squares: float, number: int) -> float:
    """The deviation, from everybody's two sums."""
    return math.sqrt(squares / number) if squares > 0.0 else 1.0


def choose_prior(
    own: PriorLosses | None, everybody: PriorLosses, pooled_rows: float = POOLED_ROWS, pooled_hits: float = POOLED_HITS
) -> tuple[int, Prior]:
    """The client's model, T and a: those of least loss, its own rows' and `pooled_rows` times everybody's mean.

    No prior, and the model of most rows right without, where that is more than with; `pooled_hits` is to rows right
    what `pooled_rows` is to losses. Without a row of anybody to judge by: the first model, and no prior. Of several
    alike: the first model, the largest smoothing.
    """
    if everybody.rows == 0:
        return 0, NO_PRIOR
    losses = everybody.losses * (pooled_rows / everybody.rows)
    right = everybody.right * (pooled_hits / everybody.rows)
    if own is not None:
        losses, right = losses + own.losses, right + own.right
    values, at = losses.min(dim=1)  # (V, A)
    model, place = divmod(int(values.flip(1).argmin()), len(SMOOTHINGS))
    smoothing = len(SMOOTHINGS) - 1 - place
    temperature = int(at[model, smoothing])
    without = right[:, 0, -1]  # the same at every temperature
    plain = int(without.argmax())
    if without[plain] > right[model, temperature, smoothing]:
        return plain, NO_PRIOR
    return model, Prior(everybody.scale * TEMPERATURES[temperature], SMOOTHINGS[smoothing])


@dataclass(frozen=True)
class PriorChoice:
    """One of a client's models, and its prior.

    `folds` are what it chooses for the rows of each fold without them, and `right` how many of all its rows are right
    so; neither is known of a prior that was not chosen now.
    """

    model: int
    prior: Prior
    folds: tuple[tuple[int, Prior], ...] = ()
    right: int | None = None

    @property
    def fold_priors(self) -> tuple[Prior, ...] | None:
        """The prior for the rows of each fold, chosen without them; None where that is not known."""
        if self.folds or not self.prior.is_none:
            return tuple(prior for _, prior in self.folds) or None
        return (NO_PRIOR,) * FOLDS


NO_CHOICE = PriorChoice(0, NO_PRIOR)


def choose_nested(own: FoldLosses, everybody: PriorLosses) -> PriorChoice:
    """The choice of `choose_prior`, and what may be said of it: by choices for the rows of each fold without them."""
    folds = tuple(choose_prior(others, everybody - own.every + others) for others in own.others)
    right = sum(part.right_with(*choice) for part, choice in zip(own.inside, folds, strict=True))
    return PriorChoice(*choose_prior(own.every, everybody), folds, round(right))


def choose_every(losses: Sequence[FoldLosses | None]) -> list[PriorChoice]:
    """Every client's `choose_nested`; None for a client without rows, which takes everybody's choice."""
    known = [part.every for part in losses if part is not None]
    if not known:
        return [NO_CHOICE] * len(losses)
    total = reduce(add, known)
    return [PriorChoice(*choose_prior(None, total)) if part is None else choose_nested(part, total) for part in losses]


def choose_priors(losses: Sequence[PriorLosses | None], pooled_rows: float = POOLED_ROWS) -> list[tuple[int, Prior]]:
    """Every client's choice; None for a client without rows, which takes everybody's."""
    known = [part for part in losses if part is not None]
    if not known:
        return [(0, NO_PRIOR)] * len(losses)
    total = reduce(add, known)
    return [choose_prior(part, total, pooled_rows) for part in losses]


def _frequencies(counts: Tensor, rows: Tensor) -> Tensor:
    """π, with one row more of each class, so that a class that nobody has is rare and not impossible."""
    return (counts + 1.0) / (rows + len(counts))


def _lifted(own: Tensor, frequencies: Tensor, smoothings: Sequence[float] = SMOOTHINGS) -> Tensor:
    """n_ky / π(y) + a, that is (n_k + a) times π_k(y) / π(y), for each a (d, A); 1 for a = ∞."""
    lent = torch.tensor([0.0 if math.isinf(a) else a for a in smoothings], dtype=own.dtype, device=own.device)
    none = torch.tensor([math.isinf(a) for a in smoothings], device=own.device)
    return torch.where(none, 1.0, (own.clamp(min=0.0) / frequencies)[:, None] + lent)
