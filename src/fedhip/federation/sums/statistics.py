"""The sums of every round: how many rows there are, what the columns are like, and the statistics.

    census       training rows of each class, so that nobody goes on where the sum could be taken apart into rows
    moments      a survey of the columns (`fedhip.core.exact.columns`), 52 whole numbers for each, and the number of
                 rows; of a lift with landmarks all products instead, as statistics of one class
    statistics   what the model follows from (`fedhip.core.statistics`); with differential privacy the only sum, with
                 noise in it (`private.py`)

From the moments everybody knows the columns' units, and draws the same lift; they are those of `fedhip run`. Kind,
width, seed and bandwidth of a lift are agreed on; no matrix and no row travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.features.lifts.kinds import LANDMARKS
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.kind import SiteInputs, SumContext
from fedhip.federation.sums.private import check_noisy_part, check_noisy_sum, noisy_statistics
from fedhip.federation.sums.vector import (
    Layout,
    Vector,
    from_vector,
    require_possible,
    require_possible_rest,
    require_room,
    to_vector,
)

if TYPE_CHECKING:
    from fedhip.core.exact.columns import Columns, Survey
    from fedhip.core.exact.outweighing import Spread
    from fedhip.features.lifts.lift import Lift
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding
    from fedhip.simulation.lifting import LiftPlan


def census_vector(inputs: SiteInputs) -> Vector:
    """Training rows of each class."""
    return inputs.rows.census(len(inputs.agreement.classes))


def check_census_rest(rest: Vector, inputs: SiteInputs) -> None:
    """Go on only if the rows of the others are possible, and at least as many as the features."""
    agreement, counts = inputs.agreement, rest.view(np.int64)
    rows, others = sum(map(int, counts)), len(agreement.sites) - 1
    if int(counts.min()) < 0 or not agreement.threshold - 1 <= rows <= others * agreement.max_rows:
        raise StatisticsError("it would leave rows to the others that they cannot have")
    everybody = rows + sum(map(int, census_vector(inputs)))
    inputs.log(
        f"by the census the others have {rows} training rows, and with this site's all have {everybody}: compare "
        "both with other sites"
    )
    require_enough(agreement, rows)


def check_census(total: Vector, context: SumContext) -> None:
    """Refuse no rows, and more than are agreed on."""
    rows, agreement = sum(map(int, total)), context.agreement
    if not 0 < rows <= agreement.max_rows * len(agreement.sites):
        raise StatisticsError(f"{rows} rows in all")


def moments_length(agreement: Agreement) -> int:
    """Of a survey, or of all products."""
    from fedhip.core.exact.columns import Survey

    return Layout(agreement.width, 1).size if _is_products(agreement) else Survey.size(agreement.width)


def check_moments(total: Vector, agreement: Agreement) -> None:
    """Refuse moments that no rows have."""
    require_possible_moments(total, agreement, agreement.max_rows * len(agreement.sites))


def check_moments_part(vector: Vector, agreement: Agreement) -> None:
    """Room on the grid, and moments of as many rows as a site may have."""
    require_room(vector, len(agreement.sites), agreement.fraction_bits)
    require_possible_moments(vector, agreement, agreement.max_rows)


def check_moments_rest(rest: Vector, inputs: SiteInputs) -> None:
    """Refuse moments that the others' rows cannot have, and, after a census, too few of them."""
    agreement = inputs.agreement
    if agreement.has_census:  # a site may have left since
        require_enough(agreement, rows_in(rest))
    require_possible_moments(rest, agreement, (len(agreement.sites) - 1) * agreement.max_rows)
    from fedhip.core.exact.outweighing import Spread

    if _is_products(agreement):
        _warn_of_outweighing(inputs, _spread_of(rest, Layout(agreement.width, 1), _products_encoding(agreement)))
    else:
        _warn_of_outweighing(inputs, Spread.of_survey(survey_in(rest, agreement)))


def _spread_of(rest: Vector, layout: Layout, encoding: RowEncoding) -> Spread:
    """How far the columns of all others spread, from their statistics."""
    from fedhip.core.exact.fixedpoint import decode
    from fedhip.core.exact.outweighing import Spread

    return Spread.of_statistics(decode(from_vector(rest, layout, encoding.fraction_bits)), encoding.columns)


def _warn_of_outweighing(inputs: SiteInputs, others: Spread) -> None:
    """Warn the site of its own rows, where they decide how far a column spreads."""
    from fedhip.core.exact.outweighing import outweighed

    if (words := outweighed(inputs.raw_client.train[0], others)) is not None:
        inputs.log(words, warning=True)


def check_moments_sum(total: Vector, context: SumContext) -> None:
    """Refuse moments that no rows have, and columns for which there are no units: every site would refuse these."""
    check_moments(total, context.agreement)
    encoding_of(context.agreement, total)


def statistics_vector(inputs: SiteInputs) -> Vector:
    """Of the training rows, in the columns' units; or clipped, and with noise."""
    if inputs.agreement.epsilon is not None:
        return noisy_statistics(inputs)
    return to_vector(inputs.encoding.statistics(inputs.client, inputs.agreement.layout.d))


def check_statistics_part(vector: Vector, agreement: Agreement) -> None:
    """Room on the grid, and statistics of as many rows as a site may have."""
    if agreement.epsilon is not None:
        return check_noisy_part(vector, agreement)
    require_room(vector, agreement.sharers, agreement.fraction_bits)
    require_possible(vector, agreement.layout, agreement.fraction_bits, agreement.max_rows)
    return None


def check_own_statistics(vector: Vector, inputs: SiteInputs) -> None:
    """The rows fit the columns' units, and the statistics are possible."""
    from fedhip.federation.site.rows import lost_column, require_agreed_units

    agreement = inputs.agreement
    if agreement.epsilon is not None:
        return check_noisy_part(vector, agreement)
    if agreement.columns != "sum" and agreement.lift == "none":
        require_agreed_units(inputs.encoding, inputs.client)
    elif agreement.lift == "none" and (lost := lost_column(inputs.encoding, inputs.client)) is not None:
        inputs.log(lost, warning=True)
    return check_statistics_part(vector, agreement)


def check_statistics_rest(rest: Vector, inputs: SiteInputs) -> None:
    """Refuse what no other sites have, of which at least the threshold are in the sum, each with a row."""
    agreement = inputs.agreement
    if agreement.epsilon is not None:
        return check_noisy_sum(rest, agreement)
    least = agreement.threshold - 1 if agreement.secure_sum else 0
    most = (len(agreement.sites) - 1) * agreement.max_rows
    require_possible_rest(rest, agreement.layout, agreement.fraction_bits, least, most)
    if agreement.columns != "sum" and agreement.lift == "none":  # else it was said with the moments
        _warn_of_outweighing(inputs, _spread_of(rest, agreement.layout, inputs.encoding))
    return None


def check_statistics(total: Vector, context: SumContext) -> None:
    """Refuse statistics that no rows have."""
    agreement = context.agreement
    if agreement.epsilon is not None:
        return check_noisy_sum(total, agreement)
    most = agreement.max_rows * len(agreement.sites)
    return require_possible(total, agreement.layout, agreement.fraction_bits, most)


def require_enough(agreement: Agreement, rows: int) -> None:
    """Refuse a sum of others who have fewer rows than there are features."""
    m = agreement.layout.m
    if rows < m:
        raise SiteRefusalError(
            SiteCode.FEW_ROWS,
            f"the other sites have {rows} training rows together, and there are {m} features: a sum of so few can be "
            "taken apart into rows. Take more rows or fewer features, or agree on few_rows and allow it in site.toml",
        )


def plan_of(agreement: Agreement) -> LiftPlan:
    """The agreed lift, and what it costs."""
    from fedhip.simulation.lifting import LiftSettings

    kind, seed = agreement.lift, agreement.lift_seed
    assert kind != "none" and seed is not None  # noqa: S101, PT018  (who asks has looked)
    width, keeps = agreement.layout.m - agreement.kept, agreement.kept > 0
    settings = LiftSettings(kind, width, None, seed, agreement.lift_bandwidth, keeps)
    return settings.plan(agreement.width, len(agreement.classes))


def moments_vector(client: Client, agreement: Agreement) -> Vector:
    """A site's part, from its raw training rows."""
    from fedhip.simulation.lifting import products_of

    if _is_products(agreement):
        return to_vector(products_of(client, _products_encoding(agreement)))
    return client.survey().to_vector().view(np.uint64)


def survey_in(vector: Vector, agreement: Agreement) -> Survey:
    """The survey that a vector holds."""
    from fedhip.core.exact.columns import Survey

    return Survey.from_vector(vector.view(np.int64), agreement.width)


def encoding_of(agreement: Agreement, moments: Vector | None) -> RowEncoding:
    """How rows become part of the sum of the statistics: everybody knows the same."""
    from fedhip.core.exact.columns import Columns
    from fedhip.simulation.encoding import RowEncoding

    if agreement.lift != "none":
        return RowEncoding(Columns.plain(agreement.layout.m), agreement.fraction_bits)
    if agreement.columns == "sum":
        assert moments is not None  # noqa: S101  (who asks has looked)
        columns = Columns.of(survey_in(moments, agreement), centred=agreement.intercept or agreement.standardize)
        return RowEncoding(columns, agreement.fraction_bits)
    return RowEncoding(_agreed(agreement), agreement.fraction_bits)


def lift_of(vector: Vector, agreement: Agreement) -> Lift:
    """The lift that everybody draws from the sum."""
    plan = plan_of(agreement)
    if _is_products(agreement):
        encoding = _products_encoding(agreement)
        return plan.of_products(from_vector(vector, Layout(agreement.width, 1), encoding.fraction_bits), encoding)
    return plan.of_survey(survey_in(vector, agreement))


def rows_in(vector: Vector) -> int:
    """How many rows the moments are of: the last number of either kind."""
    return int(vector.view(np.int64)[-1])


def require_possible_moments(vector: Vector, agreement: Agreement, most_rows: int) -> None:
    """Refuse moments that no data set of so many rows has."""
    if _is_products(agreement):
        bits = _products_encoding(agreement).fraction_bits
        return require_possible(vector, Layout(agreement.width, 1), bits, most_rows)
    survey_in(vector, agreement).require_possible(most_rows)
    return None


def _is_products(agreement: Agreement) -> bool:
    return agreement.lift in LANDMARKS


def _products_encoding(agreement: Agreement) -> RowEncoding:
    """Of raw features, whose units are agreed on."""
    from fedhip.core.exact.columns import COLUMN_BITS
    from fedhip.core.exact.fixedpoint import fraction_bits_for
    from fedhip.simulation.encoding import RowEncoding

    bits = fraction_bits_for(agreement.largest_feature) if agreement.columns == "plain" else COLUMN_BITS
    return RowEncoding(_agreed(agreement), bits)


def _agreed(agreement: Agreement) -> Columns:
    """The columns' units that the agreement says."""
    from fedhip.core.exact.columns import Columns

    if agreement.column_offsets is None or agreement.column_exponents is None:
        return Columns.plain(agreement.width)
    return Columns.from_dict({"offset": agreement.column_offsets, "exponent": agreement.column_exponents})
