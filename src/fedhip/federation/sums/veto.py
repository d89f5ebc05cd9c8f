"""A site's veto: what it finds of the sum of the statistics on its own rows, before anything is made of the sum.

    veto   1 where the sum is worse than the site's rows alone ‖ histograms of how odd sites are, one bin of each

`fedhip.simulation.trust.doubt` says what is found. It is of the federation's ridge, whatever the head: at the agreed β
or that of generalized cross-validation, so that it follows from the sum alone and the server chooses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.kind import SiteInputs, SumContext
from fedhip.federation.sums.vector import Vector, from_vector, require_length

if TYPE_CHECKING:
    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding
    from fedhip.simulation.trust.doubt import Doubt, Verdict

#: The array of the last question that holds the sum.
ARRAY = "vetoes"


def veto_length(_: Agreement) -> int:
    """Numbers that a site gives."""
    from fedhip.simulation.trust.doubt import VERDICT_LENGTH

    return VERDICT_LENGTH


def veto_vector(inputs: SiteInputs) -> Vector:
    """One bit, and one bin of each histogram."""
    agreement = inputs.agreement
    grid = from_vector(inputs.total, agreement.layout, agreement.fraction_bits)
    found = doubt_in(grid, inputs.encoding, inputs.client, agreement)
    inputs.log(
        f"of {found.rows} training rows left out {found.right} are right by the sum and {found.right_alone} by the "
        f"others of this site alone (p = {found.p:.3f}): {'a veto' if found.vetoes else 'no veto'}",
        warning=found.vetoes,
    )
    return found.to_vector().view(np.uint64)


def doubt_in(grid: GridStatistics, encoding: RowEncoding, client: Client, agreement: Agreement) -> Doubt:
    """What a site finds of the sum."""
    from fedhip.simulation.federation import Federation
    from fedhip.simulation.trust.doubt import doubt_of

    federation = Federation.of(
        grid,
        "gcv" if isinstance(agreement.beta, str) else agreement.beta,
        encoding,
        standardize=agreement.standardize,
        intercept=agreement.intercept,
    )
    return doubt_of(federation, client)


def check_veto_part(vector: Vector, _: Agreement) -> None:
    """One site's, which came without a mask."""
    if verdict_of(vector).clients != 1:
        raise StatisticsError("the vetoes are not those of one site")


def check_vetoes(total: Vector, context: SumContext) -> None:
    """Refuse vetoes of more sites than there are."""
    if not 0 < verdict_of(total).clients <= len(context.agreement.sites):
        raise StatisticsError("the vetoes are those of more sites than there are")


def verdict_of(total: Vector) -> Verdict:
    """What the sites find together."""
    from fedhip.simulation.trust.doubt import Verdict

    return Verdict.of(total.view(np.int64))


def check_other_vetoes(rest: Vector, inputs: SiteInputs) -> None:
    """Refuse a sum that does not hold this site's own."""
    if not verdict_of(rest).clients < len(inputs.agreement.sites):
        raise StatisticsError("the vetoes are those of more sites than there are")


def verdict_in(total: Vector, agreement: Agreement) -> Verdict:
    """What the sites find, as the server tells it; refused where more of them have a veto than was agreed on."""
    try:
        found = verdict_of(require_length(total, veto_length(agreement)))
    except StatisticsError as error:
        raise SiteRefusalError(SiteCode.TOTAL, str(error)) from error
    if is_stopped(found, agreement):
        raise SiteRefusalError(SiteCode.VETO, f"{found}; the agreed share is {agreement.veto_share:g}")
    return found


def is_stopped(found: Verdict, agreement: Agreement) -> bool:
    """Whether more sites than agreed on find the sum worse than their own rows alone."""
    return agreement.veto_share is not None and found.stops(agreement.veto_share)
