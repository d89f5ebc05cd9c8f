"""Priors at the server: the sums that every site chooses by, once the head is there.

    temperature of LDA, at which sites judge whose means they take: then they do as in `fedhip run`
    scale       of the scores, for heads whose scale the sites do not know
    prior       losses and rows right over the grid of priors

What a site chooses stays with it: the server learns the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedhip.core.errors import StatisticsError
from fedhip.federation.errors import RoundError
from fedhip.federation.server.later_rounds import LaterRounds
from fedhip.federation.sums.later import Ask, losses_of
from fedhip.federation.sums.priors import lda_temperatures, prior_losses_of, require_possible_losses, scale_of_sum
from fedhip.federation.sums.vector import Vector
from fedhip.federation.transport.wire import Arrays, Body


@dataclass
class PriorRounds:
    """The sums that are missing of these; `body` and `arrays` tell the sites of the head."""

    sums: LaterRounds
    body: Body
    arrays: Arrays

    def run(self) -> tuple[Body, Arrays]:
        """What the sites choose by."""
        agreement, told = self.sums.cohort.agreement, Body()
        layout = agreement.layout
        rows = int(layout.counts(self.sums.total).sum())
        scale = None
        try:
            if agreement.head == "lda":
                told["temperature"] = self._temperature()
            if agreement.head != "ridge":
                scale = told["scale"] = scale_of_sum(self._sum(Ask.SCALE, told), rows, layout.d)
            pooled = self._sum(Ask.PRIOR, told)
            require_possible_losses(prior_losses_of(pooled, agreement, scale), rows)
        except StatisticsError as error:
            raise RoundError(
                f"a site sent wrong numbers under its mask: {error}. Nobody can say which; nothing was written"
            ) from error
        return told, {"priors": pooled}

    def _temperature(self) -> float:
        from fedhip.core.choice.calibration import choose_temperature

        losses = losses_of(self._sum(Ask.TEMPERATURE, {}))
        if float(losses.min()) < 0.0:
            raise StatisticsError("the losses over temperatures are those of no rows")
        return choose_temperature(losses, lda_temperatures())

    def _sum(self, ask: Ask, told: Body) -> Vector:
        if self.sums.found(ask) is None:
            self.sums.add(ask, {**self.body, **told}, self.arrays)
        found = self.sums.found(ask)
        assert found is not None  # noqa: S101  (it was added)
        return found
