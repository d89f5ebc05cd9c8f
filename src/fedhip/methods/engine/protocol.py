"""What every method is told, and what it gives back."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedhip.core.choice.prior import Prior
from fedhip.core.tested import Tested
from fedhip.errors import InputError
from fedhip.heads.options import Option
from fedhip.simulation.priors import PriorOption

#: What methods that train by gradients put on the features.
Network = Literal["linear", "mlp"]
#: What a docstring says of a method and its paper begins so; NOTHING_KNOWN is all it says where they agree.
DIFFERS, NOTHING_KNOWN = "Differs from the paper:", "Nothing known."


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
    head: Network = "linear"
    hidden: int = 256
    seed: int = 0
    evaluate_every: int = 0
    only_local_classes: bool = False
    prior: PriorOption = "none"

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides numbers, as plain values; options newer than kept results only where they are set."""
        values = asdict(self)
        if self.prior == "none":
            del values["prior"]
        return values

    def check(self) -> None:
        """Refuse what makes no sense."""
        for word, least in (
            ("rounds", 1),
            ("epochs", 1),
            ("batch", 1),
            ("hidden", 1),
            ("seed", 0),
            ("evaluate_every", 0),
        ):
            value = getattr(self, word)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{word} is {value!r}; give a whole number of at least {least}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"learning_rate is {self.learning_rate!r}; give a number above 0")
        if not 0 < self.participation <= 1:
            raise InputError(f"participation is {self.participation!r}; give a share above 0 and up to 1")
        if self.prior not in ("none", "client"):
            raise InputError(f"prior is {self.prior!r}; give 'client' or 'none'")
        if self.head not in ("linear", "mlp"):
            raise InputError(f"head is {self.head!r}; give 'linear' or 'mlp'")


@dataclass(frozen=True)
class MethodInfo:
    """A method by name: its title in tables, a line about it, its options, whether it trains by gradients.

    `differs` is what it does otherwise than its paper, for footnotes; "" where it has no paper but this package's.
    """

    name: str
    title: str
    description: str
    options: tuple[Option, ...]
    gradient: bool
    differs: str

    @property
    def defaults(self) -> dict[str, float]:
        """Of the options that have one."""
        return {option.name: option.default for option in self.options if option.default is not None}

    @property
    def optional(self) -> tuple[str, ...]:
        """Options without a default: what they set is chosen from the data unless they are given."""
        return tuple(option.name for option in self.options if option.default is None)


def differs_from_paper(method: object) -> str:
    """The paragraph "Differs from the paper: ..." of a method's docstring, or else of its file's; "" without one."""
    module = sys.modules.get(getattr(method, "__module__", ""))
    for text in (method.__doc__, getattr(module, "__doc__", None)):
        for paragraph in inspect.cleandoc(text or "").split("\n\n"):
            if paragraph.startswith(DIFFERS):
                return " ".join(paragraph.removeprefix(DIFFERS).split())
    return ""


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
    client's model, where they were asked for (see `sketch`). `tested` has all metrics, client by client.
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
    tested: Sequence[Tested | None] = ()
