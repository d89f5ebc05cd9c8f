"""The table of sums: all that sites and server ever add up, in the order in which it is asked for.

A new sum is a new row: a class in a module of this folder (`kind.py` says what it has to say), and its name here. What
follows from the table: lengths and bounds of messages, which sum may come when, what `fedhip federation accept` tells
the people of a site, what is kept and where, what traffic is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.federation.sums.kind import SumKind, SumStage
from fedhip.federation.sums.logistic import Gradient, Penalty, Temperature
from fedhip.federation.sums.priors import PriorLoss, Scale
from fedhip.federation.sums.ridge import BetaScores
from fedhip.federation.sums.statistics import Census, ColumnMoments, StatisticsSum

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement

CENSUS, MOMENTS, STATISTICS = Census(), ColumnMoments(), StatisticsSum()
BETA, TEMPERATURE, GRADIENT, PENALTY = BetaScores(), Temperature(), Gradient(), Penalty()
SCALE, PRIOR = Scale(), PriorLoss()

TABLE: tuple[SumKind, ...] = (CENSUS, MOMENTS, STATISTICS, BETA, TEMPERATURE, GRADIENT, PENALTY, SCALE, PRIOR)
KINDS: dict[str, SumKind] = {kind.name: kind for kind in TABLE}


def sums_of(agreement: Agreement) -> dict[SumKind, int]:
    """The sums of an agreement, in their order, and how many of each kind a site gives at most."""
    counts = {kind: kind.count(agreement) for kind in TABLE}
    return {kind: count for kind, count in counts.items() if count}


def sums_before_head(agreement: Agreement) -> list[SumKind]:
    """The sums of every round: up to that of the statistics."""
    return [kind for kind in sums_of(agreement) if kind.stage <= SumStage.STATISTICS]


def sums_follow(agreement: Agreement) -> bool:
    """Whether sums follow that of the statistics."""
    return any(kind.stage > SumStage.STATISTICS for kind in sums_of(agreement))


def first_number(agreement: Agreement) -> int:
    """The number of a session's first sum: a census is sum 0, and the sum that everything is known by is sum 1."""
    return 0 if CENSUS.count(agreement) else 1


def may_follow(name: str, done: list[str], agreement: Agreement) -> bool:
    """Whether a sum of this name may be asked for after these."""
    return name in KINDS and KINDS[name].may_follow(done, agreement, TABLE)
