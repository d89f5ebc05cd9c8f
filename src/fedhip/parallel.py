"""Many clients on the cores of one machine.

A client's linear algebra is small: it gains little from a second core, and loses much when that core is busy. So each
client's work runs on one thread, and several clients at once. One thread also means the same bits on any number of
cores.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

MEMINFO = Path("/proc/meminfo")

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], device: str | torch.device = "cpu"
) -> Iterator[Result]:
    """`function(item)` for each item, in their order; a few are computed ahead, and no more are held in memory.

    On a GPU, one after another.
    """
    if torch.device(device).type != "cpu":
        yield from map(function, items)
        return
    cores = available_cores()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(cores, "fedhip", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > cores:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra on one thread, for the same bits on any machine with the same library."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
