"""A server tells a site another sum than the others', made up around the statistics of the site itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedhip.errors import StatisticsError
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.vector import Layout, Vector, digest_of, require_possible_rest
from fedhip.federation.transport.wire import RoundStep
from tests.federation.samples import FOUR, ONE_SUM, WIDTH, survey_of, vector_of
from tests.federation.table import LAYOUT, Table, ThreeSums


def more_products(rest: Vector) -> None:
    signed = rest.view(np.int64)
    signed[1] = 2 * max(signed[0], signed[WIDTH])


def less_squares(rest: Vector) -> None:
    rest.view(np.int64)[0] = -1


def larger_class_sums(rest: Vector) -> None:
    LAYOUT.cross(rest)[:] *= 5


def sums_of_a_class_that_nobody_has(rest: Vector) -> None:
    LAYOUT.cross(rest)[0, -1] = 1 << 20


def fewer_rows(rest: Vector) -> None:
    LAYOUT.counts(rest)[0] = -1


def no_rows(rest: Vector) -> None:
    rest[:] = 0


def more_rows(rest: Vector) -> None:
    LAYOUT.counts(rest)[0] = 1 << 40


CHANGES = (
    more_products, less_squares, larger_class_sums, sums_of_a_class_that_nobody_has, fewer_rows, no_rows, more_rows
)  # fmt: skip


def others(table: Table) -> Vector:
    """What the other sites have, of which `change` makes something that no rows have."""
    parts = [vector_of(site, table.trial.agreement) for site in FOUR[1:]]
    total: Vector = np.stack(parts).sum(axis=0, dtype=np.uint64)
    return total


@pytest.mark.parametrize("change", CHANGES)
def test_the_sum_less_the_site_s_own_is_no_sum_of_others(tmp_path: Path, change: Callable[[Vector], None]) -> None:
    table = Table(tmp_path, **ONE_SUM)
    table.until(RoundStep.MASK)
    rest = others(table)
    own = vector_of("a", table.trial.agreement)
    change(made_up := rest.copy())
    body = {"sites": list(FOUR), "beta": 1.0}
    assert table.code("a", RoundStep.PERSONALIZE, body, {"total": own + made_up}) is SiteCode.TOTAL
    assert "does not fit this site's rows" in table.trial.log("a")
    assert not (table.trial.site_folder("a") / "result").exists()
    own = vector_of("b", table.trial.agreement)
    total = rest + vector_of("a", table.trial.agreement)
    assert table.code("b", RoundStep.PERSONALIZE, body, {"total": total}) is SiteCode.OK


@pytest.mark.parametrize("change", [more_products, larger_class_sums])
def test_the_same_where_sums_follow(tmp_path: Path, change: Callable[[Vector], None]) -> None:
    table = ThreeSums(tmp_path)
    table.until_beta()
    change(made_up := others(table))
    total = vector_of("a", table.trial.agreement) + made_up
    body, _ = table.for_beta()
    assert table.keys("a", 3, {**body, "sum": digest_of(total)}, {"total": total}) is SiteCode.TOTAL
    assert table.keys("b", 3, *table.for_beta()) is SiteCode.OK


def test_a_survey_that_does_not_hold_the_site_s_own(tmp_path: Path) -> None:
    table = ThreeSums(tmp_path)
    table.survey()
    lacking = survey_of(FOUR[1:2])
    body = {**table.for_statistics()[0], "sum": digest_of(lacking)}
    assert table.keys("a", 2, body, {"moments": lacking}) is SiteCode.TOTAL
    assert "the sum that came does not fit this site's rows: the survey is of" in table.trial.log("a")


def test_sites_that_were_told_different_sums_can_tell(tmp_path: Path) -> None:
    """No check of one site finds a sum that others could have; two that compare do."""
    import json

    table = Table(tmp_path, **ONE_SUM)
    table.until(RoundStep.MASK)
    rest = others(table)
    total = rest + vector_of("a", table.trial.agreement)
    body = {"sites": list(FOUR), "beta": 1.0}
    totals = {
        "a": vector_of("a", table.trial.agreement) + rest,
        "b": total,
        "c": total + vector_of("d", table.trial.agreement),
    }
    digests = {}
    for site, sent in totals.items():
        assert table.code(site, RoundStep.PERSONALIZE, body, {"total": sent}) is SiteCode.OK
        kept = json.loads((table.trial.site_folder(site) / "state" / "sum.json").read_text())
        assert kept["sites"] == list(FOUR)
        assert f"of a, b, c, d has digest {kept['digest']}" in table.trial.log(site)
        assert kept["digest"] in (table.trial.site_folder(site) / "result" / "config.toml").read_text()
        digests[site] = kept["digest"]
    assert digests["a"] == digests["b"] != digests["c"]


def test_honest_rows_pass_however_they_lie() -> None:
    """Columns of one value, of zeros, twice the same, and a single row."""
    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.federation.sums.vector import to_vector

    rng = np.random.default_rng(0)
    for rows in (1, 2, 7, 300):
        features = rng.normal(size=(rows, 5)) * 2.0 ** rng.integers(-8, 8, 5)
        features[:, 0], features[:, 1], features[:, 2] = 1.0, 0.0, features[:, 3]
        vector = to_vector(GridStatistics.from_data(features, rng.integers(0, 3, rows), 3, fraction_bits=32))
        require_possible_rest(vector, Layout(5, 3), 32, 1, rows)
        with pytest.raises(StatisticsError):
            require_possible_rest(vector, Layout(5, 3), 32, rows + 1, rows + 1)
