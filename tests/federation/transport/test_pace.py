"""Pauses: short after something has come, a tenth of the wait at most, and never more looking than pausing."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.federation.errors import EngineError
from fedhip.federation.transport.pace import LONGEST, SHORTEST, Pace, keep_pace
from tests.federation.grid import Clock


def test_pauses_grow_while_nothing_comes_and_are_short_again_after() -> None:
    clock = Clock()
    pace = Pace(clock=clock, sleep=clock.sleep)
    pauses = []
    while clock.now < 60.0:
        begin = clock.now
        pace.rest()
        pauses.append(round(clock.now - begin, 6))
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (SHORTEST, LONGEST)
    pace.came()
    begin = clock.now
    pace.rest()
    assert clock.now - begin == pytest.approx(SHORTEST)


@given(st.floats(0.0, 1e3))
def test_what_comes_is_seen_at_most_a_tenth_later(seconds: float) -> None:
    clock = Clock()
    pace = Pace(clock=clock, sleep=clock.sleep)
    while clock.now < seconds:
        clock.sleep(0.001)  # the look itself
        pace.rest()
    assert clock.now - seconds <= max(min(0.1 * seconds, LONGEST), SHORTEST) + 0.002


def test_to_look_takes_at_most_half_of_the_time() -> None:
    clock = Clock()
    pace, looking = Pace(clock=clock, sleep=clock.sleep), 0.0
    for _ in range(50):
        clock.sleep(0.4)
        looking += 0.4
        pace.rest()
    assert looking <= clock.now / 2 + 0.4


def test_a_module_of_the_engine_pauses_at_our_pace() -> None:
    clock, module = Clock(), ModuleType("of the engine")
    with pytest.raises(EngineError, match="this Flower has no time"):
        keep_pace(module, Pace(clock=clock, sleep=clock.sleep))
    module.time = None  # type: ignore[attr-defined]
    keep_pace(module, Pace(clock=clock, sleep=clock.sleep))
    module.time.sleep(3)
    assert clock.now == SHORTEST
