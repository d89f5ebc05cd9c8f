"""What the grid and the threshold ask of an agreement's numbers."""

from __future__ import annotations

import math
from fractions import Fraction

#: The sum of all sites must stay below this, in steps of the grid.
_LIMIT = 1 << 63


def rows_that_fit(largest_feature: float, fraction_bits: int) -> int:
    """How many rows, of all sites together, cannot overflow the int64 grid.

    An entry of the Gram matrix is at most rows · q² and one of the class sums rows · q, for q the largest feature in
    steps of 2^-(fraction_bits/2), as `GridStatistics.from_data` rounds it.
    """
    feature_bits = fraction_bits // 2
    q = math.floor(Fraction(largest_feature) * (1 << feature_bits) + Fraction(1, 2))
    steps = max(q * q << (fraction_bits - 2 * feature_bits), q << (fraction_bits - feature_bits), 1)
    return (_LIMIT - 1) // steps


def largest_lifted(lift: str, width: int) -> float:
    """How large a lifted feature is, for the scale of the grid: of ReLU about, of the others at most.

    √(2/w) for Fourier's, 1 for Nyström's, whose rows are no longer than that. A ReLU's inputs are normal for a row as
    far from the mean as rows usually are; 32 is for one five times as far. Whoever has a larger one finds that out
    before it sends anything: the vector must leave room for all sites' (`fedhip.federation.sums.vector.require_room`).
    """
    unit = math.sqrt(2.0 / width)
    return {"relu": 32.0 * unit, "fourier": unit, "nystroem": 1.0, "nystroem-axes": 1.0}[lift]


def least_threshold(sites: int, dishonest: int | None = None) -> int:
    """The least t > (n + c)/2, or more than two thirds, ⌊2n/3⌋ + 1, where nobody says what c is.

    A site reveals shares for one list of survivors. A server with c sites, who reveal theirs for any, that shows two
    lists to two halves of the n − c others has t shares for each of them if t − c ≤ (n − c)/2: both kinds of shares of
    one site, and with them its vector.
    """
    return 2 * sites // 3 + 1 if dishonest is None else (sites + dishonest) // 2 + 1
