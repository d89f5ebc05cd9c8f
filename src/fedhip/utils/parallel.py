"""Many clients side by side: on the cores of one machine, or wherever an engine puts them.

A client's linear algebra is small: it gains little from a second core, and loses much when that core is busy. So each
client's work runs on one thread, and several clients at once. One thread also means the same bits on any number of
cores. An engine (`fedhip.engines`) takes the same pure functions of one client elsewhere.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

MEMINFO = Path("/proc/meminfo")

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Where clients' work runs, where that is not in threads of this process."""

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function(item)` for each item, in their order."""

    def summed(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        look: Callable[[Item, Result], Any],
        seen: Callable[[Item, Any], None],
    ) -> Result | None:
        """What `summed` gives."""


#: Of this thread: those that it starts work here.
_ENGINE: ContextVar[Engine | None] = ContextVar("engine", default=None)

#: torch sets two numbers: that of the thread it is called in, and the process's, which a thread takes over when it
#: first asks. Only another thread can put the second one back without changing the first. This is held from reading
#: the process's number to putting it back: a number in between is nobody's own.
_SETTING = threading.Lock()


@contextmanager
def working_on(engine: Engine | None) -> Iterator[None]:
    """Clients' work runs on this engine; on none, in threads of this process."""
    token = _ENGINE.set(engine)
    try:
        yield
    finally:
        _ENGINE.reset(token)


def is_elsewhere() -> bool:
    """Whether clients' work runs in other processes, which do not see what changes in this one."""
    return _ENGINE.get() is not None


def in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    device: str | torch.device = "cpu",
    ahead: int = 1,
    *,
    here: bool = False,
) -> Iterator[Result]:
    """`function(item)` for each item, in their order; a few are computed ahead, and no more are held in memory.

    So many for each core as `ahead` says: where results are small, more of them may wait for a slow one before them,
    and no core does. On a GPU, one after another. An engine may compute it in another process: a function that does
    more than answer, such as one that writes into what all share, says `here`.
    """
    if torch.device(device).type != "cpu":
        yield from map(function, items)
        return
    engine = None if here else _ENGINE.get()
    if engine is not None:
        yield from engine.in_order(function, items)
        return
    coming = iter(items)
    first = list(islice(coming, 2))
    if len(first) < 2:  # a single client needs no threads but this one
        for item in first:
            with one_thread():
                result = function(item)
            yield result
        return
    cores = available_cores()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(cores, "fedhip") as pool:
        _begin_with_one(pool, cores)
        try:
            for item in chain(first, coming):
                waiting.append(pool.submit(function, item))
                if len(waiting) > ahead * cores:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def summed(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    device: str | torch.device = "cpu",
    *,
    look: Callable[[Item, Result], Any] = lambda item, term: None,
    seen: Callable[[Item, Any], None] = lambda item, found: None,
) -> Result | None:
    """The sum of `function(item)` over all items, None of none; for sums that are the same in any order.

    An engine adds in a tree, where the terms are. `look(item, term)` is asked of every term beside its item, and
    `seen(item, …)` is told the answer here, in the order of the items.
    """
    items, engine = list(items), _ENGINE.get()
    if engine is not None and torch.device(device).type == "cpu":
        return engine.summed(function, items, look, seen)
    total: Any = None
    for item, term in zip(items, in_order(function, items, device), strict=True):
        found = look(item, term)
        total = term if total is None else total + term
        seen(item, found)
    return total  # type: ignore[no-any-return]


@contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra on one thread, for the same bits on any machine with the same library."""
    before = torch.get_num_threads()
    _threads_here(1)
    try:
        yield
    finally:
        _threads_here(before)


def _begin_with_one(pool: ThreadPoolExecutor, threads: int) -> None:
    """What each thread of the pool computes, on that thread alone.

    All of them begin before anybody else goes on: one that began later would change the process's number meanwhile.
    """
    begun = threading.Barrier(threads, timeout=60)  # if a thread cannot be started, the others do not wait for ever

    def begin() -> None:
        torch.get_num_threads()  # the first question takes the process's number over, now and not later
        torch.set_num_threads(1)
        begun.wait()

    with _SETTING:
        default = _in_new_thread(torch.get_num_threads)
        for each in [pool.submit(begin) for _ in range(threads)]:
            each.result()
        _in_new_thread(lambda: torch.set_num_threads(default))


def _threads_here(number: int) -> None:
    """As many threads for what this thread computes from now on."""
    if torch.get_num_threads() != number:
        with _SETTING:
            default = _in_new_thread(torch.get_num_threads)
            torch.set_num_threads(number)
            _in_new_thread(lambda: torch.set_num_threads(default))


def _in_new_thread(function: Callable[[], Result]) -> Result:
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(function()), name="fedhip-threads")
    thread.start()
    thread.join()
    return found[0]


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_available(meminfo: Path) -> int | None:
    """Bytes that can be had without swapping, as Linux tells it."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None
