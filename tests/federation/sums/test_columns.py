"""Columns in units of their own: answers are those of `fedhip run`, and nothing is rounded away in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.exact.columns import Columns, Survey
from fedhip.data import FeatureSet, make_partition
from fedhip.federation.errors import RoundError
from fedhip.federation.status_codes import SiteCode
from fedhip.runs import Run, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from tests.core.problems import Array
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial, ridge_options
from tests.federation.server.test_round import assert_same_models

DOLLARS, ROWS = 2, 60


def rows_in_dollars(site: str, outlier: float | None = None, column: int = DOLLARS) -> tuple[Array, Array]:
    """A column of incomes, 50,000 ± 20,000, beside columns in [0, 1]; an outlier is in the first row."""
    rng = np.random.default_rng([5, *site.encode()])
    labels = rng.integers(0, 3, ROWS)
    means = np.random.default_rng(1).uniform(0.3, 0.7, size=(3, WIDTH))
    rows = np.clip(means[labels] + 0.15 * rng.normal(size=(ROWS, WIDTH)), 0.0, 1.0)
    rows[:, DOLLARS] = 50_000.0 + 12_000.0 * (labels - 1.0) + 17_000.0 * rng.normal(size=ROWS)
    if outlier is not None:
        rows[0, column] = outlier
    return rows, labels


def split() -> Array:
    """The first rows are trained on, so that an outlier is."""
    return (np.arange(ROWS) >= 48).astype(np.int8)


def in_dollars(
    tmp_path: Path, outlier: float | None = 1e5, column: int = DOLLARS, sites: Sequence[str] = FOUR, **settings: Any
) -> Trial:
    trial = Trial.make(tmp_path, sites, **settings)
    for site in sites:
        rows, labels = rows_in_dollars(site, outlier if site == "b" else None, column)
        names = np.array(CLASSES)
        np.savez(trial.data(site), features=rows, labels=labels, class_names=names, split=split())
    return trial


def data_of_all(outlier: float | None = 1e5, column: int = DOLLARS) -> FeatureSet:
    parts = [rows_in_dollars(site, outlier if site == "b" else None, column) for site in FOUR]
    rows, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return FeatureSet(rows, labels, CLASSES, np.repeat(np.array(FOUR), ROWS), split=np.tile(split(), len(FOUR)))


def fedhip_run(path: Path, trial: Trial, outlier: float | None = 1e5, column: int = DOLLARS) -> Run:
    data = data_of_all(outlier, column)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    config = {"alpha": "loo", "beta": "auto", "seed": 0, "only_local_classes": False, "statistics": True}
    told = RoundSettings(ridge=ridge_options(trial.agreement))
    return run_round(path, data, partition, told, title="", config=config)[0]


@pytest.mark.parametrize(
    ("outlier", "column", "secure"),
    [(1e5, DOLLARS, True), (1e5, DOLLARS, False), (1e7, DOLLARS, True), (1e5, 0, True), (1e5, 0, False)],
)
@pytest.mark.sampled(3)
def test_dollars_beside_columns_of_one(tmp_path: Path, outlier: float, column: int, secure: bool) -> None:
    trial = in_dollars(tmp_path, outlier, column, secure_sum=secure)
    for site in FOUR:
        trial.policy(site, f"tell_accuracy = true\nrequire_secure_sum = {str(secure).lower()}")
    result = trial.run()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        expected = fedhip_run(tmp_path / "run", trial, outlier, column)
    lines = [f"WARNING {str(warned.message).removeprefix('client ' + repr('b') + ': ')}" for warned in told]
    if column == DOLLARS and outlier < 1e6:  # 2.5 deviations from the others' mean
        assert lines == []
    else:
        assert [line for line in trial.log("b").splitlines() if lines[0] in line]
        assert f"column {column} goes to" in lines[0]
    assert not [site for site in FOUR if "goes to" in trial.log(site) and (site != "b" or not lines)]
    assert result.total() == expected.total()
    assert_same_models(result.model(None), expected.model(None))
    assert result.details["columns"] == expected.details["columns"]
    for method in ("local", "global", "fedhip"):
        mine, theirs = (
            {entry["client"]: entry["accuracy"] for entry in run.results["methods"][method]["per_client"]}
            for run in (result, expected)
        )
        assert mine == theirs
        assert mine.keys() == set(FOUR)
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        assert_same_models(own.model(site), expected.model(site))
        scores = [run.model(site).scores(rows_in_dollars(site)[0]) for run in (own, expected)]
        torch.testing.assert_close(scores[0], scores[1], rtol=0.0, atol=1e-9)
        assert not [check for check in verify(own) if check.problem]


def test_the_units_decide_nothing(tmp_path: Path, another_user: Callable[[], None]) -> None:
    """In cents or in millions, moved, in another order, a column twice, one always the same: the same answers."""
    usual, other = in_dollars(tmp_path / "usual"), in_dollars(tmp_path / "other", width=WIDTH + 2)
    for site in FOUR:
        with np.load(other.data(site)) as file:
            content = dict(file)
        features = content["features"] * 2.0 ** np.arange(-12, 12, 4) + np.array([0, 64, 0, -8, 0, 4096])
        content["features"] = np.column_stack((features[:, ::-1], 0.5 * features[:, 1], np.full(ROWS, 7.0)))
        np.savez(other.data(site), **content)
    first = usual.run()
    another_user()
    second = other.run()
    assert first.results["beta"] == pytest.approx(second.results["beta"], rel=1e-3)
    for site in FOUR:
        mine, theirs = (Run.open(trial.site_folder(site) / "result") for trial in (usual, other))
        assert mine.model(site).alpha == theirs.model(site).alpha
        assert mine.results["methods"]["fedhip"]["accuracy"] == theirs.results["methods"]["fedhip"]["accuracy"]


def test_plain_columns_refuse_what_is_too_large_by_the_columns_name(tmp_path: Path) -> None:
    trial = in_dollars(tmp_path, 123456.0, columns="plain")
    with pytest.raises(RoundError, match="a: overflow, b: overflow, c: overflow, d: overflow"):
        trial.run()
    line = trial.log("b").splitlines()[-1]
    assert f"a feature of column {DOLLARS} is as large as 123456 here, and the agreement allows 16" in line
    assert "init --columns sum" in line
    assert "init --largest-feature" in line
    assert not trial.result.exists()


@pytest.mark.parametrize("change", [None, "ends", "wider"])
def test_plain_columns_refuse_what_would_be_rounded_away(tmp_path: Path, change: str | None) -> None:
    """Where dollars are allowed, the grid's steps are of a dollar: values in [0, 1] would be 0 or 1."""
    trial = in_dollars(tmp_path, columns="plain", largest_feature=2e5)
    assert trial.agreement.fraction_bits == 0
    small = [column for column in range(WIDTH) if column != DOLLARS]
    for site in FOUR:
        with np.load(trial.data(site)) as file:
            content = dict(file)
        if change == "ends":  # which are a step apart
            content["features"][0, small], content["features"][1, small] = 0.0, 1.0
        elif change == "wider":
            content["features"][:, small] *= 4.0
        np.savez(trial.data(site), **content)
    with pytest.raises(RoundError, match="a: data, b: data, c: data, d: data"):
        trial.run()
    line = trial.log("a").splitlines()[-1]
    assert "hello: refused (data): column 0 varies" in line
    assert "; or agree on units of each column's own (init --columns sum)" in line
    assert not trial.result.exists()


def test_plain_columns_of_whole_numbers_lose_nothing(tmp_path: Path) -> None:
    """Counts and flags lie on the grid already."""
    trial = in_dollars(tmp_path, columns="plain", largest_feature=2e5)
    for site in FOUR:
        with np.load(trial.data(site)) as file:
            content = dict(file)
        content["features"] = np.rint(content["features"])
        np.savez(trial.data(site), **content)
    assert trial.run().results["sites"] == list(FOUR)


def given(data: FeatureSet) -> dict[str, Any]:
    columns = Columns.of(Survey.of(data.features)).to_dict()
    return {
        "columns": "given",
        "column_offsets": tuple(columns["offset"]),
        "column_exponents": tuple(columns["exponent"]),
    }


def test_units_that_are_given_need_no_first_sum(tmp_path: Path) -> None:
    """Of a sample of rows like these; models are the same but for rounding."""
    trial, summed = in_dollars(tmp_path / "given", **given(data_of_all())), in_dollars(tmp_path / "sum")
    result, expected = trial.run(), summed.run()
    assert [s["ask"] for s in result.results["sums"]] == ["statistics", "beta"]
    assert result.results["methods"]["fedhip"]["rounds"] == 2
    for site in FOUR:
        own, theirs = (Run.open(t.site_folder(site) / "result").model(site) for t in (trial, summed))
        assert own.alpha == theirs.alpha
        scores = [model.scores(rows_in_dollars(site)[0]) for model in (own, theirs)]
        torch.testing.assert_close(scores[0], scores[1], rtol=0.0, atol=1e-3)
    assert result.results["beta"] == pytest.approx(expected.results["beta"], rel=1e-3)


def test_units_that_are_given_and_are_not_those_of_a_site(tmp_path: Path) -> None:
    units = given(data_of_all())
    units["column_exponents"] = (*units["column_exponents"][:-1], 14)  # steps of a quarter
    trial = in_dollars(tmp_path, **units)
    with pytest.raises(RoundError, match="a: data"):
        trial.run()
    line = trial.log("a").splitlines()[-1]
    assert f"column {WIDTH - 1} varies" in line
    assert "would be rounded to multiples of 0.25; scale the column at all sites" in line


def test_units_that_are_given_and_leave_no_room(tmp_path: Path) -> None:
    units = given(data_of_all())
    units["column_exponents"] = (*units["column_exponents"][:DOLLARS], -9, *units["column_exponents"][DOLLARS + 1 :])
    trial = in_dollars(tmp_path, **units)
    with pytest.raises(RoundError, match="a: overflow"):
        trial.run()


@pytest.mark.slow
def test_room_for_many_sites_is_that_of_all_rows(tmp_path: Path, sums_only: None) -> None:
    """The units are such that all sites' numbers fit together: one site's may take most of the room."""
    sites = tuple("abcdefghijklmnopqrst")
    trial = in_dollars(tmp_path, 1.7e5, 0, sites)
    result = trial.run()
    assert result.results["sites"] == list(sites)
    largest = int(result.total().gram.abs().max())
    assert 2**63 / 20 < largest < 2**62


@pytest.mark.parametrize("secure", [True, False])
def test_a_value_out_of_all_proportion_ends_the_round_with_its_column(tmp_path: Path, secure: bool) -> None:
    trial = in_dollars(tmp_path, 1e12, secure_sum=secure)
    if not secure:
        for site in FOUR:
            trial.policy(site, "require_secure_sum = false")
    said = rf"^column {DOLLARS} holds a value of about 1e\+12, .*repair or drop the row, or clip the column; "
    for _ in range(2):  # whoever starts it again is told the same
        with pytest.raises(RoundError, match=said) as caught:
            trial.run()
        assert str(caught.value).endswith("; nothing was written. Make a new federation when that is done")
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert trial.events()[-1] | {"time": ""} == {"time": "", "step": "failed", "text": str(caught.value)}
        trial.again()
    assert not trial.result.exists()
    for site in FOUR:
        assert not (trial.site_folder(site) / "result").exists()
        assert "Traceback" not in trial.log(site)
        # Nobody was asked for statistics, which would be rounded away.
        assert "of sum 2" not in trial.log(site)


def test_a_value_that_no_survey_holds_leaves_its_site_out(tmp_path: Path) -> None:
    trial = in_dollars(tmp_path, 1e30, quorum=3, threshold=3)
    result = trial.run()
    assert result.results["sites"] == ["a", "c", "d"]
    assert trial.codes() == {"b": SiteCode.OVERFLOW}
    line = trial.log("b").splitlines()[-1]
    assert f"hello: refused (overflow): a feature of column {DOLLARS} is as large as 1e+30 here" in line
    assert "Traceback" not in trial.log("b")


def test_a_column_that_varies_by_less_than_a_step_is_said_in_the_sites_log(tmp_path: Path) -> None:
    trial = in_dollars(tmp_path)
    with np.load(trial.data("c")) as file:
        content = dict(file)
    content["features"][:, 0] = 0.5 + 1e-7 * np.arange(ROWS) / ROWS
    np.savez(trial.data("c"), **content)
    trial.run()
    assert "from 0.5 on, by less than a step of the grid" in trial.log("c")
    assert "WARNING column" not in trial.log("a")


def test_a_column_without_units_and_without_an_intercept(tmp_path: Path) -> None:
    """Of the paper's ridge no column can be moved."""
    trial = in_dollars(tmp_path, None, standardize=False, intercept=False)
    for site in FOUR:
        with np.load(trial.data(site)) as file:
            content = dict(file)
        content["features"][:, 1] += 1e6
        np.savez(trial.data(site), **content)
    with pytest.raises(
        RoundError, match=r"column 1 deviates by .* around 1e\+06: .*subtract a constant from the column"
    ):
        trial.run()


@pytest.mark.parametrize(
    "settings",
    [{}, {"lift": "nystroem", "lift_width": 8, "lift_seed": 0, "lift_bandwidth": 1.5}],
    ids=["without a lift", "landmarks"],
)
def test_a_site_is_told_where_units_are_agreed_on_too(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Without a survey it follows from the others' sums: of the statistics, or of the products that landmarks take."""
    units: dict[str, Any] = {"columns": "given", "column_offsets": (0.0,) * WIDTH, "column_exponents": (10,) * WIDTH}
    trial = in_dollars(tmp_path, 1e6, 0, **settings, **units)
    trial.run()
    assert [site for site in FOUR if "column 0 goes to 1e+06" in trial.log(site)] == ["b"]
