"""The room that phase 3 takes at a site, where the sum of a wide federation is a matrix of 200 MB."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from fedhip.federation.agreement import Agreement
from fedhip.federation.personal import Sum, personalize
from fedhip.federation.setup import InitSettings
from fedhip.federation.vector import Layout, from_vector, to_vector
from fedhip.phases import Client
from tests.federation.samples import CLASSES, FOUR

#: A matrix of 35 MB: the system's allocator gives back at once what is larger than 32.
WIDE, ROWS = 2100, 60


def agreement(width: int) -> Agreement:
    """With an α that asks for a model of the site's own, which on rows as easy as these may not be chosen."""
    return InitSettings(name="trial", sites=FOUR, classes=CLASSES, width=width, alpha=5.0).agreement()


def rows_of_width(width: int) -> Client:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(ROWS, width)).astype(np.float32), rng.integers(0, len(CLASSES), ROWS)
    return Client("a", (features, labels), (features[:1], labels[:1]))


def memory(kind: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since it began (`getrusage` counts its parent's)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith(kind)))


def matrices_beside_the_sum(folder: Path) -> float:
    """How many of its size phase 3 takes at most; to be called in a process of its own."""
    before = 0
    for width in (3, WIDE):  # first a small one, for all that is loaded once
        agreed = agreement(width)
        vector = np.load(folder / f"{width}.npy")
        received = Sum(from_vector(vector, Layout(width, len(CLASSES)), agreed.fraction_bits), 1.0, FOUR)
        del vector
        client = rows_of_width(width)
        before = memory("VmRSS")
        personalize(folder / f"{width}", client, received, agreed, folder / "rows.npz")
    return (memory("VmHWM") - before) / (8 * WIDE**2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory from /proc")
def test_a_site_holds_two_matrices_beside_the_sum_and_no_more(tmp_path: Path) -> None:
    bits = agreement(WIDE).fraction_bits
    for width in (3, WIDE):
        np.save(tmp_path / f"{width}.npy", to_vector(rows_of_width(width).statistics(len(CLASSES), bits)))
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(matrices_beside_the_sum, tmp_path).result() < 3.4
