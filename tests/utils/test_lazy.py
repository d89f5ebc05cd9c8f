"""A property that is computed once, and waits for no other object's."""

from __future__ import annotations

import threading

from fedhip.utils.lazy import lazy
from tests.waiting import PATIENCE


class Slow:
    """Its value waits for a signal."""

    def __init__(self) -> None:
        self.asked, self.signal, self.times = threading.Event(), threading.Event(), 0

    @lazy
    def value(self) -> int:
        """What it is."""
        self.times += 1
        self.asked.set()
        assert self.signal.wait(PATIENCE)
        return 7


def test_it_is_computed_once_and_another_object_does_not_wait() -> None:
    one, other = Slow(), Slow()
    other.signal.set()
    thread = threading.Thread(target=lambda: one.value)
    thread.start()
    assert one.asked.wait(PATIENCE)
    assert other.value == 7, "though the first is still at work"
    one.signal.set()
    thread.join()
    assert (one.value, one.value, one.times) == (7, 7, 1)
    assert Slow.value.__doc__ == "What it is."
