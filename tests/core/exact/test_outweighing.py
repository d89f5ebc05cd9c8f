"""A client whose rows alone decide how far a column spreads is named; what is merely different or rare is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fedhip.core.exact.column_sums import ColumnSums
from fedhip.core.exact.columns import Survey
from fedhip.core.exact.outweighing import Spread, outweighed, outweighing
from fedhip.errors import ColumnWarning
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import warn_of_outweighing
from tests.core.problems import Array

SITES, ROWS, WIDTH = 4, 60, 3
Change = Callable[[Array, int], None]


def parties(seed: int = 0, sites: int = SITES) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(ROWS, WIDTH)) * [1.0, 1e-6, 300.0] + [0.0, 1.0, 1e6] for _ in range(sites)]


def warn(rows: list[Array]) -> None:
    none = np.zeros(0, np.int64)
    clients = [Client(f"site-{k}", (F, np.zeros(len(F), np.int64)), (F[:0], none)) for k, F in enumerate(rows)]
    warn_of_outweighing(clients)


def other_unit(F: Array, column: int) -> None:
    F[:, column] *= 1000.0


def stray(F: Array, column: int) -> None:
    F[7, column] += 2000.0 * F[:, column].std()


@pytest.mark.parametrize("sites", [2, SITES])
@pytest.mark.parametrize("column", range(WIDTH))
@pytest.mark.parametrize("change", [other_unit, stray])
def test_who_outweighs_all_others_is_named(change: Callable[[Array, int], None], column: int, sites: int) -> None:
    """Wherever the column's zero is, and whatever it is in."""
    rows = parties(sites=sites)
    change(rows[1], column)
    with pytest.warns(ColumnWarning, match=f"client 'site-1': column {column} goes to .* another unit here"):
        warn(rows)


@pytest.mark.parametrize("column", range(WIDTH))
@pytest.mark.parametrize("changes", [(other_unit, other_unit), (stray, stray), (stray, other_unit)])
@pytest.mark.parametrize("sites", [4, 5])
def test_several_at_once_are_each_named(changes: Sequence[Change], column: int, sites: int) -> None:
    """Each of them is no outlier beside the others."""
    rows = parties(sites=sites)
    for k, change in zip((1, 3), changes, strict=True):
        change(rows[k], column)
    with pytest.warns(ColumnWarning) as told:
        warn(rows)
    assert [str(one.message).split(" goes to ")[0] for one in told] == [
        f"client 'site-{k}': column {column}" for k in (1, 3)
    ]


def test_a_site_finds_itself_where_another_strays_too() -> None:
    rows = parties()
    for k in (0, 1):
        rows[k][7, 0] = 1e5
    for k, F in enumerate(rows):
        others = sum((Survey.of(rest) for at, rest in enumerate(rows) if at != k), start=0)
        assert (outweighed(F, Spread.of_survey(others)) is not None) == (k in (0, 1))  # type: ignore[arg-type]


def rare(rows: list[Array]) -> None:
    """A category that one site has often, and all others once together."""
    for k, F in enumerate(rows):
        F[:, 0] = 0.0
        F[: 30 if k == 1 else int(k == 2), 0] = 1.0


def unknown_elsewhere(rows: list[Array]) -> None:
    for k, F in enumerate(rows):
        F[:, 0] = 1e5 * F[:, 0] if k == 1 else 7.0


def another_place(rows: list[Array]) -> None:
    rows[1][:, 0] += 50.0


def sparse(rows: list[Array]) -> None:
    """A pixel at the edge, which is dark but for a few rows: README's digits."""
    for k, F in enumerate(rows):
        F[:, 0] = 0.0
        F[: 30 if k == 1 else int(k == 2), 0] = 1000.0 if k == 1 else 1.0


def heavy_tails(rows: list[Array]) -> None:
    for F in rows:
        F[:, 0] = np.exp(2.0 * F[:, 0])


def everybody(rows: list[Array]) -> None:
    for F in rows:
        stray(F, 0)


@pytest.mark.parametrize("change", [rare, sparse, unknown_elsewhere, another_place, heavy_tails, everybody])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_different_or_rare_is_let_be(change: Callable[[list[Array]], None], seed: int) -> None:
    rows = parties(seed)
    change(rows)
    warn(rows)
    if change in (rare, sparse):  # nor does the site say it
        others = Spread.of_survey(sum((Survey.of(F) for k, F in enumerate(rows) if k != 1), start=0))  # type: ignore[arg-type]
        assert outweighed(rows[1], others) is None


def test_one_client_outweighs_nobody() -> None:
    rows = parties()[:1]
    stray(rows[0], 0)
    warn(rows)
    warn([rows[0], parties()[1][:9]])  # nor where the others have hardly any rows


def test_the_others_are_what_is_left_without_the_client() -> None:
    rows = parties()
    other_unit(rows[1], 0)
    stray(rows[2], 2)
    astray, others = outweighing(Spread.of([ColumnSums.of(F) for F in rows]))
    assert np.argwhere(astray).tolist() == [[1, 0], [2, 2]]
    for column, k in ((0, 1), (2, 2)):
        rest = np.concatenate([F for place, F in enumerate(rows) if place != k])[:, column]
        assert others.rows[column] == len(rest)
        assert others.mean[column] == pytest.approx(rest.mean(), rel=1e-9)
        assert others.variance[column] == pytest.approx(rest.var(), rel=1e-4)
    assert others.variance[1] == 0.0


def test_a_site_finds_the_same_of_the_others_survey() -> None:
    rows = parties()
    stray(rows[1], 2)
    others = Spread.of_survey(sum((Survey.of(F) for k, F in enumerate(rows) if k != 1), start=0))  # type: ignore[arg-type]
    told = outweighed(rows[1], others)
    assert told is not None
    assert told.startswith("column 2 goes to 1.5")
    assert outweighed(parties()[1], others) is None
