"""How far the work is: one callback for everything that takes time. How it is shown is the caller's choice."""

from __future__ import annotations

from collections.abc import Callable

#: Called with what is being done, how much of it is done, and of how much: ("1 local training", 12, 50). What stands
#: behind a colon may change from call to call: ("cells: fedavg, 3 min left", 4, 20).
ReportProgress = Callable[[str, int, int], None]


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""
