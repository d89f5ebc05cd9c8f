"""Which head, by training rows that it has not seen; no test row is looked at.

    judge_heads       every head: trained on four fifths of each client's training rows, as it would be on all of them,
                      and counted right on the fifth; five times, until every row was in the fifth
    compare_with_lda  ridges that were fitted, and the discriminant of the same sum with the clients' priors: by exact
                      leave-one-out, without a refit

Clients tell how many of their rows are right, and the server adds up: with each head's rounds for every fold, a
federation could do the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core.choice.selection import FOLDS
from fedhip.errors import InputError
from fedhip.heads import HEADS, Lda, Ridge
from fedhip.heads.lda import LdaFit
from fedhip.heads.logistic import Logistic
from fedhip.heads.options import options_of
from fedhip.heads.round import run_head
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.hold_out import hold_out_fold
from fedhip.simulation.options import STANDARD, Alpha, Beta, RidgeOptions
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.priors import LeftOut, PriorOption
from fedhip.utils.parallel import in_order
from fedhip.utils.progress import ReportProgress, silent

#: What `--head` takes beside the names of heads.
AUTO = "auto"
#: What is taken of heads that the rows cannot tell apart: one round, and never seen far behind the others.
USUAL = Lda.name
#: The judging ends before the last fold where the best is ahead by so many standard errors.
CLEAR = 3.0


@dataclass(frozen=True)
class HeadScore:
    """One head: each client's rows right (K,), of the rows it was judged by (K,). Those of several folds add."""

    right: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, clients: Sequence[Client], accuracy: Sequence[float | None]) -> Self:
        """From the accuracy on every client's test rows; None where it has none."""
        rows = np.array([len(client.test[1]) for client in clients])
        return cls(np.rint(np.array([share or 0.0 for share in accuracy]) * rows).astype(np.int64), rows)

    def __add__(self, other: HeadScore) -> HeadScore:
        return HeadScore(self.right + other.right, self.rows + other.rows)

    @property
    def share(self) -> float:
        """The mean over clients of the share of rows right, as accuracies are reported."""
        known = self.rows > 0
        return float((self.right[known] / self.rows[known]).mean())

    @property
    def variance(self) -> float:
        """Of `share`, as if every row were right with the same probability; one row more is right, and one wrong."""
        known, right = self.rows[self.rows > 0], (self.right.sum() + 1.0) / (self.rows.sum() + 2.0)
        return float(right * (1.0 - right) * (1.0 / known).sum() / len(known) ** 2)

    def is_ahead_of(self, other: HeadScore) -> bool:
        """By more than a standard error of the clients' differences; of a single client, at all."""
        known = self.rows > 0
        gaps = self.right[known] / self.rows[known] - other.right[known] / other.rows[known]
        error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        return bool(gaps.mean() > error)

    def is_clearly_ahead_of(self, other: HeadScore) -> bool:
        """By `CLEAR` standard errors; the heads' errors are taken for independent, which is cautious."""
        return self.share - other.share > CLEAR * math.sqrt(self.variance + other.variance)


@dataclass(frozen=True)
class Recommendation:
    """A head, and what was found of each: mean over clients of the share (0 to 1) of rows right, and rows right in all.

    `rows` is of how many, `prior` what the head was judged with, `by` how: "held out" or "left out".
    """

    head: str
    prior: PriorOption
    shares: dict[str, float]
    right: dict[str, int]
    rows: int
    by: str

    @classmethod
    def of(cls, judged: Mapping[str, HeadScore], usual: str, priors: Mapping[str, PriorOption], by: str) -> Self:
        """The best of the heads that are ahead of the usual one; that one where none is."""
        shares = {name: found.share for name, found in judged.items()}
        ahead = [name for name, found in judged.items() if found.is_ahead_of(judged[usual])]
        head = max(ahead, key=lambda name: shares[name], default=usual)
        right = {name: int(found.right.sum()) for name, found in judged.items()}
        return cls(head, priors[head], shares, right, int(judged[head].rows.sum()), by)

    def to_dict(self) -> dict[str, Any]:
        """For results.json."""
        return {
            "head": self.head,
            "prior": self.prior,
            "by": self.by,
            "rows": self.rows,
            "heads": {name: {"share": share, "right": self.right[name]} for name, share in self.shares.items()},
        }


def describe(stored: Mapping[str, Any]) -> str:
    """What `Recommendation.to_dict` says, in a sentence."""
    shares = {name: found["share"] for name, found in stored["heads"].items()}
    head, best = stored["head"], max(shares, key=lambda name: shares[name])
    if stored["by"] == "left out":
        if head != Ridge.name:
            advice = "worth a try"
        else:
            advice = ("" if best == head else "that LDA is better may be chance; ") + "no reason to change"
        return (
            f"Leave-one-out on training rows, mean over clients: {shares[Ridge.name]:.1%} right with these models, "
            f"{shares[Lda.name]:.1%} with --head lda --prior client, in one round too; {advice}."
        )
    found = ", ".join(f"{name} {stored['heads'][name]['right']:,} ({share:.1%})" for name, share in shares.items())
    near = "" if head == best else f"; that {best} is better may be chance"
    return (
        f"The head {head} was chosen by training rows held out; right of {stored['rows']:,}, and in brackets the mean "
        f"over clients: {found}{near}."
    )


def options_of_heads(alpha: Alpha, beta: Beta) -> dict[str, dict[str, float]]:
    """Of each head, for an α and a β that are given; β by leave-one-out is judged as by the sum."""
    options = {name: options_of(head, alpha, {}) for name, head in HEADS.items()}
    if not isinstance(beta, str):
        options[Ridge.name]["beta"] = float(beta)
    return options


def judge_heads(
    clients: Sequence[Client],
    num_classes: int,
    *,
    seed: int = 0,
    prior: PriorOption = "none",
    only_local_classes: bool = False,
    options: Mapping[str, Mapping[str, float]] | None = None,
    ridge: RidgeOptions = STANDARD,
    device: str | torch.device = "cpu",
    report: ReportProgress | None = None,
) -> Recommendation:
    """The head for these clients: each is trained without a fold of the training rows and tested on it.

    `options` are those of each head, by head; `ridge` is what a ridge is of. A client whose rows are
    all in a fold is tested with the federation's model. The judging ends when one head is clearly ahead of the others,
    or when every row was judged.
    """
    tell = report or silent
    heads = {name: (options or {}).get(name, options_of(head, "loo", {})) for name, head in HEADS.items()}
    if any(client.groups is not None for client in clients):  # it leaves rows out one by one
        heads.pop(Logistic.name)
    judged: dict[str, HeadScore] = {}
    for fold in range(FOLDS):
        parts = [hold_out_fold(client, fold, seed) for client in clients]
        if not _can_judge(parts):
            continue
        for place, (name, chosen) in enumerate(heads.items()):
            tell("choosing the head", fold * len(HEADS) + place, FOLDS * len(HEADS))
            task = Task(
                parts,
                num_classes,
                chosen,
                device,
                ridge=ridge,
                only_local_classes=only_local_classes,
                prior=prior,
                seed=seed,
                estimates=False,
            )
            found = HeadScore.of(parts, run_head(HEADS[name], task).accuracy)
            judged[name] = judged[name] + found if name in judged else found
        best = max(judged.values(), key=lambda found: found.share)
        if all(best.is_clearly_ahead_of(other) for other in judged.values() if other is not best):
            break
    tell("choosing the head", FOLDS * len(HEADS), FOLDS * len(HEADS))
    if not judged:
        rows = sum(len(client.train[1]) for client in clients)
        raise InputError(
            f"too few training rows to judge heads by ({rows} sample{'' if rows == 1 else 's'}): leaving some out "
            "leaves none; "
            f"name the head, one of {', '.join(HEADS)}"
        )
    return Recommendation.of(judged, USUAL, dict.fromkeys(judged, prior), "held out")


def _can_judge(clients: Sequence[Client]) -> bool:
    return any(len(client.train[1]) for client in clients) and any(len(client.test[1]) for client in clients)


def compare_with_lda(outcome: Outcome, task: Task) -> Recommendation:
    """The ridges of a round as they are, or the discriminant of its sum with the clients' priors.

    `task` is what the round was told, of the same clients. Both are counted right on rows that had no part in what was
    chosen for them, so that more to choose is no lead. The discriminant is judged without means of a client's own: they
    are half of its cost.
    """
    lda = replace(task, prior="client", options={})
    rows = np.array([len(client.train[1]) for client in task.training])
    judged = {
        Ridge.name: HeadScore(np.array(_ridge_right(outcome, task)), rows),
        Lda.name: HeadScore(np.array(_lda_right(outcome, lda)), rows),
    }
    return Recommendation.of(judged, Ridge.name, {Ridge.name: task.prior, Lda.name: "client"}, "left out")


def _ridge_right(outcome: Outcome, task: Task) -> list[int]:
    """Of each client's training rows those that may be expected right, by what its model says of itself."""
    results, right = {result.client: result for result in outcome.clients}, []
    for client in task.training:
        own = results[client.name].personal
        if own is None or own.estimate is None:
            raise InputError(f"client {client.name!r} has training rows, and no ridge of this round")
        right.append(round(own.estimate * len(client.train[1])))
    return right


def _lda_right(outcome: Outcome, task: Task) -> list[int]:
    """The same of the federation's discriminant with a prior, which is chosen without the rows that are counted."""
    left_out = in_order(LdaFit(outcome.federation).left_out, task.training, task.device)
    scores = {client.name: LeftOut([found]) for client, found in zip(task.training, left_out, strict=True)}
    choices = task.prior_choices(lambda client: scores[client.name])
    return [choices[client.name].right or 0 for client in task.training]
