"""The int64 grid: exact sums, exact rows, and overflow that says which scale fits."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip import Statistics
from fedhip.core.exact.fixedpoint import (
    GridStatistics,
    _exact_parts,
    decode,
    decode_weighted,
    encode,
    fraction_bits_for,
    round_features,
)
from fedhip.errors import GridOverflowError, InputError
from tests.core.problems import Array, Federation, federations, relative_error

RNG = np.random.default_rng(0)
F = RNG.normal(size=(50, 7))
Y = RNG.integers(0, 4, 50)


@given(federations(), st.sampled_from([0, 7, 28, 40]))
def test_encoding_rounds_by_at_most_half_a_step(federation: Federation, fraction_bits: int) -> None:
    statistics = Statistics.from_data(*federation.clients[0], federation.num_classes)
    again = decode(encode(statistics, fraction_bits))
    assert float((again.gram - statistics.gram).abs().max()) <= 2.0 ** -(fraction_bits + 1)
    assert float((again.cross - statistics.cross).abs().max()) <= 2.0 ** -(fraction_bits + 1)
    assert torch.equal(again.counts, statistics.counts)
    assert encode(again, fraction_bits) == encode(statistics, fraction_bits)


@given(federations(), st.sampled_from([0, 9, 28, 31, 40]))
def test_from_data_is_exact_in_python_integers(federation: Federation, fraction_bits: int) -> None:
    features, labels = federation.clients[0]
    Q = [[round(value * 2 ** (fraction_bits // 2)) for value in row] for row in features.tolist()]
    shift = fraction_bits - fraction_bits // 2
    m, d = federation.width, federation.num_classes
    gram = [[sum(q[i] * q[j] for q in Q) << (fraction_bits % 2) for j in range(m)] for i in range(m)]
    cross = [
        [sum(q[i] for q, label in zip(Q, labels, strict=True) if label == c) << shift for c in range(d)]
        for i in range(m)
    ]
    grid = GridStatistics.from_data(features, labels, d, fraction_bits=fraction_bits)
    assert grid.gram.tolist() == gram
    assert grid.cross.tolist() == cross


def test_from_data_is_exact_where_float64_products_would_round() -> None:
    """Entries near 2^26 steps: two products already exceed 2^53."""
    features = np.full((5, 2), 2.0**26 - 1)
    features[:, 1] = [1, 3, 5, 7, 9]
    grid = GridStatistics.from_data(features, np.zeros(5), 1, fraction_bits=0)
    assert grid.gram.tolist() == [[5 * (2**26 - 1) ** 2, 25 * (2**26 - 1)], [25 * (2**26 - 1), 165]]


def test_from_data_is_exact_where_a_single_product_would_round() -> None:
    grid = GridStatistics.from_data([[2.0**27 + 1, 2.0**27 + 3]], [0], 1, fraction_bits=0)
    a, b = 2**27 + 1, 2**27 + 3
    assert grid.gram.tolist() == [[a * a, a * b], [a * b, b * b]]


@pytest.mark.parametrize("features", [F, F[:1] * 2.0**27, F[:2] * 2.0**27], ids=["rows", "one row", "rows one by one"])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_wide_matrix_is_the_same_some_rows_at_a_time(
    features: Array, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = GridStatistics.from_data(features, Y[: len(features)], 4, fraction_bits=3)
    monkeypatch.setattr("fedhip.core.exact.fixedpoint._ROWS_AT_ONCE", rows)
    assert GridStatistics.from_data(features, Y[: len(features)], 4, fraction_bits=3) == at_once


def test_from_data_takes_all_that_fits() -> None:
    """The limit is that of the entries, 2^63 steps, for gram as for cross."""
    statistics = decode(GridStatistics.from_data(np.full((10_000, 1), 20.0), np.zeros(10_000), 1))
    assert (float(statistics.gram), float(statistics.cross)) == (4e6, 2e5)
    GridStatistics.from_data([[2.0**31, 0.0]], [0], 1, fraction_bits=0)
    with pytest.raises(GridOverflowError, match="at no scale"):
        GridStatistics.from_data([[2.0**32]], [0], 1, fraction_bits=28)
    # Many tiny values: cross, not gram, is what overflows.
    with pytest.raises(GridOverflowError, match=r"values of 4 overflow .*fraction_bits=60 fits"):
        GridStatistics.from_data(np.full((4096, 1), 2.0**-10), np.zeros(4096), 1, fraction_bits=62)
    assert decode(GridStatistics.from_data(np.full((3, 1), 0.5), np.zeros(3), 1, fraction_bits=62)).cross == 1.5


def test_rounded_features_have_the_statistics_of_the_grid() -> None:
    rounded = round_features(torch.from_numpy(F))
    assert decode(GridStatistics.from_data(F, Y, 4)).digest() == Statistics.from_data(rounded, Y, 4).digest()


def test_from_data_does_not_depend_on_blocks() -> None:
    whole = GridStatistics.from_data(F, Y, 4)
    assert all(GridStatistics.from_data(F, Y, 4, block_rows=rows) == whole for rows in (1, 7, 49))


def test_from_data_agrees_with_float_statistics_to_the_step() -> None:
    assert relative_error(decode(GridStatistics.from_data(F, Y, 4)).gram, Statistics.from_data(F, Y, 4).gram) < 1e-4


def test_sum_decodes_to_the_sum() -> None:
    a, b = Statistics.from_data(F[:20], Y[:20], 4), Statistics.from_data(F[20:], Y[20:], 4)
    total = decode(sum([encode(a), encode(b)]))  # type: ignore[arg-type]
    assert total == a + b
    assert decode(encode(a) + encode(b) - encode(a)) == b


def test_grid_values_are_values() -> None:
    a = encode(Statistics.from_data(F, Y, 4))
    assert a == encode(Statistics.from_data(F.copy(), Y, 4))
    assert len({a, encode(Statistics.from_data(F.copy(), Y, 4))}) == 1
    assert a != encode(Statistics.from_data(F, Y, 4), 27)
    assert a.digest() != encode(Statistics.from_data(F, Y, 4), 27).digest()
    assert a != encode(Statistics.from_data(F[1:], Y[1:], 4))
    assert a != encode(Statistics.from_data(F, Y, 5))
    assert a != 1


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e7])
@pytest.mark.parametrize("num_clients", [1, 50])
def test_overflow_names_the_largest_scale_that_fits(scale: float, num_clients: int) -> None:
    statistics = Statistics.from_data(scale * F, Y, 4)
    with pytest.raises(
        GridOverflowError, match=r"overflow the int64 grid at fraction_bits=62; fraction_bits=\d+ fits"
    ) as e:
        encode(statistics, 62, num_clients=num_clients)
    fits = int(re.search(r"fraction_bits=(\d+) fits", str(e.value))[1])  # type: ignore[index]
    encode(statistics, fits, num_clients=num_clients)
    with pytest.raises(GridOverflowError):
        encode(statistics, fits + 1, num_clients=num_clients)


def test_a_sum_that_was_promised_room_does_not_overflow() -> None:
    statistics = Statistics.from_data(F, Y, 4)
    encoded = encode(statistics, 53, num_clients=8)
    total = encoded
    for _ in range(7):
        total = total + encoded
    assert total.gram.tolist() == [[8 * value for value in row] for row in encoded.gram.tolist()]


def test_overflow_of_a_sum_is_noticed_and_names_the_scale() -> None:
    statistics = Statistics.from_data(F, Y, 4)
    largest = int(np.floor(62.999 - np.log2(float(statistics.gram.max()))))
    encoded = encode(statistics, largest)
    with pytest.raises(GridOverflowError, match=rf"at fraction_bits={largest}; fraction_bits=\d+ fits") as e:
        encoded + encoded
    fits = int(re.search(r"fraction_bits=(\d+) fits", str(e.value))[1])  # type: ignore[index]
    encode(statistics, fits) + encode(statistics, fits)


@pytest.mark.parametrize("block_rows", [None, 7])
def test_overflow_of_rows_names_the_client_and_the_scale(block_rows: int | None) -> None:
    """A scale that fits all rows, not only those read when the first overflow was noticed."""
    with pytest.raises(GridOverflowError, match=r"client 'site-3': .*fraction_bits=\d+ fits") as e:
        GridStatistics.from_data(1e5 * F, Y, 4, client="site-3", block_rows=block_rows)
    fits = int(re.search(r"fraction_bits=(\d+) fits", str(e.value))[1])  # type: ignore[index]
    GridStatistics.from_data(1e5 * F, Y, 4, fraction_bits=fits)
    with pytest.raises(GridOverflowError):
        GridStatistics.from_data(1e5 * F, Y, 4, fraction_bits=fits + 1, block_rows=block_rows)


def test_overflow_that_only_all_blocks_together_reach() -> None:
    rows = np.full((8, 1), 2.0**16)  # 2^32 each: one fits at 28 bits, eight do not
    GridStatistics.from_data(rows[:7], np.zeros(7), 1, block_rows=1)
    with pytest.raises(GridOverflowError):
        GridStatistics.from_data(rows, np.zeros(8), 1, block_rows=1)


@pytest.mark.parametrize(("a", "b"), [(2**62, 2**62), (-(2**62) - 1, -(2**62)), (-(2**63), -1)])
def test_overflow_of_either_sign_is_noticed(a: int, b: int) -> None:
    def grid(value: int) -> GridStatistics:
        return GridStatistics(torch.tensor([[0]]), torch.tensor([[value]]), torch.tensor([5]), 0)

    with pytest.raises(GridOverflowError, match="at no scale"):
        grid(a) + grid(b)
    if b != -(2**63):
        with pytest.raises(GridOverflowError):
            grid(a) - grid(-b)
    assert int((grid(-1) - grid(-(2**63))).cross) == 2**63 - 1
    with pytest.raises(GridOverflowError):
        grid(0) - grid(-(2**63))


def test_values_that_no_number_of_steps_can_hold() -> None:
    for scale in (1e155, 1e300):
        with pytest.raises(GridOverflowError, match="at no scale; rescale"):
            GridStatistics.from_data(scale * F, Y, 4)


@pytest.mark.parametrize("num_clients", [0, -1, 2.5, float("nan"), True])
def test_room_for_a_number_of_clients_that_is_none(num_clients: Any) -> None:
    with pytest.raises(InputError, match=r"num_clients is .*give a whole number"):
        encode(Statistics.from_data(F, Y, 4), num_clients=num_clients)


def test_tensors_that_are_no_grid() -> None:
    with pytest.raises(InputError, match="int64"):
        GridStatistics(torch.zeros(2, 2), torch.zeros(2, 1), torch.zeros(1), 28)
    with pytest.raises(InputError, match="do not fit"):
        GridStatistics(torch.zeros(2, 2).long(), torch.zeros(3, 1).long(), torch.zeros(1).long(), 28)


def test_values_beyond_every_scale() -> None:
    with pytest.raises(GridOverflowError, match="at no scale; rescale the features"):
        encode(Statistics.from_data([[1e10]], [0], 1))


def test_grids_that_do_not_match() -> None:
    statistics = Statistics.from_data(F, Y, 4)
    with pytest.raises(InputError, match=r"27 fraction bits do not add to those with 28"):
        encode(statistics) + encode(statistics, 27)
    with pytest.raises(InputError, match="5 classes do not fit those of 4"):
        encode(statistics) + encode(Statistics.from_data(F, Y, 5))
    with pytest.raises(InputError, match="not in the sum"):
        encode(Statistics.from_data(F[:3], Y[:3], 4)) - encode(statistics)
    with pytest.raises(TypeError):
        encode(statistics) + statistics
    with pytest.raises(TypeError):
        encode(statistics) - 1  # type: ignore[operator]


@pytest.mark.parametrize("fraction_bits", [-1, 63, 2.5, "28", None, True])
def test_scales_out_of_range(fraction_bits: Any) -> None:
    with pytest.raises(InputError, match="whole number from 0 to 62"):
        encode(Statistics.from_data(F, Y, 4), fraction_bits)
    with pytest.raises(InputError, match="whole number from 0 to 62"):
        GridStatistics.from_data(F, Y, 4, fraction_bits=fraction_bits)


@pytest.mark.parametrize("largest", [1e-9, 0.3, 0.999, 1.0, 1.001, 7.0, 16.0, 16.1, 255.0, 1e4, 1e6])
def test_the_scale_that_is_chosen_has_the_precision_and_the_room(largest: float) -> None:
    """Sixteen bits for the largest feature, where there are any left; and millions of rows like it fit."""
    bits = fraction_bits_for(largest)
    assert 0 <= bits <= 62
    assert bits % 2 == 0
    if 2.0**-8 < largest <= 2.0**16:
        assert largest * 2.0 ** (bits // 2) >= 2.0**16
        assert largest * 2.0 ** (bits // 2) <= 2.0**20
    if 2.0**-22 < largest <= 1e9:
        rows = 2**21 - 1
        assert rows * largest**2 * 2.0**bits < 2.0**63  # gram
        assert rows * largest * 2.0**bits < 2.0**63  # cross
    if largest <= 1e6:
        features = np.full((50, 2), largest)
        features[:, 1] *= RNG.uniform(-1, 1, 50)
        grid = GridStatistics.from_data(features, np.zeros(50), 1, fraction_bits=bits)
        assert relative_error(decode(grid).gram, features.T @ features) < 2.0**-14 or largest < 2.0**-8


def test_data_a_little_larger_has_the_same_scale() -> None:
    assert [fraction_bits_for(value) for value in (0.9, 1.1, 10.0, 16.0)] == [40, 32, 32, 32]
    assert [fraction_bits_for(value) for value in (17.0, 256.0, 257.0)] == [24, 24, 16]
    scales = [fraction_bits_for(value) for value in np.logspace(-6, 9, 200)]
    assert scales == sorted(scales, reverse=True)
    assert all(fraction_bits_for(value) == 28 for value in (0.0, -1.0, float("nan"), float("inf")))


@pytest.mark.parametrize("power", range(-30, 41))
def test_the_scale_is_the_finest_of_its_steps_that_has_room(power: int) -> None:
    """By trying them: steps of 4 bits a feature, at most 20 bits in all, and a million rows of one class fit."""
    for largest in (2.0**power, 1.5 * 2.0**power):
        steps = [b for b in range(0, 60, 4) if largest * 2**b <= 2**20 and largest * 2.0 ** (2 * b) <= 2**43]
        bits = fraction_bits_for(largest)
        assert bits == 2 * min(max(steps, default=0), 31)
        if largest <= 2**20:
            assert (2**20 - 1) * max(largest**2, largest) * 2.0**bits < 2.0**63


@pytest.mark.parametrize("bits", [7, 8])
def test_a_weighted_sum_is_decoded_as_the_sum_of_both(bits: int) -> None:
    rng = np.random.default_rng(bits)
    total, own = (torch.from_numpy(rng.integers(-9, 9, (5, 3))) for _ in range(2))
    expected = (total.numpy() + 2.5 * own.numpy()) / 2**bits
    assert np.array_equal(decode_weighted(total, own, 2.5, bits).numpy(), expected)


@pytest.mark.parametrize("fits", [0, 1, 2])
def test_the_scale_named_is_the_largest_that_fits(fits: int) -> None:
    statistics = Statistics(torch.tensor([[2.0 ** (62 - fits)]]), torch.zeros(1, 1), torch.tensor([1]))
    with pytest.raises(GridOverflowError, match=f"at fraction_bits=28; fraction_bits={fits} fits"):
        encode(statistics, 28)
    encode(statistics, fits)
    with pytest.raises(GridOverflowError):
        encode(statistics, fits + 1)


def test_an_odd_scale_has_the_same_limit() -> None:
    """With one fraction bit features are whole, and their squares are doubled."""
    with pytest.raises(GridOverflowError):
        GridStatistics.from_data([[2.0**31]], [0], 1, fraction_bits=1)
    value = int(0.9 * 2**31)
    assert int(GridStatistics.from_data([[float(value)]], [0], 1, fraction_bits=1).gram) == 2 * value**2


def test_rows_whose_squares_alone_pass_exact_floats_add_exactly() -> None:
    value = 2**27 + 1
    assert int(GridStatistics.from_data([[value], [value]], [0, 0], 1, fraction_bits=0).gram) == 2 * value**2


@pytest.mark.parametrize("bits", [25, 26, 28])
def test_features_are_rounded_to_half_the_bits(bits: int) -> None:
    expected = np.round(F * 2 ** (bits // 2)) / 2 ** (bits // 2)
    assert np.array_equal(round_features(torch.from_numpy(F), bits).numpy(), expected)


def exact(rows: Array, labels: Array, num_classes: int) -> tuple[list[list[int]], list[list[int]]]:
    """QᵀQ and QᵀY of whole numbers, in Python's integers."""
    Q = [[int(value) for value in row] for row in rows.tolist()]
    gram = [[sum(q[i] * q[j] for q in Q) for j in range(len(Q[0]))] for i in range(len(Q[0]))]
    cross = [
        [sum(q[i] for q, label in zip(Q, labels, strict=True) if label == c) for c in range(num_classes)]
        for i in range(len(Q[0]))
    ]
    return gram, cross


def test_a_sum_that_float64_rounds_down_to_the_limit_overflows_all_the_same() -> None:
    """After the first two rows 22² no longer moves a float sum; 2,300 times it is more than what is left to 2^63."""
    rows = np.r_[3037000499.0, 76990.0, np.full(2300, 22.0)][:, None]
    assert exact(rows, np.zeros(2302), 1)[0][0][0] >= 2**63
    with pytest.raises(GridOverflowError, match="at no scale"):
        GridStatistics.from_data(rows, np.zeros(2302), 1, block_rows=1, fraction_bits=0)


@given(st.integers(0, 2**32 - 1), st.integers(-(2**18), 2**12), st.sampled_from([1, 7, None]))
def test_near_the_limit_there_are_exact_entries_or_an_error(seed: int, away: int, block_rows: int | None) -> None:
    """Sums of squares about 2^63, where float64 knows every 2^10th number; the last rows are many and small."""
    rng = np.random.default_rng(seed)
    left, values = 2**63 + away, []
    while left > 400:
        values.append(min(math.isqrt(left), int(rng.integers(1, 30)) if left < 2**13 else 2**63))
        left -= values[-1] ** 2
    rows = np.array(values, dtype=np.float64)[:, None] * [1, -1]
    labels = rng.integers(0, 2, len(rows))
    gram, cross = exact(rows, labels, 2)
    try:
        grid = GridStatistics.from_data(rows, labels, 2, block_rows=block_rows, fraction_bits=0)
    except GridOverflowError:
        assert gram[0][0] >= 2**63 * (1 - 1e-12)
    else:
        assert (grid.gram.tolist(), grid.cross.tolist()) == (gram, cross)


@given(st.integers(0, 2**32 - 1), st.sampled_from([20, 23, 26, 28]), st.integers(0, 6), st.sampled_from([1, 3, None]))
def test_rows_of_any_size_together_are_exact(seed: int, power: int, outliers: int, block_rows: int | None) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = rng.integers(-300, 300, (12, 3)).astype(float), rng.integers(0, 2, 12)
    rows[rng.permutation(12)[:outliers]] *= 2.0 ** (power - 8)
    rows[0, 0] += 2.0**power + 1  # whose square has more than 53 bits from 2^26 on
    grid = GridStatistics.from_data(rows, labels, 2, block_rows=block_rows, fraction_bits=0)
    assert (grid.gram.tolist(), grid.cross.tolist()) == exact(rows, labels, 2)


def test_one_row_of_large_features_does_not_part_the_others() -> None:
    Q = torch.ones((3000, 2), dtype=torch.float64)
    Q[1234] = 2.0**28
    parts = [len(q) for q, *_ in _exact_parts(Q, torch.zeros(3000, dtype=torch.int64), Q.amax(dim=1))]
    assert sorted(parts) == [1, 2999]


def test_many_rows_of_large_features_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = RNG.integers(-(2**27), 2**27, (20, 3)).astype(float), RNG.integers(0, 2, 20)
    whole = GridStatistics.from_data(rows, labels, 2, fraction_bits=0)
    assert (whole.gram.tolist(), whole.cross.tolist()) == exact(rows, labels, 2)
    Q = torch.from_numpy(rows)
    assert [len(q) for q, *_ in _exact_parts(Q, torch.from_numpy(labels), Q.abs().amax(dim=1))] == [20]
    monkeypatch.setattr("fedhip.core.exact.fixedpoint._LARGE_ROWS", 7)
    assert GridStatistics.from_data(rows, labels, 2, fraction_bits=0) == whole


@pytest.mark.parametrize("num_clients", [2**12, 3 * 2**12])
def test_room_for_clients_counts_the_rounding_of_each(num_clients: int) -> None:
    """2^51 − ½ steps are rounded to 2^51, and 2^12 times that is 2^63."""
    statistics = Statistics([[2.0**51 - 0.5]], [[0.0]], [1])  # type: ignore[arg-type]
    with pytest.raises(GridOverflowError, match="at no scale"):
        encode(statistics, 0, num_clients=num_clients)
    assert int(encode(statistics, 0, num_clients=2**12 - 1).gram) == 2**51


def test_the_scale_named_leaves_room_for_features_rounded_up() -> None:
    """Two rows of 2^31 − ⅛ would fit without fraction bits if they were not rounded to 2^31 there."""
    with pytest.raises(GridOverflowError, match="at no scale"):
        GridStatistics.from_data(np.full((2, 1), 2.0**31 - 0.125), np.zeros(2), 1, fraction_bits=6)
    for largest in (2.0**30 - 0.25, 2.0**30.5, 2.0**29 + 0.75):
        rows = np.full((3, 1), largest)
        with pytest.raises(GridOverflowError, match=r"fraction_bits=\d+ fits") as e:
            GridStatistics.from_data(rows, np.zeros(3), 1, fraction_bits=6)
        fits = int(re.search(r"fraction_bits=(\d+) fits", str(e.value))[1])  # type: ignore[index]
        GridStatistics.from_data(rows, np.zeros(3), 1, fraction_bits=fits)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.bool_])
@pytest.mark.parametrize("bits", [0, 7, 28])
def test_features_of_any_type_have_the_bits_of_their_float64(dtype: type[np.generic], bits: int) -> None:
    features = (30 * F).astype(dtype)
    wide = features.astype(np.float64)
    expected = GridStatistics.from_data(wide, Y, 4, fraction_bits=bits)
    assert GridStatistics.from_data(features, Y, 4, fraction_bits=bits) == expected
    assert GridStatistics.from_data(torch.from_numpy(features), Y, 4, fraction_bits=bits) == expected
    rounded = round_features(torch.from_numpy(features), bits)
    assert rounded.dtype == torch.float64
    assert torch.equal(rounded, round_features(torch.from_numpy(wide), bits))
