"""Phases 0 to 2 of very many clients: the same sum, to the last bit, from blocks of rows.

Sums on the grid are exact for any division of the rows, so nobody's own statistics are made: the rows of thousands of
clients are one block, and few blocks make the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from fedhip.core.exact.columns import COLUMN_BITS
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.simulation.beta import choose_beta, scorers
from fedhip.simulation.driver import require_terms
from fedhip.simulation.encoding import RowEncoding, columns_of_blocks
from fedhip.simulation.federation import Federation
from fedhip.simulation.many.rows import Ints, ManyClients
from fedhip.simulation.options import STANDARD, Alpha, Beta, RidgeOptions
from fedhip.utils.parallel import summed
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch


def federate_many(
    clients: ManyClients,
    beta: Beta = "auto",
    ridge: RidgeOptions = STANDARD,
    *,
    alpha: Alpha = "loo",
    report: ReportProgress | None = None,
    watch: Stopwatch | None = None,
) -> Federation:
    """What `fedhip.simulation.driver.federate` gives of the same clients, to the last bit."""
    tell, watch, blocks = report or silent, watch or Stopwatch(), clients.blocks()
    with watch("local training"):
        encoding = _encoding(clients, blocks, ridge)

        done = 0

        def seen(block: Ints, found: None) -> None:
            nonlocal done
            done += len(block)
            tell("1 local training", done, len(clients))

        total = require_terms(summed(partial(_statistics, clients, encoding), blocks, seen=seen))
    with watch("aggregation"):
        federation = Federation.of(
            total, 0.0 if beta == "auto" else beta, encoding, standardize=ridge.standardize, intercept=ridge.intercept
        )
        federation.warn_of_labels()
        if beta != "auto":
            return federation
        names = scorers(clients.names[number] for number in clients.training)
        scoring = clients.clients([number for number in clients.training if clients.names[number] in names])
        return choose_beta(federation, scoring, alpha, tell)


@dataclass(frozen=True, eq=False)
class _Block:
    """Clients' rows below one another, which are read when they are looked at."""

    clients: ManyClients
    numbers: Ints
    client: None = None

    @property
    def features(self) -> NDArray[Any]:
        """Theirs."""
        return self.clients.block(self.numbers)[0]


def _statistics(clients: ManyClients, encoding: RowEncoding, block: Ints) -> GridStatistics:
    rows = clients.block(block)
    return GridStatistics.from_data(
        encoding.features(rows), rows[1], clients.num_classes, fraction_bits=encoding.fraction_bits
    )


def _encoding(clients: ManyClients, blocks: list[Ints], ridge: RidgeOptions) -> RowEncoding:
    columns = ridge.columns
    if columns is None:
        columns = columns_of_blocks(lambda: (_Block(clients, block) for block in blocks), centred=ridge.centred)
    bits = COLUMN_BITS if ridge.fraction_bits is None else ridge.fraction_bits
    return RowEncoding(columns, bits, surveyed=ridge.columns is None)
