"""`fedhip report`: the page of a run drawn again, or of several side by side."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from fedhip.cli.main import main
from tests.cli.samples import done, refused, said
from tests.runs.samples import contents, digest, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run").path


@pytest.mark.usefixtures("pictures")
def test_one_run_is_drawn_into_its_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    done("report", run)
    assert "the report: " in capsys.readouterr().out
    after = contents(run)
    assert after.pop("report.html").startswith(b"<!")
    before.pop("report.html")
    assert after == before
    done("verify", run)


@pytest.mark.usefixtures("pictures")
def test_several_runs_side_by_side(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "other" / "run", methods=("global",))
    monkeypatch.chdir(tmp_path)
    before = digest(run)
    done("report", run, tmp_path / "other" / "run", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [each["run"] for each in found["runs"]] == [str(run), str(tmp_path / "other" / "run")]
    assert list(found["runs"][1]["methods"]) == ["global"]
    assert (tmp_path / found["report"]).is_file()
    assert found["report"] == "comparison.html"
    assert digest(run) == before


def test_the_page_may_go_elsewhere(run: Path, tmp_path: Path) -> None:
    before = digest(run)
    done("report", run, "--html", tmp_path / "deep" / "page.html")
    assert (tmp_path / "deep" / "page.html").is_file()
    assert digest(run) == before


def test_the_run_may_be_the_folder_one_is_in(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    done("report", ".")
    assert "<title>" in (run / "report.html").read_text()


def test_bad_input_is_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no run folder" in refused(capsys, "report", tmp_path / "none")
    assert "there is no run folder" in refused(capsys, "report", run, tmp_path / "none")
    (tmp_path / "folder").mkdir()
    refused(capsys, "report", run, "--html", tmp_path / "folder")
    for name in ("details.json", "ledger.jsonl", "config.toml"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(b"\xff\xfe")
        refused(capsys, "report", run)
        (run / name).unlink()
        assert f"{name} is missing" in refused(capsys, "report", run)
        (run / name).write_bytes(content)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_fault_while_writing_leaves_the_old_page(
    run: Path, error: BaseException, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(run)

    def fails(_: int) -> None:
        raise error

    monkeypatch.setattr("os.fsync", fails)
    assert main(["report", str(run)]) == (130 if isinstance(error, KeyboardInterrupt) else 3)
    assert len(said(capsys)) == 1
    assert digest(run) == before
