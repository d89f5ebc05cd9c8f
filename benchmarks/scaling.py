"""How time and memory grow with K, m, N and d: log-log slopes beside those of the stated operation counts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import Setup, Work, best_seconds, peak_memory, slope, synthetic_rows
from benchmarks.table import Line, share
from fedhip import PersonalizationPath, Statistics, aggregate, solve_global

CLASSES, ROWS = 100, 200
SERVER_WIDTH = 384
FILE_WIDTH = 384


@dataclass(frozen=True)
class Series:
    """Work at growing sizes, and the operations it should take, up to a factor."""

    what: str
    axis: str
    sizes: Sequence[int]
    work: Callable[[int], Work]
    count: Callable[[int], float]
    order: str

    def line(self, setup: Setup) -> Line:
        """The slope of the seconds."""
        seconds = [best_seconds(setup, self.work(size), repeats=2)[0] for size in self.sizes]
        return self.reading("time", seconds)

    def reading(self, quantity: str, values: Sequence[float]) -> Line:
        """The slope of values beside that of the operation count."""
        found, stated = slope(self.sizes, values), slope(self.sizes, list(map(self.count, self.sizes)))
        return Line(
            f"{quantity}: {self.what}",
            f"{self.axis} from {self.sizes[0]:,} to {self.sizes[-1]:,}",
            found,
            f"slope {found:.2f}",
            f"{stated:.2f}, {self.order}",
            {f"{self.axis} = {size}": value for size, value in zip(self.sizes, values, strict=True)},
        )


def section(setup: Setup) -> Iterator[Line]:
    """How time and memory grow with K, m, N and d (log-log slopes)."""
    yield from clients(setup)
    yield from width(setup)
    yield from rows(setup)
    yield from classes(setup)


def clients(setup: Setup) -> Iterator[Line]:
    """K: a server that sums uploads as they arrive."""
    sizes = setup.pick(toy=(2, 4), quick=(10, 100, 1_000), full=(10, 100, 1_000, 10_000))
    upload = Statistics.from_data(*synthetic_rows(5, SERVER_WIDTH, CLASSES, 0, setup.device), CLASSES)
    yield Series(
        f"the server's sum, m = {SERVER_WIDTH}",
        "K",
        sizes,
        lambda K: lambda: aggregate(repeat(upload, K)),
        lambda K: K,
        "O(K m²)",
    ).line(setup)
    few, many = (peak_memory(setup, sum_and_solve, K) for K in (sizes[0], sizes[-1]))
    what = f"memory of a server that sums and solves, K = {sizes[-1]:,}"
    yield share(what, many / few, f"K = {sizes[0]}", "1 ×", many_bytes=many, few_bytes=few)


def sum_and_solve(device: torch.device, K: int) -> object:
    """All that a server does for K clients of 5 rows."""
    uploads = (Statistics.from_data(*synthetic_rows(5, SERVER_WIDTH, CLASSES, k, device), CLASSES) for k in range(K))
    total = aggregate(uploads)
    return total, solve_global(total, beta=1.0)


def width(setup: Setup) -> Iterator[Line]:
    """m: each phase, the memory of the sum, and of the sum with its solution."""
    sizes = setup.pick(toy=(8, 16), quick=(384, 768, 1_536, 3_072), full=(384, 1_024, 2_048, 4_096, 8_192))
    d, N = setup.pick(toy=3, quick=CLASSES, full=CLASSES), setup.pick(toy=6, quick=ROWS, full=ROWS)

    def statistics(m: int) -> Work:
        F, y = synthetic_rows(N, m, d, 0, setup.device)
        return lambda: Statistics.from_data(F, y, d)

    def solve(m: int) -> Work:
        total = Statistics.from_data(*synthetic_rows(N, m, d, 0, setup.device), d)
        return lambda: solve_global(aggregate([total]), beta=1.0)  # a fresh sum remembers no factor

    def personal(m: int) -> Work:
        F, y = synthetic_rows(N, m, d, 0, setup.device)
        total = Statistics.from_data(F, y, d)
        solve_global(total, beta=1.0)  # remembered with the sum

        def model() -> object:
            path = PersonalizationPath(total, F, y, beta=1.0)
            return path.weights(path.select())

        return model

    for what, work, count, order in (
        (f"a client's statistics, N_k = {N}", statistics, lambda m: m * (m + d), "O(N_k m (m + d))"),
        ("the server's solve", solve, lambda m: m**3 / 3 + 2 * m * m * d, "O(m³ + m² d)"),
        (
            f"a client's α and model, N_k = {N}",
            personal,
            lambda m: N * m**2 + 4 * N**2 * m + 10 * N**3,
            "O(N_k m² + N_k³)",
        ),
    ):
        yield Series(what, "m", sizes, work, count, order).line(setup)
    large = sizes[-3:] if setup.size != "toy" else sizes
    memory = Series("a server that sums and solves", "m", large, solve, lambda m: m * m + m * d, "O(m² + m d)")
    yield memory.reading("memory", [float(peak_memory(setup, sum_and_solve_wide, m)) for m in large])


def sum_and_solve_wide(device: torch.device, m: int) -> object:
    """All that a server does for 3 clients of 5 rows."""
    uploads = (Statistics.from_data(*synthetic_rows(5, m, CLASSES, k, device), CLASSES) for k in range(3))
    total = aggregate(uploads)
    return total, solve_global(total, beta=1.0)


def rows(setup: Setup) -> Iterator[Line]:
    """N: the statistics of a memory-mapped file, which are computed where the file is."""
    sizes = setup.pick(toy=(50, 100), quick=(10_000, 50_000, 200_000), full=(10_000, 100_000, 1_000_000))
    host = Setup(setup.size, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        write_rows(path, sizes[-1])
        series = Series(
            f"statistics of a memory-mapped file, m = {FILE_WIDTH}, float16",
            "N",
            sizes,
            lambda N: lambda: MappedRows(path)(host.device, N),
            lambda N: N,
            "O(N m²)",
        )
        yield series.line(host)
        # From the size on that fills more than one block of rows.
        few, many = (peak_memory(host, MappedRows(path), N) for N in sizes[-2:])
        yield share(
            f"memory for {sizes[-1]:,} rows of it, a file of {path.stat().st_size / 1e6:,.0f} MB",
            many / few,
            f"{sizes[-2]:,} rows",
            "1 ×, and 8 bytes a label",
            many_bytes=many,
            few_bytes=few,
        )


def write_rows(path: Path, N: int) -> None:
    """The same block of rows, as often as needed."""
    mapped: NDArray[np.float16] = np.lib.format.open_memmap(path, "w+", np.float16, (N, FILE_WIDTH))
    block = np.random.default_rng(0).standard_normal((min(N, 10_000), FILE_WIDTH), dtype=np.float32).astype(np.float16)
    for start in range(0, N, len(block)):
        mapped[start : start + len(block)] = block[: N - start]


@dataclass(frozen=True)
class MappedRows:
    """A file of features whose first N rows are summed up."""

    path: Path

    def __call__(self, device: torch.device, N: int) -> object:
        """Their statistics."""
        mapped = np.load(self.path, mmap_mode="r")
        return Statistics.from_data(mapped[:N], np.arange(N) % CLASSES, CLASSES)


def classes(setup: Setup) -> Iterator[Line]:
    """d: a client's statistics, and its path over all α."""
    m, N, sizes = setup.pick(
        toy=(8, 6, (2, 4)), quick=(384, ROWS, (10, 100, 1_000)), full=(768, ROWS, (10, 100, 1_000))
    )

    def statistics(d: int) -> Work:
        F, y = synthetic_rows(N, m, d, 0, setup.device)
        return lambda: Statistics.from_data(F, y, d)

    def personal(d: int) -> Work:
        F, y = synthetic_rows(N, m, d, 0, setup.device)
        total = Statistics.from_data(F, y, d)
        solve_global(total, beta=1.0)
        return lambda: PersonalizationPath(total, F, y, beta=1.0).select()

    what = f"a client's statistics, m = {m}, N_k = {N}"
    yield Series(what, "d", sizes, statistics, lambda d: m + d, "O(N_k m (m + d))").line(setup)
    what, fixed = "its leave-one-out at every α", N * m**2 + 2 * N**2 * m + 10 * N**3
    yield Series(
        what, "d", sizes, personal, lambda d: fixed + 29 * 2 * N * N * d, "O(N_k m² + N_k³ + N_k² d) for each α"
    ).line(setup)
