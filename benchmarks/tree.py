"""A simulated tree of aggregators: time and memory of each level, and whether its sum has the bits of the flat one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from operator import add
from typing import TypeVar

import numpy as np
import torch

from benchmarks.measure import Setup, synthetic_rows
from benchmarks.table import Line, faster, share
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.statistics import AdditiveStatistics, Statistics
from fedhip.utils.parallel import one_thread

WIDTH, CLASSES, ROWS = 32, 10, 4

Sum = TypeVar("Sum", GridStatistics, Statistics)


@dataclass
class Level:
    """The aggregators of one level: how many sums each adds, what that took, and what one of them held and received."""

    fan: int
    seconds: list[float] = field(default_factory=list)
    held_bytes: int = 0
    received_bytes: int = 0

    def add(self, sums: Sequence[Sum]) -> Sum:
        """One aggregator at work: its sum so far and the one that arrives are all it holds."""
        began = time.perf_counter()
        total = reduce(add, sums)
        self.seconds.append(time.perf_counter() - began)
        self.held_bytes = 2 * state_bytes(total)
        self.received_bytes = max(self.received_bytes, sum(map(upload_bytes, sums)))
        return total


def section(setup: Setup) -> Iterator[Line]:
    """A tree of aggregators over many small clients, against one server that adds them all."""
    fans = setup.pick(toy=(3, 2, 2), quick=(25, 20, 20), full=(50, 50, 40))
    K = int(np.prod(fans))
    levels, flat = [Level(fan) for fan in fans], Level(1)
    with one_thread():
        root, alone = both_ways(levels, flat, clients(K))
    server, nodes = sum(flat.seconds), K
    against = f"a server of {K:,} clients, m = {WIDTH}, d = {CLASSES}"
    for number, level in enumerate(levels, start=1):
        nodes //= level.fan
        seconds = sum(level.seconds) / nodes
        what = f"level {number}, one of {nodes:,} that add {level.fan} sums"
        yield share(f"{what}: time", seconds / server, against, seconds=seconds, server=server)
        received = level.received_bytes / (K * upload_bytes(root))
        yield share(f"{what}: bytes received", received, against, received_bytes=level.received_bytes)
    held = max(level.held_bytes for level in levels)
    yield share("any level: statistics held", held / flat.held_bytes, against, "1 ×", held_bytes=held)
    path = sum(sum(level.seconds) / len(level.seconds) for level in levels)
    yield faster("from the uploads to the root, a level's aggregators side by side", path, against, server)
    yield same("the tree's sum on the grid", "the flat sum", root == alone and root.digest() == alone.digest())
    yield float_sums(min(K, 1_000), fans[0])


def both_ways(
    levels: Sequence[Level], flat: Level, uploads: Iterable[GridStatistics]
) -> tuple[GridStatistics, GridStatistics]:
    """The root's sum and the flat one, from the same uploads, each made once and kept by nobody."""
    alone: list[GridStatistics] = []

    def seen() -> Iterator[GridStatistics]:
        for upload in uploads:
            alone[:] = [flat.add([*alone, upload])]
            yield upload

    stream: Iterator[GridStatistics] = seen()
    for level in levels:
        stream = summed(level, stream)
    (root,) = stream
    return root, alone[0]


def summed(level: Level, stream: Iterator[GridStatistics]) -> Iterator[GridStatistics]:
    """The sums of one level, each as soon as its aggregator has heard from all below it."""
    while sums := list(islice(stream, level.fan)):
        yield level.add(sums)


def clients(K: int) -> Iterator[GridStatistics]:
    """Uploads of clients with a few rows each."""
    features, labels = synthetic_rows(ROWS * K, WIDTH, CLASSES, 0, torch.device("cpu"), torch.float32)
    for start in range(0, ROWS * K, ROWS):
        yield GridStatistics.from_data(features[start : start + ROWS], labels[start : start + ROWS], CLASSES)


def float_sums(K: int, fan: int) -> Line:
    """The same in float64 without the grid, whose sums depend on their order."""
    features, labels = synthetic_rows(ROWS * K, WIDTH, CLASSES, 0, torch.device("cpu"), torch.float32)
    uploads = [
        Statistics.from_data(features[start : start + ROWS], labels[start : start + ROWS], CLASSES)
        for start in range(0, ROWS * K, ROWS)
    ]
    flat = reduce(add, uploads)
    tree = reduce(add, (reduce(add, uploads[start : start + fan]) for start in range(0, K, fan)))
    return same(f"float64 sums of {K:,} of them, off the grid", "the flat sum", tree.digest() == flat.digest())


def same(what: str, against: str, equal: bool) -> Line:
    """Whether two sums are the same bits."""
    return Line(what, against, float(equal), "identical bits" if equal else "other bits", "identical bits on the grid")


def state_bytes(sums: AdditiveStatistics) -> int:
    """What holding it takes."""
    return sum(tensor.nbytes for tensor in (sums.gram, sums.cross, sums.counts))


def upload_bytes(sums: AdditiveStatistics) -> int:
    """What sending it takes: the triangle, the cross terms and the counts, 8 bytes each."""
    m, d = sums.num_features, sums.num_classes
    return 8 * (m * (m + 1) // 2 + m * d + d)
