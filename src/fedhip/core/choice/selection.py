"""What is chosen by rows left out, and what may be said of it afterwards.

A row's margin is the score of its own class less the highest of the others, by a model that has not seen the row. Where
it is above 0 the row is classified right. Numbers are chosen by accuracy with a soft step: a row counts

    σ(margin / 0.08)        σ(t) = 1/(1 + e^-t)

Scores are those of one-hot targets, so that margins lie between about −1 and 1 whatever the data. A row far on either
side counts as in accuracy; one near the border counts by how near, which tells models apart that accuracy cannot, and
follows chance less. docs/alpha.md measures it beside accuracy itself, likelihoods and rules of one standard error.

The best of many on some rows is no estimate of how good it is. So what is shown as accuracy is nested: rows fall in
five folds, and the number in use for the rows of a fold is chosen without them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: The width of the soft step, in units of one-hot targets.
SOFTNESS = 0.08
FOLDS = 5
#: Of kept results, by what rule they were chosen.
CHOSEN_BY = "soft accuracy 0.08"


def margins_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores (N, …, d) of rows with these labels (N,): own class less the best of the others (N, …)."""
    at = labels.view(-1, *(1 for _ in range(scores.ndim - 1))).expand(*scores.shape[:-1], 1)
    if scores.shape[-1] == 1:  # nothing else to be taken for
        return torch.ones_like(scores[..., 0])
    own = scores.gather(-1, at)[..., 0]
    others = scores.scatter_(-1, at, -torch.inf).amax(dim=-1)
    scores.scatter_(-1, at, own[..., None])  # as they were: another copy of all would take as long as the rest
    margins, ties = own - others, own == others
    if bool(ties.any()):  # of equals the first is predicted
        first = scores[ties].argmax(dim=-1) == at[..., 0][ties]
        margins[ties] = first.to(margins) * torch.finfo(margins.dtype).tiny
    return margins


def soft_hits(margins: Tensor) -> Tensor:
    """What each row counts."""
    return torch.sigmoid(margins / SOFTNESS)


def fold_of(rows: int, groups: Tensor | None = None) -> Tensor:
    """The fold of each row (N,); rows of one of the `groups` (N,) are in one fold."""
    return (torch.arange(rows) if groups is None else groups.cpu()) % FOLDS


def select(margins: Tensor) -> int:
    """Which of several models (N, a) counts highest over the rows; of equals the first. With no rows, the first."""
    return pick(soft_hits(margins))


def pick(credit: Tensor) -> int:
    """The same from what each row counts (N, a)."""
    counted = credit.sum(dim=0)
    # To rounding: the same numbers in another order of summation must not decide.
    return int((counted >= counted.max() - 1e-9 * max(len(credit), 1)).nonzero()[0])


def without_fold(rows: int, fold: int, groups: Tensor | None = None) -> Tensor:
    """The rows (N,) bool that a number for the rows of this fold is chosen by."""
    return fold_of(rows, groups) != fold


def nested(outcomes: Sequence[Tensor], credit: Sequence[Tensor], groups: Tensor | None = None) -> Tensor:
    """Of each row (N,) its outcome by the model that the rows of other folds choose.

    Outcomes (N, a) and what rows count (N, a) are given for each fold, by which the same may stand several times.
    """
    found = torch.empty_like(outcomes[0][:, 0])
    for fold, (table, counts) in enumerate(zip(outcomes, credit, strict=True)):
        others = without_fold(len(table), fold, groups).to(table.device)
        found[~others] = table[~others, pick(counts[others])]
    return found
