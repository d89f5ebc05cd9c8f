"""The sums with a lift that competes beside narrow features, as in `fedhip run`.

    products          of columns in the units of the survey, as statistics of one class: what landmarks are drawn from ‖
                      1 where the site objects
    wide-statistics   of features and lift in one
    wide-beta         what β is chosen by, of all columns ‖ of the features alone
    wide-choice-…     what candidates are chosen by (`choice.py`)

The lift is as wide as agreed on, or does not compete. It does where all have at least as many rows as it is wide, and
nobody objects: a site does where there is a census and the others have fewer rows than there would be columns, for the
sum of so few could be taken apart into rows. How many rows all have the survey says. Where candidates of the features
alone are best, the sums of these follow, from the statistics on, as if no lift had competed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.features.lifts.kinds import COMPETING_ROWS
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.choice import SHARES, WIDE
from fedhip.federation.sums.kind import SiteInputs
from fedhip.federation.sums.statistics import plan_of, require_enough, rows_in, survey_in
from fedhip.federation.sums.vector import (
    Layout,
    Vector,
    from_vector,
    require_possible,
    require_room,
    to_vector,
)

if TYPE_CHECKING:
    from fedhip.features.lifts.lift import Lift
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.state import Session
    from fedhip.federation.transport.wire import Letter
    from fedhip.simulation.encoding import RowEncoding

#: The first of these sums, that of the statistics, and the last.
PRODUCTS, STATISTICS, LAST = "products", f"{WIDE}statistics", WIDE + SHARES


def wide_of(agreement: Agreement) -> Agreement:
    """What is agreed on with the lift."""
    assert agreement.wide is not None  # noqa: S101  (who asks has looked)
    return agreement.wide


def has_rows(agreement: Agreement, moments: Vector) -> bool:
    """Whether all sites have rows enough for the lift, and not more than its grid has room for."""
    least = max(agreement.competing_width or 0, agreement.width + 1)
    return agreement.wide is not None and least <= rows_in(moments) <= COMPETING_ROWS


def objections(products: Vector) -> int:
    """How many sites object."""
    return int(products[-1])


# The products.


def products_length(agreement: Agreement) -> int:
    """A triangle, sums and a count; and objections."""
    return Layout(agreement.width, 1).size + 1


def products_vector(inputs: SiteInputs) -> Vector:
    """Of the training rows, and whether the others have fewer than there would be columns."""
    from fedhip.simulation.lifting import products_of

    agreement, client, moments = inputs.agreement, inputs.raw_client, inputs.moments
    if not has_rows(agreement, moments):
        raise SiteRefusalError(SiteCode.ORDER, "the products are asked for, and there are not the rows for a lift")
    others = rows_in(moments) - len(client.train[1])
    columns = wide_of(agreement).layout.m
    if objects := agreement.has_census and others < columns:
        inputs.log(
            f"the other sites have {others} training rows together, and with a lift there would be {columns} columns: "
            "this site objects, and no lift competes"
        )
    own = to_vector(products_of(client, products_encoding(agreement, moments)))
    return np.append(own, np.uint64(objects))


def products_encoding(agreement: Agreement, moments: Vector) -> RowEncoding:
    """Columns in the units of the survey, as `fedhip run` has them."""
    from fedhip.core.exact.columns import Columns
    from fedhip.simulation.encoding import RowEncoding

    return RowEncoding(Columns.of(survey_in(moments, agreement)))


def check_products(total: Vector, agreement: Agreement) -> None:
    """Refuse products that no rows have, and more objections than sites."""
    _check_products(total, agreement, len(agreement.sites))


def check_products_part(vector: Vector, agreement: Agreement) -> None:
    """One site's: room on the grid, and products of as many rows as it may have."""
    from fedhip.core.exact.columns import COLUMN_BITS

    require_room(vector[:-1], 1, COLUMN_BITS)
    _check_products(vector, agreement, 1)


def check_products_rest(rest: Vector, inputs: SiteInputs) -> None:
    """Refuse products that the others' rows cannot have; a site may have left since it was asked whether it objects."""
    agreement = inputs.agreement
    _check_products(rest, agreement, len(agreement.sites) - 1)
    if agreement.has_census and inputs.session.ask == STATISTICS:
        require_enough(wide_of(agreement), rows_in(rest[:-1]))


def _check_products(vector: Vector, agreement: Agreement, sites: int) -> None:
    from fedhip.core.exact.columns import COLUMN_BITS

    require_possible(vector[:-1], Layout(agreement.width, 1), COLUMN_BITS, sites * agreement.max_rows)
    if objections(vector) > sites:
        raise StatisticsError(f"{objections(vector)} of {sites} sites object to the lift")


# What is made of them.


def lift_by(moments: Vector, products: Vector, agreement: Agreement) -> Lift:
    """The lift that everybody draws from the sums of an agreement by which one competes."""
    if number := objections(products):
        raise SiteRefusalError(SiteCode.ORDER, f"features with a lift are asked for, and {number} sites object to it")
    encoding = products_encoding(agreement, moments)
    grid = from_vector(products[:-1], Layout(agreement.width, 1), encoding.fraction_bits)
    return plan_of(wide_of(agreement)).of_products(grid, encoding)


def check_whole(_question: Letter, session: Session, _agreement: Agreement, _: Collection[str] = ()) -> None:
    """Refuse the statistics of the features where the sums with the lift were begun and broken off."""
    if STATISTICS in session.done and LAST not in session.done:
        raise SiteRefusalError(
            SiteCode.ORDER, "the statistics of the features are asked for before the sums with the lift are all made"
        )
