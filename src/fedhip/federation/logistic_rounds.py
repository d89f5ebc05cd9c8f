"""The logistic head at the server: sums after that of the statistics, until the head is fitted.

    sum 2       log-losses over temperatures                              T₀
    sum 3, 4    gradients at the weights that the fit asks about
    sum 5       log-losses over penalties                                 ρ
    sum 6 …     more gradients, as many in all as the agreement says

Every sum is a secure sum of its own, with fresh keys, of the sites that were in the last, and it is kept with its
weights before the next begins: a server app that is started again makes the fit anew from what was kept, and goes on.

A site that leaves between two sums is left out of the later ones. Its rows stay in the statistics, and so in the scale
of the features and in LDA, to which the penalty draws; the objective is then that of those present, and the steps that
were made for another one are forgotten. A site that has no finite loss stops the sum before it is masked: half the step
is asked about next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import StatisticsError
from fedhip.federation.checkpoint import Checkpoint, LaterSum, Progress, Stage
from fedhip.federation.cohort import Cohort
from fedhip.federation.errors import RoundError
from fedhip.federation.later_sums import (
    Ask,
    fit_of,
    known_temperature,
    length,
    losses_of,
    model_arrays,
    model_body,
    model_bytes,
    model_of,
    require_possible_term,
    term_of,
)
from fedhip.federation.summing import NoLossError, Wanted, masked_sum, plain_sum
from fedhip.federation.vector import Layout, Vector, as_bytes, digest_of, from_bytes, require_length
from fedhip.federation.wire import Arrays, Body

if TYPE_CHECKING:
    from fedhip.core.logistic import GridModel
    from fedhip.core.logistic_fit import LogisticHead


@dataclass
class LogisticRounds:
    """The sums after the statistics', and the fit that they make.

    `unmask` takes the masks off the latest sum of the progress, and keeps it.
    """

    cohort: Cohort
    checkpoint: Checkpoint
    progress: Progress
    unmask: Callable[[Progress], None]

    def __post_init__(self) -> None:
        agreement = self.cohort.agreement
        self._layout = Layout(agreement.width, len(agreement.classes))
        total = self._kept("total")
        self._digest = digest_of(total)
        self.fit = fit_of(total, self._layout, agreement.fraction_bits)
        self._answers: list[tuple[GridModel, Vector]] = []  # what the fit remembers
        for number, record in enumerate(self.progress.later, start=2):
            self._tell(number, record)

    def run(self) -> LogisticHead:
        """All sums that are missing; then the head."""
        from fedhip.parallel import one_thread

        with one_thread():
            if self.fit.temperature is None:
                self._sum(Ask.TEMPERATURE, {}, {})
            going_on = True
            while going_on:
                if self.fit.penalty is None and self.fit.evaluations == 2:
                    self._sum(Ask.PENALTY, *self._first_answers())
                going_on = self._gradients < (self.cohort.agreement.gradient_rounds or 0) and self._gradient()
            return self.fit.head()

    def _gradient(self) -> bool:
        """The gradient at the weights that the fit asks about; no, where it has asked about them before."""
        model = self.fit.ask()
        if any(model.bits == asked.bits and model.steps.equal(asked.steps) for asked, _ in self._answers):
            self._say("the weights no longer change: the fit has converged")
            return False
        try:
            self._sum(Ask.GRADIENT, model_body([model]), model_arrays([model]), model)
        except NoLossError as error:
            self.fit.fail(model, error)
            self._say(f"{error}; half the step is asked about next")
        return True

    @property
    def _gradients(self) -> int:
        """Sums of gradients there are."""
        return sum(record.ask == Ask.GRADIENT for record in self.progress.later)

    def _first_answers(self) -> tuple[Body, Arrays]:
        """What the sites judge penalties by: the first two weights, and the sums of the answers to them."""
        models, sums = zip(*self._answers[:2], strict=True)
        body = {**model_body(models), "temperature": known_temperature(self.fit)}
        return body, {**model_arrays(models), "sums": np.concatenate(sums)}

    def _sum(self, ask: Ask, body: Body, arrays: Arrays, model: GridModel | None = None) -> None:
        """One more sum of the sites that were in the last; kept, and told to the fit."""
        progress, cohort, before = self.progress, self.cohort, self.progress.latest
        number = progress.round + 1
        progress.attempt += 1
        self.checkpoint.write(progress)  # a site gives no second answer to the same attempt
        cohort.envelope = replace(cohort.envelope, round=number, attempt=progress.attempt)
        cohort.gather(before, ask)
        self._say(f"sum {number}: {ask}, of {len(cohort.nodes)} sites")
        if number == 2:
            arrays = {**arrays, "total": self._kept("total")}
        wanted = Wanted(
            lambda vector: require_length(vector, length(ask, self._layout)),
            {**body, "ask": ask.value, "sum": self._digest},
            arrays,
            self._digest,
        )
        self._collect(number, wanted, ask, model)
        record = progress.later[-1]
        for site in sorted(set(before) - set(record.sites)):
            self._say(f"site {site!r} has left: sum {number} and those after it are without its rows")
        self._tell(number, record)

    def _collect(self, number: int, wanted: Wanted, ask: Ask, model: GridModel | None) -> None:
        """The sum, under masks or plain, and who is in it, as the latest of the progress."""
        progress, cohort = self.progress, self.cohort
        bits, files = (0, {}) if model is None else (model.bits, {f"model-{number}": model_bytes(model)})
        if cohort.agreement.secure_sum:
            collector = masked_sum(cohort, wanted)
            progress.later.append(LaterSum(ask.value, collector.survivors(), bits))
            progress.stage = Stage.MASKED
            self.checkpoint.write(progress, collector=collector.to_bytes(), **files)
            self.unmask(progress)
        else:
            vector, sites = plain_sum(cohort, wanted, length(ask, self._layout))
            progress.later.append(LaterSum(ask.value, sites, bits))
            self.checkpoint.write(progress, **{f"sum-{number}": as_bytes(vector)}, **files)

    def _tell(self, number: int, record: LaterSum) -> None:
        """What a sum says, to the fit."""
        from fedhip.core.logistic_fit import PENALTY_SHAPE

        vector, fit = self._kept(f"sum-{number}"), self.fit
        if record.ask == Ask.TEMPERATURE:
            fit.choose_temperature(losses_of(vector))
        elif record.ask == Ask.PENALTY:
            fit.choose_penalty(losses_of(vector).reshape(PENALTY_SHAPE))
        else:
            model = model_of(self.checkpoint.data(f"model-{number}"), record.bits, self._layout)
            term = term_of(vector, self._layout, fit.rows)
            try:
                require_possible_term(term, fit.statistics.counts, all_here=record.sites == self.progress.sites)
            except StatisticsError as error:
                raise RoundError(
                    f"a site sent wrong numbers under its mask: {error}. Nobody can say which; nothing was written"
                ) from error
            fit.tell(model, term)
            if fit.evaluations == 1:  # the first, or the first of those who are left
                self._answers.clear()
            self._answers.append((model, vector))

    def _kept(self, name: str) -> Vector:
        return from_bytes(self.checkpoint.data(name))

    def _say(self, text: str) -> None:
        self.cohort.diary.write("fit", text)
