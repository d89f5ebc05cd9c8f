"""Lifts: the kernels they stand for, the same draw everywhere, and what they cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.metrics.pairwise import rbf_kernel

from fedhip import Statistics
from fedhip.core import Standardization
from fedhip.core.errors import DimensionError
from fedhip.core.lifts import KINDS, Lift, LiftError, LiftKind, _Draw, require_memory, upload_bytes, width_for
from tests.core.problems import Array


def problem(rows: int = 60, width: int = 5) -> tuple[Array, Statistics, Standardization]:
    rng = np.random.default_rng(0)
    F = rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) + 3
    total = Statistics.from_data(F, rng.integers(0, 2, rows), 2)
    return F, total, Standardization.of(total)


def lift(kind: LiftKind, width: int, seed: int = 0, **options: float) -> tuple[Lift, Array, Array]:
    F, total, standardization = problem()
    units = standardization.features(F)[:, :-1].numpy() / math.sqrt(F.shape[1])
    return Lift.of(kind, width, seed, total, **options), F, units


@pytest.mark.parametrize("bandwidth", [0.7, 2.0])
def test_fourier_features_approach_the_gaussian_kernel(bandwidth: float) -> None:
    phi, F, units = lift("fourier", 20_000, bandwidth=bandwidth)
    lifted = phi(F).numpy()
    assert np.abs(lifted @ lifted.T - rbf_kernel(units, gamma=1 / (2 * bandwidth**2))).max() < 0.05


def test_nystroem_features_approach_the_gaussian_kernel() -> None:
    phi, F, units = lift("nystroem", 400)
    lifted = phi(F).numpy()
    assert np.abs(lifted @ lifted.T - rbf_kernel(units, gamma=0.5)).max() < 0.02


def test_relu_features_approach_the_arc_cosine_kernel() -> None:
    """E[max(0, u·ω + b) max(0, v·ω + b)] · 2, of the rows with a 1 appended (Cho and Saul, 2009)."""
    phi, F, units = lift("relu", 40_000)
    lifted = phi(F).numpy()
    rows = np.c_[units, np.ones(len(units))]
    norms = np.linalg.norm(rows, axis=1)
    cosine = np.clip(rows @ rows.T / np.outer(norms, norms), -1, 1)
    angle = np.arccos(cosine)
    expected = np.outer(norms, norms) * (np.sin(angle) + (np.pi - angle) * cosine) / np.pi
    assert np.abs(lifted @ lifted.T - expected).max() < 0.05 * expected.max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_is_all_that_must_travel(kind: LiftKind) -> None:
    a, F, _ = lift(kind, 30, seed=7)
    b, _, _ = lift(kind, 30, seed=7)
    other, _, _ = lift(kind, 30, seed=8)
    assert torch.equal(a(F), b(F))
    assert not torch.equal(a(F), other(F))
    assert torch.allclose(a(F)[20:21], a(F[20:21]), rtol=0, atol=1e-12)


def test_the_draw_is_pinned() -> None:
    """A change here would part sites of different versions."""
    assert _Draw(0).normal((3,)).tolist() == [0.944671630859375, 0.6266937255859375, 2.15740966796875]
    assert kstest(_Draw(1).normal((5000,)).numpy(), "norm").pvalue > 0.01
    assert kstest(_Draw(2).uniform((5000,)).numpy(), "uniform").pvalue > 0.01


def test_a_budget_gives_the_widest_lift_within_it() -> None:
    for megabytes in (0.001, 0.5, 8, 100, 1234.5):
        width = width_for(megabytes, 10)
        assert upload_bytes(width, 10) <= megabytes * 1e6 < upload_bytes(width + 1, 10)
    # The same number that a client's statistics take.
    assert upload_bytes(1280, 100) == 8 * (1280 * 1281 // 2 + 1280 * 100 + 100)
    with pytest.raises(LiftError, match=r"give at least 0\.00"):
        width_for(1e-6, 100)
    with pytest.raises(LiftError, match="give a number above 0"):
        width_for(0.0, 100)


def test_a_lift_too_wide_for_memory_says_the_width_that_fits() -> None:
    require_memory(4096, 2**30)
    with pytest.raises(LiftError, match=r"width 100000 takes 298\.0 GiB and there are 1\.0; width 5792 fits"):
        require_memory(100_000, 2**30)
    require_memory(5792, 2**30)


def test_bad_input() -> None:
    F, _, standardization = problem()
    with pytest.raises(LiftError, match="there are relu, fourier, nystroem"):
        Lift("wavelet", 3, 0, standardization)  # type: ignore[arg-type]
    with pytest.raises(LiftError, match="at least 1"):
        Lift("relu", 0, 0, standardization)
    with pytest.raises(LiftError, match="bandwidth"):
        Lift("fourier", 3, 0, standardization, bandwidth=0.0)
    with pytest.raises(LiftError, match="covariance"):
        Lift("nystroem", 3, 0, standardization)
    with pytest.raises(DimensionError, match="5 wide"):
        Lift("relu", 3, 0, standardization)(F[:, :2])
