"""The discrete Gaussian on whole numbers, sampled exactly: no floating point, the operating system's randomness.

    P(x) ∝ exp(−x² / 2σ²)        x whole, σ a whole number

By rejection from the discrete Laplace distribution of scale σ (Canonne, Kamath and Steinke, 2020), whose every step is
a comparison of a random whole number with another: probabilities are ratios of whole numbers, or e to minus such a
ratio, which is a chance of coin flips. A rounded normal from floating point is not covered by any proof of privacy.

Where the same noise must come again, as for a question that a site is asked twice, the bytes are derived from a secret
(`derived`): for whoever does not know it they are as good as the operating system's.

All numbers of a vector go through each step together. Sums of shares of several sites are as good as one discrete
Gaussian (`excess`).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import InputError

Whole = NDArray[np.int64]
#: Gives so many random bytes. Tests alone give another one than the operating system's.
Bytes = Callable[[int], bytes]

#: (|y| − σ)² must fit int64: for |y| up to 128 σ it does, and what lies beyond has a chance of exp(−128).
MOST_SIGMA = 1 << 24
_AT_ONCE = 1 << 18


def derived(seed: bytes) -> Bytes:
    """Bytes that follow from a secret of 32 bytes, by SHAKE-256: the same again for the same secret."""
    if len(seed) != 32:
        raise InputError(f"a seed of noise has {len(seed)} bytes; give 32 that nobody else knows")
    calls = itertools.count()

    def give(size: int) -> bytes:
        return hashlib.shake_256(seed + next(calls).to_bytes(8, "big")).digest(size)

    return give


def discrete_gaussian(sigma: int, size: int, randomness: Bytes = os.urandom) -> Whole:
    """`size` independent draws of P(x) ∝ exp(−x²/2σ²) on the whole numbers."""
    if not 1 <= sigma <= MOST_SIGMA:
        raise InputError(f"sigma is {sigma!r}; give a whole number of steps from 1 to 2^24")
    found, have = np.empty(size, np.int64), 0
    while have < size:
        # About half of the proposals are taken.
        tried = min(2 * (size - have) + 16, _AT_ONCE)
        y = discrete_laplace(sigma, tried, randomness)
        # exp(−y²/2σ²) is exp(−|y|/σ) times exp(−(|y| − σ)²/2σ²), but for a constant.
        distance = np.abs(np.abs(y) - sigma)
        kept = y[_exp_minus(distance * distance, 2 * sigma * sigma, randomness)][: size - have]
        found[have : have + len(kept)] = kept
        have += len(kept)
    return found


def discrete_laplace(scale: int, size: int, randomness: Bytes = os.urandom) -> Whole:
    """`size` independent draws of P(x) ∝ exp(−|x|/scale) on the whole numbers."""
    found, have = np.empty(size, np.int64), 0
    while have < size:
        tried = 2 * (size - have) + 16
        low = _below(scale, tried, randomness)
        low = low[_exp_minus(low, scale, randomness)]
        # How often a coin of chance 1/e comes up before it does not.
        high, going = np.zeros(len(low), np.int64), np.arange(len(low))
        while len(going):
            going = going[_exp_minus(np.ones(len(going), np.int64), 1, randomness)]
            high[going] += 1
        size_of, negative = low + scale * high, _below(2, len(low), randomness) == 1
        # Of the two ways to be 0 one counts.
        kept = np.where(negative, -size_of, size_of)[~(negative & (size_of == 0))][: size - have]
        found[have : have + len(kept)] = kept
        have += len(kept)
    return found


def excess(sigma: int, shares: int, length: int) -> float:
    """What a sum of `shares` draws of σ costs more than one draw, in Rényi divergence of any order, at most.

    For vectors of this length: τ times the length, τ = 10 Σ_{k<shares} exp(−2π²σ² k/(k + 1)) (Kairouz, Liu and Steinke,
    2021). With σ of 16 steps it is 0 in float64.
    """
    terms = (math.exp(-2.0 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, shares))
    return 10.0 * length * sum(terms)


def _exp_minus(numerator: Whole, denominator: int, randomness: Bytes) -> NDArray[np.bool_]:
    """For each ratio g ≥ 0, True with chance exp(−g): (n,)."""
    whole, rest = np.divmod(numerator, denominator)
    found = np.ones(len(numerator), bool)
    # exp(−g) = exp(−1)^⌊g⌋ · exp(−(g − ⌊g⌋)): a coin each, until one fails.
    going = np.flatnonzero(whole > 0)
    while len(going):
        heads = _exp_minus_fraction(np.ones(len(going), np.int64), 1, randomness)
        found[going[~heads]] = False
        going = going[heads]
        whole[going] -= 1
        going = going[whole[going] > 0]
    left = np.flatnonzero(found & (rest > 0))
    found[left] = _exp_minus_fraction(rest[left], denominator, randomness)
    return found


def _exp_minus_fraction(numerator: Whole, denominator: int, randomness: Bytes) -> NDArray[np.bool_]:
    """The same for ratios of at most 1: flips of chance g/1, g/2, … come up an even number of times before they do not.

    P(at least k come up) = g^k / k!, and the alternating sum of these is exp(−g).
    """
    even, going, k = np.ones(len(numerator), bool), np.arange(len(numerator)), 1
    while len(going):
        heads = _below(denominator * k, len(going), randomness) < numerator[going]
        going = going[heads]
        even[going] = ~even[going]
        k += 1
    return even


def _below(bound: int, size: int, randomness: Bytes) -> Whole:
    """Uniform whole numbers from 0 to bound − 1: random bits, drawn again where they are too large."""
    bits = (bound - 1).bit_length()
    if bits == 0:
        return np.zeros(size, np.int64)
    width = next(width for width in (1, 2, 4, 8) if 8 * width >= bits)
    kind: np.dtype[np.unsignedinteger[Any]] = np.dtype(f"u{width}")
    mask = kind.type((1 << bits) - 1)
    found, have = np.empty(size, np.int64), 0
    while have < size:
        wanted = size - have
        drawn = np.frombuffer(randomness(wanted * width), kind) & mask
        kept = drawn[drawn < bound].astype(np.int64)
        found[have : have + len(kept)] = kept
        have += len(kept)
    return found
