"""Ditto (Li et al., 2021).

Differs from the paper: the server's mean weighs clients by their rows, where Ditto's own code weighs all alike; both
models are trained in whole passes one after the other, there step by step; μ is one number, not chosen by each client.

v_k ← v_k − η (∇CE(v_k) + μ (v_k − w^t)),   w^t the model received this round, itself trained by FedAvg
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedhip.heads.options import Option
from fedhip.methods.engine.laboratory import Models, ProximalSGD, for_each, nbytes, put, sgd, take, weighted_mean
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Params


@dataclass(frozen=True)
class DittoState:
    """The server's w, and v (K, ...) that never leaves its client."""

    w: Params
    v: Params


class Ditto(Method[DittoState]):
    """A personal model beside FedAvg's, drawn towards it."""

    name, title = "ditto", "Ditto"
    description = "a model of each client's own, drawn towards FedAvg's"
    declared = (Option("mu", 1.0), Option("personal_epochs", 3.0, whole=True, follows_epochs=True))

    def start(self) -> DittoState:
        """Everybody's v is the common beginning."""
        w = self.lab.initial()
        return DittoState(w, for_each(w, self.lab.size))

    def round(self, state: DittoState, number: int, present: Sequence[int]) -> tuple[DittoState, Traffic]:
        """The personal model first, around the model received; then FedAvg's part, on the same batches."""
        lab, received = self.lab, for_each(state.w, len(present))
        step = ProximalSGD(lab.protocol.learning_rate * self.options["mu"])
        passes = lab.shuffled(number, int(self.options["personal_epochs"]))
        v = lab.train(step, take(state.v, present), received, present=present, orders=passes)
        w = lab.train(sgd, received, present=present, orders=lab.shuffled(number))
        new = DittoState(weighted_mean(w, lab.shares(present)), put(state.v, present, v))
        return new, Traffic(nbytes(*w), nbytes(*received))

    def models(self, state: DittoState, number: int) -> Models:
        """v_k; w for a client without rows."""
        return Models(state.v, for_each(state.w, 1))
