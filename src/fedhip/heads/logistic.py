"""Logistic regression from rounds of sums; α weighs the client's rows in its own step.

round 1   statistics of each client's training rows, on the grid (the ridge's own upload); the sum returns
round 2   each client's leave-one-out losses of LDA over temperatures: 16 numbers
round 3…  the server sends weights, the clients answer loss and gradient as whole numbers; after the second answer, a
          round of leave-one-out losses over penalties, 153 numbers
at last   at each client: its prior, if it is asked for; its own step, which knows of the prior

After somebody has come or gone, the rounds go on from the head that was there, with the penalty ρ and the temperature
T₀ it had, to the optimum of those who are present: their rows are needed, all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.choice.prior import NO_CHOICE, Prior, PriorChoice
from fedhip.core.choice.selection import fold_of, without_fold
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics, decode
from fedhip.core.logistic.fit import TEMPERATURES, LogisticFit, LogisticHead
from fedhip.core.logistic.personal import LOGISTIC_ALPHAS, PersonalLogistic
from fedhip.core.logistic.sums import GridModel, LogisticTerm, logistic_term
from fedhip.core.ridge.path import REFOLDED
from fedhip.errors import InputError, LossError
from fedhip.heads.head import Head, Personalized
from fedhip.heads.model import Model
from fedhip.heads.options import Option
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.priors import SCALE_BYTES, LeftOut, losses_bytes
from fedhip.utils.parallel import in_order, one_thread

#: Where rounds go on from a head: at most so many gradients, or until the slope is this short; the objective is then
#: within 1e-8 of the least, relatively.
MOST_GRADIENTS, TOLERANCE = 100, 1e-4


class Logistic(Head):
    """Fitted to everybody's rows, and a client's to its own."""

    name, method, title = "logistic", "fedhip-logistic", "FedHiP-logistic"
    description = "logistic regression of all rows in a few rounds of sums, then each client's own step"
    options = (
        Option("gradient_rounds", 5.0, whole=True),
        Option("alpha"),
        Option("penalty"),
        Option("temperature", positive=True),
    )
    alpha_is = "how much more the client’s own rows weigh in its own step than in the federation’s model"
    alphas = LOGISTIC_ALPHAS
    #: Ten to the decade around 1: its scores are nearly calm.
    temperatures = tuple(10.0 ** (i / 10) for i in range(-10, 11))
    needs_rows = True

    def __init__(self, federation: Federation, task: Task, run: LogisticRun, head: LogisticHead) -> None:
        super().__init__(federation, task)
        self._run, self._head, self._common = run, head, run.on_raw(head.model)

    @classmethod
    def fit(cls, federation: Federation, task: Task, previous: Model | None = None) -> Self:
        """All rounds; those of gradients alone from the model held; none where the sum is as before."""
        if any(client.groups is not None for client in task.clients):
            raise InputError(
                "the logistic head leaves rows out one by one, and these rows have groups; take the head ridge or lda"
            )
        if previous is None:
            return cls._from_scratch(federation, task)
        kept = {name: previous.settings[name] for name in ("penalty", "temperature")}
        run = LogisticRun(replace(task, options={**task.options, **kept}), federation)
        fit = run.statistics()
        common = previous.affine
        weights = common.on_standardized(federation.encoding.columns.standardization.then(fit.standardization))
        if previous.total == federation.digest:
            found = cls(federation, task, run, LogisticHead(fit, weights, fit.rho, previous.settings["curvature"]))
            found._common = common  # to the bit
            return found
        _require_rows(federation, task)
        fit.start = weights
        run.gradients(fit, MOST_GRADIENTS, TOLERANCE)
        return cls(federation, task, run, fit.head())

    @classmethod
    def _from_scratch(cls, federation: Federation, task: Task) -> Self:
        _require_rows(federation, task)
        run = LogisticRun(task, federation)
        fit = run.statistics()
        run.temperature(fit)
        run.gradients(fit, int(task.options["gradient_rounds"]))
        head = fit.head()
        run.down += 8 * head.weights.numel()
        return cls(federation, task, run, head)

    @property
    def common(self) -> AffineModel:
        """Ĝ on raw features."""
        return self._common

    @property
    def settings(self) -> Mapping[str, float]:
        """ρ, T₀ and the mean curvature κ: with the sum and the weights, all that the clients' own steps need."""
        fit = self._head.fit
        temperature = {} if fit.temperature is None else {"temperature": fit.temperature}
        return {"penalty": self._head.rho, **temperature, "curvature": self._head.curvature}

    @property
    def traffic(self) -> tuple[int, int, int]:
        """Of the rounds that were run."""
        return self._run.rounds, self._run.up, self._run.down

    def personalize(
        self, priors: Mapping[str, PriorChoice] | None = None, others: Tensor | None = None
    ) -> dict[str, Personalized]:
        """The step of each client, which knows of its prior."""
        training = self.task.training
        chosen = self._run.priors(self._head) if priors is None else priors
        _ = self._head.spread, self._head.whitening  # once, before the clients share them
        found = in_order(lambda c: self._own(c, chosen.get(c.name, NO_CHOICE)), training, self.task.device)
        owns = {}
        for done, (client, own) in enumerate(zip(training, found, strict=True), start=1):
            owns[client.name] = own, chosen.get(client.name, NO_CHOICE).prior
            self.task.report("personal step", done, len(training))
        return owns

    def left_out(self, client: Client) -> dict[str, LeftOut]:
        """By the federation's model: the client's own step comes after the prior, and knows of it."""
        found = self._run.left_out(self._head, client)
        return {"global": found, self.method: found}

    def refit(
        self, client: str, statistics: GridStatistics, alpha: float, previous: Callable[[], Model]
    ) -> AffineModel:
        """The federation's for α = 0; else as it is: it would take the client's rows, and the sum is as before."""
        return previous().affine if alpha > 0.0 else self.common

    def _own(self, client: Client, choice: PriorChoice) -> Personalization:
        step = self._run.step(self._head, client, choice.prior)
        given = self.task.options.get("alpha")
        alpha = step.select() if given is None else given
        model = self._run.on_raw(step.model(alpha)) if alpha > 0.0 else self.common
        own, nested = step.loo_scores(alpha), self._nested(client, choice, step)
        return self.measured(client, alpha, model, common=step.loo_scores(0.0), own=own, nested=nested)

    def _nested(self, client: Client, choice: PriorChoice, step: PersonalLogistic) -> Tensor | None:
        """Scores (N_k, d) with the prior, of each fold by a step without it; α and the prior are of the other rows.

        The folds are not those that α is chosen by, which hold every class alike: of such folds even the most frequent
        class is right more often than of fresh rows. Up to 256 rows the other rows are judged without the fold, too.
        """
        if choice.fold_priors is None or not self.task.estimates:
            return None
        rows, given = len(client.train[1]), self.task.options.get("alpha")
        steps = {choice.prior: step}
        scores = torch.empty_like(step.loo_scores(0.0))
        for fold, prior in enumerate(choice.fold_priors):
            others = without_fold(rows, fold).to(scores.device)
            if bool(others.all()):
                continue
            without = self._run.another(step, self._head, client, prior, ~others)
            if given is not None:
                alpha = given
            elif rows <= REFOLDED:
                alpha = without.select()
            else:
                if prior not in steps:
                    steps[prior] = self._run.another(step, self._head, client, prior)
                alpha = steps[prior].select(judges=others)
            scores[~others] = without.gone_scores(alpha) / prior.temperature + without.shift
        return scores


def _require_rows(federation: Federation, task: Task) -> None:
    """Refuse rounds in which somebody of the sum would be missing."""
    there = sum(len(client.train[1]) for client in task.training)
    if there != federation.grid.num_samples:
        raise InputError(
            f"a logistic head is fitted to rows, in rounds, and {there:,} of the {federation.grid.num_samples:,} rows "
            "behind the sum are here; give everybody's"
        )


@dataclass
class LogisticRun:
    """The rounds in one process: what was fitted, and what one client sent and received."""

    task: Task
    federation: Federation
    up: int = 0
    down: int = 0
    rounds: int = 0

    def rows(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's training rows as the grid sees them."""
        return self.federation.encoding.rounded(client.train, self.task.device), self.task.tensors(client.train)[1]

    @property
    def columns(self) -> Columns:
        """The columns' own units."""
        return self.federation.encoding.columns

    def on_raw(self, model: AffineModel) -> AffineModel:
        """A model on features as they came, from one on the columns' own units."""
        return model.on_raw(self.columns.standardization)

    def statistics(self) -> LogisticFit:
        """Round 1."""
        total, options = decode(self.federation.grid), self.task.options
        with one_thread():
            fit = LogisticFit.of(
                total,
                penalty=options.get("penalty"),
                temperature=options.get("temperature"),
                step=self.federation.encoding.step,
            )
            _ = fit.lda, fit.geometry  # computed once, before the clients share them
        first, of = self.federation.survey_bytes, self.federation
        self._count(up=first + of.sent_bytes, down=first + of.statistics_bytes)
        return fit

    def temperature(self, fit: LogisticFit) -> None:
        """Round 2, unless the temperature was given."""
        if fit.temperature is None:
            fit.choose_temperature(self._sum("temperature", fit.temperature_losses))
            self._count(up=8 * len(TEMPERATURES), down=0)

    def gradients(self, fit: LogisticFit, number: int, tolerance: float = 0.0) -> None:
        """So many rounds of gradients; the penalty is chosen after the second answer, unless it was given.

        Fewer where the slope falls below `tolerance` before.
        """
        while fit.evaluations < number and not (fit.evaluations and fit.slope < tolerance):
            model = fit.ask()
            try:
                term = self._answers(fit, model)
            except LossError as error:
                fit.fail(model, error)
                continue
            fit.tell(model, term)
            self._count(up=term.nbytes, down=model.steps.nbytes)
            if fit.evaluations == 2 and fit.penalty is None:
                losses = self._sum("penalty", fit.penalty_losses)
                fit.choose_penalty(losses)
                # Both weights with their answers: the losses are of steps from them.
                self._count(up=8 * losses.numel(), down=2 * (model.steps.nbytes + term.nbytes))
            self.task.report("gradients", fit.evaluations, number)

    def left_out(self, head: LogisticHead, client: Client) -> LeftOut:
        """The head's scores of a client's rows left out."""
        rows = head.rows(*self.rows(client), client=client.name)
        folds = fold_of(len(rows.labels)).to(rows.labels.device)

        def without(fold: int) -> list[Tensor]:
            return [rows.fold_scores(folds == fold)]

        return LeftOut([rows.left_out], without if len(folds) <= REFOLDED else None)

    def priors(self, head: LogisticHead) -> dict[str, PriorChoice]:
        """Every client's prior, if it is asked for, from the head's leave-one-out scores."""
        found = self.task.prior_choices(lambda client: self.left_out(head, client))
        if found:
            sent = losses_bytes([1] * (1 + len(self.task.beside)))
            # The head is told before either sum, that of the scores' scale and that of the losses.
            self.up, self.down = self.up + SCALE_BYTES + sent, self.down + 2 * 8 * head.weights.numel() + sent
        return found

    def step(self, head: LogisticHead, client: Client, prior: Prior) -> PersonalLogistic:
        """The client's heads over α."""
        shift, without_rows = self._shifts(head, client, prior)
        return PersonalLogistic(
            head,
            *self.rows(client),
            temperature=prior.temperature,
            shift=shift,
            loo_shift=without_rows,
            client=client.name,
        )

    def another(
        self, step: PersonalLogistic, head: LogisticHead, client: Client, prior: Prior, gone: Tensor | None = None
    ) -> PersonalLogistic:
        """The client's heads with another prior; as if it did not have the rows `gone` (N_k,) bool."""
        return step.with_others(prior.temperature, *self._shifts(head, client, prior, gone), gone)

    def _shifts(
        self, head: LogisticHead, client: Client, prior: Prior, gone: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What a prior adds to scores (d,), and what it would without each row (N_k, d)."""
        own, everybody, y = self.task.counts(client), head.fit.statistics.counts, self.task.tensors(client.train)[1]
        if gone is not None:
            left = torch.bincount(y[gone], minlength=len(own))
            own, everybody = own - left, everybody - left.to(everybody)
        return prior.shift(own, everybody), prior.left_out_shifts(y, own, everybody)

    def _answers(self, fit: LogisticFit, model: GridModel) -> LogisticTerm:
        def answer(client: Client) -> LogisticTerm:
            F, y = self.rows(client)
            return logistic_term(F, y, model, fit.standardization, rows=fit.rows, client=client.name)

        terms = in_order(answer, self.task.training, self.task.device)
        total = next(terms)
        for term in terms:
            total = total + term
        return total

    def _sum(self, what: str, losses: Callable[..., Tensor]) -> Tensor:
        training = self.task.training
        total = torch.zeros(1).to(self.task.device, torch.float64)
        found = in_order(lambda client: losses(*self.rows(client), client=client.name), training, self.task.device)
        for done, part in enumerate(found, start=1):
            total = total + part
            self.task.report(f"choosing the {what}", done, len(training))
        return total

    def _count(self, up: int, down: int) -> None:
        self.rounds, self.up, self.down = self.rounds + 1, self.up + up, self.down + down
