"""The client's prior at a site: what it gives to the sums that priors are chosen by, and its own choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.later import losses_vector
from fedhip.federation.sums.priors import prior_losses_of, prior_vector, scale_vector, scales_of
from fedhip.federation.sums.vector import Vector

if TYPE_CHECKING:
    from fedhip.core.prior import FoldLosses, PriorChoice
    from fedhip.heads import Head
    from fedhip.phases import Client


@dataclass(frozen=True)
class SitePriors:
    """Of the agreed head, fitted to the sum; its task has this site's rows alone."""

    head: Head
    client: Client
    agreement: Agreement

    def temperature(self) -> Vector:
        """Losses of the federation's scores, over the head's temperatures."""
        import torch

        (scores,) = self.head.left_out(self.client)["global"].scores
        losses = self.head.losses(scores, torch.as_tensor(self.client.train[1]))
        return losses_vector(torch.tensor(losses, dtype=torch.float64), len(self.agreement.sites))

    def scale(self) -> Vector:
        """The two sums behind the scale of the site's own scores."""
        from fedhip.core.prior import deviations

        (scores,) = self.head.left_out(self.client)[self.agreement.methods[-1]].scores
        return scale_vector(*deviations(self.head.local_only(self.client, scores)))

    def losses(self, scale: float | None) -> Vector:
        """Losses and rows right of all methods, at temperatures that are multiples of the scale."""
        sent = {method: found.every for method, found in self._losses(scale).items()}
        return prior_vector(sent, len(self.agreement.sites))

    def choose(self, pooled: Vector, scale: float | None) -> dict[str, PriorChoice]:
        """For each method which of its models, and the prior: by the site's own losses and everybody's."""
        from fedhip.core.prior import choose_nested

        everybody = prior_losses_of(pooled, self.agreement, scale)
        own = self._losses(scale)
        return {method: choose_nested(own[method], everybody[method]) for method in self.agreement.methods}

    def _losses(self, scale: float | None) -> dict[str, FoldLosses]:
        from fedhip.priors import local_scores, prior_losses

        agreement, counts = self.agreement, self.head.federation.grid.counts
        scores = {"local": local_scores(self.client, self.head.federation), **self.head.left_out(self.client)}
        return prior_losses(scores, self.client, counts, scales_of(agreement, scale), agreement.only_local_classes)
