"""Paired comparisons against scipy, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedhip.core.paired import compare_rows, holm, sign_test


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_the_sign_test_is_the_exact_binomial_test(better: int, worse: int) -> None:
    if better + worse == 0:
        assert sign_test(0, 0) == 1.0
    else:
        want = stats.binomtest(better, better + worse, 0.5).pvalue
        assert sign_test(better, worse) == pytest.approx(want, rel=1e-8, abs=1e-300)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_by_its_definition(p: list[float]) -> None:
    adjusted = holm(p)
    ordered = sorted(p)
    for value, found in zip(p, adjusted, strict=True):
        last = max((i for i, other in enumerate(ordered) if other <= value), default=0)
        want = max(min(1.0, (len(p) - i) * ordered[i]) for i in range(last + 1))
        assert found == pytest.approx(want)


def test_holm_names_somebody_falsely_in_at_most_one_family_of_twenty() -> None:
    rng = np.random.default_rng(0)
    named = sum(min(holm(rng.uniform(size=50).tolist())) <= 0.05 for _ in range(2000))
    assert named / 2000 < 0.065


def test_a_client_by_hand() -> None:
    first, second = np.array([1, 1, 1, 1, 1, 1, 0, 0]), np.array([0, 0, 0, 0, 0, 0, 0, 1])
    found = compare_rows(first.astype(float), second.astype(float))
    assert (found.difference, found.better, found.worse) == (5 / 8, 6, 1)
    assert found.p == pytest.approx(2 * (1 + 7) / 2**7)
    assert found.low is not None
    assert found.high is not None
    assert 0.0 < found.low < 5 / 8 < found.high <= 1.0


def test_models_that_agree_differ_by_nothing_but_not_certainly() -> None:
    same = np.array([1.0, 0.0, 1.0])
    found = compare_rows(same, same)
    assert (found.difference, found.p) == (0.0, 1.0)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.0 < found.high


def test_rows_of_one_group_are_one_sign() -> None:
    first, second = np.ones(12), np.repeat([0.0, 1.0], 6)
    groups = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    found = compare_rows(first, second, groups)
    assert (found.better, found.worse, found.p) == (1, 0, 1.0)
    assert found.difference == pytest.approx(0.5)
    alone = compare_rows(first, second, np.zeros(12, np.int64))
    assert alone.low is None


def test_the_interval_of_a_difference_covers_it() -> None:
    rng, covered, n = np.random.default_rng(1), 0, 40
    for _ in range(2000):
        u = rng.uniform(size=n)
        first, second = (u < 0.8).astype(float), (rng.uniform(size=n) < 0.7).astype(float)
        found = compare_rows(first, second)
        covered += found.low is not None and found.high is not None and found.low <= 0.1 <= found.high
    assert 0.935 < covered / 2000 < 0.975


def test_errors_are_compared_as_minus_themselves() -> None:
    rng = np.random.default_rng(0)
    first, second = -np.abs(rng.normal(size=50)), -np.abs(3 * rng.normal(size=50))
    found = compare_rows(first, second)
    assert found.better > found.worse
    assert found.low is not None
    t = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert [found.low, found.high] == pytest.approx([t.low, t.high])
