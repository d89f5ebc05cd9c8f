"""The client's prior at a site: what it gives to the sums that priors are chosen by, and its own choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.later import losses_vector
from fedhip.federation.sums.priors import prior_losses_of, prior_vector, scale_vector, scales_of
from fedhip.federation.sums.vector import Vector

if TYPE_CHECKING:
    from torch import Tensor

    from fedhip.core.choice.prior import Prior, PriorLosses
    from fedhip.heads import Head
    from fedhip.simulation.client import Client


@dataclass(frozen=True)
class SitePriors:
    """Of the agreed head, fitted to the sum; its task has this site's rows alone."""

    head: Head
    client: Client
    agreement: Agreement

    def temperature(self) -> Vector:
        """Losses of the federation's scores, over the head's temperatures."""
        import torch

        (scores,) = self.head.left_out(self.client)["global"]
        losses = self.head.losses(scores, torch.as_tensor(self.client.train[1]))
        return losses_vector(torch.tensor(losses, dtype=torch.float64), len(self.agreement.sites))

    def scale(self) -> Vector:
        """The two sums behind the scale of the site's own scores."""
        from fedhip.core.choice.prior import deviations
        from fedhip.simulation.priors import local_classes_only

        (scores,) = self.head.left_out(self.client)[self.agreement.methods[-1]]
        if self.agreement.only_local_classes:
            (scores,) = local_classes_only([scores], self.client, len(self.agreement.classes))
        return scale_vector(*deviations(scores))

    def losses(self, scale: float | None) -> Vector:
        """Losses and rows right of all methods, at temperatures that are multiples of the scale."""
        return prior_vector(self._losses(scale), len(self.agreement.sites))

    def choose(self, pooled: Vector, scale: float | None) -> dict[str, tuple[int, Prior]]:
        """For each method which of its models, and the prior: by the site's own losses and everybody's."""
        from fedhip.core.choice.prior import choose_prior

        everybody = prior_losses_of(pooled, self.agreement, scale)
        own = self._losses(scale)
        return {method: choose_prior(own[method], everybody[method]) for method in self.agreement.methods}

    def _losses(self, scale: float | None) -> dict[str, PriorLosses]:
        from fedhip.simulation.priors import local_scores, prior_losses

        agreement, counts = self.agreement, self.head.federation.grid.counts
        scores: dict[str, Iterable[Tensor]] = {"local": local_scores(self.client, self.head.federation)}
        scores |= self.head.left_out(self.client)
        return prior_losses(scores, self.client, counts, scales_of(agreement, scale), agreement.only_local_classes)
