"""Coordinates in which a metric and a Gram matrix are diagonal at once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from fedhip.core.logistic.geometry import Geometry
from fedhip.errors import InputError
from tests.core.problems import relative_error


@pytest.mark.parametrize("rows", [3, 20])  # of a Gram matrix that is singular, and of one that is not
def test_metric_and_gram_are_diagonal_with_scipys_eigenvalues(rows: int) -> None:
    rng = np.random.default_rng(rows)
    F, root = rng.normal(size=(rows, 6)), rng.normal(size=(6, 6))
    gram, metric = F.T @ F, root @ root.T + 0.1 * np.eye(6)
    found = Geometry.of(torch.from_numpy(gram), torch.from_numpy(metric))
    B, values = found.B.numpy(), found.values.numpy()
    np.testing.assert_allclose(B.T @ metric @ B, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(B.T @ gram @ B, np.diag(values), atol=1e-9 * values.max())
    np.testing.assert_allclose(values, scipy.linalg.eigh(gram, metric, eigvals_only=True), atol=1e-9 * values.max())
    assert relative_error(found.inverse, np.linalg.inv(B)) <= 1e-9
    assert float(values.min()) >= 0.0


def test_a_singular_metric_is_refused() -> None:
    with pytest.raises(InputError, match="metric of the penalty is singular"):
        Geometry.of(torch.eye(2).double(), torch.ones(2, 2).double())
