"""The rows behind a Gram matrix of whole numbers, against the rows themselves and against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedhip.privacy.lattice import IntegerFactor, factor, rank_of
from tests.drawing import examples

Whole = NDArray[np.int64]


def rows(n: int, m: int, bits: int = 14, seed: int = 0) -> Whole:
    return np.rint(np.random.default_rng(seed).normal(size=(n, m)) * 2.0**bits).astype(np.int64)


def up_to_sign(factored: IntegerFactor | None) -> list[tuple[int, ...]]:
    assert factored is not None
    repeated = np.repeat(factored.rows, factored.times, axis=0)
    return canonical(repeated)


def canonical(Q: Whole) -> list[tuple[int, ...]]:
    return sorted(max(tuple(row.tolist()), tuple((-row).tolist())) for row in Q)


def brute_force(gram: Whole, n: int, largest: int) -> set[tuple[tuple[int, ...], ...]]:
    """Every set of n rows up to sign, entries up to `largest`, with this Gram matrix."""
    entries = range(-largest, largest + 1)
    vectors = {max(v, tuple(-x for x in v)) for v in itertools.product(entries, repeat=len(gram))}
    return {
        tuple(sorted(chosen))
        for chosen in itertools.combinations_with_replacement(sorted(vectors), n)
        if np.array_equal(np.array(chosen).T @ np.array(chosen), gram)
    }


def test_the_only_factor_of_small_numbers_is_the_one_that_brute_force_finds() -> None:
    found = 0
    for seed in range(30):
        Q = np.random.default_rng(seed).integers(-2, 3, (2, 4))
        gram = Q.T @ Q
        if rank_of(gram) < 2 or (np.gcd.reduce(Q, axis=1) > 1).any():
            continue
        answers = brute_force(gram, 2, 2)
        assert tuple(canonical(Q)) in answers
        factored = factor(gram, 2)
        if factored is not None:
            assert tuple(up_to_sign(factored)) in answers
            found += 1
    assert found >= 15


@pytest.mark.parametrize(
    ("n", "m", "bits"), [(1, 8, 14), (1, 40, 20), (12, 128, 14), (12, 128, 20), (12, 18, 14), (30, 90, 16)]
)
def test_every_row_comes_back(n: int, m: int, bits: int) -> None:
    Q = rows(n, m, bits)
    assert up_to_sign(factor(Q.T @ Q, n)) == canonical(Q)


def test_rows_that_occur_several_times_come_back_as_often() -> None:
    Q = rows(6, 40)[[0, 0, 0, 1, 2, 2, 3, 4, 5]]
    gram = Q.T @ Q
    assert rank_of(gram) == 6
    assert up_to_sign(factor(gram, 6)) == canonical(Q)


def test_features_that_are_zero_and_features_that_are_positive_do_not_matter() -> None:
    Q = np.maximum(rows(10, 80), 0)
    Q[:, ::3] = 0
    assert up_to_sign(factor(Q.T @ Q, 10)) == canonical(Q)


def test_a_long_common_part_does_not_matter() -> None:
    """Features of a network have a mean that is larger than what tells them apart."""
    Q = rows(10, 60) + 40 * rows(1, 60, seed=1)
    assert up_to_sign(factor(Q.T @ Q, 10)) == canonical(Q)


@examples(25)
@given(st.integers(1, 8), st.integers(0, 12), st.integers(2, 18), st.integers(0, 2**32 - 1))
def test_an_answer_always_has_the_gram_matrix(n: int, more: int, bits: int, seed: int) -> None:
    Q = rows(n, 2 * n + more, bits, seed)
    gram = Q.T @ Q
    found = factor(gram, rank_of(gram))
    if found is not None:
        repeated = np.repeat(found.rows, found.times, axis=0)
        np.testing.assert_array_equal(repeated.T @ repeated, gram)


def test_as_many_rows_as_features_or_none_have_no_answer() -> None:
    Q = rows(8, 8)
    assert factor(Q.T @ Q, 8) is None
    assert factor(np.zeros((4, 4), np.int64), 0) is None


def test_rounding_after_the_product_leaves_no_lattice() -> None:
    """A Gram matrix that is not QᵀQ of whole numbers to the last bit is never answered with rows."""
    gram = rows(6, 40).T @ rows(6, 40)
    gram[3, 5] += 1
    gram[5, 3] += 1
    assert factor(gram, 6) is None


def test_told_to_stop_it_stops() -> None:
    Q, asked = rows(20, 60), []

    def go_on() -> bool:
        asked.append(1)
        return len(asked) < 4

    assert factor(Q.T @ Q, 20, go_on=go_on) is None
    assert len(asked) < 8


def test_rank_is_the_number_of_different_rows() -> None:
    Q = rows(9, 30)
    assert rank_of(Q.T @ Q) == 9
    assert rank_of(rows(50, 30).T @ rows(50, 30)) == 30
    assert rank_of(np.zeros((3, 3), np.int64)) == 0


def test_squares_below_zero_as_noise_leaves_them_are_those_of_no_rows() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(-9, 10, (12, 12))
    gram = noise + noise.T - 20 * np.eye(12, dtype=np.int64)
    assert 0 < rank_of(gram) < 12
    assert factor(gram, rank_of(gram)) is None
