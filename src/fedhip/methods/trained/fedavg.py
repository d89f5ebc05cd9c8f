"""FedAvg (McMahan et al., 2017), and its fine-tuning.

Differs from the paper: Nothing known.

θ^{t+1} = Σ_k (n_k / Σ n) θ_k,   θ_k = E passes of SGD from θ^t over the rows of client k
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedhip.heads.options import Option
from fedhip.methods.engine.laboratory import LocalStep, Models, for_each, nbytes, sgd, weighted_mean
from fedhip.methods.engine.method import Method, Traffic
from fedhip.methods.engine.network import Params


@dataclass(frozen=True)
class Shared:
    """The server's model, without the axis of clients."""

    theta: Params


class FedAvg(Method[Shared]):
    """The mean of models trained locally; everybody is tested with it."""

    name, title = "fedavg", "FedAvg"
    description = "one model: the mean of what the clients trained from it"

    def start(self) -> Shared:
        """The common beginning."""
        return Shared(self.lab.initial())

    def step(self) -> LocalStep:
        """What a client does with a mini-batch."""
        return sgd

    def round(self, state: Shared, number: int, present: Sequence[int]) -> tuple[Shared, Traffic]:
        """Send the model, train it everywhere, average."""
        sent = for_each(state.theta, len(present))
        trained = self.lab.train(self.step(), sent, sent, present=present, orders=self.lab.shuffled(number))
        return Shared(weighted_mean(trained, self.lab.shares(present))), Traffic(nbytes(*trained), nbytes(*sent))

    def models(self, state: Shared, number: int) -> Models:
        """The global model."""
        return Models(for_each(state.theta, self.lab.size), for_each(state.theta, 1))


class FedAvgFT(FedAvg):
    """FedAvg, and then every client trains its copy of the last model on.

    Differs from the paper: no paper says how long to fine-tune; here as many epochs as a round has, at its rate.
    """

    name, title = "fedavg-ft", "FedAvg+FT"
    description = "FedAvg's model, trained on by each client for itself in the end"
    declared: ClassVar[tuple[Option, ...]] = (Option("finetune_epochs", 3.0, whole=True, follows_epochs=True),)

    def finetuning_step(self) -> LocalStep:
        """What a client does with a mini-batch in the end."""
        return sgd

    def models(self, state: Shared, number: int) -> Models:
        """Copies of the global model after E_ft passes; nothing travels."""
        epochs, everybody = int(self.options["finetune_epochs"]), range(self.lab.size)
        copies, orders = for_each(state.theta, self.lab.size), self.lab.shuffled(number, epochs)
        tuned = self.lab.train(self.finetuning_step(), copies, copies, present=everybody, orders=orders)
        return Models(tuned, for_each(state.theta, 1))
