"""What one sum over the sites is: a row of the table of sums (`fedhip.federation.sums.table`).

A row says what the sum is of, how many numbers it has, when it may be asked for, how a site makes its vector, and what
is checked: the question and the site's own vector at the site, the sum at the server, and again at the site, where the
sum comes back. The protocol (masks, signatures, ledgers, checkpoints) is the same for all rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.sums.vector import Vector, require_room

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.rows import SiteRows
    from fedhip.federation.site.state import Session
    from fedhip.federation.transport.wire import Letter
    from fedhip.phases import Client, RowEncoding


class SumStage(IntEnum):
    """Sums of a stage are not asked for once one of a later stage was."""

    BEFORE = 0
    STATISTICS = 1
    HEAD = 2
    PRIOR = 3


class SiteInputs(Protocol):
    """What a site makes its vectors of: its rows, the question, and the sums that came back; read when needed."""

    @property
    def agreement(self) -> Agreement:
        """What was agreed on."""

    @property
    def question(self) -> Letter:
        """What the server sent."""

    @property
    def session(self) -> Session:
        """What was asked before."""

    @property
    def rows(self) -> SiteRows:
        """The rows, as they lie on the disk."""

    @property
    def raw_client(self) -> Client:
        """The rows as features, before a lift."""

    @property
    def client(self) -> Client:
        """The rows as features of the agreed width, lifted where that is agreed on."""

    @property
    def encoding(self) -> RowEncoding:
        """How rows become part of the sum of the statistics."""

    @property
    def total(self) -> Vector:
        """The sum of the statistics."""

    def log(self, text: str, *, warning: bool = False) -> None:
        """A line in the site's own log."""


@dataclass(frozen=True)
class SumContext:
    """What the server knows when it checks a sum: the class counts of the statistics, if these are summed.

    `complete` says whether every site of the statistics is in this sum.
    """

    agreement: Agreement
    counts: NDArray[np.int64] | None = None
    complete: bool = True

    @property
    def rows(self) -> int:
        """Training rows of all sites, by the sum of the statistics."""
        return 0 if self.counts is None else int(self.counts.sum())


class SumKind(ABC):
    """A row of the table. Rows have no state."""

    #: On the wire, in ledgers, checkpoints and results; and for people.
    name: ClassVar[str]
    title: ClassVar[str]
    stage: ClassVar[SumStage]
    #: The sums that must be there before; those that an agreement does not have are not waited for.
    needs: ClassVar[tuple[str, ...]] = ()
    #: The array in which the sum goes back to the sites, with the next question; None: it stays at the server.
    shared_as: ClassVar[str | None] = None
    #: Whether server and sites keep it. What is not kept is asked for again by a server that was killed.
    is_kept: ClassVar[bool] = True

    @abstractmethod
    def count(self, agreement: Agreement) -> int:
        """How many such sums a site takes part in at most; 0 where the agreement has none."""

    @abstractmethod
    def length(self, agreement: Agreement) -> int:
        """How many whole numbers a site sends."""

    def download(self, agreement: Agreement) -> int:
        """Bytes of weights and sums that the server sends with the question, the sums that are shared apart."""
        return 0

    # At a site.

    @abstractmethod
    def vector(self, inputs: SiteInputs) -> Vector:
        """What this site gives."""

    def check_question(
        self, question: Letter, session: Session, agreement: Agreement, cheaters: Collection[str]
    ) -> None:
        """Refuse a question that the server must not ask; `session` has this sum as the one under way."""
        return

    def check_own(self, vector: Vector, inputs: SiteInputs) -> None:
        """Refuse this site's own vector, which nobody can check under a mask."""
        require_room(vector, len(inputs.agreement.sites), inputs.agreement.fraction_bits)

    def check_shared(self, total: Vector, agreement: Agreement) -> None:
        """Refuse a sum that came back and is that of no rows at all."""
        return

    def check_rest(self, rest: Vector, inputs: SiteInputs) -> None:
        """Refuse a sum that came back and is none of the others', once this site's own part is taken away."""
        return

    # At the server.

    def check_part(self, vector: Vector, agreement: Agreement) -> None:
        """Refuse the vector that a site sent without a mask."""
        return

    def check_sum(self, total: Vector, context: SumContext) -> None:
        """Refuse a sum that no rows have."""
        return

    # The order of sums.

    def may_follow(self, done: Sequence[str], agreement: Agreement, table: Sequence[SumKind]) -> bool:
        """Whether this sum may be asked for after these."""
        had, kinds = Counter(done), {kind.name: kind for kind in table}
        needed = Counter(name for name in self.needs if kinds[name].count(agreement))
        return (
            had[self.name] < self.count(agreement)
            and needed <= had
            and all(kinds[name].stage <= self.stage for name in done)
        )
