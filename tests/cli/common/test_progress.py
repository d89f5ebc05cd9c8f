"""Progress lines on a terminal and in a log."""

from __future__ import annotations

import sys

import pytest

from fedhip.cli.common.progress import ExtractionProgress, show_clients


def test_a_log_gets_a_line_for_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ExtractionProgress()
    for done in range(0, 1001, 20):
        progress(done, 1000, 50.0, (1000 - done) / 50)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].split()[2:] == ["100/1,000", "50", "images/s", "0:18", "left"]
    assert lines[-1].split()[1:3] == ["█" * 24, "1,000/1,000"]


def test_features_from_the_cache_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ExtractionProgress()(1000, 1000, 0.0, 0.0)
    assert capsys.readouterr().err == f"features          {'█' * 24}   1,000/1,000\n"


def test_a_terminal_gets_one_line_written_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for done in (1, 2, 3):
        show_clients("1 local training", done, 3)
    shown = capsys.readouterr().err
    assert shown.count("\r") == 3
    assert shown.count("\n") == 1
    assert shown.rstrip().endswith("3/3")
