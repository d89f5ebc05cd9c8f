"""The discriminant: α = 0 is the federation's means, α = 1 the client's own, by empirical Bayes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Self

from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.fixedpoint import GridStatistics
from fedhip.core.prior import NO_PRIOR, Prior
from fedhip.heads.head import Head, Own, accuracy
from fedhip.methods.closed import Task
from fedhip.methods.fedhip_lda import SCORED_BYTES, TEMPERATURES, LdaFit, LdaHead, personal_heads
from fedhip.models import Model, masked
from fedhip.phases import Client, Federation, Personalization
from fedhip.priors import losses_bytes
from fedhip.utils.parallel import in_order


class Lda(Head):
    """A function of the sum and of a client's class sums and counts; which means it uses is chosen on its rows."""

    name, method = "lda", "fedhip-lda"
    alpha_is = "1 where a client’s model has class means of its own, 0 where it has the federation’s"
    alphas, temperatures = (0.0, 1.0), TEMPERATURES

    def __init__(self, federation: Federation, task: Task) -> None:
        super().__init__(federation, task)
        self._fit = LdaFit(federation, task.options.get("shrinkage", "oas"))

    @classmethod
    def fit(cls, federation: Federation, task: Task, held: Model | None = None) -> Self:
        """One eigendecomposition."""
        return cls(federation, task)

    @property
    def common(self) -> AffineModel:
        """The discriminant of all rows."""
        return self._fit.common

    @property
    def settings(self) -> Mapping[str, float]:
        """The shrinkage in use."""
        return {"shrinkage": self._fit.discriminant.shrinkage}

    @property
    def traffic(self) -> tuple[int, int, int]:
        """FedHiP's own upload, and its sum; with priors, their losses and those of the models beside it."""
        sent = self._fit.nbytes
        if self.task.protocol.prior == "none":
            return 1, sent, sent
        losses = losses_bytes((1, 1, 1))
        return 1, sent + SCORED_BYTES + losses, sent + losses

    def personalize(self, priors: Mapping[str, Prior] | None = None, others: Tensor | None = None) -> dict[str, Own]:
        """The client's own means, if its rows left out say so."""
        training = self.task.training
        heads = dict(zip((c.name for c in training), personal_heads(self._fit, self.task, others), strict=True))
        chosen = self.task.priors(lambda client: heads[client.name].loo_scores) if priors is None else priors
        found = in_order(lambda client: self._own(client, heads[client.name]), training, self.task.device)
        return {c.name: (own, chosen.get(c.name, NO_PRIOR)) for c, own in zip(training, found, strict=True)}

    def left_out(self, client: Client) -> dict[str, Iterable[Tensor]]:
        """By the federation's means, and by those that the client chooses."""
        (found,) = personal_heads(self._fit, replace(self.task, clients=[client]))
        return {"global": [found.common], self.method: [found.loo_scores]}

    def again(self, client: str, own: GridStatistics, alpha: float, held: Callable[[], Model]) -> AffineModel:
        """From the client's statistics."""
        return self._fit.own_model(own) if alpha > 0.0 else self.common

    def losses(self, scores: Tensor, labels: Tensor) -> list[float]:
        """Without the rows that are alone in their class."""
        found: list[float] = self._fit.losses(scores, labels).tolist()
        return found

    def _own(self, client: Client, found: LdaHead) -> Personalization:
        # From statistics, as when it is solved again, for the same bits.
        model = self._fit.own_model(self.statistics(client)) if found.personal else self.common
        labels = self.task.tensors(client.train)[1]
        only = self.task.counts(client) > 0 if self.task.protocol.only_local_classes else None
        curve = [accuracy(masked(scores, only), labels) for scores in (found.common, found.own)]
        alpha = 1.0 if found.personal else 0.0
        return self.measured(client, alpha, model, common=found.common, own=found.loo_scores, curve=curve)
