"""Rows of one client that are the same, where nobody has said that they belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedhip
from fedhip.errors import FedHiPWarning
from fedhip.runs.round.repeats import near_pairs


def table(n: int, random: np.random.Generator, digits: int = 1) -> np.ndarray:
    """Two numbers and a category, as tables have them."""
    columns = random.normal(60, 10, n).round(digits), random.normal(130, 15, n).round(digits), random.integers(0, 2, n)
    return np.column_stack(columns)


def test_rows_of_few_columns_that_are_twice_there() -> None:
    rows = table(80, np.random.default_rng(0))
    assert near_pairs(np.concatenate([rows, rows])) == [(k, k + 80) for k in range(80)]
    assert near_pairs(np.concatenate([rows, rows[:5]])) == [(k, k + 80) for k in range(5)]
    assert near_pairs(np.concatenate([rows, rows[:1]])) == []  # one pair may be chance


def test_rows_that_are_the_same_by_chance() -> None:
    """Whole numbers agree now and then; so do rows of one number and its copy in other units."""
    random = np.random.default_rng(1)
    assert not [seed for seed in range(200) if near_pairs(table(int(random.integers(20, 400)), random, seed % 2))]
    age = random.normal(60, 10, 300).round(1)
    assert near_pairs(np.column_stack([age, 12 * age, -age])) == []
    assert near_pairs(np.ones((50, 3))) == []


def test_a_run_says_so(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    rows = table(60, random)
    frame = pl.DataFrame(rows, schema=["age", "pressure", "smoker"]).with_columns(
        clinic=pl.Series(np.array(["a", "b", "c"])[np.arange(60) % 3]),
        patient=pl.Series(np.arange(60)),
        ill=pl.Series(np.where(rows[:, 0] + random.normal(0, 5, 60) > 60, "yes", "no")),
    )
    twice = pl.concat([frame, frame])
    given: dict[str, Any] = {"label": "ill", "client": "clinic", "head": "ridge"}
    with pytest.warns(FedHiPWarning, match=r"client 'a': \d+ of \d+ training rows are nearly the same as another"):
        fedhip.run(twice, drop=["patient"], out=tmp_path / "run", **given)
    fedhip.run(twice, group="patient", out=tmp_path / "grouped", **given)  # warnings are errors here
    fedhip.run(frame, drop=["patient"], out=tmp_path / "once", **given)
