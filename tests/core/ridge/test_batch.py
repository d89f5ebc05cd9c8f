"""Many clients of one size at once: the numbers of `PersonalizationPath`, client by client."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.core.choice.selection import FOLDS
from fedhip.core.exact.batch import GridBatch
from fedhip.core.exact.fixedpoint import GridStatistics, round_features
from fedhip.core.ridge.aggregation import global_system
from fedhip.core.ridge.batch import BatchPath
from fedhip.core.ridge.path import PersonalizationPath
from fedhip.core.statistics import Statistics

ALPHAS = (0.0, 0.3, 1.0, 20.0, 1000.0)


def problem(
    clients: int, rows: int, width: int = 12, classes: int = 4
) -> tuple[Statistics, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(rows)
    labels = random.integers(0, classes, (clients, rows))
    F = random.normal(size=(classes, width))[labels] + 0.8 * random.normal(size=(clients, rows, width))
    total = Statistics.from_data(F.reshape(-1, width), labels.reshape(-1), classes)
    return total, torch.from_numpy(F), torch.from_numpy(labels)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 6, 9, 12])
def test_margins_are_those_of_each_client(rows: int) -> None:
    total, F, labels = problem(7, rows)
    batch = BatchPath(global_system(total, 0.5), F, labels, 4, ALPHAS)
    margins = batch.margins(batch.scores())
    folds = [batch.fold_margins(margins, fold) for fold in range(FOLDS)]
    for at in range(7):
        path = PersonalizationPath(total, F[at], labels[at], 0.5)
        expected = path.loo_margins(ALPHAS)
        torch.testing.assert_close(margins[at], expected, rtol=1e-9, atol=1e-9)
        for fold, found in enumerate(folds):
            torch.testing.assert_close(found[at], path.fold_margins(ALPHAS, expected, fold), rtol=1e-8, atol=1e-8)
    assert bool(batch.plain.all())


def test_who_has_a_row_of_its_own_is_not_plain() -> None:
    _, F, labels = problem(8, 4)
    F = torch.cat((F, torch.zeros(8, 4, 1, dtype=torch.float64)), dim=2)
    F[1, 2, -1] = 1.0  # the only row of this direction, and β = 0
    total = Statistics.from_data(F.flatten(0, 1), labels.flatten(), 4)
    batch = BatchPath(global_system(total, 1e-14), F, labels, 4, ALPHAS)
    assert batch.plain.tolist() == [at != 1 for at in range(8)]


@pytest.mark.parametrize("bits", [31, 32])
def test_statistics_and_digests_are_those_of_each_client(bits: int) -> None:
    _, F, labels = problem(5, 6)
    F[3] *= 3e6  # whose products a float64 does not hold
    batch, exact = GridBatch.of(round_features(F, bits), labels, 4, bits)
    assert exact.tolist() == [True, True, True, False, True]
    for at in (0, 1, 2, 4):
        own = GridStatistics.from_data(F[at], labels[at], 4, fraction_bits=bits)
        assert torch.equal(batch.gram[at], own.gram)
        assert torch.equal(batch.cross[at], own.cross)
        assert torch.equal(batch.counts[at], own.counts)
        assert batch.digests()[at] == own.digest()
