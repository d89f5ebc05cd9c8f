"""The logistic head at the server: sums after that of the statistics, until the head is fitted.

    sum 2       log-losses over temperatures                              T₀
    sum 3, 4    gradients at the weights that the fit asks about
    sum 5       log-losses over penalties                                 ρ
    sum 6 …     more gradients, as many in all as the agreement says

A server app that is started again makes the fit anew from the sums that were kept, and goes on (`RoundSums`).

A site that leaves between two sums is left out of the later ones. Its rows stay in the statistics, and so in the scale
of the features and in LDA, to which the penalty draws; the objective is then that of those present, and the steps that
were made for another one are forgotten. A site that has no finite loss stops the sum before it is masked: half the step
is asked about next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedhip.federation.server.aggregation import NoLossError
from fedhip.federation.server.sums import RoundSums
from fedhip.federation.sums.head import known_temperature
from fedhip.federation.sums.kind import SumKind
from fedhip.federation.sums.logistic import fit_of, model_arrays, model_body, model_of, term_of
from fedhip.federation.sums.table import GRADIENT, KINDS, PENALTY, STATISTICS, TEMPERATURE
from fedhip.federation.sums.vector import Vector, losses_of
from fedhip.federation.transport.wire import Arrays, Body

if TYPE_CHECKING:
    from fedhip.core.logistic.fit import LogisticHead
    from fedhip.core.logistic.sums import GridModel


@dataclass
class LogisticSums:
    """The sums after the statistics', and the fit that they make."""

    sums: RoundSums

    def __post_init__(self) -> None:
        agreement, total = self.sums.cohort.agreement, self.sums.get(STATISTICS)
        assert total is not None  # noqa: S101  (it is kept)
        self._layout = agreement.layout
        self.fit = fit_of(total, self._layout, agreement.fraction_bits)
        self._answers: list[tuple[GridModel, Vector]] = []  # what the fit remembers
        for number, ask in enumerate(self.sums.progress.asks, start=1):
            self._use(number, KINDS[ask])

    def run(self) -> LogisticHead:
        """All sums that are missing; then the head."""
        from fedhip.utils.parallel import one_thread

        with one_thread():
            if self.fit.temperature is None:
                self._sum(TEMPERATURE, {}, {})
            going_on = True
            while going_on:
                if self.fit.penalty is None and self.fit.evaluations == 2:
                    self._sum(PENALTY, *self._first_answers())
                done = self.sums.progress.asks.count(GRADIENT.name)
                going_on = done < GRADIENT.count(self.sums.cohort.agreement) and self._gradient()
            return self.fit.head()

    def _gradient(self) -> bool:
        """The gradient at the weights that the fit asks about; no, where it has asked about them before."""
        model = self.fit.ask()
        if any(model.bits == asked.bits and model.steps.equal(asked.steps) for asked, _ in self._answers):
            self.sums.say("the weights no longer change: the fit has converged")
            return False
        try:
            self._sum(GRADIENT, model_body([model]), model_arrays([model]), model)
        except NoLossError as error:
            self.fit.fail(model, error)
            self.sums.say(f"{error}; half the step is asked about next")
        return True

    def _first_answers(self) -> tuple[Body, Arrays]:
        """What the sites judge penalties by: the first two weights, and the sums of the answers to them."""
        models, sums = zip(*self._answers[:2], strict=True)
        body = {**model_body(models), "temperature": known_temperature(self.fit)}
        return body, {**model_arrays(models), "sums": np.concatenate(sums)}

    def _sum(self, kind: SumKind, body: Body, arrays: Arrays, model: GridModel | None = None) -> None:
        """One more sum for the fit."""
        self.sums.ask(kind, body, arrays, model)
        self._use(len(self.sums.progress.sums), kind)

    def _use(self, number: int, kind: SumKind) -> None:
        """What a sum says, to the fit; sums of other rows of the table say nothing."""
        from fedhip.core.logistic.fit import PENALTY_SHAPE

        fit = self.fit
        if kind is TEMPERATURE:
            fit.choose_temperature(losses_of(self.sums.kept(number)))
        elif kind is PENALTY:
            fit.choose_penalty(losses_of(self.sums.kept(number)).reshape(PENALTY_SHAPE))
        elif kind is GRADIENT:
            bits, vector = self.sums.progress.sums[number - 1].bits, self.sums.kept(number)
            model = model_of(self.sums.checkpoint.data(f"model-{number}"), bits, self._layout)
            fit.tell(model, term_of(vector, self._layout, fit.rows))
            if fit.evaluations == 1:  # the first, or the first of those who are left
                self._answers.clear()
            self._answers.append((model, vector))
