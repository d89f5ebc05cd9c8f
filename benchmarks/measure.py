"""How everything here is measured: in turn, the best of a few, and memory in a process of its own.

Seconds of one machine say nothing about another, and seconds of a busy machine say nothing at all. So the sides of a
comparison take turns, the best of a few repetitions counts, and what is reported is their ratio, or how it grows.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhip.core.rows import one_hot

Choice = TypeVar("Choice")
Work = Callable[[], object]


@dataclass(frozen=True)
class Setup:
    """Where to measure, and how large: `toy` sizes take seconds and show that everything runs."""

    size: Literal["toy", "quick", "full"]
    device: torch.device

    def pick(self, *, toy: Choice, quick: Choice, full: Choice) -> Choice:
        """The value for this size."""
        return {"toy": toy, "quick": quick, "full": full}[self.size]

    @property
    def repeats(self) -> int:
        """Repetitions of which the best counts."""
        return self.pick(toy=1, quick=3, full=5)


#: Short work is repeated for so many seconds: some of it then falls between what else the machine has to do.
PATIENCE = 0.4


def best_seconds(setup: Setup, *sides: Work, repeats: int | None = None, warm: bool = True) -> list[float]:
    """The least seconds of each side over repetitions in which they take turns, after one that is not counted."""
    for side in sides if warm else ():
        timed(side, setup.device)
    least, end = repeats or setup.repeats, time.monotonic() + setup.pick(toy=0.0, quick=PATIENCE, full=PATIENCE)
    taken: list[list[float]] = []
    while len(taken) < least or time.monotonic() < end:
        taken.append([timed(side, setup.device) for side in sides])
    return [min(column) for column in zip(*taken, strict=True)]


def timed(work: Work, device: torch.device) -> float:
    """Seconds until the device has done it."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """b of the least-squares line log(value) = a + b log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def matrix_rate(setup: Setup, dtype: torch.dtype) -> float:
    """Operations a second in a large product of random matrices."""
    large = {torch.bfloat16: 8192}.get(dtype, 4096) if setup.device.type == "cuda" else 1024
    size = setup.pick(toy=64, quick=large, full=large)
    a, b = torch.randn(2, size, size, device=setup.device, dtype=torch.float32).to(dtype)
    (seconds,) = best_seconds(setup, lambda: [a @ b for _ in range(4)])
    return 4 * 2 * size**3 / seconds


def synthetic_rows(
    rows: int, m: int, d: int, seed: int, device: torch.device, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Features of full rank and labels that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    F = torch.randn((rows, m), generator=generator, dtype=dtype)
    y = torch.randint(d, (rows,), generator=generator)
    return (F + 0.5 * one_hot(y % m, m).to(dtype)).to(device), y


def peak_memory(setup: Setup, work: Callable[[torch.device, int], object], size: int) -> int:
    """Bytes that `work(device, size)` held at its peak beyond what was held before.

    On a CPU in a process of its own, which must be able to import `work` (at toy size in this one), and without the
    pages of mapped files.
    """
    if setup.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(setup.device)
        before = torch.cuda.memory_allocated(setup.device)
        work(setup.device, size)
        return max(1, torch.cuda.max_memory_allocated(setup.device) - before)
    if setup.size == "toy":
        return _watched(work, setup.device, size)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        return alone.submit(_watched, work, setup.device, size).result()


def _watched(work: Callable[[torch.device, int], object], device: torch.device, size: int) -> int:
    """The peak, seen by a thread that looks every few milliseconds."""
    _ = torch.ones(64, 64, dtype=torch.float64) @ torch.ones(64, 64, dtype=torch.float64)  # the library's own buffers
    done, before, seen = threading.Event(), _anonymous_memory(), [1]

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(_anonymous_memory() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        kept = work(device, size)
        seen.append(_anonymous_memory() - before)
        del kept
    finally:
        done.set()
        watcher.join()
    return max(seen)


def _anonymous_memory() -> int:
    """Bytes of this process that no file stands behind (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])
