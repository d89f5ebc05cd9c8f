"""FedHiP-logistic: logistic regression of all rows in a handful of rounds of sums, then each client's own step.

round 1   statistics of each client's training rows, on the grid (FedHiP's own upload); the standardised sum returns
round 2   each client's leave-one-out losses of LDA over temperatures: 16 numbers
round 3…  the server sends weights, the clients answer loss and gradient as whole numbers; after the second answer, a
          round of leave-one-out losses over penalties, 153 numbers
at last   at each client: its prior, if it is asked for; its own step, which knows of the prior
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.columns import Columns
from fedhip.core.fixedpoint import decode
from fedhip.core.logistic import GridModel, LogisticTerm, LossError, logistic_term
from fedhip.core.logistic_fit import TEMPERATURES, LogisticFit, LogisticHead
from fedhip.core.personal_logistic import PersonalLogistic
from fedhip.core.prior import NO_PRIOR, Prior
from fedhip.methods.closed import Task, one_shot
from fedhip.methods.prior import SCALE_BYTES, prior_bytes
from fedhip.methods.protocol import MethodRun
from fedhip.phases import Client, Federation
from fedhip.simulation import federate
from fedhip.utils.parallel import in_order, one_thread


@dataclass
class LogisticRun:
    """The rounds in one process: what was fitted, and what one client sent and received.

    `federation` has the sum of round one, where it is known.
    """

    task: Task
    federation: Federation | None = None
    up: int = 0
    down: int = 0
    rounds: int = 0

    @cached_property
    def _federation(self) -> Federation:
        task = self.task
        return self.federation or federate(task.training, task.num_classes, ridge=task.plain_ridge, device=task.device)

    def rows(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's training rows as the grid sees them."""
        return self._federation.encoding.rounded(client.train, self.task.device), self.task.tensors(client.train)[1]

    @property
    def columns(self) -> Columns:
        """The columns' own units."""
        return self._federation.encoding.columns

    def on_raw(self, model: AffineModel) -> AffineModel:
        """A model on features as they came, from one on the columns' own units."""
        return model.on_raw(self.columns.standardization)

    def statistics(self) -> LogisticFit:
        """Round 1."""
        total, options = decode(self._federation.grid), self.task.options
        with one_thread():
            fit = LogisticFit.of(
                total,
                penalty=options.get("penalty"),
                temperature=options.get("temperature"),
                step=self._federation.encoding.step,
            )
            _ = fit.lda, fit.geometry  # computed once, before the clients share them
        sent = self._federation.survey_bytes + self._federation.statistics_bytes
        self._count(up=sent, down=sent)
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

    def priors(self, head: LogisticHead) -> dict[str, Prior]:
        """Every client's prior, if it is asked for, from the head's leave-one-out scores."""
        found = self.task.priors(lambda client: head.loo_scores(*self.rows(client), client=client.name))
        if found:
            sent = prior_bytes(self.task.num_classes, counts=False)
            # The head is told before either sum, that of the scores' scale and that of the losses.
            self.up, self.down = self.up + SCALE_BYTES + sent, self.down + 2 * 8 * head.weights.numel() + sent
        return found

    def personal(self, head: LogisticHead, client: Client, prior: Prior = NO_PRIOR) -> tuple[float, AffineModel]:
        """α and the client's model, to which the prior is still to be added: the step knows of it and leaves it out."""
        own = self.step(head, client, prior)
        alpha = self.task.options.get("alpha")
        chosen = own.select() if alpha is None else alpha
        return chosen, self.on_raw(own.model(chosen))

    def step(self, head: LogisticHead, client: Client, prior: Prior) -> PersonalLogistic:
        """The client's heads over α."""
        own_counts, everybody = self.task.counts(client), head.fit.statistics.counts
        F, y = self.rows(client)
        return PersonalLogistic(
            head,
            F,
            y,
            temperature=prior.temperature,
            shift=prior.shift(own_counts, everybody),
            loo_shift=prior.left_out_shifts(y, own_counts, everybody),
            client=client.name,
        )

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


def run_fedhip_logistic(task: Task) -> MethodRun:
    """All rounds, then each client's own step."""
    began = time.perf_counter()
    run = LogisticRun(task)
    fit = run.statistics()
    run.temperature(fit)
    run.gradients(fit, int(task.options["gradient_rounds"]))
    head = fit.head()
    run.down += 8 * head.weights.numel()
    priors = run.priors(head)
    models: dict[int, AffineModel] = {}
    alphas: dict[int, float] = {}

    def step(client: Client) -> tuple[float, AffineModel]:
        return run.personal(head, client, priors.get(client.name, NO_PRIOR))

    found = in_order(step, task.training, task.device)
    for done, (alpha, model) in enumerate(found, start=1):
        at = id(task.training[done - 1])
        alphas[at], models[at] = alpha, model
        task.report("personal step", done, len(task.training))
    seconds, common = time.perf_counter() - began, run.on_raw(head.model)
    accuracy = [
        task.accuracy(client, models.get(id(client), common).scores, priors.get(client.name)) for client in task.clients
    ]
    return one_shot(
        "fedhip-logistic",
        task,
        accuracy,
        rounds=run.rounds,
        seconds=seconds,
        up=run.up,
        down=run.down,
        alphas=[alphas.get(id(client)) for client in task.clients],
        priors=priors,
    )
