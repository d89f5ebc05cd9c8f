"""The room that phase 3 takes at a site, where the sum of a wide federation is a matrix of 200 MB."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.init import draft
from fedhip.federation.site.inputs import make_vector
from fedhip.federation.site.personalization import ReceivedSum, personalize
from fedhip.federation.sums.statistics import encoding_of
from fedhip.federation.sums.table import BETA
from fedhip.federation.sums.vector import from_vector, to_vector
from fedhip.federation.transport.wire import Envelope, Letter, RoundStep
from fedhip.simulation.client import Client
from tests.federation.samples import CLASSES, FOUR

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory from /proc")

#: A matrix of 35 MB: the system's allocator gives back at once what is larger than 32.
WIDE, ROWS = 2100, 60


def agreement(width: int, alpha: Any) -> Agreement:
    return draft(name="trial", sites=FOUR, classes=CLASSES, width=width, alpha=alpha, head="ridge")


def rows_of_width(width: int) -> Client:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(ROWS, width)).astype(np.float32), rng.integers(0, len(CLASSES), ROWS)
    return Client("a", (features, labels), (features[:1], labels[:1]))


def memory(kind: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since it began (`getrusage` counts its parent's)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith(kind)))


def of_phase_3(folder: Path, alpha: Any, fold_betas: tuple[float, ...]) -> float:
    """How many matrices of the sum's size phase 3 takes at most; to be called in a process of its own."""
    before = 0
    for width in (3, WIDE):  # first a small one, for all that is loaded once
        agreed, client = agreement(width, alpha), rows_of_width(width)
        units = encoding_of(agreed, client.survey().to_vector().view(np.uint64))
        vector = np.load(folder / f"{width}.npy")
        grid = from_vector(vector, agreed.layout, agreed.fraction_bits)
        received = ReceivedSum(grid, 1.0, FOUR, units, fold_betas)
        del vector, grid
        before = memory("VmRSS")
        personalize(folder / f"{width}", client, received, agreed, folder / "rows.npz")
    return (memory("VmHWM") - before) / (8 * WIDE**2)


def of_beta(folder: Path) -> float:
    """The same of what β is chosen by; here the sum is a vector yet, of half that size."""
    before = 0
    for width in (3, WIDE):
        agreed, client = agreement(width, "loo"), rows_of_width(width)
        units = encoding_of(agreed, client.survey().to_vector().view(np.uint64))
        total = np.load(folder / f"{width}.npy")
        question = Letter(Envelope(b"", "", "", RoundStep.KEYS), {"sites": list(FOUR)})
        inputs: Any = SimpleNamespace(agreement=agreed, question=question, total=total, client=client, encoding=units)
        before = memory("VmRSS")
        make_vector(BETA, inputs)
    return (memory("VmHWM") - before) / (8 * WIDE**2)


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    for width in (3, WIDE):
        agreed, client = agreement(width, "loo"), rows_of_width(width)
        units = encoding_of(agreed, client.survey().to_vector().view(np.uint64))
        np.save(tmp_path / f"{width}.npy", to_vector(units.statistics(client, len(CLASSES))))
    return tmp_path


def in_a_process(measure: Callable[..., float], *arguments: Any) -> float:
    """Measured in a process that gives memory back at once: what the allocator keeps for later is noise here.

    A fork of one that has loaded this module, for all tests of it.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MALLOC_MMAP_THRESHOLD_", str(2**20))
        with ProcessPoolExecutor(1, context) as pool:
            return pool.submit(measure, *arguments).result()


@pytest.mark.parametrize(
    ("alpha", "fold_betas"),
    # A model of its own, which on rows as easy as these may not be chosen; and what folds are judged by.
    [(5.0, ()), ("loo", (1.0, 0.1, 1.0, 0.01, 1.0))],
)
def test_a_site_holds_two_matrices_beside_the_sum_and_no_more(
    sums: Path, alpha: Any, fold_betas: tuple[float, ...]
) -> None:
    assert in_a_process(of_phase_3, sums, alpha, fold_betas) < 3.0


def test_what_beta_is_chosen_by_takes_an_eigendecomposition_and_no_more(sums: Path) -> None:
    """The sum as the ridge sees it, its eigenvectors, and two of the same size that are needed to find these."""
    assert in_a_process(of_beta, sums) < 4.6
