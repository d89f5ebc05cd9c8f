"""Progress on standard error: rich's bar on a terminal; in a log the end of each phase, and a line now and then."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from fedhip.utils.words import duration

if TYPE_CHECKING:
    from rich.progress import Progress

#: Lines in a log are at least so many seconds apart, and after long work a twentieth of it: a night's log stays short.
_SECONDS, _SHARE = 30.0, 0.05
#: Seconds from one drawing of a bar to the next.
_REDRAWN = 0.1


class ProgressDisplay:
    """A `ReportProgress` that shows one phase after another; the next may begin before one has come to its end."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Progress | None = None
        self._first, self._begin, self._line = 0, 0.0, 0.0
        #: Nothing is shown, and no note either (`fedhip.cli.common.console.note`).
        self.silent = False

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Show where the work is. What stands behind a colon in `phase` is shown behind the numbers."""
        if self.silent:
            return
        name, _, detail = phase.partition(": ")
        if name != self._phase:
            self.close()
            self._phase, self._first = name, done
            self._begin = time.monotonic()
            self._line = -math.inf if detail else self._begin  # what has a name of its own is named as it begins
        if self._bar is not None or sys.stderr.isatty():  # under a bar, stderr is rich's, and says that it is none
            self._draw(name, done, total, detail)
        else:
            self._log(name, done, total, detail)
        if done >= total:
            self.close()

    def close(self) -> None:
        """End what is shown, so that others can write: after an error, or an interrupt."""
        if self._bar is not None:
            self._bar.stop()
        self._phase, self._bar = "", None

    def _draw(self, name: str, done: int, total: int, detail: str) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns: tuple[Any, ...] = (
                TextColumn("{task.description:<17}", markup=False),
                BarColumn(24),
                TextColumn("{task.completed:>7,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[detail]}", markup=False),
            )
            columns += () if detail else (TimeRemainingColumn(),)
            # Drawn here alone, and by no thread; what a command prints is no affair of the bar.
            self._bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, redirect_stdout=False)
            self._bar.add_task(name, total=total, completed=done, detail=detail)
            self._bar.start()
            self._line = 0.0
        now = time.monotonic()
        refresh = done >= total or now - self._line >= _REDRAWN
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, detail=detail, refresh=refresh)
        self._line = now if refresh else self._line

    def _log(self, name: str, done: int, total: int, detail: str) -> None:
        now = time.monotonic()
        if done < total and now - self._line < max(_SECONDS, _SHARE * (now - self._begin)):
            return
        self._line = now
        if not detail and self._first < done < total:
            left = (now - self._begin) * (total - done) / (done - self._first)
            detail = f"{duration(left)} left"
        filled = 24 * done // total if total else 24
        line = f"{name:<17} {'█' * filled:░<24} {done:>7,}/{total:,}  {detail}"
        print(line.rstrip(), file=sys.stderr, flush=True)


#: What the commands show progress with.
show_progress = ProgressDisplay()
