"""The client's class prior for every method: where the scores come from that it is chosen by.

closed forms   scores of training rows by exact leave-one-out (pFedFDA: by its two halves)
gradients      a second training, its shadow, on four fifths of every client's rows; its models score the last fifth

The shadow serves this choice alone: the models that are tested are trained on all training rows, as without a prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedhip.core.choice.prior import Prior
from fedhip.methods.engine.laboratory import Laboratory, Models
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Params
from fedhip.methods.engine.training import flat, like
from fedhip.simulation.client import Client
from fedhip.simulation.hold_out import hold_out
from fedhip.simulation.priors import choose_scored_priors, left_out_classes, prior_bytes


@dataclass(frozen=True)
class StatePair:
    """The states of a method and of its shadow."""

    own: Params
    shadow: Params


class WithPrior(Method[StatePair]):
    """A method whose models are tested with their clients' priors, as its shadow's held-out rows say."""

    def __init__(self, method: Method[Any], shadow: Method[Any]) -> None:
        super().__init__(method.lab, method.options)
        self.method, self.shadow = method, shadow
        self._fresh = method.start(), shadow.start()

    @classmethod
    def around(
        cls, kind: type[Method[Any]], lab: Laboratory, clients: Sequence[Client], options: Mapping[str, float]
    ) -> WithPrior:
        """The method in a laboratory, and its shadow in one of its own."""
        protocol = replace(lab.protocol, only_local_classes=False)
        apart = hold_out(clients, protocol.seed)
        shadow = Laboratory(apart, lab.num_classes, protocol, lab.device, dtype=lab.dtype, together=lab.together)
        return cls(kind.of(lab, options), kind.of(shadow, options))

    @property
    def phase(self) -> str:
        """The method's."""
        return self.method.phase

    @property
    def note(self) -> str | None:
        """The method's."""
        return self.method.note

    def start(self) -> StatePair:
        """Both before the first round."""
        own, shadow = self._fresh
        return StatePair(flat(own), flat(shadow))

    def round(self, state: StatePair, number: int, present: Sequence[int]) -> tuple[StatePair, Traffic]:
        """The same clients in both; the shadow's models travel too."""
        own, shadow = (like(fresh, part) for fresh, part in zip(self._fresh, (state.own, state.shadow), strict=True))
        own, traffic = self.method.round(own, number, present)
        shadow, more = self.shadow.round(shadow, number, present)
        once = prior_bytes(self.lab.num_classes) * len(present) if number == 0 else 0
        traffic = Traffic(traffic.up + more.up + once, traffic.down + more.down + once)
        return StatePair(flat(own), flat(shadow)), traffic

    def models(self, state: StatePair, number: int) -> Models:
        """The method's, with priors."""
        models = self.method.models(like(self._fresh[0], state.own), number)
        scorers = self.shadow.models(like(self._fresh[1], state.shadow), number)
        return replace(models, priors=self.choose(scorers))

    def choose(self, scorers: Models) -> list[Prior]:
        """The priors of the clients with training rows, by the scores of rows that the shadow has not seen."""
        lab, shadow = self.lab, self.shadow.lab
        found = list(shadow.test_scores(scorers))
        scores: list[Tensor | None] = []
        for k, at in enumerate(lab.place):
            part = found[at]
            if part is not None and lab.protocol.only_local_classes:
                part = left_out_classes(part, shadow.labels_tested(at), lab.class_counts[k])
            scores.append(part)
        judged = [shadow.labels_tested(at) for at in lab.place]
        return choose_scored_priors(scores, judged, list(lab.class_counts), lab.class_counts.sum(dim=0))
