"""The sum of the statistics with differential privacy: each site's part has its share of the noise before it is masked.

    q qᵀ and q yᵀ of clipped rows q = (z, ½), as in `fedhip run --epsilon` (`fedhip.privacy.mechanism`)
  + discrete Gaussian noise, by a secret of the site's, the agreement and the very numbers that it is to hide

Asked again, a site gives the same numbers with the same noise, to the bit: two answers with noise of their own would
tell twice as much. Other numbers have other noise, and are another release (`fedhip.federation.site.budget`). The
counts of classes are in the constant's row; where they stand otherwise, the vector has zeros.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.federation.agreement.privacy import mechanism_of
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.kind import SiteInputs
from fedhip.federation.sums.vector import Vector, require_room, to_vector

if TYPE_CHECKING:
    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.privacy.public import PublicMap
    from fedhip.simulation.private import PrivateFederation

#: No noise is so many deviations large: its chance is below 1e-50.
_FARTHEST = 16.0


def noisy_statistics(inputs: SiteInputs) -> Vector:
    """A site's part: of its training rows, of each unit as many as are agreed on, with its share of the noise."""
    from fedhip.simulation.private.units import part_of

    agreement, client = inputs.agreement, inputs.client
    mechanism, d = mechanism_of(agreement), len(agreement.classes)
    if mechanism.unit == "group" and client.groups is None:
        raise SiteRefusalError(
            SiteCode.DATA, "the unit is a group, and these rows have none; name the groups, or agree on --unit row"
        )
    own = part_of(client, mechanism, inputs.public, d)
    return to_vector(own + mechanism.noise(d, inputs.randomness(to_vector(own))))


def check_noisy_part(vector: Vector, agreement: Agreement) -> None:
    """Room on the grid, and no more than the rows of one site can add up to."""
    require_room(vector, agreement.sharers, agreement.fraction_bits)
    _require_possible(vector, agreement, 1)


def check_noisy_sum(total: Vector, agreement: Agreement) -> None:
    """The same of all sites; by what is public alone, so that a refusal tells nothing of rows."""
    _require_possible(total, agreement, len(agreement.sites))


def released(agreement: Agreement, grid: GridStatistics, sites: int, public: PublicMap) -> PrivateFederation:
    """The sum of so many sites, and what follows from it; β is the noise's own size, unless it is agreed on."""
    from fedhip.simulation.private import PrivateFederation

    assert agreement.beta != "gcv"  # noqa: S101  (the agreement is checked)
    return PrivateFederation.released(grid, mechanism_of(agreement).of_survivors(sites), public, agreement.beta)


def _require_possible(vector: Vector, agreement: Agreement, sites: int) -> None:
    from fedhip.privacy.mechanism import LONGEST

    layout, mechanism = agreement.layout, mechanism_of(agreement)
    if layout.counts(vector).any():
        raise StatisticsError("there are counts of rows beside the noise, and nobody may tell any")
    noise = _FARTHEST * mechanism.share[0] * math.sqrt(sites)
    most = sites * agreement.max_rows * LONGEST * 2.0**agreement.fraction_bits + noise
    signed = vector.view(np.int64)
    if max(int(signed.max()), -int(signed.min())) > most:
        raise StatisticsError("the numbers are larger than those of clipped rows can be")
    starts = np.concatenate(([0], np.cumsum(np.arange(layout.m, 1, -1))))
    if int(signed[starts].min()) < -noise:
        raise StatisticsError("squares are further below 0 than noise puts them")
