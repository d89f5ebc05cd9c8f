"""Progress on standard error: a line that is written over on a terminal, a few lines in a log."""

from __future__ import annotations

import sys


class ExtractionProgress:
    """Images done, rate and time left; in a log, a line for every tenth."""

    def __init__(self) -> None:
        self._tenths = 0

    def __call__(self, done: int, total: int, rate: float, left: float) -> None:
        """Show where the extraction is."""
        minutes, seconds = divmod(round(left), 60)
        speed = f"{rate:,.0f} images/s  {minutes:d}:{seconds:02d} left" if rate else ""
        tenths, before = 10 * done // total, self._tenths
        self._tenths = tenths
        line = f"features          {_bar(done, total)} {done:>7,}/{total:,}  {speed}"
        _write(line, last=done == total, in_a_log=tenths > before)


def show_clients(phase: str, done: int, total: int) -> None:
    """A line for each phase, of clients or rounds; in a log, its last state."""
    line = f"{phase:<17} {_bar(done, total)} {done:>7,}/{total:,}"
    _write(line, last=done == total, in_a_log=done == total)


def _write(line: str, *, last: bool, in_a_log: bool) -> None:
    if sys.stderr.isatty():
        print(f"\r{line:<78}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif in_a_log:
        print(line.rstrip(), file=sys.stderr, flush=True)


def _bar(done: int, total: int) -> str:
    return f"{'█' * (24 * done // total):░<24}"
