"""How often the engine's programs and ours look whether something has come.

The engine looks every three seconds, or one, or half of one: a round has a dozen such waits, one after the other. To
look ten times a second at all times would take processor time that a server with many sites has not. So the pauses
grow: a tenth of the time that nothing has come, and as long as the last look took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fedhip.federation.transport.bounds import of_engine

#: Seconds between two looks: at least, while a round is on, and at most, while nothing comes.
SHORTEST, LONGEST = 0.05, 1.0


class Pace:
    """Pauses between looks, which are short after something has come."""

    def __init__(
        self,
        *,
        shortest: float = SHORTEST,
        longest: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._shortest, self._longest, self._clock, self._sleep = shortest, longest, clock, sleep
        self._latest = self._woke = clock()

    def came(self) -> None:
        """Something has come."""
        self._latest = self._woke = self._clock()

    def rest(self, _: float = 0.0) -> None:
        """Pause, in the place of a pause of so many seconds."""
        now = self._clock()
        self._sleep(min(max((now - self._latest) / 10, now - self._woke, self._shortest), self._longest))
        self._woke = self._clock()


def keep_pace(module: Any, pace: Pace) -> None:
    """From here on, a module of the engine that would sleep pauses at this pace; it asks the clock for nothing else."""
    of_engine(module, "time")
    vars(module)["time"] = SimpleNamespace(sleep=pace.rest)
