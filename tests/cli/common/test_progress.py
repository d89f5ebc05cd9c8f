"""Progress on a terminal and in a log."""

from __future__ import annotations

import sys
import time

import pytest

from fedhip.cli.common.console import print_table
from fedhip.cli.common.progress import ProgressDisplay, show_progress
from fedhip.cli.main import main

BAR = "█" * 24


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured is one. Not a fixture: what captures in a test is another than while it is set up."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_a_log_gets_the_end_of_a_phase_and_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    display = ProgressDisplay()
    for done in range(0, 1001, 20):  # 50 rows a second, of which the first 20 were there
        clock[0] = 4.0 * done / 20
        display("features", done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"features          {'█' * 3:░<24}     160/1,000  2 min 48 s left"
    assert lines[-1] == f"features          {BAR}   1,000/1,000"
    assert len(lines) == 7  # every 32 s of 200


def test_the_log_of_a_night_stays_short(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    display = ProgressDisplay()
    for second in range(0, 36_000, 10):
        clock[0] = float(second)
        display("features", second, 36_000)
    assert len(capsys.readouterr().err.splitlines()) < 120


def test_what_is_there_already_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay()("features", 1000, 1000)
    assert capsys.readouterr().err == f"features          {BAR}   1,000/1,000\n"


def test_of_nothing_everything_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay()("features", 0, 0)
    assert capsys.readouterr().err == f"features          {BAR}       0/0\n"


def test_what_stands_behind_a_colon_is_shown_as_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay()
    display("cells: fedavg, λ = 0.1", 0, 12)
    display("cells: fedavg, λ = 0.1 5/200", 0, 12)
    display("cells", 12, 12)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=3)[2:] for line in lines] == [["0/12", "fedavg, λ = 0.1"], ["12/12"]]


def test_a_terminal_gets_one_line_written_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_terminal(monkeypatch)
    display = ProgressDisplay()
    for done in (1, 2, 3):
        display("1 local training", done, 3)
    display("2 [b]sum[/b]: a [x] b", 1, 2)
    display.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 2
    assert shown.err.count("\x1b[?25l") == shown.err.count("\x1b[?25h") == 2  # the cursor goes, and comes back
    assert "1 local training" in shown.err
    assert "3/3" in shown.err
    assert "2 [b]sum[/b]" in shown.err  # as it is, and not as markup
    assert "a [x] b" in shown.err


def test_an_error_and_a_table_end_the_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_terminal(monkeypatch)
    show_progress("1 local training", 1, 3)
    print_table(["client"], [["north"]])
    printed = capsys.readouterr()
    assert "north" in printed.out
    assert printed.err.endswith("\x1b[?25h")  # the cursor is back

    def fails(path: object) -> object:
        show_progress("1 local training", 1, 3)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedhip.runs.folder.Run.open", fails)
    assert main(["verify", "anywhere"]) == 130
    shown = capsys.readouterr().err
    assert shown.index("\x1b[?25h") < shown.index("fedhip: interrupted")
