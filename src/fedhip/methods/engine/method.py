"""What a method that trains by gradients is: a state, a round, and the models to test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from fedhip.heads.options import Option
from fedhip.methods.engine.laboratory import Laboratory, Models

#: A dataclass whose fields are tensors or tuples of them.
State = TypeVar("State", bound=Any)


@dataclass(frozen=True)
class Traffic:
    """Bytes that travelled in a round, of all clients together."""

    up: int = 0
    down: int = 0


class Method(ABC, Generic[State]):
    """One method on one federation.

    A round takes a state and gives a new one, and changes no tensor of the old: an interrupted round leaves no trace.
    """

    #: As users name it, its title in tables, a line about it, and the options that it takes.
    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    declared: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, lab: Laboratory, options: Mapping[str, float]) -> None:
        self.lab, self.options = lab, options

    @classmethod
    def of(cls, lab: Laboratory, options: Mapping[str, float]) -> Method[Any]:
        """The method, or what is left of it in this setting."""
        return cls(lab, options)

    @property
    def phase(self) -> str:
        """What its progress is called."""
        return self.title

    @property
    def note(self) -> str | None:
        """For the table."""
        return None

    @abstractmethod
    def start(self) -> State:
        """Before the first round."""

    @abstractmethod
    def round(self, state: State, number: int, present: Sequence[int]) -> tuple[State, Traffic]:
        """Round `number`, from 0, with the clients present."""

    @abstractmethod
    def models(self, state: State, number: int) -> Models:
        """What is tested after `number` rounds."""
