"""What federations past one machine would cost, from rates measured here on one core.

Bytes follow from the sizes; seconds are measured on one client's work, one addition and one solve of the real width,
and multiplied. Times on the wire assume the line speeds named with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from benchmarks.measure import Setup, best_seconds, synthetic_rows
from benchmarks.table import Line, left_out
from fedhip.core import PersonalizationPath, solve_global
from fedhip.core.exact.fixedpoint import GridStatistics, decode
from fedhip.core.statistics import pack, unpack
from fedhip.utils.parallel import one_thread

SITE_LINE, PHONE_LINE, SERVER_LINE = 100e6, 10e6, 10e9  # bits a second
ALPHA_ROWS = 1_000


@dataclass(frozen=True)
class Deployment:
    """K clients of N rows, m features and d classes; their line in bits a second, and those that mask together."""

    name: str
    K: int
    m: int
    d: int
    N: int
    line: float
    cohort: int
    fan: int

    @property
    def upload(self) -> int:
        """Bytes of one client's statistics: the triangle, the cross terms, the counts."""
        return 8 * (self.m * (self.m + 1) // 2 + self.m * self.d + self.d)

    @property
    def state(self) -> int:
        """Bytes of a sum in memory, where the matrix is whole."""
        return 8 * (self.m * self.m + self.m * self.d + self.d)


def section(setup: Setup) -> Iterator[Line]:
    """What larger federations would cost, computed from rates measured here on one core."""
    with one_thread():  # a phone's, or one of a server's many
        for deployment in deployments(setup):
            yield from costs(setup, deployment)


def deployments(setup: Setup) -> list[Deployment]:
    """The two of docs/scale.md."""
    m_sites, m_phones = setup.pick(toy=(16, 8), quick=(4096, 384), full=(4096, 384))
    d = setup.pick(toy=3, quick=100, full=100)
    return [
        Deployment("1,000 sites", 1_000, m_sites, d, 1_000, SITE_LINE, 1_000, 32),
        Deployment("1,000,000 phones", 1_000_000, m_phones, d, 100, PHONE_LINE, 100, 1_000),
    ]


def costs(setup: Setup, of: Deployment) -> Iterator[Line]:
    """Bytes, memory and time, phase by phase."""
    about = f"{of.name} of m = {of.m:,}, d = {of.d}"
    literal = 8 * (of.m * of.m + of.m * of.d)
    yield size(f"{about}: a client sends", of.upload, f"{100 * of.upload / literal:.0f} % of the paper's C and L")
    yield size(f"{of.name}: the server receives", of.K * of.upload, "all uploads")
    yield size(f"{of.name}: the server holds while it adds", 2 * of.state, "its sum and the upload that arrives")
    yield size(f"{of.name}: the server holds while it solves", 4 * of.state, "the sum, in float64, its factor, a copy")
    yield from client_times(setup, of)
    yield from server_times(setup, of)
    yield from masking(of)


def client_times(setup: Setup, of: Deployment) -> Iterator[Line]:
    """Phase 1 and 3 at one client of N rows."""
    rows = min(of.N, setup.pick(toy=20, quick=ALPHA_ROWS, full=ALPHA_ROWS))
    F, y = synthetic_rows(rows, of.m, of.d, 0, setup.device, torch.float32)
    own = GridStatistics.from_data(F, y, of.d)
    total = decode(own)
    solve_global(total, beta=1.0)

    def personal() -> object:
        path = PersonalizationPath(total, F, y, beta=1.0)
        return path.weights(path.select())

    one, three = best_seconds(setup, lambda: GridStatistics.from_data(F, y, of.d), personal, repeats=2)
    yield seconds(f"{of.name}: a client's statistics", one, f"{rows:,} rows, measured")
    yield seconds(f"{of.name}: a client's upload on the wire", 8 * of.upload / of.line, f"{of.line / 1e6:g} Mbit/s")
    yield seconds(f"{of.name}: a client's α and model", three, f"{rows:,} rows, measured")


def server_times(setup: Setup, of: Deployment) -> Iterator[Line]:
    """Phase 2, by one server and by a tree of them."""
    F, y = synthetic_rows(min(of.N, 50), of.m, of.d, 0, setup.device, torch.float32)
    upload = GridStatistics.from_data(F, y, of.d)
    packed = pack(upload.gram)

    def arrive() -> object:
        return upload + GridStatistics(unpack(packed), upload.cross, upload.counts, upload.fraction_bits)

    adding, solving = best_seconds(setup, arrive, lambda: solve_global(decode(upload), beta=1.0), repeats=2)
    wire = 8 * of.K * of.upload / SERVER_LINE
    yield seconds(f"{of.name}: all uploads on the server's wire", wire, f"{SERVER_LINE / 1e9:g} Gbit/s")
    yield seconds(f"{of.name}: the server unpacks and adds all", of.K * adding, f"{of.K:,} × {show(adding)}, measured")
    depth = int(np.ceil(np.log(of.K) / np.log(of.fan) - 1e-9))
    node = of.fan * (adding + 8 * of.upload / SERVER_LINE)
    what = f"{of.name}: the same by a tree of {of.fan:,}, {depth} levels"
    yield seconds(what, depth * node, f"each aggregator hears {of.fan:,}, on a wire of its own")
    yield seconds(f"{of.name}: the server solves", solving, "measured")


def masking(of: Deployment) -> Iterator[Line]:
    """The secure sum: every client of a cohort adds a mask for each other one."""
    what = f"{of.name}: a client's masks, cohorts of {of.cohort:,}"
    if find_spec("cryptography") is None:
        yield left_out(what, "the secure sum", "cryptography is not installed")
        return
    from fedhip.federation.secure_sum.masks import apply_masks

    vector, keys = np.zeros(2**20, dtype=np.uint64), [os.urandom(32) for _ in range(4)]
    (taken,) = best_seconds(Setup("quick", torch.device("cpu")), lambda: apply_masks(vector, keys, []))
    rate = len(keys) * vector.nbytes / taken
    yield seconds(
        what,
        of.cohort * of.upload / rate,
        f"{of.cohort:,} × {of.upload / 1e6:.1f} MB at {rate / 1e9:.1f} GB/s, measured",
    )


def size(what: str, count: float, how: str) -> Line:
    """Bytes."""
    unit, scale = next((u, s) for u, s in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)) if count >= s)
    return Line(what, how, count, f"{count / scale:.3g} {unit}")


def seconds(what: str, value: float, how: str) -> Line:
    """Seconds, in a unit that is easy to read."""
    return Line(what, how, value, show(value))


def show(value: float) -> str:
    """A time to three digits."""
    scales = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
    unit, scale = next(((u, s) for u, s in scales if value >= s), ("µs", 1e-6))
    return f"{value / scale:.3g} {unit}"
