import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedhip.data.partitions.apportion import apportion

Problem = tuple[int, NDArray[np.float64], NDArray[np.int64]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    room = np.array(draw(st.lists(st.integers(0, 50), min_size=1, max_size=20)), dtype=np.int64)
    weight = st.one_of(st.just(-1e300), st.floats(-1e300, 1e300), st.floats(-40, 3))
    weights = np.array(draw(st.lists(weight, min_size=len(room), max_size=len(room))))
    return draw(st.integers(0, int(room.sum()))), weights, room


@given(problems())
def test_sums_to_the_total_within_the_room(problem: Problem) -> None:
    total, log_weights, room = problem
    counts = apportion(total, log_weights, room)
    assert counts.sum() == total
    assert (counts >= 0).all()
    assert (counts <= room).all()


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=20),
    st.lists(st.integers(1, 50), min_size=20, max_size=20),
)
def test_agrees_with_bisection(weights: list[float], sizes: list[int]) -> None:
    """min(room, t·w) with t found by bisection is the oracle; rounding moves each count by less than one."""
    w, room = np.array(weights), np.array(sizes[: len(weights)], dtype=np.int64)
    total = int(room.sum()) // 2
    low, high = 0.0, 1e6
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if np.minimum(room, t * w).sum() < total else (low, t)
    assert np.abs(apportion(total, np.log(w), room) - np.minimum(room, high * w)).max() < 1 + 1e-6


def test_known_answers() -> None:
    def of(total: int, weights: list[float], room: list[int]) -> list[int]:
        counts = apportion(total, np.log(weights), np.array(room, dtype=np.int64))
        return [int(count) for count in counts]

    assert of(10, [0.5, 0.3, 0.2], [99, 99, 99]) == [5, 3, 2]
    assert of(10, [0.5, 0.3, 0.2], [2, 99, 99]) == [2, 5, 3]
    assert of(3, [1, 1, 1], [1, 1, 1]) == [1, 1, 1]
    assert of(0, [1, 1], [5, 5]) == [0, 0]


def test_weights_far_below_the_smallest_float_keep_their_order() -> None:
    log_weights = np.array([0.0, -3e6, -1e6, -2e6])
    assert apportion(9, log_weights, np.array([2, 5, 5, 5])).tolist() == [2, 0, 5, 2]
    assert apportion(9, log_weights * 1e290, np.array([2, 5, 5, 5])).tolist() == [2, 0, 5, 2]
