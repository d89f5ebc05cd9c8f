"""Other heads than the ridge put rows on the grid that their task says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.core.exact.columns import Columns
from fedhip.heads import Logistic
from fedhip.heads.task import Task
from fedhip.methods import run_method
from fedhip.simulation.options import RidgeOptions
from tests.methods.problems import CLASSES, PROTOCOL, WIDTH, federation

GRID = RidgeOptions(columns=Columns.plain(WIDTH), fraction_bits=20, balance=True)


def test_the_logistic_head_sums_on_the_grid_of_its_task() -> None:
    encoding = Logistic.federate(Task(federation(), CLASSES, ridge=GRID)).encoding
    assert encoding.fraction_bits == 20
    assert torch.equal(encoding.columns.exponent, torch.zeros(WIDTH, dtype=torch.int64))
    assert encoding.scale is None  # its rows weigh alike


@pytest.mark.parametrize("name", ["fedhip-lda", "fedhip-logistic"])
def test_units_that_are_given_are_not_surveyed(name: str) -> None:
    found, given = (run_method(name, federation(), CLASSES, PROTOCOL, ridge=r) for r in (RidgeOptions(), GRID))
    assert found.upload_bytes_per_client - given.upload_bytes_per_client == 8 * (52 * WIDTH + 1)
    assert np.isfinite(given.accuracy).all()  # type: ignore[arg-type]
