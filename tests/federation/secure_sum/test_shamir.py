"""Any t shares yield the secret, t − 1 fit every secret; against published numbers and exact rational arithmetic."""

from __future__ import annotations

import secrets
from fractions import Fraction
from itertools import combinations
from math import prod

import pytest

from fedhip.federation.secure_sum.errors import SecureSumError
from fedhip.federation.secure_sum.shamir import PRIME, SHARE_BYTES, combine, element, evaluate, split, weights_at_zero

SECRET = bytes(range(200, 232))


def test_the_modulus_is_prime() -> None:
    # Lucas and Lehmer: 2^p − 1 is prime exactly if it divides the term p − 2 of this sequence.
    term = 4
    for _ in range(521 - 2):
        term = (term * term - 2) % PRIME
    assert term == 0


def test_published_example() -> None:
    # The worked example of the article on Shamir's scheme in Wikipedia: f(x) = 1234 + 166x + 94x².
    points = {1: 1494, 2: 1942, 3: 2578, 4: 3402, 5: 4414, 6: 5614}
    assert {x: evaluate([1234, 166, 94], x) for x in points} == points
    for three in combinations(points, 3):
        shares = {x: points[x].to_bytes(SHARE_BYTES, "little") for x in three}
        assert combine(weights_at_zero(three), shares) == (1234).to_bytes(32, "little")


def test_weights_against_rational_arithmetic() -> None:
    points = (2, 3, 7, 50)
    for x, weight in weights_at_zero(points).items():
        exact = prod((Fraction(other, other - x) for other in points if other != x), start=Fraction(1))
        assert weight * exact.denominator % PRIME == exact.numerator % PRIME


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, SECRET])
def test_every_three_of_five_yield_the_secret(secret: bytes) -> None:
    shares = split(secret, 3, range(1, 6))
    for chosen in combinations(shares, 3):
        assert combine(weights_at_zero(chosen), shares) == secret
    assert combine(weights_at_zero(tuple(shares)), shares) == secret


def test_two_of_three_fit_every_secret() -> None:
    shares = split(SECRET, 3, range(1, 6))
    for other in (bytes(32), b"\xff" * 32):
        # The line through f(0) = other and two shares has a third value at 5: no secret is ruled out.
        known = {0: int.from_bytes(other, "little"), 1: element(shares[1]), 2: element(shares[2])}
        third = sum(
            y * prod((5 - x_m) * pow(x - x_m, -1, PRIME) for x_m in known if x_m != x) for x, y in known.items()
        )
        forged = shares | {5: (third % PRIME).to_bytes(SHARE_BYTES, "little")}
        assert combine(weights_at_zero((1, 2, 5)), forged) == other


def test_fewer_or_wrong_shares_yield_something_else() -> None:
    shares = split(SECRET, 3, range(1, 6))
    assert combine(weights_at_zero((1, 2)), shares) != SECRET
    off_by_one = shares | {1: (element(shares[1]) ^ 1).to_bytes(SHARE_BYTES, "little")}
    assert combine(weights_at_zero((1, 2, 3)), off_by_one) != SECRET
    another = shares | {1: split(SECRET, 3, [1])[1]}
    assert combine(weights_at_zero((1, 2, 3)), another) is None  # 521 random bits are no 32 bytes


def test_coefficients_are_fresh_and_fill_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def randbelow(bound: int) -> int:
        asked.append(bound)
        return len(asked)

    monkeypatch.setattr(secrets, "randbelow", randbelow)
    shares = split((7).to_bytes(32, "little"), 3, [1, 10])
    assert asked == [PRIME, PRIME]
    assert [element(share) for share in shares.values()] == [7 + 1 + 2, 7 + 10 + 200]
    monkeypatch.undo()
    assert split(SECRET, 2, [1]) != split(SECRET, 2, [1])


@pytest.mark.parametrize(
    "share", [b"", bytes(SHARE_BYTES - 1), bytes(SHARE_BYTES + 1), PRIME.to_bytes(SHARE_BYTES, "little"), b"\xff" * 66]
)
def test_a_share_has_one_encoding(share: bytes) -> None:
    with pytest.raises(SecureSumError):
        element(share)
