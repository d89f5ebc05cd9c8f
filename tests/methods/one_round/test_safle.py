"""The reconstruction of SAFLe: cells by hand, sums that are the same bits, and least squares on signs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.errors import InputError
from fedhip.methods import run_method
from fedhip.methods.one_round.safle import cells_of, indicators
from tests.methods.one_round.rounds import client, divided_anew, fitted
from tests.methods.problems import CLASSES, WIDTH, federation


def test_cells_by_hand() -> None:
    x = torch.tensor([[-1.0, 2.0], [0.5, 0.5], [2.0, -1.0], [0.5, 2.0]])
    cells = cells_of(x, [0.0, 1.0], torch.arange(4), 2)
    assert cells.mT.tolist() == [[2, 3, 1, 3], [2, 0, 1, 2]]
    phi = indicators(cells, 2)
    assert (phi.mT @ phi).diagonal().tolist() == [0, 1, 1, 2, 1, 1, 2, 0]
    assert np.linalg.matrix_rank(phi.mT @ phi) == 4
    assert phi.sum(dim=1).tolist() == [2] * 4


def test_one_threshold_and_one_bit_is_least_squares_on_signs() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = (x[:, 0] + 0.3 * rng.normal(size=400) > 0).astype(int)
    given = [client(str(k), x[k::3], y[k::3].tolist()) for k in range(3)]
    found = fitted("safle", given, 2, thresholds=1, group=1, penalty=1e-7).scores(torch.from_numpy(x))
    design = np.column_stack((x > 0, np.ones(400)))
    expected = design @ np.linalg.lstsq(design, np.eye(2)[y], rcond=None)[0]
    assert found.numpy() == pytest.approx(expected, abs=1e-3)


def test_the_same_bits_however_rows_are_divided() -> None:
    """Features of whole numbers, whose mean and deviation are the same bits too."""
    clients = [client(c.name, np.round(4 * c.train[0]), c.train[1].tolist()) for c in federation((60, 70))]
    x = torch.from_numpy(np.round(4 * federation((20,), seed=8)[0].train[0]))
    options = {"thresholds": 3.0, "group": 2.0}
    one, other = (fitted("safle", c, CLASSES, **options).scores(x) for c in (clients, divided_anew(clients)))
    assert torch.equal(one, other)


def test_bytes_and_groups_that_are_dropped() -> None:
    run = run_method("safle", federation((60, 70)), CLASSES, options={"thresholds": 3, "group": 2, "cells": 30})
    width = 4 * min(WIDTH * 3 // 2, 30 // 4)
    up = 8 * (2 * WIDTH + 1 + CLASSES) + 4 * (width * (width + 1) // 2 + width * CLASSES)
    assert (run.upload_bytes_per_client, run.rounds) == (up, 2)
    with pytest.raises(InputError, match="leave no group"):
        run_method("safle", federation((60, 70)), CLASSES, options={"group": 9, "thresholds": 1})
