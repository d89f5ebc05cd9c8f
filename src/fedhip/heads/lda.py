"""The discriminant (LDA): α = 0 is the federation's means, α = 1 the client's own, by empirical Bayes.

phase 1   at each client: statistics of its own training rows, on the grid (the ridge's own upload)
phase 2   at the server: their sum; features standardised, LDA with oracle approximating shrinkage, all from the sum
phase 3   at each client: its means by empirical Bayes; they are used if leave-one-out on its rows says so
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor

from fedhip.core import Standardization
from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice.calibration import choose_temperature, log_losses
from fedhip.core.choice.prior import NO_CHOICE, PriorChoice
from fedhip.core.choice.selection import FOLDS, fold_of
from fedhip.core.discriminant import Discriminant
from fedhip.core.exact.fixedpoint import GridStatistics, decode
from fedhip.core.ridge.path import REFOLDED
from fedhip.heads.head import Head, Personalized, accuracy
from fedhip.heads.model import Model
from fedhip.heads.options import Option
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.priors import SCALE_BYTES, LeftOut, losses_bytes
from fedhip.utils.parallel import in_order, one_thread

#: Half as large to forty times as large as the discriminant's scores: LDA of many features is too sure of itself.
TEMPERATURES: tuple[float, ...] = tuple(10.0 ** (i / 10) for i in range(-3, 17))


@dataclass(frozen=True)
class LdaChoice:
    """Scores (N_k, d) of a client's rows left out, by the federation's means and by its own; and whose it takes.

    `without` are whose it takes for the rows of each fold, by the others; `judged` scores by its own means in which
    nothing is of a row's fold but its mates' part in the means. Of few rows, `refolded` are scores of those outside of
    each fold without it: by the federation's means, and by its own.
    """

    common: Tensor
    own: Tensor
    personal: bool
    without: tuple[bool, ...]
    judged: Tensor
    refolded: Sequence[tuple[Tensor, Tensor]] = ()

    @property
    def loo_scores(self) -> Tensor:
        """Those of its model."""
        return self.own if self.personal else self.common

    @property
    def left_out(self) -> LeftOut:
        """What its prior is chosen by."""
        common, judged = (
            partial(LeftOut, [scores], self._outside(whose)) for whose, scores in enumerate((self.common, self.judged))
        )
        folds = {fold: judged if personal else common for fold, personal in enumerate(self.without)}
        return LeftOut([self.loo_scores], folds=folds)

    def _outside(self, whose: int) -> Callable[[int], list[Tensor]] | None:
        return (lambda fold: [self.refolded[fold][whose]]) if self.refolded else None

    @property
    def fold_scores(self) -> list[Tensor]:
        """Those by which the rows of each fold are judged."""
        return [self.judged if personal else self.common for personal in self.without]


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

    def rows(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's training rows, standardised."""
        y = torch.tensor(client.train[1], device=self.grid.device)
        return self.standardization.features(self.federation.encoding.rounded(client.train, self.grid.device)), y

    def left_out(self, client: Client) -> Tensor:
        """The federation's scores (N_k, d) of the client's rows, each left out."""
        return self.discriminant.loo_scores(*self.rows(client), client=client.name, groups=client.groups)

    def losses(self, scores: Tensor, labels: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> Tensor:
        """Log-losses of rows left out, over temperatures. Rows alone in their class judge nothing."""
        y = labels.to(scores.device)
        judges = (self.total.counts[y] > 1) & ~scores.gather(1, y[:, None])[:, 0].isneginf()
        return log_losses(scores[judges], y[judges], temperatures)

    def choose(self, client: Client, common: Tensor, temperature: float) -> LdaChoice:
        """The client's means, if they beat the federation's on its rows left out, by log-loss at this temperature.

        `common` are the federation's scores (N_k, d) of these rows.
        """
        F, y = self.rows(client)
        groups = client.group_tensor
        personal = self.discriminant.personal(F, y, client=client.name)
        own = personal.loo_scores(groups)

        def takes_own(common: Tensor, own: Tensor, labels: Tensor) -> bool:
            mine, theirs = (float(self.losses(scores, labels, [temperature])[0]) for scores in (own, common))
            return mine < theirs

        folds = fold_of(len(y), groups).to(y.device)
        outside = []
        for fold in range(FOLDS):
            kept = folds != fold
            if len(y) > REFOLDED:
                outside.append((common[kept], own[kept]))
                continue
            other, left = personal.without(~kept), None if groups is None else groups[kept.cpu()]
            outside.append((other.common_scores(left), other.loo_scores(left)))
        without = tuple(takes_own(*pair, y[folds != fold]) for fold, pair in enumerate(outside))
        refolded = outside if len(y) <= REFOLDED else ()
        judged = personal.fold_scores(folds, groups)
        return LdaChoice(common, own, takes_own(common, own, y), without, judged, refolded)

    def personal_affine(self, own: GridStatistics) -> AffineModel:
        """The model with a client's means, from its statistics."""
        standardized = self.standardization.statistics(decode(own))
        return self.discriminant.personal_affine(standardized).on_raw(self._to_raw)


class Lda(Head):
    """A function of the sum and of a client's class sums and counts; which means it uses is chosen on its rows."""

    name, method, title = "lda", "fedhip-lda", "FedHiP-LDA"
    description = "linear discriminant of all rows, with each client's own means where they differ"
    options = (Option("shrinkage", most=1.0),)
    alpha_is = "1 where a client’s model has class means of its own, 0 where it has the federation’s"
    alphas, temperatures = (0.0, 1.0), TEMPERATURES

    def __init__(self, federation: Federation, task: Task) -> None:
        super().__init__(federation, task)
        self._fit = LdaFit(federation, task.options.get("shrinkage", "oas"))

    @classmethod
    def fit(cls, federation: Federation, task: Task, previous: Model | None = None) -> Self:
        """One eigendecomposition."""
        return cls(federation, task)

    @property
    def common(self) -> AffineModel:
        """The discriminant of all rows."""
        return self._fit.common

    @property
    def settings(self) -> Mapping[str, float]:
        """The shrinkage in use."""
        return {"shrinkage": self._fit.discriminant.shrinkage}

    @property
    def traffic(self) -> tuple[int, int, int]:
        """FedHiP's own upload, and its sum; with priors, their losses and those of the models beside it."""
        first, of = self.federation.survey_bytes, self.federation
        up, down = first + of.sent_bytes, first + of.statistics_bytes
        if self.task.prior == "none":
            return 1, up, down
        losses = losses_bytes([1] * (1 + len(self.task.beside)))
        return 1, up + 8 * len(TEMPERATURES) + SCALE_BYTES + losses, down + losses

    def personalize(
        self, priors: Mapping[str, PriorChoice] | None = None, others: Tensor | None = None
    ) -> dict[str, Personalized]:
        """The client's own means, if its rows left out say so."""
        training = self.task.training
        choices = self._choices(training, others)
        chosen = self.task.prior_choices(lambda client: choices[client.name].left_out) if priors is None else priors

        def own(client: Client) -> Personalized:
            prior = chosen.get(client.name, NO_CHOICE)
            return self._own(client, choices[client.name], prior), prior.prior

        found = in_order(own, training, self.task.device)
        return dict(zip((client.name for client in training), found, strict=True))

    def left_out(self, client: Client) -> dict[str, LeftOut]:
        """By the federation's means, and by those that the client chooses."""
        found = self._choices([client])[client.name]
        return {"global": LeftOut([found.common]), self.method: found.left_out}

    def refit(
        self, client: str, statistics: GridStatistics, alpha: float, previous: Callable[[], Model]
    ) -> AffineModel:
        """From the client's statistics."""
        return self._fit.personal_affine(statistics) if alpha > 0.0 else self.common

    def losses(self, scores: Tensor, labels: Tensor) -> list[float]:
        """Without the rows that are alone in their class."""
        found: list[float] = self._fit.losses(scores, labels).tolist()
        return found

    def _choices(self, clients: Sequence[Client], others: Tensor | None = None) -> dict[str, LdaChoice]:
        """One temperature for all, then each client's choice of means, by name.

        `others` are the losses over TEMPERATURES of clients that are not among these. Where everybody's temperature is
        known it is among the task's options.
        """
        device, fit = self.task.device, self._fit
        scores = list(in_order(fit.left_out, clients, device))
        losses = torch.zeros(len(TEMPERATURES), dtype=torch.float64, device=device)
        if others is not None:
            losses += others.to(losses)
        for client, found in zip(clients, scores, strict=True):
            losses += fit.losses(found, torch.tensor(client.train[1]))
        temperature = self.task.options.get("temperature") or choose_temperature(losses, TEMPERATURES)
        choices = {}
        every = in_order(lambda at: fit.choose(clients[at], scores[at], temperature), range(len(clients)), device)
        for done, (client, choice) in enumerate(zip(clients, every, strict=True), start=1):
            choices[client.name] = choice
            self.task.report("personal means", done, len(clients))
        return choices

    def _own(self, client: Client, found: LdaChoice, prior: PriorChoice) -> Personalization:
        # From statistics, as when it is solved again, for the same bits.
        model = self._fit.personal_affine(self.statistics(client)) if found.personal else self.common
        labels = self.task.tensors(client.train)[1]
        only = self.task.counts(client) > 0 if self.task.only_local_classes else None
        curve = [accuracy(masked(scores, only), labels) for scores in (found.common, found.own)]
        alpha = 1.0 if found.personal else 0.0
        nested = self.nested(client, found.fold_scores, prior.fold_priors)
        return self.measured(
            client, alpha, model, common=found.common, own=found.loo_scores, nested=nested, curve=curve
        )
