"""The sampler's distribution, against probabilities from 30 digits and against scipy; its every step, by itself."""

from __future__ import annotations

import inspect
import os

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedhip.errors import InputError
from fedhip.privacy import noise
from fedhip.privacy.noise import MOST_SIGMA, derived, discrete_gaussian, discrete_laplace, excess

#: A test that fails by chance once in a million runs; the seeds are fixed, so that it fails always or never.
RARE = 1e-6


def seeded(seed: int = 0) -> noise.Bytes:
    return np.random.default_rng(seed).bytes


def chi_square(found: NDArray[np.int64], weight: object, reach: int) -> float:
    """The p-value of draws against weights of −reach … reach; what lies beyond is one cell."""
    mpmath.mp.dps = 30
    weights = [weight(x) for x in range(-60 * reach, 60 * reach + 1)]  # type: ignore[operator]
    everything = mpmath.fsum(weights)
    inside = [float(weight(x) / everything) for x in range(-reach, reach + 1)]  # type: ignore[operator]
    expected = np.array([*inside, 1.0 - sum(inside)]) * len(found)
    counted = [int((found == x).sum()) for x in range(-reach, reach + 1)]
    return float(stats.chisquare([*counted, len(found) - sum(counted)], expected).pvalue)


@pytest.mark.parametrize("sigma", [1, 2, 3])
def test_a_small_discrete_gaussian_has_its_probabilities(sigma: int) -> None:
    found = discrete_gaussian(sigma, 100_000, seeded(sigma))
    assert chi_square(found, lambda x: mpmath.exp(-mpmath.mpf(x * x) / (2 * sigma * sigma)), 3 * sigma) > RARE


@pytest.mark.parametrize("scale", [1, 4])
def test_the_proposal_has_its_probabilities(scale: int) -> None:
    found = discrete_laplace(scale, 100_000, seeded(scale))
    assert chi_square(found, lambda x: mpmath.exp(-mpmath.mpf(abs(x)) / scale), 5 * scale) > RARE


def test_the_chi_square_would_notice_a_rounded_normal_of_another_width() -> None:
    wrong = np.rint(np.random.default_rng(0).normal(scale=2.1, size=100_000)).astype(np.int64)
    assert chi_square(wrong, lambda x: mpmath.exp(-mpmath.mpf(x * x) / 8), 6) < RARE


def test_a_large_one_is_normal_up_to_its_tails() -> None:
    sigma = MOST_SIGMA
    found = discrete_gaussian(sigma, 200_000, seeded(7)) / sigma
    assert stats.kstest(found, "norm").pvalue > RARE
    for far in (2.0, 3.0, 4.0):
        beyond, chance = int((np.abs(found) > far).sum()), 2.0 * stats.norm.sf(far)
        assert stats.binomtest(beyond, len(found), chance).pvalue > RARE
    assert np.abs(found).max() > 4.0


def test_no_low_bit_of_a_large_one_is_more_likely_than_another() -> None:
    found = discrete_gaussian(1 << 20, 100_000, seeded(3))
    assert stats.chisquare(np.bincount(found % 16, minlength=16)).pvalue > RARE


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 3), (1, 1), (27, 10), (40, 7)])
def test_a_coin_of_chance_e_to_minus_a_ratio(numerator: int, denominator: int) -> None:
    flips = noise._exp_minus(np.full(50_000, numerator), denominator, seeded(numerator))
    chance = float(np.exp(-numerator / denominator))
    assert stats.binomtest(int(flips.sum()), len(flips), chance).pvalue > RARE


@pytest.mark.parametrize("bound", [1, 2, 3, 255, 256, 257, 70_001, 2**33 + 1, 2**49 + 7])
def test_whole_numbers_below_a_bound_are_even(bound: int) -> None:
    found = noise._below(bound, 20_000, seeded(1))
    assert found.min() >= 0
    assert found.max() < bound
    eighths = np.minimum((found.astype(object) * 8 // bound).astype(np.int64), 7)
    if bound >= 255:
        share = np.array([(-(-bound * (k + 1) // 8) - -(-bound * k // 8)) / bound for k in range(8)])
        assert stats.chisquare(np.bincount(eighths, minlength=8), 20_000 * share).pvalue > RARE


def test_randomness_is_the_operating_systems_unless_a_test_says_otherwise() -> None:
    assert inspect.signature(discrete_gaussian).parameters["randomness"].default is os.urandom
    assert not np.array_equal(discrete_gaussian(1000, 20), discrete_gaussian(1000, 20))
    assert np.array_equal(discrete_gaussian(1000, 20, seeded(5)), discrete_gaussian(1000, 20, seeded(5)))


@pytest.mark.parametrize("sigma", [0, -1, MOST_SIGMA + 1])
def test_a_width_that_the_arithmetic_does_not_hold_is_refused(sigma: int) -> None:
    with pytest.raises(InputError, match="sigma"):
        discrete_gaussian(sigma, 1)


def test_a_sum_of_shares_is_as_good_as_one_draw() -> None:
    """Kairouz, Liu and Steinke: 5.5e-4 a number at σ = 1 and 50 shares, and nothing that float64 knows at 16."""
    assert excess(1, 50, 1) == pytest.approx(5.5e-4, rel=0.01)
    assert excess(16, 1000, 10**6) == 0.0
    shares = sum(discrete_gaussian(5, 100_000, seeded(k)) for k in range(4))
    assert chi_square(np.asarray(shares), lambda x: mpmath.exp(-mpmath.mpf(x * x) / 200), 30) > RARE


def test_noise_from_a_secret_is_the_same_again_and_as_good() -> None:
    """Chi-square on whole numbers, over draws of many secrets; another secret has other noise."""
    sigma, each = 3, 500
    draws = [discrete_gaussian(sigma, each, derived(bytes([number]) * 32)) for number in range(40)]
    np.testing.assert_array_equal(draws[0], discrete_gaussian(sigma, each, derived(bytes(32))))
    assert all((draws[0] != other).mean() > 0.5 for other in draws[1:])
    x = np.arange(-9, 10)
    weights = np.exp(-(np.arange(-60, 61) ** 2) / (2.0 * sigma**2))
    chances = np.exp(-(x**2) / (2.0 * sigma**2)) / weights.sum()
    found = np.concatenate(draws)
    seen = np.array([(found == value).sum() for value in x])
    seen, expected = np.append(seen, len(found) - seen.sum()), np.append(chances, 1.0 - chances.sum()) * len(found)
    assert stats.chisquare(seen, expected).pvalue > 1e-6
    with pytest.raises(InputError, match="a seed of noise has 5 bytes"):
        derived(b"short")
