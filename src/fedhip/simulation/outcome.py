"""What a round gave: every client's models tested, and the federation they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedhip.core.choice.prior import Prior
from fedhip.core.tested import Tested
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.federation import Federation
from fedhip.simulation.metrics import summarize
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.priors import traffic_with_priors


@dataclass(frozen=True)
class ClientResult:
    """Test accuracies of one client's models by method, and its personalization.

    A client without training rows is tested with the global model and has no model of its own; one without test rows
    has no accuracies. `confusions` are (true, predicted, number) of its test rows that its own model gets wrong,
    `mistakes` the places of these rows among its test rows, with what was predicted. `priors` are those that the models
    were tested with, by method; `tested` has all that the tests gave.
    """

    client: str
    train: int
    test: int
    train_counts: list[int]
    test_counts: list[int]
    accuracy: dict[str, float | None]
    personal: Personalization | None
    confusions: list[tuple[int, int, int]]
    mistakes: list[tuple[int, int]]
    priors: dict[str, Prior] = field(default_factory=dict)
    tested: dict[str, Tested] = field(default_factory=dict)

    @property
    def alpha(self) -> float | None:
        """The α in use; None without a model of its own."""
        return None if self.personal is None else self.personal.alpha


@dataclass(frozen=True)
class Outcome:
    """What a round gave.

    `prior_models` are how many models of each method its priors were chosen among, `temperatures` what made
    probabilities of scores, by method.
    """

    federation: Federation
    methods: tuple[str, ...]
    clients: list[ClientResult]
    seconds: dict[str, float]
    prior_models: tuple[int, ...] = ()
    temperatures: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def beta(self) -> float:
        """The ridge penalty in use."""
        return self.federation.beta

    def traffic(self, method: str) -> tuple[int, int, int]:
        """Rounds, and the bytes that one client sends and receives."""
        if method == MAJORITY:
            return 0, 0, 0
        return traffic_with_priors(self.federation, method, self.prior_models)

    def summary(self, method: str) -> dict[str, float | None]:
        """Means over the clients; see `summarize`."""
        return summarize([r.accuracy[method] for r in self.clients], [r.test for r in self.clients])
