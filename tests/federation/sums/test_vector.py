"""Statistics as one vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.statistics import pack
from fedhip.errors import GridOverflowError, StatisticsError
from fedhip.federation.errors import MessageError
from fedhip.federation.sums.vector import Layout, from_vector, require_possible, require_room, to_vector

M, D, BITS = 7, 4, 32
LAYOUT = Layout(M, D)


def statistics(seed: int, rows: int = 9) -> GridStatistics:
    rng = np.random.default_rng(seed)
    return GridStatistics.from_data(rng.normal(size=(rows, M)), rng.integers(0, D, rows), D, fraction_bits=BITS)


def test_there_and_back() -> None:
    own = statistics(0)
    vector = to_vector(own)
    assert vector.shape == (M * (M + 1) // 2 + M * D + D,)
    assert from_vector(vector, LAYOUT, BITS) == own


def test_the_order_is_triangle_cross_counts() -> None:
    own = statistics(1)
    expected = torch.cat((pack(own.gram), own.cross.reshape(-1), own.counts)).numpy()
    np.testing.assert_array_equal(to_vector(own).view(np.int64), expected)


def test_the_sum_of_vectors_is_the_sum_of_statistics() -> None:
    one, other = statistics(2), statistics(3)
    assert from_vector(to_vector(one) + to_vector(other), LAYOUT, BITS) == one + other


@pytest.mark.parametrize("size", [0, 1, LAYOUT.size - 1, LAYOUT.size + 1])
def test_another_size_is_refused(size: int) -> None:
    with pytest.raises(MessageError, match="7 features, 4 classes"):
        from_vector(np.zeros(size, np.uint64), LAYOUT, BITS)
    with pytest.raises(MessageError, match="float64"):
        LAYOUT.require(np.zeros(LAYOUT.size))


def test_room_for_all_sites() -> None:
    vector = np.zeros(LAYOUT.size, np.uint64)
    for value in (2**61 - 1, -(2**61) + 1):
        vector.view(np.int64)[3] = value
        require_room(vector, 4, BITS)
        with pytest.raises(GridOverflowError, match="5 sites"):
            require_room(vector, 5, BITS)
    vector.view(np.int64)[3] = -(2**63)  # has no absolute value in int64
    with pytest.raises(GridOverflowError):
        require_room(vector, 1, BITS)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_statistics_of_rows_are_possible(rows: int, unit: float) -> None:
    rng = np.random.default_rng(rows)
    own = GridStatistics.from_data(unit * rng.normal(size=(rows, M)), rng.integers(0, D, rows), D, fraction_bits=BITS)
    require_possible(to_vector(own), LAYOUT, BITS, 100)


def test_all_zero_features_are_possible() -> None:
    own = GridStatistics.from_data(np.zeros((3, M)), np.arange(3), D, fraction_bits=BITS)
    require_possible(to_vector(own), LAYOUT, BITS, 100)


def test_what_no_rows_have_is_refused() -> None:
    honest = to_vector(statistics(4, 40))
    negative_diagonal, large_entry, large_cross, negative_count, no_rows = (honest.copy() for _ in range(5))
    negative_diagonal.view(np.int64)[0] *= -1
    large_entry.view(np.int64)[1] = 100 * honest.view(np.int64)[0]
    LAYOUT.cross(large_cross)[2, 1] *= 1000
    LAYOUT.counts(negative_count)[0] = -1
    LAYOUT.counts(no_rows)[:] = 0
    many_rows = np.ones(LAYOUT.size, np.uint64) << np.uint64(40)  # of rank one, and so semi-definite
    for wrong in (negative_diagonal, large_entry, large_cross, negative_count, no_rows, many_rows):
        with pytest.raises(StatisticsError):
            require_possible(wrong, LAYOUT, BITS, 100)


def test_a_diagonal_of_zeros_with_entries_beside_it_is_refused() -> None:
    vector = np.zeros(LAYOUT.size, np.uint64)
    LAYOUT.counts(vector)[:] = 1
    vector[1] = 5
    with pytest.raises(StatisticsError, match="diagonal"):
        require_possible(vector, LAYOUT, BITS, 100)
