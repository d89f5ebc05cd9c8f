"""The logistic head at the server: sums after that of the statistics, until the head is fitted.

    sum 2       log-losses over temperatures                              T₀
    sum 3, 4    gradients at the weights that the fit asks about
    sum 5       log-losses over penalties                                 ρ
    sum 6 …     more gradients, as many in all as the agreement says

A server app that is started again makes the fit anew from the sums that were kept, and goes on (`LaterRounds`).

A site that leaves between two sums is left out of the later ones. Its rows stay in the statistics, and so in the scale
of the features and in LDA, to which the penalty draws; the objective is then that of those present, and the steps that
were made for another one are forgotten. A site that has no finite loss stops the sum before it is masked: half the step
is asked about next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import StatisticsError
from fedhip.federation.errors import RoundError
from fedhip.federation.server.checkpoint import LaterSum
from fedhip.federation.server.later_rounds import LaterRounds
from fedhip.federation.server.summing import NoLossError
from fedhip.federation.sums.later import (
    Ask,
    fit_of,
    known_temperature,
    losses_of,
    model_arrays,
    model_body,
    model_of,
    require_possible_term,
    term_of,
)
from fedhip.federation.sums.vector import Vector
from fedhip.federation.transport.wire import Arrays, Body

if TYPE_CHECKING:
    from fedhip.core.logistic.fit import LogisticHead
    from fedhip.core.logistic.sums import GridModel

#: The sums that the fit is told of; others are of a lift before it, or of priors after it.
_FITTED_BY = (Ask.TEMPERATURE, Ask.GRADIENT, Ask.PENALTY)


@dataclass
class LogisticRounds:
    """The sums after the statistics', and the fit that they make."""

    sums: LaterRounds

    def __post_init__(self) -> None:
        agreement = self.sums.cohort.agreement
        self._layout = agreement.layout
        self.fit = fit_of(self.sums.total, self._layout, agreement.fraction_bits)
        self._answers: list[tuple[GridModel, Vector]] = []  # what the fit remembers
        for number, record in enumerate(self.sums.progress.later, start=2):
            if record.ask in _FITTED_BY:
                self._tell(number, record)

    def run(self) -> LogisticHead:
        """All sums that are missing; then the head."""
        from fedhip.utils.parallel import one_thread

        with one_thread():
            if self.fit.temperature is None:
                self._sum(Ask.TEMPERATURE, {}, {})
            going_on = True
            while going_on:
                if self.fit.penalty is None and self.fit.evaluations == 2:
                    self._sum(Ask.PENALTY, *self._first_answers())
                going_on = self._gradients < (self.sums.cohort.agreement.gradient_rounds or 0) and self._gradient()
            return self.fit.head()

    def _gradient(self) -> bool:
        """The gradient at the weights that the fit asks about; no, where it has asked about them before."""
        model = self.fit.ask()
        if any(model.bits == asked.bits and model.steps.equal(asked.steps) for asked, _ in self._answers):
            self.sums.say("the weights no longer change: the fit has converged")
            return False
        try:
            self._sum(Ask.GRADIENT, model_body([model]), model_arrays([model]), model)
        except NoLossError as error:
            self.fit.fail(model, error)
            self.sums.say(f"{error}; half the step is asked about next")
        return True

    @property
    def _gradients(self) -> int:
        """Sums of gradients there are."""
        return sum(record.ask == Ask.GRADIENT for record in self.sums.progress.later)

    def _first_answers(self) -> tuple[Body, Arrays]:
        """What the sites judge penalties by: the first two weights, and the sums of the answers to them."""
        models, sums = zip(*self._answers[:2], strict=True)
        body = {**model_body(models), "temperature": known_temperature(self.fit)}
        return body, {**model_arrays(models), "sums": np.concatenate(sums)}

    def _sum(self, ask: Ask, body: Body, arrays: Arrays, model: GridModel | None = None) -> None:
        """One more sum, told to the fit."""
        record = self.sums.add(ask, body, arrays, model)
        self._tell(self.sums.progress.round, record)

    def _tell(self, number: int, record: LaterSum) -> None:
        """What a sum says, to the fit."""
        from fedhip.core.logistic.fit import PENALTY_SHAPE

        vector, fit = self.sums.kept(f"sum-{number}"), self.fit
        if record.ask == Ask.TEMPERATURE:
            fit.choose_temperature(losses_of(vector))
        elif record.ask == Ask.PENALTY:
            fit.choose_penalty(losses_of(vector).reshape(PENALTY_SHAPE))
        else:
            model = model_of(self.sums.checkpoint.data(f"model-{number}"), record.bits, self._layout)
            term = term_of(vector, self._layout, fit.rows)
            try:
                require_possible_term(term, fit.statistics.counts, all_here=record.sites == self.sums.progress.summed)
            except StatisticsError as error:
                raise RoundError(
                    f"a site sent wrong numbers under its mask: {error}. Nobody can say which; nothing was written"
                ) from error
            fit.tell(model, term)
            if fit.evaluations == 1:  # the first, or the first of those who are left
                self._answers.clear()
            self._answers.append((model, vector))
