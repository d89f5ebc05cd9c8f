"""Priors at the server: the sums that every site chooses by, once the head is there.

    scale       of the scores, for heads whose scale the sites do not know
    prior       losses and rows right over the grid of priors

What a site chooses stays with it: the server learns the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedhip.core.errors import StatisticsError
from fedhip.federation.errors import RoundError
from fedhip.federation.later_rounds import LaterRounds
from fedhip.federation.later_sums import Ask
from fedhip.federation.prior_sums import prior_losses_of, require_possible_losses, scale_of_sum
from fedhip.federation.vector import Vector
from fedhip.federation.wire import Arrays, Body


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
            if agreement.head != "ridge":
                scale = told["scale"] = scale_of_sum(self._sum(Ask.SCALE, {}), rows, layout.d)
            pooled = self._sum(Ask.PRIOR, told)
            require_possible_losses(prior_losses_of(pooled, agreement, scale), rows)
        except StatisticsError as error:
            raise RoundError(
                f"a site sent wrong numbers under its mask: {error}. Nobody can say which; nothing was written"
            ) from error
        return told, {"priors": pooled}

    def _sum(self, ask: Ask, told: Body) -> Vector:
        if self.sums.found(ask) is None:
            self.sums.add(ask, {**self.body, **told}, self.arrays)
        found = self.sums.found(ask)
        assert found is not None  # noqa: S101  (it was added)
        return found
