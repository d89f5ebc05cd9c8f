"""Processes that help with the cells of a folder.

A GPU then has work while one of them waits for the host; of the machine's cores each has its part.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from fedhip.utils.parallel import available_cores


@contextmanager
def helper_processes(jobs: int, work: Callable[..., None], *args: Any) -> Iterator[None]:
    """While the block runs, `jobs` − 1 other processes do `work(*args)`, each on its part of the cores.

    They end with the block, or when they are done. One that fails ends without a word: what it was at is left to
    this process, which fails alike, and says so.
    """
    if jobs == 1:
        yield
        return
    fresh = multiprocessing.get_context("spawn")  # a process that has used a GPU cannot be copied
    cores, threads = _cores(), torch.get_num_threads()
    helpers = [
        fresh.Process(target=_help, args=(part_of(cores, place, jobs), work, args), daemon=True)
        for place in range(1, jobs)
    ]
    try:
        _take_cores(part_of(cores, 0, jobs))
        # At once: each start waits until the other process has read what it is told.
        with _uninterrupted(), ThreadPoolExecutor(jobs - 1) as pool:
            list(pool.map(fresh.Process.start, helpers))
        yield
    finally:
        for helper in helpers:
            if helper.pid is not None:
                helper.terminate()
                helper.join()
        _take_cores(cores)
        torch.set_num_threads(threads)


def part_of(cores: set[int], place: int, jobs: int) -> set[int]:
    """Every `jobs`-th core; one, shared, where there are more jobs than cores."""
    each = sorted(cores)
    return set(each[place::jobs]) or {each[place % len(each)]}


def parent_is_alive() -> bool:
    """Whether the process that this one helps is still there."""
    asked = multiprocessing.parent_process()
    return asked is None or asked.is_alive()


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(available_cores()))


def _take_cores(cores: set[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interrupt waits till after the block; processes started in it never see one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _help(cores: set[int], work: Callable[..., None], args: tuple[Any, ...]) -> None:
    """In a helper: an interrupt is for the one who was asked, who then tells this process to end."""
    try:
        try:
            signal.signal(signal.SIGTERM, _interrupt)
            _take_cores(cores)
            work(*args)
        finally:
            signal.signal(signal.SIGTERM, _go_on)
    finally:  # the interrupt may come in the other one, but it comes once
        os._exit(0)


def _interrupt(number: int, frame: object) -> None:
    """Once: what is cleaned up after it is left in peace."""
    signal.signal(signal.SIGTERM, _go_on)
    raise KeyboardInterrupt


def _go_on(number: int, frame: object) -> None:
    """And not SIG_IGN: Python complains of a signal that comes while it is being set."""
