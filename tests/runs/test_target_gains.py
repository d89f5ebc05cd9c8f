"""Who gains by its own model of real targets, or of several labels: against predictions row by row, and scipy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binomtest

import fedhip
from fedhip.runs import Run
from fedhip.runs.report import render_report
from fedhip.runs.report.csv_tables import csv_tables
from fedhip.runs.report.measured import Gain, GainLine
from fedhip.runs.report.regression import TargetPage
from fedhip.runs.results import gains_in_words

NAMES = ("north", "south", "west")


def rows(task: str) -> tuple[dict[str, Any], np.ndarray]:
    """Clients whose targets depend on the features in ways of their own; a third of the rows test."""
    random = np.random.default_rng(0)
    X, clients = random.normal(size=(240, 4)), np.repeat(NAMES, (120, 90, 30))
    slope = {name: random.normal(size=(4, 2)) for name in NAMES}
    y = np.stack([x @ slope[client] for x, client in zip(X, clients, strict=True)]) + random.normal(size=(240, 2)) / 2
    y = y * [1.0, 10.0] if task == "regression" else (y > 0).astype(float)
    split = (np.arange(240) % 3 == 0).astype(int)
    return {"features": X, "labels": y, "clients": clients, "split": split, "task": task}, split == 1


def made(task: str, folder: Path, **more: Any) -> tuple[Run, dict[str, Any], np.ndarray]:
    given, test = rows(task)
    return fedhip.run(**given, out=folder / "run", **more), given, test


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_gains_are_those_of_the_test_rows(task: str, tmp_path: Path) -> None:
    run, given, test = made(task, tmp_path)
    gain = run.results["gains"]["global"]
    for line in gain["per_client"]:
        mine = test & (given["clients"] == line["client"])
        own, common = (run.predict(given["features"][mine], client) for client in (line["client"], None))
        truth = given["labels"][mine]
        if task == "regression":
            saved = np.abs(common - truth).mean(axis=1) - np.abs(own - truth).mean(axis=1)
        else:
            saved = (own == truth).mean(axis=1) - (common == truth).mean(axis=1)
        assert line["difference"] == pytest.approx(saved.mean(), abs=1e-9)
        better, worse = int((saved > 0).sum()), int((saved < 0).sum())
        assert (line["better"], line["worse"]) == (better, worse)
        assert line["p"] == pytest.approx(binomtest(better, better + worse).pvalue if better + worse else 1.0)
    assert gain["mean"] == pytest.approx(np.mean([line["difference"] for line in gain["per_client"]]))
    assert gain["low"] < gain["mean"] < gain["high"]
    if task == "regression":  # errors in units of tens: a gain is not held between −1 and 1
        mae = {name: run.results["methods"][name]["mae"]["mean"] for name in ("global", "fedhip")}
        assert gain["mean"] == pytest.approx(mae["global"] - mae["fedhip"])
        assert gain["mean"] > 1.0


@pytest.mark.parametrize(
    ("value", "metric", "expected"),
    [(-0.000773, "r2", "−0.001"), (0.000773, "rmse", "0.000773"), (1234.56, "mae", "1,234.6"), (None, "r2", "–")],
)
def test_errors_have_digits_and_shares_have_decimals(value: float | None, metric: str, expected: str) -> None:
    assert TargetPage.shown(value, metric) == expected


def test_gains_are_told_everywhere(tmp_path: Path) -> None:
    run, _, _ = made("regression", tmp_path)
    words = gains_in_words(run.results)
    assert words[1].startswith("against the global model: +")
    assert "of absolute error saved (95 % interval" in words[1]
    page = render_report([run.record("run")])
    assert "absolute error saved, in the mean over clients" in page
    table = csv_tables([run.record("run")])["gains.csv"].splitlines()
    assert len(table) == 1 + 2 * len(NAMES)
    run.forget("west")
    assert [line["client"] for line in run.results["gains"]["local"]["per_client"]] == ["north", "south"]


def test_a_client_of_two_test_rows_does_not_widen_the_interval_of_all(tmp_path: Path) -> None:
    given, _ = rows("regression")
    some = np.flatnonzero(given["clients"] == "west")
    given["split"][some] = 0
    given["split"][some[:2]] = 1
    results = fedhip.run(**given, out=tmp_path / "run").results["methods"]["fedhip"]
    widest = max(entry["high"]["mae"] - entry["low"]["mae"] for entry in results["per_client"])
    assert results["mae"]["high"] - results["mae"]["low"] < widest / 2


def test_what_became_of_columns_is_on_a_regressions_page_and_in_csv(tmp_path: Path) -> None:
    given, _ = rows("regression")
    frame = pl.DataFrame({"x": given["features"][:, 0], "note": ["a", None] * 120, "site": given["clients"]})
    frame = frame.with_columns(cost=pl.Series(given["labels"][:, 0]))
    run = fedhip.run(frame, label="cost", client="site", task="regression", out=tmp_path / "run")
    assert "What was done with each column" in render_report([run.record("run")])
    lines = csv_tables([run.record("run")])["columns.csv"].splitlines()
    assert lines[0] == "run,column,kind,features,missing,done"
    assert lines[-1].startswith("run,note,category,3,120,")


def test_one_long_interval_does_not_hide_the_others() -> None:
    """The picture of 20 clients ends before the interval of one with two rows does, and never before a mark."""
    lines = [GainLine(f"c{k}", 0.1, -0.1, 0.3, 3, 2, 1.0) for k in range(19)]
    long = GainLine("few rows", 0.2, -9.0, 9.4, 1, 1, 1.0)
    edge = Gain("local", 0.1, 0.0, 0.2, (*lines, long)).edge
    assert edge is not None
    assert 0.3 < edge < 0.5
    assert Gain("local", 0.1, 0.0, 0.2, tuple(lines)).edge is None
    assert Gain("local", 0.1, 0.0, 0.2, (*lines[:5], long)).edge is None  # of a few clients all is shown
    far = GainLine("far", 4.0, -9.0, 17.0, 1, 1, 1.0)
    edge = Gain("local", 0.1, 0.0, 0.2, (*lines, far)).edge
    assert edge is not None
    assert edge > 4.0
