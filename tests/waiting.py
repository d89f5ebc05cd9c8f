"""Waiting for what another process or thread does: as long as a machine that is busy with other things may take."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds. Who waits this long waits for something that does not come.
PATIENCE = 300.0


def until(condition: Callable[[], object], pause: float = 0.02) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE:g} s"
        time.sleep(pause)
