"""Run folders of an earlier version open, verify, answer as they did, and are made again the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedhip.cli.main import main
from tests.compatibility.onnx import answers_of
from tests.compatibility.stored import (
    COMMANDS,
    FILES,
    assert_same_content,
    assert_same_run,
    moved,
    run_command,
)

STORED = sorted(path.relative_to(FILES).as_posix() for kind in ("runs", "changes") for path in (FILES / kind).iterdir())
PLAYED = sorted(path.relative_to(FILES).as_posix() for path in (FILES / "rounds").glob("*/*"))


@pytest.mark.parametrize("run", [*STORED, *PLAYED])
def test_it_verifies(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["verify", str(FILES / run), "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert len(checks) >= 9
    assert not [check for check in checks if check["problem"]]


@pytest.mark.parametrize("file", ["models/west.safetensors", "statistics/west.safetensors", "total.safetensors"])
def test_an_altered_one_does_not(folder: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Or else the tests above would tell nothing."""
    path = folder / "runs" / "ridge" / file
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    assert main(["verify", str(folder / "runs" / "ridge"), "--json"]) == 1
    assert [check for check in json.loads(capsys.readouterr().out) if check["problem"]]


@pytest.mark.parametrize("name", COMMANDS["answers"])
def test_it_answers_as_before(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`predict` of every stored run, a client's model and the global one; `audit`; `partition`."""
    words = moved(COMMANDS["answers"][name], FILES)
    capsys.readouterr()
    run_command(words)
    expected = (FILES / "answers" / f"{name}.json").read_text()
    assert_same_content(capsys.readouterr().out, expected, words[0])


@pytest.mark.parametrize("name", COMMANDS["runs"])
def test_it_is_made_again_the_same(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder / "runs" / name
    shutil.rmtree(made)
    run_command(moved(COMMANDS["runs"][name], folder))
    assert_same_run(made, FILES / "runs" / name, folder)
    run_command(["verify", str(made)])


def test_its_settings_repeat_it(folder: Path) -> None:
    """`fedhip run config.toml` of a stored run; the settings are then told in another order."""
    config = (FILES / "runs" / "divided" / "config.toml").read_text()
    (folder / "again.toml").write_text(moved([config], folder)[0])
    run_command(["run", str(folder / "again.toml"), "--out", str(folder / "again")])
    assert_same_run(folder / "again", FILES / "runs" / "divided", folder, without=("config.toml", "results.json"))


@pytest.mark.parametrize("name", ["changes/ridge", "rounds/lda/site"])
def test_a_report_is_made_of_it(folder: Path, name: str, reports: None) -> None:
    run = folder / name
    run_command(["report", str(run)])
    assert "<svg" in (run / "report.html").read_text()


@pytest.mark.parametrize("name", ["ridge", "lda", "logistic", "relu"])
def test_its_export_answers_as_before(tmp_path: Path, name: str) -> None:
    """In float32, to its precision; of an ONNX file the answers are stored, and not the bytes."""
    path = tmp_path / "model.onnx"
    run_command(["export", str(FILES / "runs" / name), "--client", "west", "--head-only", str(path)])
    data = np.load(FILES / "sites.npz")
    answers = answers_of(path, data["features"][data["clients"] == "west"])
    np.testing.assert_allclose(answers, np.load(FILES / "onnx.npz")[name], rtol=1e-5, atol=1e-6)


def test_the_partition_is_made_again_the_same(folder: Path) -> None:
    words = moved([*COMMANDS["answers"]["partition"], "--out", str(folder / "again")], folder)
    run_command(words)
    found, expected = ((path / "partition.json").read_text() for path in (folder / "again", FILES / "partition"))
    assert_same_content(found, expected, "partition.json")
