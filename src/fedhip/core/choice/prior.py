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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Self

import torch
from torch import Tensor

from fedhip.core.errors import DimensionError

#: Five to the decade, in units of the scores' deviation: from nearly the highest score alone to nearly uniform.
TEMPERATURES: tuple[float, ...] = tuple(10.0 ** (i / 5) for i in range(-8, 5))
#: Rows lent to a client: two to the decade, and none of its own prior at all.
SMOOTHINGS: tuple[float, ...] = (*(10.0 ** (i / 2) for i in range(-2, 7)), math.inf)
#: n₀, the rows' worth of everybody's losses in a client's choice.
POOLED_ROWS = 50.0
#: The same for rows classified right, of which one says less than a loss.
POOLED_HITS = 500.0

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

    def left_out_shifts(self, labels: Tensor, own: Tensor, everybody: Tensor) -> Tensor:
        """The shift (N, d) as it would be without each of the client's rows, from their labels (N,)."""
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
        if self.scale != other.scale or self.losses.shape != other.losses.shape:
            raise DimensionError("losses over different grids do not add; every client must score the same models")
        right = self.right + other.right
        return PriorLosses(self.losses + other.losses, right, self.rows + other.rows, self.scale)

    @classmethod
    def of(cls, scores: Iterable[Tensor], labels: Tensor, own: Tensor, everybody: Tensor, scale: float) -> Self:
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
        """
        device = everybody.device
        own, everybody, y = own.to(device, torch.float64), everybody.to(torch.float64), labels.to(device)
        # Every row leaves one row out: the sums are less by 1 for all classes, the counts for the row's own alone.
        # Terms of a row that are the same for all classes drop out, and are not written.
        R = _lifted(own, _frequencies(everybody, everybody.sum() - 1.0))
        without = _lifted(own - 1.0, _frequencies(everybody - 1.0, everybody.sum() - 1.0))[y]
        added, logs = without - R[y], without.log()
        losses, right, rows = [], [], 0
        for part in scores:
            if part.shape != (len(y), len(own)):
                raise DimensionError(
                    f"scores have shape {tuple(part.shape)}; give ({len(y)}, {len(own)}), for {len(y)} labels of "
                    f"{len(own)} classes"
                )
            S = part.to(device, torch.float64)
            judged = ~S.gather(1, y[:, None])[:, 0].isneginf()
            rows = int(judged.sum())
            loss, hits = _judge(S[judged] / scale, y[judged][:, None], R, added[judged], logs[judged])
            losses.append(loss)
            right.append(hits)
        return cls(torch.stack(losses), torch.stack(right), rows, scale)

    def right_with(self, model: int, prior: Prior) -> float:
        """The rows right of one of the models with a prior of the grid."""
        if prior.is_none:
            return float(self.right[model, 0, -1])  # the same at every temperature
        wanted = prior.temperature / self.scale
        temperature = min(range(len(TEMPERATURES)), key=lambda t: abs(math.log(TEMPERATURES[t] / wanted)))
        return float(self.right[model, temperature, SMOOTHINGS.index(prior.smoothing)])


def _judge(S: Tensor, y: Tensor, R: Tensor, added: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """(T, A): Σ_i log Σ_y e^{s_iy/T} r_iy(a) − s_i,y_i/T − log r_i,y_i(a), r the ratios without row i; rows right."""
    S = S - S.amax(dim=1, keepdim=True)
    others, log_ratios = S.scatter(1, y, -torch.inf), R.log()
    losses, right = [], []
    for temperature in TEMPERATURES:
        logits = S / temperature
        E, own = logits.exp(), logits.gather(1, y) + logs
        # All a in one product; then the row's own term as it is without the row.
        sums = E @ R + E.gather(1, y) * added
        losses.append((sums.clamp(min=_TINY).log() - own).sum(dim=0))
        rivals = others / temperature
        highest = torch.stack([(rivals + ratios).amax(dim=1) for ratios in log_ratios.unbind(1)], dim=1)
        right.append((own > highest).sum(dim=0))
    return torch.stack(losses), torch.stack(right).to(torch.float64)


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
