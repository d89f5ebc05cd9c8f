"""The paper's head: `P̂_k = (A + αA_k + βI)⁻¹(B + αB_k)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from torch import Tensor

from fedhip.core import DEFAULT_ALPHAS
from fedhip.core.affine import AffineModel
from fedhip.core.choice.calibration import TEMPERATURES
from fedhip.core.choice.prior import NO_CHOICE, PriorChoice
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.heads.head import AHEAD, Head, Personalized
from fedhip.heads.model import RIDGE, Model
from fedhip.heads.options import Option
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha, Beta
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.priors import LeftOut, choose_client_priors, left_out_scores, prior_alphas, traffic_with_priors
from fedhip.utils.parallel import in_order


class Ridge(Head):
    """A function of the sum and of a client's statistics.

    Differs from the paper: each client's α by leave-one-out, where the paper has one for all, the best on test rows; β
    by generalized cross-validation of the sum, or by rows left out where features are standardised.
    """

    name, method, title = RIDGE, "fedhip", "FedHiP"
    description = "each client's own: the ridge of all rows in which its own weigh 1 + α"
    options = (Option("alpha"), Option("beta"))
    alpha_is = "how much more the client’s own rows weigh in its model than in the global one"
    alphas, temperatures = DEFAULT_ALPHAS, TEMPERATURES

    @classmethod
    def federate(cls, task: Task) -> Federation:
        """With β from the clients' rows left out, unless it is given."""
        # The paper's ridge has its β from the sum alone: nothing in a client's model is how the others are divided.
        beta: Beta = task.options.get("beta", "auto" if task.ridge.standardize else "gcv")
        alpha: Alpha = task.options.get("alpha", "loo")
        return federate(
            task.training, task.num_classes, beta, task.ridge, task.device,
            alpha=alpha, report=task.report, uploads=task.uploads, kept=task.kept,
        )  # fmt: skip

    @classmethod
    def fit(cls, federation: Federation, task: Task, previous: Model | None = None) -> Self:
        """One Cholesky factorisation, before the clients share it; a site, which has no room for it, makes it later."""
        if not task.release:
            _ = federation.common
        return cls(federation, task)

    @property
    def common(self) -> AffineModel:
        """Ĝ."""
        return self.federation.common

    @property
    def settings(self) -> Mapping[str, float]:
        """Nothing beside β."""
        return {}

    @property
    def traffic(self) -> tuple[int, int, int]:
        """Statistics up, their sum down; with priors, their losses."""
        models = (*(1 for _ in self.task.beside), len(self._prior_alphas[self.method]))
        return traffic_with_priors(self.federation, self.method, models if self.task.prior == "client" else ())

    @property
    def _prior_alphas(self) -> dict[str, tuple[float, ...]]:
        return prior_alphas(self.task.options.get("alpha", "loo"))

    def personalize(
        self, priors: Mapping[str, PriorChoice] | None = None, others: Tensor | None = None
    ) -> dict[str, Personalized]:
        """α by leave-one-out accuracy; together with the prior by likelihood, where priors are chosen."""
        task = self.task
        alpha: Alpha = task.options.get("alpha", "loo")
        kept: dict[str, tuple[Alpha, PriorChoice]] = {name: (alpha, choice) for name, choice in (priors or {}).items()}
        if priors is None and task.prior == "client":
            chosen = choose_client_priors(
                self.federation, task.training, (self.method,), alpha, task.only_local_classes, task.report
            )
            kept = {name: found[self.method] for name, found in chosen.items()}
        return self.solve(kept)

    def solve(self, kept: Mapping[str, tuple[Alpha, PriorChoice]]) -> dict[str, Personalized]:
        """Phase 3 with the priors that are known, and the α that goes with each; others have none, and the task's α."""
        task = self.task
        given: Alpha = task.options.get("alpha", "loo")

        def phase3(client: Client) -> Personalized:
            alpha, choice = kept.get(client.name, (given, NO_CHOICE))
            found = Personalization.of(
                self.federation,
                client,
                alpha,
                alphas=task.alphas,
                only_local_classes=task.only_local_classes,
                own=task.uploads.pop(client.name, None),
                choice=choice,
                last=task.release and len(task.training) == 1,
                keep=task.keep_looked,
            )
            return found, choice.prior

        found: dict[str, Personalized] = {}
        training = task.training
        for client, own in zip(training, in_order(phase3, training, task.device, AHEAD), strict=True):
            found[client.name] = own
            task.report("3 personalization", len(found), len(training))
        return found

    def left_out(self, client: Client) -> dict[str, LeftOut]:
        """Over α."""
        alphas = {name: self._prior_alphas[name] for name in ("global", self.method)}
        return left_out_scores(self.federation, client, alphas)

    def refit(
        self, client: str, statistics: GridStatistics, alpha: float, previous: Callable[[], Model]
    ) -> AffineModel:
        """Solved from the sum and the client's statistics."""
        return self.federation.model(statistics, alpha, client=client)
