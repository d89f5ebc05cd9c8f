"""f(x) = s + a₁x + … + a₍ₜ₋₁₎xᵗ⁻¹ over GF(p): any t values of f yield s = f(0), fewer tell nothing (Shamir 1979).

p = 2⁵²¹ − 1, the prime of the curve P-521: one field element holds a 32-byte secret. Wrong shares may combine to
something that looks like a secret; whoever combines compares it with what the dealer announced.

Why not pycryptodome's: it shares 16 bytes at a time, checks no length, and takes 90 ms to combine 34 shares; a server
with 50 sites combines 100 such halves. Python's integers are not constant-time, neither here nor there; a share is
made once, from fresh randomness, so that there is nothing to measure twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from fedhip.federation.secure_sum.errors import Reason, require

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


def split(secret: bytes, threshold: int, points: Iterable[int]) -> dict[int, bytes]:
    """A share of the secret for each point; any `threshold` of them yield it."""
    coefficients = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {x: evaluate(coefficients, x).to_bytes(SHARE_BYTES, "little") for x in points}


def evaluate(coefficients: Sequence[int], x: int) -> int:
    """f(x) by Horner's rule, the constant term first in `coefficients`."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


@lru_cache(maxsize=4)
def weights_at_zero(points: tuple[int, ...]) -> Mapping[int, int]:
    """λⱼ = ∏ₘ xₘ / (xₘ − xⱼ) over the other points m, so that f(0) = Σ λⱼ f(xⱼ).

    Kept, for all dealers of a sum have the same points: at 200 sites to find them takes longer than all the rest.
    """
    weights = {}
    for x_j in points:
        numerator = denominator = 1
        for x_m in points:
            if x_m != x_j:
                numerator = numerator * x_m % PRIME
                denominator = denominator * (x_m - x_j) % PRIME
        weights[x_j] = numerator * pow(denominator, -1, PRIME) % PRIME
    return MappingProxyType(weights)


def combine(weights: Mapping[int, int], shares: Mapping[int, bytes]) -> bytes | None:
    """f(0) from the shares at the points of `weights`; nothing where that is no 32-byte secret."""
    value = sum(weight * element(shares[x]) for x, weight in weights.items()) % PRIME
    return value.to_bytes(SECRET_BYTES, "little") if value < 2 ** (8 * SECRET_BYTES) else None


def element(share: bytes) -> int:
    """The field element that a share is; each element has one encoding."""
    require(len(share) == SHARE_BYTES, Reason.MALFORMED)
    value = int.from_bytes(share, "little")
    require(value < PRIME, Reason.MALFORMED)
    return value
