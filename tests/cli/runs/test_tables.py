"""Tables on the command line: what is wrong is one line, and new tables come to a run by its own description."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedhip.runs import Run
from fedhip.runs.measures import written
from tests.cli.samples import done, refused, said

ROWS = 45


def people(seed: int = 0) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age = random.integers(20, 80, ROWS)
    return pl.DataFrame(
        {
            "age": age,
            "pressure": random.normal(130, 15, ROWS).round(1),
            "seen": [f"2023-{i % 12 + 1:02d}-{i % 27 + 1:02d}" for i in range(ROWS)],
            "hospital": [("north", "south", "west")[i % 3] for i in range(ROWS)],
            "ill": np.where(age > 50, "yes", "no"),
        }
    )


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    people().write_csv("t.csv")
    return tmp_path


def cell(column: str, row: int, value: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Another value in one cell, rows counted from 1."""
    return lambda frame: frame.with_columns(
        pl.when(pl.int_range(pl.len()) == row - 1)
        .then(pl.lit(value))
        .otherwise(pl.col(column).cast(pl.String))
        .alias(column)
    )


NAMED = ("--label", "ill", "--client", "hospital")


@pytest.mark.parametrize(
    ("change", "options", "line"),
    [
        (None, ("--label", "il", "--client", "hospital"), "has no column 'il', which --label names; did you mean"),
        (None, ("--label", "ill", "--client", "hosptal"), "no column 'hosptal', which --client names; did you mean"),
        (None, ("--client", "hospital"), "needs a column that says what is to be predicted; name it with"),
        (lambda t: t.with_columns(ill=pl.lit("no")), NAMED, "column 'ill' is 'no' in every row"),
        (lambda t: t.with_columns(hospital=pl.int_range(pl.len())), NAMED, "another value in each of its 45 rows"),
        (cell("pressure", 8, "high"), NAMED, "t.csv, row 8, column 'pressure': 'high' is not a number"),
        (cell("seen", 9, "2023-02-31"), NAMED, "t.csv, row 9, column 'seen': '2023-02-31' is not a date"),
        (cell("pressure", 3, "1e300"), NAMED, "t.csv, row 3, column 'pressure': '1e300' is larger than 2e+19 in size"),
        (lambda t: t.with_columns(copy="ill"), NAMED, "column 'copy' is the label 'ill' in every row"),
        (cell("ill", 4, ""), NAMED, "t.csv, row 4, column 'ill': the label is missing"),
        (None, (*NAMED, "--task", "regression"), "is not a number (nor is that of 44 other rows); correct it, or name"),
    ],
)  # fmt: skip
def test_a_bad_table_is_one_line_and_nothing_is_written(
    change: Callable[[pl.DataFrame], pl.DataFrame] | None,
    options: tuple[str, ...],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if change is not None:
        change(people()).write_csv("t.csv")
    assert line in refused(capsys, "run", "--data", "t.csv", *options, "--out", "run")
    assert not Path("run").exists()


@pytest.mark.filterwarnings("always")
def test_a_new_hospital_in_other_units_is_told_and_one_that_lacks_a_column_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done("run", "--data", "t.csv", *NAMED, "--head", "ridge", "--out", "run")
    new = people(1).with_columns(hospital=pl.lit("east"))
    new.drop("pressure").write_csv("east.csv")
    for command in (("join", "run", "--data", "east.csv"), ("predict", "run", "east.csv")):
        assert "east.csv has no column 'pressure'" in refused(capsys, *command)
    assert "east" not in Run.open("run").clients
    new.with_columns(pl.col("pressure") / 7.5).write_csv("east.csv")
    capsys.readouterr()
    done("join", "run", "--data", "east.csv")
    assert any("column 'pressure'" in told and "is it in other units?" in told for told in said(capsys))
    assert "east" in Run.open("run").clients


def test_a_table_joins_a_regression(capsys: pytest.CaptureFixture[str]) -> None:
    named = ("--label", "pressure", "--client", "hospital", "--drop", "ill")
    done("run", "--data", "t.csv", *named, "--task", "regression", "--out", "run")
    people(1).with_columns(hospital=pl.lit("east")).write_csv("east.csv")
    capsys.readouterr()
    done("join", "run", "--data", "east.csv")
    told = capsys.readouterr().out
    lines = {name: method["per_client"][-1] for name, method in Run.open("run").results["methods"].items()}
    assert {line["client"] for line in lines.values()} == {"east"}
    assert f"R² on its 9 test rows: own mean {written('r2', lines['majority']['r2'])}, trained alone" in told
    assert f"personalized {written('r2', lines['fedhip']['r2'])}." in told
    done("personalize", "run")
    capsys.readouterr()
    done("predict", "run", "east.csv", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    expected = Run.open("run").predict(people(1), "east")
    assert [row["targets"]["pressure"] for row in rows] == pytest.approx(expected.tolist())
