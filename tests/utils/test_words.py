"""Sizes and durations as people read them."""

from __future__ import annotations

import pytest

from fedhip.utils.words import duration, points, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "nothing"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (2_340_000, "2.3 MB"),
        (8 * 10**10, "80.0 GB"),
        (3.2e12, "3.2 TB"),
    ],
)
def test_sizes(count: float | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.041, "0.041 s"), (3.24, "3.2 s"), (125, "2 min 5 s"), (4320, "1 h 12 min")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_mean_of_differences_and_a_difference_of_means_print_alike() -> None:
    """Two floats on both sides of a half, which are the same accuracy: 77.0 less 58.9, as a report has it twice."""
    assert points(0.1805 - 1e-15) == points(0.1805 + 1e-15) == "+18.1"
    assert (points(-0.0211), points(0.0), points(None)) == ("−2.1", "0.0", "–")
