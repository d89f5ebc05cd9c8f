"""One of several candidates, by rows held out: for everybody, and then for each client by itself.

One candidate is presumed. Everybody takes it unless another is ahead of it, in the mean over clients of the share of
rows right, by more than 0.3/√N, N being the rows of all: with candidates that agree on 95 rows of 100, that is a
standard error and a third. Of several the one of the highest mean is taken, of equals the first, so that candidates are
listed from the simplest. A client leaves everybody's for another only where its own rows speak for that by more than
two standard errors:

    Σ_g d_g > 2 √(Σ_g d_g²)      d_g = rows of group g that only the other has right − those that only everybody's has

where every row is a group of its own, unless rows belong together. Of several such it takes the one that is ahead by
most. A client whose candidates all tie stays with everybody's.

What may be expected is counted with everybody's candidate chosen by the other clients, and with leaving it decided by
the rows of other folds. These have seen the row that is counted, in the models that judged them: of 25 rows that are
noise it says a point too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from fedhip.core.choice.selection import FOLDS, fold_of
from fedhip.utils.grids import SHARE_STEPS

#: A client leaves everybody's candidate by so many standard errors.
LEAVES = 2.0
#: What is presumed for everybody gives way to a lead of so much over √N.
LEAD = 0.3
#: What is less than this is rounding, and no lead.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class HeldOut:
    """How candidates did on rows held out: the sum over clients of the share right (C,), and of how many clients.

    A client tells its shares in whole steps of 1/1024, too coarse to tell of how many rows they are. Sums of clients
    add. `shares` are each client's (K, C), where all are here.
    """

    steps: Tensor
    clients: int
    shares: Tensor | None = None

    @classmethod
    def of(cls, hits: Sequence[Tensor]) -> HeldOut:
        """From every client's rows right (N_k, C) bool; one without rows says nothing."""
        return reduce(add, (cls.of_client(part) for part in hits if len(part)))

    @classmethod
    def of_client(cls, hits: Tensor) -> HeldOut:
        """One client's, from its rows right (N_k, C) bool."""
        steps = (hits.double().mean(dim=0) * SHARE_STEPS).round().to(torch.int64).cpu()
        return cls(steps, 1, steps[None] / SHARE_STEPS)

    def __add__(self, other: HeldOut) -> HeldOut:
        known = [part.shares for part in (self, other) if part.shares is not None]
        each = torch.cat(known).to(torch.float64) if len(known) == 2 else None
        return HeldOut(self.steps + other.steps, self.clients + other.clients, each)

    def without(self, own: HeldOut) -> HeldOut:
        """The others', for a client that knows its own."""
        return HeldOut(self.steps - own.steps, self.clients - own.clients)

    @property
    def means(self) -> Tensor:
        """Over clients (C,)."""
        return self.steps.double() / (self.clients * SHARE_STEPS)

    def best(self, among: Sequence[int], presumed: int | None = None, rows: int = 1) -> int:
        """Everybody's candidate: what is presumed, unless the best is ahead by more than chance; of equals the first.

        `rows` are those of all clients.
        """
        steps = self.steps[list(among)]
        best = among[int((steps == steps.max()).nonzero()[0])]
        if presumed is None:
            return best
        lead = float(self.steps[best] - self.steps[presumed]) / (max(self.clients, 1) * SHARE_STEPS)
        return best if lead > LEAD / math.sqrt(rows) else presumed

    def error(self, candidate: int, against: int) -> float | None:
        """The standard error, over clients, of how far one is ahead of another; None where that is not known."""
        if self.shares is None or self.clients < 2:
            return None
        gaps = self.shares[:, candidate] - self.shares[:, against]
        return float(gaps.std(correction=1)) / math.sqrt(len(gaps))


def leaves_for(hits: Tensor, usual: int, groups: Tensor | None = None, among: Sequence[int] | None = None) -> int:
    """A client's candidate: the usual one, or another that its rows right (N, C) bool speak for."""
    gaps = hits.double() - hits[:, usual : usual + 1].double()
    if groups is not None:
        _, at = torch.unique(groups.to(gaps.device), return_inverse=True)
        gaps = torch.zeros((int(at.max()) + 1, gaps.shape[1]), dtype=gaps.dtype, device=gaps.device).index_add_(
            0, at, gaps
        )
    lead, error = gaps.sum(dim=0), gaps.square().sum(dim=0).sqrt()
    beyond = lead > LEAVES * error + _ROUNDING
    if among is not None:
        allowed = torch.zeros_like(beyond)
        allowed[list(among)] = True
        beyond &= allowed
    if not bool(beyond.any()):
        return usual
    lead = torch.where(beyond, lead, -torch.inf)
    return int((lead >= lead.max() - _ROUNDING).nonzero()[0])


def nested_right_of(
    hits: Tensor,
    groups: Tensor | None,
    every: HeldOut,
    best: Callable[[HeldOut], int],
    among: Sequence[int] | None = None,
) -> int:
    """Of a client's rows (N_k, C) those right by the candidate that it would take without the rows of their fold.

    `every` are everybody's shares, and `best` says which candidate shares speak for. It is asked about those of the
    other clients; where there is none, about the other folds.
    """
    others = every.without(HeldOut.of_client(hits))
    fold, right = fold_of(len(hits), groups).to(hits.device), 0
    for each in range(FOLDS):
        outside = hits[fold != each]
        left = None if groups is None else groups[(fold != each).cpu()]
        told = others if others.clients else HeldOut.of_client(outside) if len(outside) else None
        usual = 0 if told is None else best(told)
        taken = leaves_for(outside, usual, left, among) if len(outside) else usual
        right += int(hits[fold == each, taken].sum())
    return right
