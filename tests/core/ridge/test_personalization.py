"""A client's model from its statistics alone, at values of α that a wrong constant would confuse with α = 0."""

from __future__ import annotations

import numpy as np
import pytest

from fedhip import Statistics
from fedhip.core import personalize_from_statistics


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0, 20.0])
def test_every_alpha_is_its_own_ridge(alpha: float) -> None:
    rng = np.random.default_rng(0)
    own, others = (Statistics.from_data(rng.normal(size=(20, 4)), rng.integers(0, 3, 20), 3) for _ in range(2))
    total = own + others
    A = total.gram.numpy() + alpha * own.gram.numpy() + 0.5 * np.eye(4)
    expected = np.linalg.solve(A, total.cross.numpy() + alpha * own.cross.numpy())
    np.testing.assert_allclose(personalize_from_statistics(total, own, alpha, 0.5).numpy(), expected, rtol=1e-10)
