"""Which of several candidates: for everybody, and for a client that has its own reasons."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip.core.choice.candidates import LEAD, HeldOut, leaves_for, nested_right_of


def table(*columns: str) -> torch.Tensor:
    """Rows right (N, C): a word of 0 and 1 for each candidate."""
    return torch.tensor([[digit == "1" for digit in column] for column in columns]).mT


def nested_right(hits: list[torch.Tensor]) -> list[int]:
    """Of each client, with nothing presumed."""
    every, among = HeldOut.of(hits), range(hits[0].shape[1])
    return [nested_right_of(part, None, every, lambda told: told.best(among)) for part in hits]


def test_everybodys_is_best_in_the_mean_over_clients_and_not_over_rows() -> None:
    many, few = table("1111111111", "0000000000"), table("00", "11")
    found = HeldOut.of([many, few, few])
    assert torch.equal(found.means, torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
    assert found.best([0, 1]) == 1
    assert found.best([0]) == 0


def test_of_equals_the_first_is_taken() -> None:
    assert HeldOut.of([table("10", "01", "11"), table("01", "11", "00")]).best([0, 1, 2]) == 1
    assert HeldOut.of([table("10", "01")]).best([0, 1]) == 0
    assert HeldOut.of([table("10", "01")]).best([1, 0]) == 1


def test_what_is_presumed_gives_way_to_a_lead_beyond_chance() -> None:
    """Of 0.3/√N: with 9 rows 0.1, which 5 rows of 10 against 4 are not more than, and 6 are."""
    five, six = HeldOut.of([table("1111000000", "1111100000")]), HeldOut.of([table("1111000000", "1111110000")])
    assert pytest.approx(0.3) == LEAD
    assert five.best([0, 1], presumed=0, rows=9) == 0
    assert five.best([0, 1], presumed=0, rows=100) == 1
    assert six.best([0, 1], presumed=0, rows=9) == 1
    assert six.best([0, 1], presumed=1, rows=9) == 1, "it is the best"
    assert six.best([0], presumed=0, rows=9) == 0


def test_a_client_leaves_by_more_than_two_standard_errors() -> None:
    """Ahead on six rows and behind on one: 5 is not more than 2√7. On four and none: 4 is not more than 2√4."""
    assert leaves_for(table("00000010", "11111100"), 0) == 0
    assert leaves_for(table("00000000", "11110000"), 0) == 0
    assert leaves_for(table("00000000", "11111000"), 0) == 1
    assert leaves_for(table("0000000010", "1111111100"), 0) == 1, "7 is more than 2√9"


def test_it_leaves_for_the_one_that_is_ahead_by_most_and_that_it_may() -> None:
    hits = table("00000000", "11111000", "11111100", "11111111")
    assert leaves_for(hits, 0) == 3
    assert leaves_for(hits, 0, among=[1, 2]) == 2
    assert leaves_for(hits, 3) == 3


def test_rows_of_a_group_are_one_reason() -> None:
    hits = table("00000000", "11111111")
    assert leaves_for(hits, 0) == 1
    assert leaves_for(hits, 0, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])) == 0


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_leaving_is_a_paired_test_by_groups(seed: int, rows: int, grouped: bool) -> None:
    rng = np.random.default_rng(seed)
    hits = rng.integers(0, 2, (rows, 4)).astype(bool)
    groups = rng.integers(0, 5, rows) if grouped else np.arange(rows)
    best, taken = 0, 0
    for candidate in range(1, 4):
        gaps = [int(hits[groups == g, candidate].sum()) - int(hits[groups == g, 0].sum()) for g in np.unique(groups)]
        lead = sum(gaps)
        if lead > 2 * math.sqrt(sum(gap * gap for gap in gaps)) and lead > best:
            best, taken = lead, candidate
    assert leaves_for(torch.tensor(hits), 0, torch.tensor(groups) if grouped else None) == taken


@pytest.mark.parametrize("seed", range(5))
def test_what_is_expected_is_chosen_by_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hits = [torch.tensor(rng.random((rows, 3)) < [0.5, 0.55, 0.6]) for rows in (7, 23, 40)]
    expected = [0, 0, 0]
    for k, part in enumerate(hits):
        usual = int(np.mean([p.double().mean(dim=0).numpy() for i, p in enumerate(hits) if i != k], axis=0).argmax())
        for fold in range(5):
            inside = torch.arange(len(part)) % 5 == fold
            expected[k] += int(part[inside, leaves_for(part[~inside], usual)].sum())
    assert nested_right(hits) == expected


def test_on_noise_nothing_is_expected_beyond_chance() -> None:
    """By the rows that it was chosen on, the best of ten candidates has .53 right."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        hits = [torch.tensor(rng.random((30, 10)) < 0.5) for _ in range(5)]
        shares.append(sum(nested_right(hits)) / 150)
    assert abs(np.mean(shares) - 0.5) <= 3.0 * np.std(shares, ddof=1) / len(shares) ** 0.5
