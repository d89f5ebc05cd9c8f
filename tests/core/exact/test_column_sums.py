"""Units from plain sums are those of the exact survey, to the last bit, or are left to it."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedhip.core.exact.column_sums import ColumnSums
from fedhip.core.exact.columns import LIMIT, Columns, Survey, magnitude_of
from fedhip.errors import ColumnError, InputError
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import columns_of, survey_of
from tests.core.problems import Array
from tests.drawing import examples

KINDS = ("normal", "tie", "half", "room", "stray", "constant", "zeros", "few", "heavy", "whole", "edge", "tiny", "far")


def column(kind: str, rows: int, seed: int, nudge: float) -> Array:
    """A column of a kind; `nudge` of 0 is as near to where units change as floats can be."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    size = 2.0 ** rng.integers(-12, 13)
    if kind == "tie":  # a deviation of a power of two
        x = np.where(np.arange(rows) % 2, 1.0, -1.0) * (1.0 + nudge)
        x[: rows % 2] = 0.0
    elif kind == "half":  # a mean half way between two offsets
        x = np.where(np.arange(rows) % 2, 1.0, -1.0) * 1.5 + 0.5 + 2.0 * rng.integers(-3, 4) + nudge
    elif kind == "room":  # squares around zero that fill the grid just so far
        x = np.where(np.arange(rows) % 2, 1.125, -1.125) + np.sqrt(2.0**24 / rows - 1.125**2) * (1.0 + nudge)
    elif kind == "stray":
        x[: int(rng.integers(1, 4))] = 10.0 ** rng.integers(2, 6)
    elif kind == "constant":
        x = np.full(rows, rng.normal())
    elif kind == "zeros":
        x = np.zeros(rows)
    elif kind == "few":
        x = np.where(rng.random(rows) < 0.02, x, 0.0)
    elif kind == "heavy":
        x = rng.standard_cauchy(rows)
    elif kind == "whole":
        return rng.integers(-200, 200, rows).astype(np.float64)
    elif kind == "edge":  # between two orders of magnitude
        return np.where(rng.random(rows) < rng.choice([0.0005, 0.002, 0.5]), 1.0 + abs(nudge), 1.0 - 2.0**-53) * x / 4
    elif kind == "tiny":
        size = 2.0 ** rng.integers(-60, -30)
    elif kind == "far":  # far from zero, by up to what float64 tells apart
        return np.asarray(x + 10.0 ** rng.integers(2, 15))
    return np.asarray(x * size)


def parts(X: Array, seed: int) -> list[Client]:
    """The rows at up to three clients."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(X), 2))
    pieces = [piece for piece in np.split(X, cuts) if len(piece)]
    return [
        Client(str(k), (piece, np.zeros(len(piece), int)), (piece[:0], np.zeros(0, int)))
        for k, piece in enumerate(pieces)
    ]


def units(clients: list[Client], *, centred: bool, exact: bool) -> tuple[list[float], list[int]] | str:
    """Offsets and exponents, or what is wrong with the rows."""
    try:
        found = columns_of(clients, centred=centred, survey=survey_of(clients) if exact else None)
    except ColumnError as error:
        return str(error)
    return found.offset.tolist(), found.exponent.tolist()


@pytest.mark.filterwarnings("ignore::fedhip.errors.ColumnWarning")
@examples(100)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6),
    rows=st.sampled_from([1, 2, 7, 8, 64, 500, 1100, 2100]),
    seed=st.integers(0, 10**6),
    nudge=st.sampled_from([0.0, 2.0**-52, -(2.0**-52), 1e-12, -1e-12, 1e-9, -1e-9, 1e-7, -1e-7, 1e-6, -1e-6, 1e-3]),
    dtype=st.sampled_from([np.float64, np.float32, np.float16]),
    centred=st.booleans(),
)
@example(kinds=["tie"], rows=1000, seed=0, nudge=0.0, dtype=np.float64, centred=True)
@example(kinds=["half"], rows=1000, seed=0, nudge=0.0, dtype=np.float64, centred=True)
@example(kinds=["room"], rows=1100, seed=0, nudge=0.0, dtype=np.float64, centred=True)
def test_units_are_those_of_the_survey(
    kinds: list[str], rows: int, seed: int, nudge: float, dtype: type, centred: bool
) -> None:
    X = np.stack([column(kind, rows, seed + k, nudge) for k, kind in enumerate(kinds)], axis=1)
    with np.errstate(over="ignore"):
        X = X.astype(dtype)
    X = np.where(np.isfinite(X), X, dtype(1.0))
    clients = parts(X, seed)
    assert units(clients, centred=centred, exact=False) == units(clients, centred=centred, exact=True)


@pytest.mark.filterwarnings("ignore::fedhip.errors.ColumnWarning")
@examples(100)
@given(
    kind=st.sampled_from(["tie", "half", "room", "normal"]),
    seed=st.integers(0, 10**6),
    nudge=st.floats(-1e-6, 1e-6),
    rows=st.sampled_from([100, 1100]),
    centred=st.booleans(),
)
@example(kind="room", seed=0, nudge=0.0, rows=1100, centred=False)
def test_what_is_certain_is_so_to_the_bound(kind: str, seed: int, nudge: float, rows: int, centred: bool) -> None:
    """Columns drawn around the very place where units change, in float64, where the survey itself rounds."""
    X = column(kind, rows, seed, nudge)[:, None]
    found, certain = ColumnSums.of(X).columns(centred=centred)
    if certain[0]:
        expected = Columns.of(Survey.of(X), centred=centred)
        assert found.offset.tolist() == expected.offset.tolist()
        assert found.exponent.tolist() == expected.exponent.tolist()


def test_ordinary_columns_are_not_surveyed() -> None:
    """Or it would be no use."""
    X = np.random.default_rng(0).normal(size=(2000, 50)) * 2.0 ** np.linspace(-9, 9, 50) + np.linspace(-5.0, 5.0, 50)
    assert ColumnSums.of(X).columns()[1].mean() > 0.7


@pytest.mark.parametrize("kind", ["tie", "half", "room", "constant", "zeros"])
def test_columns_at_a_tie_are(kind: str) -> None:
    assert not ColumnSums.of(column(kind, 1000, 0, 0.0)[:, None]).columns(centred=kind != "room")[1][0]


def test_what_the_survey_rounds_is_left_to_it() -> None:
    """A deviation just below 2 is 2 in 30 bits up to 256."""
    X = np.where(np.arange(1000) % 2, 2.0, -2.0)[:, None] * (1.0 - 1e-8)
    assert Columns.of(Survey.of(X)).exponent.tolist() == [1]
    assert np.floor(np.log2(X.std())) == 0.0
    assert not ColumnSums.of(X).columns()[1][0]


def test_sums_add() -> None:
    X = np.random.default_rng(1).standard_cauchy((600, 9))
    whole, parted = ColumnSums.of(X), reduce(add, [ColumnSums.of(X[:100]), ColumnSums.of(X[100:])])
    np.testing.assert_allclose(parted.sums, whole.sums)
    np.testing.assert_allclose(parted.squares, (X**2).sum(axis=0))
    np.testing.assert_array_equal(parted.largest, np.abs(X).max(axis=0))
    top = magnitude_of(np.abs(X)) == magnitude_of(np.abs(X).max(axis=0))
    np.testing.assert_array_equal(parted.as_large, top.sum(axis=0))
    np.testing.assert_array_equal(whole.as_large, top.sum(axis=0))
    with pytest.raises(InputError, match="8 columns"):
        _ = whole + ColumnSums.of(X[:, :8])


@pytest.mark.parametrize("value", [LIMIT, -1e300, 1e308])
def test_a_value_past_all_orders_of_magnitude_is_named_as_the_survey_names_it(value: float) -> None:
    X = np.random.default_rng(2).normal(size=(20, 3))
    X[:, 0] = 1.0  # surveyed as well, so that columns are counted anew
    X[11, 2] = value
    clients = parts(X, 0)
    found = units(clients, centred=True, exact=False)
    assert "column 2" in found
    assert found == units(clients, centred=True, exact=True)


def test_a_value_that_is_no_number_is_named() -> None:
    X = np.zeros((20, 3))
    X[11, 2] = np.nan
    with pytest.raises(InputError, match="column 2 is nan"):
        columns_of(parts(X, 0))
