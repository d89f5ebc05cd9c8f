"""The sum before that of the statistics, from which everybody knows the columns' units, and draws the same lift.

    moments   a survey of the columns (`fedhip.core.exact.columns`), 52 whole numbers for each, and the number of rows
              of the lift nystroem all products instead, as statistics of one class

They are those of `fedhip run`. Kind, width, seed and bandwidth of a lift are agreed on; no matrix and no row travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.vector import Layout, Vector, from_vector, require_possible, to_vector

if TYPE_CHECKING:
    from fedhip.core.exact.columns import Columns, Survey
    from fedhip.features.lifts.lift import Lift
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding
    from fedhip.simulation.lifting import LiftPlan


def plan_of(agreement: Agreement) -> LiftPlan:
    """The agreed lift, and what it costs."""
    from fedhip.simulation.lifting import LiftSettings

    kind, seed = agreement.lift, agreement.lift_seed
    assert kind != "none" and seed is not None  # noqa: S101, PT018  (who asks has looked)
    settings = LiftSettings(kind, agreement.lift_width, None, seed, agreement.lift_bandwidth)
    return settings.plan(agreement.width, len(agreement.classes))


def moments_length(agreement: Agreement) -> int:
    """How many numbers a site sends."""
    from fedhip.core.exact.columns import Survey

    return Layout(agreement.width, 1).size if _is_products(agreement) else Survey.size(agreement.width)


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
    return agreement.lift == "nystroem"


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
