"""What one sum over the sites is: a row of the table of sums (`fedhip.federation.sums.table`).

A row says what the sum is of, how many numbers it has, when it may be asked for, how a site makes its vector, what is
checked, and where it is kept. The protocol (masks, signatures, ledgers, checkpoints) is the same for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.sums.vector import Vector, require_room

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.rows import SiteRows
    from fedhip.federation.site.state import Session
    from fedhip.federation.transport.wire import Letter
    from fedhip.privacy.noise import Bytes
    from fedhip.privacy.public import PublicMap
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding


class SumStage(IntEnum):
    """Sums of a stage are not asked for once one of a later stage was.

    Those with a lift that competes come before those of the features alone.
    """

    BEFORE = 0
    WIDE = 1
    WIDE_CHOICE = 2
    STATISTICS = 3
    HEAD = 4
    PRIOR = 5
    CHOICE = 6

    @property
    def is_of_rows(self) -> bool:
        """Whether nothing is solved for these sums: they come from the rows alone, and from what columns are like."""
        return self in (SumStage.BEFORE, SumStage.WIDE, SumStage.STATISTICS)


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

    @property
    def wide(self) -> SiteInputs:
        """The same where a lift competes, of the features and the lift beside them; its agreement is of these."""

    @property
    def moments(self) -> Vector:
        """The survey, or what else says what the columns are like."""

    @property
    def public(self) -> PublicMap:
        """With differential privacy: what rows are clipped and projected by."""

    def randomness(self, exact: Vector) -> Bytes:
        """What the noise on these numbers is made of: the same again for the same question, and known to nobody."""

    def log(self, text: str, *, warning: bool = False) -> None:
        """A line in the site's own log."""


@dataclass(frozen=True)
class SumContext:
    """What the server knows when it checks a sum: the class counts of the statistics, if these are summed.

    `complete` says whether every site of the statistics is in this sum, `sites` how many are, where that is known.
    """

    agreement: Agreement
    counts: NDArray[np.int64] | None = None
    complete: bool = True
    sites: int | None = None

    @property
    def rows(self) -> int:
        """Training rows of all sites, by the sum of the statistics."""
        return 0 if self.counts is None else int(self.counts.sum())


def nothing(*_: object) -> None:
    """No check."""


def check_room(vector: Vector, inputs: SiteInputs) -> None:
    """Refuse a vector whose numbers leave no room to the others'."""
    require_room(vector, len(inputs.agreement.sites), inputs.agreement.fraction_bits)


@dataclass(frozen=True, eq=False, kw_only=True)
class SumKind:
    """A row of the table.

    `name` is on the wire, in ledgers, checkpoints and results; `title` is for people. `count` is how many such sums a
    site takes part in at most, `length` how many whole numbers it sends. `needs` are the sums that must be there
    before; those that an agreement does not have are not waited for. `download` is how many bytes of weights and sums
    the server sends with the question, those that are shared apart.

    `shared_as` is the array in which the sum goes back to the sites, with the next question, and the name under which
    it is kept; a sum without it stays at the server, and is kept by its number. What is not kept at all is asked for
    again by a server that was killed.

    `has_noise` says that the vector has noise in it where differential privacy is agreed on; any other sum is not made
    then.

    At a site `vector` is what it gives. `check_question` refuses what the server must not ask; `check_own` the site's
    own vector, which nobody can check under a mask; `check_shared` a sum that came back and is that of no rows at all,
    and `check_rest` one that, less the site's own part, is none of the others. At the server `check_part` refuses a
    vector that came without a mask, and `check_sum` a sum that no rows have.
    """

    name: str
    title: str
    stage: SumStage
    needs: tuple[str, ...] = ()
    count: Callable[[Agreement], int]
    length: Callable[[Agreement], int]
    download: Callable[[Agreement], int] = lambda _: 0
    shared_as: str | None = None
    is_kept: bool = True
    has_noise: bool = False
    vector: Callable[[SiteInputs], Vector]
    check_question: Callable[[Letter, Session, Agreement, Collection[str]], None] = nothing
    check_own: Callable[[Vector, SiteInputs], None] = check_room
    check_shared: Callable[[Vector, Agreement], None] = nothing
    check_rest: Callable[[Vector, SiteInputs], None] = nothing
    check_part: Callable[[Vector, Agreement], None] = nothing
    check_sum: Callable[[Vector, SumContext], None] = nothing


@dataclass(frozen=True, eq=False)
class ModelSums:
    """The sums behind models of one kind of features: statistics, β, and what candidates are chosen by."""

    statistics: SumKind
    beta: SumKind
    choice: tuple[SumKind, ...]

    @property
    def all(self) -> tuple[SumKind, ...]:
        """One after the other."""
        return (self.statistics, self.beta, *self.choice)
