"""A machine on which something is wrong: as `sitecustomize.py`, it is the first that a process imports.

FEDHIP_TEST_CLOCK     a file with the seconds by which the clock is wrong; who waits for it to be set right writes 0
FEDHIP_TEST_PATIENCE  the engine misses a node after twice so many seconds without a word, and not after twice 10
"""

import contextlib
import datetime
import os
import sys
import time
from pathlib import Path
from typing import Any

_clock, _patience = os.environ.get("FEDHIP_TEST_CLOCK"), os.environ.get("FEDHIP_TEST_PATIENCE")

if _clock is not None:
    _file, _time, _datetime = Path(_clock), time.time, datetime.datetime

    def _wrong() -> float:
        with contextlib.suppress(OSError, ValueError):
            return float(_file.read_text())
        return 0.0

    class _Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _datetime)

    class _Wrong(datetime.datetime, metaclass=_Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _datetime.now(tz) + datetime.timedelta(seconds=_wrong())

    vars(time)["time"] = lambda: _time() + _wrong()
    vars(datetime)["datetime"] = _Wrong

if _patience is not None and any(f"fedhip.federation.transport.{name}" in sys.orig_argv for name in ("link", "node")):
    from flwr.common import constant

    vars(constant)["HEARTBEAT_MIN_INTERVAL"] = float(_patience)
    vars(constant)["HEARTBEAT_CALL_TIMEOUT"] = 0.75 * float(_patience)
