"""The sum of sites that bring tables: Σ x and n of every column that may lack values, for the mean that fills them.

They are those of `fedhip run` (`fedhip.data.tables.FillSums`): the means are the same, to the last bit. A column for
which the agreed description has a `fill` is not summed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedhip.federation.sums.kind import SiteInputs, SumContext
from fedhip.federation.sums.statistics import require_enough
from fedhip.federation.sums.vector import Vector, require_room

if TYPE_CHECKING:
    from fedhip.data.tables import Description, FillSums
    from fedhip.federation.agreement.agreement import Agreement


def fills_length(agreement: Agreement) -> int:
    """A survey of these columns, and how many values of each are there."""
    from fedhip.core.exact.columns import Survey

    open_ones = len(agreement.open_fills)
    return Survey.size(open_ones) + open_ones


def fills_vector(inputs: SiteInputs) -> Vector:
    """Of the training rows."""
    from fedhip.data.tables import FillSums

    agreement = inputs.agreement
    assert agreement.table is not None  # noqa: S101  (who asks has looked)
    sums = FillSums.of(inputs.rows.unfilled, agreement.table, agreement.open_fills)
    return sums.to_vector().view(np.uint64)


def check_fills_part(vector: Vector, agreement: Agreement) -> None:
    """Room on the grid, and sums of as many rows as a site may have."""
    require_room(vector, len(agreement.sites), agreement.fraction_bits)
    _sums(vector, agreement).require_possible(agreement.max_rows)


def check_fills(total: Vector, agreement: Agreement) -> None:
    """Refuse sums that no rows have."""
    _sums(total, agreement).require_possible(agreement.max_rows * len(agreement.sites))


def check_fills_rest(rest: Vector, inputs: SiteInputs) -> None:
    """Refuse sums that the others' rows cannot have, and, after a census, too few of them."""
    agreement = inputs.agreement
    sums = _sums(rest, agreement)
    if agreement.has_census:  # a site may have left since
        require_enough(agreement, sums.survey.rows)
    sums.require_possible((len(agreement.sites) - 1) * agreement.max_rows)


def check_fills_sum(total: Vector, context: SumContext) -> None:
    """Refuse sums that no rows have."""
    check_fills(total, context.agreement)


def filled_table(agreement: Agreement, fills: Vector | None) -> Description | None:
    """The agreed description, with what stands in for missing values by the sites' sum."""
    table = agreement.table
    if table is None or fills is None:
        return table
    return table.with_fills(_sums(fills, agreement).means(table, agreement.open_fills))


def _sums(vector: Vector, agreement: Agreement) -> FillSums:
    from fedhip.data.tables import FillSums

    assert agreement.table is not None  # noqa: S101  (who asks has looked)
    return FillSums.from_vector(vector.view(np.int64), agreement.table, agreement.open_fills)
