"""Data at the edge through the doors as they are: `fedhip run` and `FedHiPClassifier()`, without an option."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.cli.main import main
from fedhip.errors import ColumnError, ColumnWarning, InputError
from fedhip.runs import Run
from fedhip.sklearn import FedHiPClassifier
from tests.core.problems import Array

ROWS, SITES, CLASSES = 150, 3, 3
TRAIN = np.arange(ROWS) % 5 > 0


def table() -> tuple[Array, Array, Array]:
    """Features from 0 to 1 that tell three classes apart, labels, and whose each row is."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, ROWS)
    X = rng.uniform(0.2, 0.8, (CLASSES, 6))[y] + 0.05 * rng.normal(size=(ROWS, 6))
    return X, y, np.array(["north", "south", "west"])[np.arange(ROWS) % SITES]


def changed(X: Array, row: int, column: int, value: float) -> Array:
    found = X.copy()
    found[row, column] = value
    return found


def run(folder: Path, X: Array, y: Array, sites: Array, *options: str) -> int:
    np.savez(folder / "rows.npz", features=X, labels=y, clients=sites)
    words = ["run", "--features", str(folder / "rows.npz"), "--partition", "natural", "--out", str(folder / "run")]
    return main([*words, *options])


USABLE: dict[str, Callable[[Array], Array]] = {
    "dollars": lambda X: np.column_stack((X, np.random.default_rng(7).normal(50_000.0, 20_000.0, ROWS))),
    "float16": lambda X: X.astype(np.float16),
    "whole numbers": lambda X: np.rint(1000 * X).astype(np.int16),
    "one value": lambda X: np.column_stack((np.full(ROWS, 1e9), X)),
    "tiny": lambda X: X * 1e-12,
    "a copy, and small units": lambda X: np.column_stack((X[:, :1], X * [1.0, 1e-8, 1.0, 1.0, 1.0, 1.0])),
    "objects": lambda X: X.astype(object),
}


@pytest.mark.parametrize("kind", USABLE)
@pytest.mark.sampled(3)
def test_the_estimator_takes_it(kind: str) -> None:
    X, y, sites = table()
    Z = USABLE[kind](X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = FedHiPClassifier().fit(Z[TRAIN], y[TRAIN], groups=sites[TRAIN])
    assert found.score(Z[~TRAIN], y[~TRAIN]) >= 0.95


OUTWEIGHING: dict[str, Callable[[Array], Array]] = {
    "an outlier": lambda X: changed(X, 6, 2, 2e4),
    "another unit": lambda X: np.where((np.arange(ROWS) % SITES == 0)[:, None] & (np.arange(6) == 2), 1000 * X, X),
}


@pytest.mark.parametrize("head", ["auto", "ridge", "lda", "logistic"])
@pytest.mark.parametrize("kind", OUTWEIGHING)
@pytest.mark.sampled(3)
def test_whose_values_cost_all_others_a_column_is_named(
    tmp_path: Path, kind: str, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where that column alone tells classes apart, one value at one client took everybody's .97 to .29, in silence."""
    X, y, sites = table()
    Z = OUTWEIGHING[kind](X)
    words = "client 'north': column 2 goes to .* is it in another unit here"
    with pytest.warns(ColumnWarning, match=words):
        FedHiPClassifier(head=head).fit(Z, y, groups=sites)
    if head == "auto":
        split = np.array([0, 0, 0, 0, 1], np.int8)[np.arange(ROWS) // SITES % 5]
        np.savez(tmp_path / "rows.npz", features=Z, labels=y, clients=sites, split=split)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            assert main(["run", "--features", str(tmp_path / "rows.npz"), "--out", str(tmp_path / "run")]) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "goes to" in line]
        assert len(told) == 1
        assert re.search(words, told[0])


@pytest.mark.parametrize("head", ["auto", "ridge", "lda"])
def test_values_of_several_clients_that_cost_all_others_a_column_are_named(head: str) -> None:
    """Two clients with a stray each hid each other: what all lost was lost in silence."""
    X, y, sites = table()
    Z = changed(changed(X, 6, 2, 2e4), 8, 2, -1e5)
    sites = np.where(np.arange(ROWS) % 5 == 2, "east", sites)
    assert {str(sites[6]), str(sites[8])} == {"north", "west"}
    with pytest.warns(ColumnWarning, match="column 2 goes to") as told:
        FedHiPClassifier(head=head).fit(Z, y, groups=sites)
    named = {str(one.message).split(":")[0] for one in told if "goes to" in str(one.message)}
    assert named == {"client 'north'", "client 'west'"}


@pytest.mark.parametrize(("head", "value"), [("ridge", 500.0), ("lda", 500.0)])
def test_who_joins_with_values_out_of_all_proportion_is_told(tmp_path: Path, head: str, value: float) -> None:
    X, y, sites = table()
    assert run(tmp_path, X, y, sites, "--head", head) == 0
    found = Run.open(tmp_path / "run")
    with pytest.warns(ColumnWarning, match=f"client 'east': column 2 goes to {value:.4g}, and with all others"):
        found.join("east", changed(X[:40], 6, 2, value), y[:40], split=TRAIN[:40] < 1)
    found = Run.open(tmp_path / "run")
    with pytest.raises(ColumnError, match=r"client 'far': column 2 goes to 1e\+12, and the run has no room"):
        found.join("far", changed(X[:40], 6, 2, 1e12), y[:40], split=TRAIN[:40] < 1)


REFUSED: dict[str, tuple[Callable[[Array], Array], str]] = {
    "1e12": (lambda X: changed(X, 6, 2, 1e12), "client 'north', training row .*column 2 holds a value of about 1e"),
    "1e300": (lambda X: changed(X, 6, 2, 1e300), "client 'north': .*column 2 is 1e.300; features may be up to"),
    "-1e300": (lambda X: -1e300 * X, "client 'north': the feature in row 0, column 0 is -.*e.2.*; features may be"),
    "1e-300": (lambda X: 1e-300 * X, "column 0 holds nothing but zeros and numbers that differ"),
    "a column of NaN": (lambda X: np.column_stack((X, np.full(ROWS, np.nan))), "column 6 .* in 150 of 150 rows"),
    "objects": (lambda X: X.astype(object), "'features' holds Python objects"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_run_refuses_it_in_one_line(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And with no word beside it: rows too large to be squared were called copies of one another."""
    change, words = REFUSED[kind]
    X, y, sites = table()
    assert run(tmp_path, change(X), y, sites) == 3
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedhip:")]
    assert len(told) == 1
    assert re.search(words, told[0])
    assert not (tmp_path / "run").exists()
    if kind not in ("a column of NaN", "objects"):
        with pytest.raises(ColumnError, match=words):
            FedHiPClassifier().fit(change(X), y, groups=sites)


def test_rows_too_large_to_be_squared_are_called_no_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nine columns: as many as are looked at for rows that are nearly the same."""
    X, y, sites = table()
    wide = np.column_stack((X, X[:, :3] ** 2))
    for factor in (1e300, 1e-300):
        assert run(tmp_path, factor * wide, y, sites) == 3
        assert capsys.readouterr().err.count("fedhip:") == 1


def test_a_class_with_a_single_row_in_all_of_the_federation(tmp_path: Path) -> None:
    """No model without it knows it, which is no number for a file; and clients of one row, one class, rows alike."""
    X, y, sites = table()
    rows = np.flatnonzero(TRAIN)[:24]
    X, y, sites = X[rows], y[rows].copy(), sites[rows].copy()
    y[y == 2] = 1
    y[0] = 2
    sites[1], sites[2:5] = "one row", "one class"
    y[2:5] = 0
    sites[5:8], X[5:8] = "alike", X[5]
    split = np.zeros(24, np.int8)
    split[[9, 10, 11]] = 1
    np.savez(tmp_path / "rows.npz", features=X, labels=y, clients=sites, split=split)
    words = ["run", "--features", str(tmp_path / "rows.npz"), "--partition", "natural", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    assert main(["verify", str(tmp_path / "run")]) == 0
    details = json.loads((tmp_path / "run" / "details.json").read_text())
    assert all(np.isfinite(client["log_losses"]).all() for client in details["clients"].values())


def test_a_label_among_the_features_is_pointed_out() -> None:
    X, y, sites = table()
    with pytest.warns(ColumnWarning, match="column 6 alone tells every label"):
        FedHiPClassifier().fit(np.column_stack((X, 5.0 - y)), y, groups=sites)


@pytest.mark.parametrize("weight", [1e-300, 1e300, 1.7e308])
def test_weights_out_of_all_proportion_are_refused(weight: float) -> None:
    """There were tracebacks, of an index and of an infinity."""
    X, y, sites = table()
    with pytest.raises(InputError, match=r"weights of all rows add up to .*; multiply all of them by one number"):
        FedHiPClassifier().fit(X, y, groups=sites, sample_weight=np.full(ROWS, weight))


def test_a_column_that_float64_tells_apart_and_the_grid_does_not_is_said() -> None:
    """1e15 and so many hundredths: there was no word of it."""
    X, y, sites = table()
    with pytest.warns(ColumnWarning, match=r"column 0 varies by \d.* from 1e\+15 on, by less than a step of the grid"):
        FedHiPClassifier(head="ridge").fit(20.0 * X + 1e15, y, groups=sites)


@pytest.mark.parametrize(("value", "words"), [(np.nan, "is nan, and"), (-np.inf, "is -inf, and"), (1e308, "no scores")])
def test_rows_that_no_model_can_answer_are_refused_when_they_are_asked_about(
    tmp_path: Path, value: float, words: str
) -> None:
    """Of NaN the first class was the answer."""
    X, y, sites = table()
    assert run(tmp_path, X, y, sites, "--head", "ridge") == 0
    found = Run.open(tmp_path / "run")
    X[3] = value
    for client in (None, "south"):
        for ask in (found.predict, found.proba, lambda rows, of: found.predict_set(rows, of)):
            with pytest.raises(InputError, match=f"row 3.*{words}"):
                ask(X[:9], client)


@pytest.mark.parametrize("head", ["auto", "ridge", "lda", "logistic"])
@pytest.mark.sampled(2)
def test_a_question_in_another_unit_than_the_training_rows_is_pointed_out(
    tmp_path: Path, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a column in grams where all trained in kilograms, everybody was of one class, in silence."""
    X, y, sites = table()
    X[:, 2] = 60.0 + 60.0 * X[:, 2]
    Z = X * np.array([1.0, 1.0, 1e4, 1.0, 1.0, 1.0])
    words = r"row \d+: column 2 is .*, and training rows lie around .* \(10 of 10 rows have such values\); is it in an"
    found = FedHiPClassifier(head=head, lift="none").fit(X, y, groups=sites)
    assert run(tmp_path, X, y, sites, "--head", head, "--lift", "none") == 0
    asked: list[tuple[Callable[[Array, Any], Any], Any]] = [
        (found.predict, sites[:10]),
        (found.predict_proba, None),
        (Run.open(tmp_path / "run").predict, "north"),
        (Run.open(tmp_path / "run").proba, None),
    ]
    for ask, about in asked:
        with pytest.warns(ColumnWarning, match=words):
            ask(Z[:10], about)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask(X[:10], about)
    np.savez(tmp_path / "new.npz", features=Z[:10])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["predict", str(tmp_path / "run"), "--features", str(tmp_path / "new.npz"), "--global"]) == 0
    assert re.search(words, capsys.readouterr().err)


def test_a_column_that_says_nothing_may_hold_anything() -> None:
    X, y, sites = table()
    Z = np.column_stack((X, np.full(ROWS, 7.0)))
    found = FedHiPClassifier(head="ridge").fit(Z, y, groups=sites)
    Z[:, -1] = 1e9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.predict(Z, sites)
