"""What a head must do: be fitted to a federation, give each client its model, and be there again after a change.

    federate     the sum of the clients' statistics, where it is not known yet
    fit          the federation's model, from the sum of the clients' statistics, and from rounds if it needs them
    personalize  phase 3 of clients whose rows are here: α, the model, what leave-one-out says, the prior
    again        a client's model of the α it has, after the sum has changed

A head whose `needs_rows` is false is a function of the sum, and a client's model one of the sum, its own statistics and
α: nobody's rows are touched when somebody comes or goes. The others go on from the model that was there, over the rows
of everybody who is present.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice.calibration import log_losses
from fedhip.core.choice.conformal import class_misses, score_scale
from fedhip.core.choice.prior import Prior, PriorChoice
from fedhip.core.choice.selection import fold_of
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.heads.model import Model
from fedhip.heads.options import Option
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.personalization import Personalization, calibration_rows
from fedhip.simulation.priors import LeftOut, left_out_classes

#: A client's model and what is known of it, and the prior that goes with it.
Personalized = tuple[Personalization, Prior]
#: Clients' models that may wait, for each core, until one before them is there: they are small beside a client's work.
AHEAD = 4


class Head(ABC):
    """A head fitted to a federation.

    Parameters
    ----------
    federation : Federation
        The sum.
    task : Task
        Clients whose rows are here, and what they were told; its options are those of the head.
    """

    #: As users name it; its method in tables, with the title and the line that it has there.
    name: ClassVar[str]
    method: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    #: What α is chosen among.
    alphas: ClassVar[tuple[float, ...]]
    #: What α is, in the words of a table's note.
    alpha_is: ClassVar[str]
    #: What losses of rows left out are given at.
    temperatures: ClassVar[tuple[float, ...]]
    #: Whether a change of the sum takes everybody's rows.
    needs_rows: ClassVar[bool] = False

    def __init__(self, federation: Federation, task: Task) -> None:
        self.federation, self.task = federation, task

    @classmethod
    def federate(cls, task: Task) -> Federation:
        """The sum of the task's clients, all rows weighing alike."""
        return federate(
            task.training,
            task.num_classes,
            0.0,
            task.plain_ridge,
            task.device,
            report=task.report,
            uploads=task.uploads,
        )

    @classmethod
    @abstractmethod
    def fit(cls, federation: Federation, task: Task, previous: Model | None = None) -> Self:
        """The head of this sum; `previous` is the global model of before, where there was one."""

    @property
    @abstractmethod
    def common(self) -> AffineModel:
        """The federation's model."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, float]:
        """What it was solved with, beside the sum and β: for the files of its models."""

    @property
    @abstractmethod
    def traffic(self) -> tuple[int, int, int]:
        """Rounds, and the bytes that one client sends and receives."""

    @abstractmethod
    def personalize(
        self, priors: Mapping[str, PriorChoice] | None = None, others: Tensor | None = None
    ) -> dict[str, Personalized]:
        """Phase 3 of the task's clients, by name.

        `priors` are those to keep; without them they are chosen, if the task asks for any. `others` are the summed
        losses of the federation's model over `temperatures`, of the clients that are not of the task.
        """

    @abstractmethod
    def left_out(self, client: Client) -> dict[str, LeftOut]:
        """What the client's priors are chosen by: scores (N_k, d) of its rows, each left out.

        By the federation's model ("global") and, under the name of the method, by those that its own is chosen among.
        """

    @abstractmethod
    def refit(
        self, client: str, statistics: GridStatistics, alpha: float, previous: Callable[[], Model]
    ) -> AffineModel:
        """A client's model of this α, from its statistics; of a head that needs rows, the model it holds."""

    def kept(self, known: Mapping[str, object], prior: PriorChoice) -> PriorChoice:
        """What a client keeps while others change: its prior; `known` is what details.json says of it."""
        return prior

    def settings_after(self, previous: Callable[[], Model]) -> Mapping[str, float]:
        """What a client's model was solved with that is solved anew; `previous` is the one it holds."""
        return self.settings

    def losses(self, scores: Tensor, labels: Tensor) -> list[float]:
        """Log-losses of rows left out, over `temperatures`. Rows whose class nobody else has judge nothing."""
        y = labels.to(scores.device)
        judges = ~scores.gather(1, y[:, None])[:, 0].isneginf()
        found: list[float] = log_losses(scores[judges], y[judges], self.temperatures).tolist()
        return found

    def measured(
        self,
        client: Client,
        alpha: float,
        model: AffineModel,
        *,
        common: Tensor,
        own: Tensor,
        nested: Tensor | None,
        curve: list[float] | None = None,
        answers: Tensor | None = None,
    ) -> Personalization:
        """A client's model with what scores (N_k, d) of its rows left out say, by the federation's model and its own.

        `nested` are scores by models and priors that were chosen without a row's fold, None where there are none.
        `curve` is the accuracy at each of `alphas`, where it is known. `answers` (N_k, d) are scores as the model
        answers, prior and all, where prediction sets are to hold with it.
        """
        statistics = self.statistics(client)
        local, labels = statistics.counts > 0, self.task.tensors(client.train)[1]
        scores = masked(own, local if self.task.only_local_classes else None)
        judged, answered = calibration_rows(len(labels)), own if answers is None else answers
        missed = scores if answers is None else masked(answers, local if self.task.only_local_classes else None)
        return Personalization(
            alpha,
            model,
            statistics.digest(),
            local,
            curve,
            None if nested is None else accuracy(self.local_only(client, nested), labels),
            self.losses(scores, labels),
            self.losses(common, labels),
            [class_misses(missed, labels)[judged].tolist()],
            score_scale(answered),
            [class_misses(common, labels)[judged].tolist()],
        )

    def nested(self, client: Client, scores: Sequence[Tensor], priors: Sequence[Prior] | None) -> Tensor | None:
        """Scores (N_k, d) of the client's rows: of each fold by what was chosen without it, scores and prior."""
        if priors is None:
            return None
        labels, found = self.task.tensors(client.train)[1], torch.empty_like(scores[0])
        groups = client.group_tensor
        folds = fold_of(len(labels), groups)
        for fold, (part, prior) in enumerate(zip(scores, priors, strict=True)):
            at = (folds == fold).to(labels.device)
            if not prior.is_none and bool(at.any()):
                together = None if groups is None else groups[folds == fold]
                own, everybody = self.task.counts(client), self.federation.grid.counts
                shifts = prior.left_out_shifts(labels[at], own, everybody, together)
                found[at] = part[at] / prior.temperature + shifts.to(part)
            else:
                found[at] = part[at]
        return found

    def local_only(self, client: Client, scores: Tensor) -> Tensor:
        """Scores (N_k, d) of the client's rows left out, of the classes that it may name without the row."""
        if not self.task.only_local_classes:
            return scores
        labels, counts = self.task.tensors(client.train)[1], self.task.counts(client)
        return left_out_classes(scores, labels, counts, client.group_tensor)

    def statistics(self, client: Client) -> GridStatistics:
        """The client's part of the sum."""
        if client.name in self.task.uploads:
            return self.task.uploads[client.name]
        grid = self.federation.grid
        return self.federation.encoding.statistics(client, grid.num_classes, grid.device)


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """The share of rows whose class has the highest score."""
    return float((scores.argmax(dim=1) == labels).double().mean())
