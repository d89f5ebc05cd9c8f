"""`fedhip influence`, and `Run.influence`: the same numbers by both doors."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path

import numpy as np
import pytest

import fedhip
from fedhip.cli.main import main
from fedhip.data import read_features
from tests.runs.samples import feature_file, feature_set


def made(tmp_path: Path, *options: str) -> Path:
    flipped = feature_set().labels.copy()
    flipped[-15:] = (flipped[-15:] + 1) % 3  # west lies
    file = feature_file(tmp_path / "rows.npz", labels=flipped)
    assert main(["run", "--features", str(file), "--out", str(tmp_path / "run"), "-q", *options]) == 0
    return tmp_path / "run"


@pytest.mark.parametrize("options", [(), ("--head", "ridge"), ("--lift", "relu", "--lift-width", "16")])
@pytest.mark.sampled(3)
def test_command_and_python_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    run, table = made(tmp_path, *options), tmp_path / "influence.csv"
    capsys.readouterr()
    assert main(["influence", str(run), "--json", "--csv", str(table)]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = read_features(tmp_path / "rows.npz")
    assert told == [each.to_dict() for each in fedhip.open_run(run).influence(rows)]
    assert [line["client"] for line in csv.DictReader(table.read_text().splitlines())] == ["north", "south", "west"]
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    assert main(["influence", str(run), "--rows", str(tmp_path / "rows.npz")]) == 0
    assert "others gain" in capsys.readouterr().out


def test_other_rows_and_no_statistics_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path, "--head", "ridge", "--no-statistics")
    other = feature_file(tmp_path / "other.npz", features=np.zeros((45, 8)) + np.arange(45)[:, None])
    assert main(["influence", str(run)]) == 3
    assert "keeps no statistics" in capsys.readouterr().err
    assert main(["influence", str(run), "--rows", str(other)]) == 3
    assert "training rows of none of the run's clients" in capsys.readouterr().err
