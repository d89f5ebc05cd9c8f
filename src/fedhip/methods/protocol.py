"""What every method is told, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedhip.core.prior import Prior

Head = Literal["linear", "mlp"]
#: Whether models are tested with their clients' class priors.
PriorOption = Literal["none", "client"]


@dataclass(frozen=True)
class Protocol:
    """How methods that train by gradients are run; by default as in the paper.

    Plain SGD, shuffled mini-batches, the last partial batch kept, all clients in every round. The head is linear, or
    `mlp`: a hidden layer of `hidden` rectified units before it. `evaluate_every` rounds (0: after the last alone) the
    clients' models are tested. `only_local_classes` and `prior` hold for methods in closed form too.
    """

    rounds: int = 200
    epochs: int = 3
    batch: int = 32
    learning_rate: float = 0.005
    participation: float = 1.0
    head: Head = "linear"
    hidden: int = 256
    seed: int = 0
    evaluate_every: int = 0
    only_local_classes: bool = False
    prior: PriorOption = "none"

    @property
    def told(self) -> dict[str, Any]:
        """Everything that decides numbers, as plain values; options newer than kept results only where they are set."""
        values = asdict(self)
        if self.prior == "none":
            del values["prior"]
        return values


@dataclass(frozen=True)
class Evaluation:
    """A method after some rounds: mean accuracy over clients, and what it took one client and the machine."""

    round: int
    accuracy: float | None
    seconds: float
    upload_bytes_per_client: int
    download_bytes_per_client: int


@dataclass(frozen=True)
class MethodRun:
    """What a method gave: test accuracies of the last round's models, client by client, and what they took.

    `accuracy` holds None for a client without test rows. `diverged` says at which round and learning rate the loss was
    no longer a number; there are no accuracies then. `note` is for the table: that a method degenerates, say. `priors`
    are the clients', where they were asked for; None for one without training rows. `probe` are scores of the first
    client's model, where they were asked for (see `sketch`).
    """

    name: str
    accuracy: list[float | None]
    rounds: int
    seconds: float
    upload_bytes_per_client: int
    download_bytes_per_client: int
    options: Mapping[str, float] = field(default_factory=dict)
    alphas: list[float | None] | None = None
    history: list[Evaluation] = field(default_factory=list)
    diverged: str | None = None
    note: str | None = None
    priors: list[Prior | None] | None = None
    probe: list[float] | None = None
