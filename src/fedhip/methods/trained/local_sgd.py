"""Every client alone, by SGD: what the methods that train by gradients would be without the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedhip.methods.engine.laboratory import Models, for_each, sgd
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Params


@dataclass(frozen=True)
class LocalState:
    """θ (K, ...)."""

    theta: Params


class LocalSGD(Method[LocalState]):
    """rounds · epochs passes of SGD; nothing travels, and nobody waits to be drawn."""

    name, title = "local-sgd", "Local SGD"
    description = "each client alone, as many passes over its rows as with the others"

    def start(self) -> LocalState:
        """The common beginning."""
        return LocalState(for_each(self.lab.initial(), self.lab.size))

    def round(self, state: LocalState, number: int, present: Sequence[int]) -> tuple[LocalState, Traffic]:
        """E passes more."""
        orders = self.lab.shuffled(number)
        return LocalState(self.lab.train(sgd, state.theta, present=range(self.lab.size), orders=orders)), Traffic()

    def models(self, state: LocalState, number: int) -> Models:
        """Each client's own."""
        return Models(state.theta)
