"""Logistic regression from rounds of sums; α weighs the client's rows in its own step.

After somebody has come or gone, the rounds go on from the head that was there, with the penalty ρ and the temperature
T₀ it had, to the optimum of those who are present: their rows are needed, all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Self

from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.fixedpoint import GridStatistics
from fedhip.core.logistic_fit import LogisticHead
from fedhip.core.personal_logistic import LOGISTIC_ALPHAS
from fedhip.core.prior import NO_PRIOR, Prior
from fedhip.heads.errors import RowsMissingError
from fedhip.heads.head import Head, Own
from fedhip.methods.closed import Task
from fedhip.methods.fedhip_logistic import LogisticRun
from fedhip.models import Model
from fedhip.phases import Client, Federation, Personalization
from fedhip.priors import losses_bytes
from fedhip.utils.parallel import in_order

#: Where rounds go on from a head: at most so many gradients, or until the slope is this short; the objective is then
#: within 1e-8 of the least, relatively.
MOST_GRADIENTS, TOLERANCE = 100, 1e-4


class Logistic(Head):
    """Fitted to everybody's rows, and a client's to its own."""

    name, method = "logistic", "fedhip-logistic"
    alpha_is = "how much more the client’s own rows weigh in its own step than in the federation’s model"
    alphas = LOGISTIC_ALPHAS
    #: Ten to the decade around 1: its scores are nearly calm.
    temperatures = tuple(10.0 ** (i / 10) for i in range(-10, 11))
    needs_rows = True

    def __init__(self, federation: Federation, task: Task, run: LogisticRun, head: LogisticHead) -> None:
        super().__init__(federation, task)
        self._run, self._head, self._common = run, head, run.on_raw(head.model)

    @classmethod
    def fit(cls, federation: Federation, task: Task, held: Model | None = None) -> Self:
        """All rounds; those of gradients alone from the model held; none where the sum is as before."""
        if held is None:
            return cls._from_scratch(federation, task)
        kept = {name: held.settings[name] for name in ("penalty", "temperature")}
        run = LogisticRun(replace(task, options={**task.options, **kept}), federation)
        fit = run.statistics()
        common = held.affine
        weights = common.on_standardized(federation.encoding.columns.standardization.then(fit.standardization))
        if held.total == federation.digest:
            found = cls(federation, task, run, LogisticHead(fit, weights, fit.rho, held.settings["curvature"]))
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
        """Of the rounds that were run; with priors, the losses of the models beside it too."""
        beside = losses_bytes((1, 1)) if self.task.protocol.prior == "client" else 0
        return self._run.rounds, self._run.up + beside, self._run.down + beside

    def personalize(self, priors: Mapping[str, Prior] | None = None, others: Tensor | None = None) -> dict[str, Own]:
        """The step of each client, which knows of its prior."""
        training = self.task.training
        chosen = self._run.priors(self._head) if priors is None else priors
        found = in_order(lambda c: self._own(c, chosen.get(c.name, NO_PRIOR)), training, self.task.device)
        owns = {}
        for done, (client, own) in enumerate(zip(training, found, strict=True), start=1):
            owns[client.name] = own, chosen.get(client.name, NO_PRIOR)
            self.task.report("personal step", done, len(training))
        return owns

    def left_out(self, client: Client) -> dict[str, Iterable[Tensor]]:
        """By the federation's model: the client's own step comes after the prior, and knows of it."""
        scores = [self._head.loo_scores(*self._run.rows(client), client=client.name)]
        return {"global": scores, self.method: scores}

    def again(self, client: str, own: GridStatistics, alpha: float, held: Callable[[], Model]) -> AffineModel:
        """The federation's for α = 0; else as it is: it would take the client's rows, and the sum is as before."""
        return held().affine if alpha > 0.0 else self.common

    def _own(self, client: Client, prior: Prior) -> Personalization:
        step = self._run.step(self._head, client, prior)
        given = self.task.options.get("alpha")
        alpha = step.select() if given is None else given
        model = self._run.on_raw(step.model(alpha)) if alpha > 0.0 else self.common
        return self.measured(client, alpha, model, common=step.loo_scores(0.0), own=step.loo_scores(alpha))


def _require_rows(federation: Federation, task: Task) -> None:
    """Refuse rounds in which somebody of the sum would be missing."""
    there = sum(len(client.train[1]) for client in task.training)
    if there != federation.grid.num_samples:
        raise RowsMissingError(
            f"a logistic head is fitted to rows, in rounds, and {there:,} of the {federation.grid.num_samples:,} rows "
            "behind the sum are here; give everybody's"
        )
