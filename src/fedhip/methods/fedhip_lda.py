"""FedHiP-LDA: the shared-covariance discriminant of all rows, with each client's own means where they differ.

phase 1   at each client: statistics of its own training rows, on the grid (FedHiP's own upload)
phase 2   at the server: their sum; features standardised, LDA with oracle approximating shrinkage, all from the sum
phase 3   at each client: its means by empirical Bayes; they are used if leave-one-out on its rows says so
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedhip.core import Standardization
from fedhip.core.affine import AffineModel
from fedhip.core.calibration import choose_temperature, log_losses
from fedhip.core.discriminant import Discriminant
from fedhip.core.fixedpoint import GridStatistics, decode
from fedhip.methods.closed import Task, one_shot
from fedhip.methods.prior import SCALE_BYTES, prior_bytes
from fedhip.methods.protocol import MethodRun
from fedhip.phases import Client, Federation
from fedhip.simulation import federate
from fedhip.utils.parallel import in_order, one_thread

#: Half as large to forty times as large as the discriminant's scores: LDA of many features is too sure of itself.
TEMPERATURES: tuple[float, ...] = tuple(10.0 ** (i / 10) for i in range(-3, 17))
#: What a client sends before priors are chosen: losses over these, and what the scale of scores is found by.
SCORED_BYTES = 8 * len(TEMPERATURES) + SCALE_BYTES


@dataclass(frozen=True)
class LdaHead:
    """One client's model on raw features, and whether its means are its own.

    `common` and `own` are the scores (N_k, d) of its rows left out, by the federation's means and by its own.
    """

    model: AffineModel
    common: Tensor
    own: Tensor
    personal: bool

    @property
    def loo_scores(self) -> Tensor:
        """Those of its model."""
        return self.own if self.personal else self.common


class LdaFit:
    """Phase 2: the discriminant of all rows, from their sum; and what each client makes of it in phase 3."""

    def __init__(self, federation: Federation, shrinkage: float | Literal["oas"] = "oas") -> None:
        self.federation, self.grid = federation, federation.grid
        self.total = decode(self.grid)
        encoding = federation.encoding
        self.standardization = Standardization.of(self.total, intercept=False, step=encoding.step)
        self._to_raw = encoding.columns.standardization.then(self.standardization)
        with one_thread():
            self.discriminant = Discriminant(self.standardization.statistics(self.total), shrinkage)
            self.common = self.discriminant.model.on_raw(self._to_raw)

    @property
    def nbytes(self) -> int:
        """The survey of the columns and the statistics, up and down."""
        return self.federation.survey_bytes + self.federation.statistics_bytes

    def rows(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's training rows, standardised."""
        y = torch.tensor(client.train[1], device=self.grid.device)
        return self.standardization.features(self.federation.encoding.rounded(client.train, self.grid.device)), y

    def left_out(self, client: Client) -> Tensor:
        """The federation's scores (N_k, d) of the client's rows, each left out."""
        return self.discriminant.loo_scores(*self.rows(client), client=client.name)

    def losses(self, scores: Tensor, labels: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> Tensor:
        """Log-losses of rows left out, over temperatures. Rows alone in their class judge nothing."""
        y = labels.to(scores.device)
        judges = self.total.counts[y] > 1
        return log_losses(scores[judges], y[judges], temperatures)

    def personalize(self, client: Client, common: Tensor, temperature: float) -> LdaHead:
        """The client's means, if they beat the federation's on its rows left out, by log-loss at this temperature.

        `common` are the federation's scores (N_k, d) of these rows.
        """
        F, y = self.rows(client)
        means = self.discriminant.personal(F, y, client=client.name)
        own = means.loo_scores()
        mine, theirs = (float(self.losses(scores, y, [temperature])[0]) for scores in (own, common))
        personal = mine < theirs
        model = means.model.on_raw(self._to_raw) if personal else self.common
        return LdaHead(model, common, own, personal)

    def own_model(self, own: GridStatistics) -> AffineModel:
        """The model with a client's means, from its statistics."""
        standardized = self.standardization.statistics(decode(own))
        return self.discriminant.own_model(standardized).on_raw(self._to_raw)


def fit_heads(task: Task) -> tuple[list[LdaHead], AffineModel, int]:
    """The head of each client with training rows, the federation's model, and the bytes of the statistics."""
    federation = federate(task.training, task.num_classes, ridge=task.plain_ridge, device=task.device)
    fit = LdaFit(federation, task.options.get("shrinkage", "oas"))
    return personal_heads(fit, task), fit.common, fit.nbytes


def personal_heads(fit: LdaFit, task: Task, others: Tensor | None = None) -> list[LdaHead]:
    """Phase 3 of the task's clients: one temperature for all, then each client's choice of means.

    `others` are the losses over TEMPERATURES of clients that are not of the task. Where everybody's temperature is
    known it is among the task's options.
    """
    training = task.training
    scores = list(in_order(fit.left_out, training, task.device))
    losses = torch.zeros(len(TEMPERATURES), dtype=torch.float64, device=task.device)
    if others is not None:
        losses += others.to(losses)
    for client, found in zip(training, scores, strict=True):
        losses += fit.losses(found, torch.tensor(client.train[1]))
    temperature = task.options.get("temperature") or choose_temperature(losses, TEMPERATURES)

    def personalize(at: int) -> LdaHead:
        return fit.personalize(training[at], scores[at], temperature)

    heads = []
    for done, head in enumerate(in_order(personalize, range(len(training)), task.device), start=1):
        heads.append(head)
        task.report("personal means", done, len(training))
    return heads


def run_fedhip_lda(task: Task) -> MethodRun:
    """One round: statistics up, their sum down."""
    began = time.perf_counter()
    heads, common, sent = fit_heads(task)
    own = {id(client): head for client, head in zip(task.training, heads, strict=True)}
    priors = task.priors(lambda client: own[id(client)].loo_scores)
    seconds = time.perf_counter() - began
    models = {at: head.model for at, head in own.items()}
    accuracy = [
        task.accuracy(client, models.get(id(client), common).scores, priors.get(client.name)) for client in task.clients
    ]
    up = down = sent
    if priors:
        losses = prior_bytes(task.num_classes, counts=False)
        up, down = up + SCORED_BYTES + losses, down + losses
    return one_shot("fedhip-lda", task, accuracy, rounds=1, seconds=seconds, up=up, down=down, priors=priors)
