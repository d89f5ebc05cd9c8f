"""One of several candidates, by rows held out: for everybody, and then for each client by itself.

Everybody takes the candidate of the highest mean, over clients, of the share of rows right; of equals the first, so
that candidates are listed from the simplest. A client leaves it for another only where its own rows speak for that by
more than two standard errors:

    Σ_g d_g > 2 √(Σ_g d_g²)      d_g = rows of group g that only the other has right − those that only everybody's has

where every row is a group of its own, unless rows belong together. Of several such it takes the one that is ahead by
most. A client whose candidates all tie stays with everybody's.

What may be expected is counted with everybody's candidate chosen by the other clients, and with leaving it decided by
the rows of other folds. These have seen the row that is counted, in the models that judged them: of 25 rows that are
noise it says a point too much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core.choice.selection import FOLDS, fold_of

#: A client leaves everybody's candidate by so many standard errors.
LEAVES = 2.0
#: What is less than this is rounding, and no lead.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class HeldOut:
    """How candidates did on rows held out: mean over clients of the share right (C,), and each client's (K, C)."""

    shares: Tensor

    @classmethod
    def of(cls, hits: Sequence[Tensor]) -> HeldOut:
        """From every client's rows right (N_k, C) bool; one without rows says nothing."""
        return cls(torch.stack([part.double().mean(dim=0) for part in hits if len(part)]))

    @property
    def means(self) -> Tensor:
        """Over clients (C,)."""
        return self.shares.mean(dim=0)

    def best(self, among: Sequence[int] | None = None) -> int:
        """Everybody's candidate; of equals the first of `among`."""
        places = list(range(self.shares.shape[1]) if among is None else among)
        means = self.means[places]
        return places[int((means >= means.max() - _ROUNDING).nonzero()[0])]

    def error(self, candidate: int, against: int) -> float | None:
        """The standard error, over clients, of how far one is ahead of another; None of a single client."""
        gaps = self.shares[:, candidate] - self.shares[:, against]
        return float(gaps.std(correction=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else None


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


def nested_right(
    hits: Sequence[Tensor], groups: Sequence[Tensor | None], among: Sequence[int] | None = None
) -> list[int]:
    """Of each client's rows (N_k, C) those right by the candidate that it would take without the rows of their fold.

    Everybody's is chosen by the other clients; where there is none, by the other folds.
    """
    shares = torch.stack([part.double().mean(dim=0) for part in hits])
    right = []
    for k, (part, of) in enumerate(zip(hits, groups, strict=True)):
        others = HeldOut(torch.cat((shares[:k], shares[k + 1 :])))
        fold, number = fold_of(len(part), of).to(part.device), 0
        for each in range(FOLDS):
            outside = part[fold != each]
            left = None if of is None else of[(fold != each).cpu()]
            usual = others.best() if len(hits) > 1 else HeldOut.of([outside]).best() if len(outside) else 0
            taken = leaves_for(outside, usual, left, among) if len(outside) else usual
            number += int(part[fold == each, taken].sum())
        right.append(number)
    return right
