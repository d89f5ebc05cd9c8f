"""`fedhip verify`: 0 and a line for each check, or 2 and what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedhip.cli.main import main
from fedhip.runs import Run
from tests.cli.samples import done, refused, said
from tests.runs.samples import make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run").path


def test_a_good_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("verify", run)
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert all(line.startswith("ok     ") for line in lines[:-1])
    assert lines[-1] == f"{run}: all is well"
    assert [line.split()[0] for line in shown.err.splitlines()] == ["statistics", "models"]


def test_an_altered_run_is_1_with_what_is_wrong_and_no_traceback(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray((run / "models" / "north.safetensors").read_bytes())
    content[-9] ^= 1
    (run / "models" / "north.safetensors").write_bytes(content)
    assert main(["verify", str(run)]) == 1
    shown = capsys.readouterr()
    wrong = [line for line in shown.out.splitlines() if line.startswith("WRONG")]
    assert len(wrong) == 2
    assert all("north.safetensors was altered" in line for line in wrong)
    assert shown.out.splitlines()[-1].endswith("2 of 12 checks failed")


def test_json(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "receipts" / "0000-run.json", tmp_path / "mine.json")
    done("verify", run, "--receipt", tmp_path / "mine.json", "--json")
    checks = json.loads(capsys.readouterr().out)
    assert checks[-1] == {"check": "receipt mine.json", "problem": None}
    (tmp_path / "mine.json").write_text("{}")
    assert main(["verify", str(run), "--receipt", str(tmp_path / "mine.json"), "--json"]) == 1
    assert "not a receipt" in json.loads(capsys.readouterr().out)[-1]["problem"]


def test_a_rolled_back_run_is_found_by_a_receipt(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, tmp_path / "old")
    done("forget", run, "--client", "south")
    receipt = run / "receipts" / "0001-forget.json"
    done("verify", run, "--receipt", receipt)
    done("verify", tmp_path / "old")
    assert main(["verify", str(tmp_path / "old"), "--receipt", str(receipt)]) == 1
    assert "rolled back" in capsys.readouterr().out


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no run folder" in refused(capsys, "verify", tmp_path / "none")
    assert "not a run folder" in refused(capsys, "verify", tmp_path)


def test_ctrl_c(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "federation", interrupted)
    assert main(["verify", str(run)]) == 130
    assert said(capsys) == ["fedhip: interrupted"]
