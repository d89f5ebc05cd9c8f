"""Lifts: the kernels they stand for, the same draw everywhere, and what they cost."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import kstest
from sklearn.metrics.pairwise import rbf_kernel

from fedhip import Statistics
from fedhip.core import Standardization
from fedhip.errors import InputError
from fedhip.features.lifts import lift as lifts
from fedhip.features.lifts.budget import exchange_bytes, require_memory, upload_bytes, width_for
from fedhip.features.lifts.kinds import KINDS, LANDMARKS, LiftKind
from fedhip.features.lifts.lift import Lift, _Draw, _repeatable_product
from tests.core.problems import Array


def problem(rows: int = 60, width: int = 5) -> tuple[Array, Statistics, Standardization]:
    rng = np.random.default_rng(0)
    F = rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) + 3
    total = Statistics.from_data(F, rng.integers(0, 2, rows), 2)
    return F, total, Standardization.of(total)


def lift(kind: LiftKind, width: int, seed: int = 0, **options: Any) -> tuple[Lift, Array, Array]:
    F, total, standardization = problem()
    units = standardization.features(F)[:, :-1].numpy() / math.sqrt(F.shape[1])
    return Lift.of(kind, width, seed, total, **options), F, units


@pytest.mark.parametrize("bandwidth", [0.7, 2.0])
def test_fourier_features_approach_the_gaussian_kernel(bandwidth: float) -> None:
    phi, F, units = lift("fourier", 20_000, bandwidth=bandwidth)
    lifted = phi(F).numpy()
    assert np.abs(lifted @ lifted.T - rbf_kernel(units, gamma=1 / (2 * bandwidth**2))).max() < 0.05


@pytest.mark.parametrize("kind", LANDMARKS)
def test_nystroem_features_approach_the_gaussian_kernel(kind: LiftKind) -> None:
    phi, F, units = lift(kind, 800)
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
    width = 2 if kind == "project" else 30
    a, F, _ = lift(kind, width, seed=7)
    b, _, _ = lift(kind, width, seed=7)
    other, _, _ = lift(kind, width, seed=8)
    assert torch.equal(a(F), b(F))
    assert not torch.equal(a(F), other(F))
    travelled = Lift.restore(json.loads(json.dumps(a.description)), a.tensors)
    assert torch.equal(a(F), travelled(F))
    assert set(a.tensors) == {"mean", "scale"} | ({"covariance"} if kind in LANDMARKS else set())


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_lifted_to_the_same_bits_in_any_company(kind: LiftKind, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    F = rng.normal(size=(211, 67)) @ rng.normal(size=(67, 67)) + 3
    phi = Lift.of(kind, 41 if kind == "project" else 301, 5, Statistics.from_data(F, np.zeros(211), 1))
    together = phi(F)
    monkeypatch.setattr(lifts, "_BLOCK_ENTRIES", 301 * 13)
    assert torch.equal(phi(F), together)
    # In float64, where a sum in another order would show; float32 rounds nearly all of that away.
    wide = phi._block(phi._units(torch.from_numpy(F)))
    order = torch.from_numpy(rng.permutation(211))
    assert torch.equal(phi._block(phi._units(torch.from_numpy(F)[order])), wide[order])
    assert all(torch.equal(phi._block(phi._units(torch.from_numpy(F[i : i + 1])))[0], wide[i]) for i in range(211))


def whole(values: torch.Tensor, bits: int) -> npt.NDArray[np.int64]:
    """Steps of 2^-bits, none of them a part."""
    steps = values.numpy() * 2.0**bits
    assert np.array_equal(steps, np.round(steps))
    return steps.astype(np.int64)


def test_products_are_those_of_whole_numbers() -> None:
    """Not merely near: that is why the company of a row, and the order of a sum, cannot matter."""
    phi, F, _ = lift("relu", 50)
    U, (Omega, _) = phi._units(torch.from_numpy(F)), phi.projection
    assert np.array_equal(whole(U @ Omega, 36), whole(U, 20) @ whole(Omega, 16))
    A, B = torch.rand(9, 1000).double(), 300 * torch.randn(1000, 7).double()
    found, plain = _repeatable_product(A, B), A @ B
    assert float((found - plain).abs().max() / plain.abs().max()) < 2.0**-36
    high, low = 21, 42  # bits, of 1000 terms
    scale = 2.0 ** np.ceil(np.log2(float(B.abs().max())))
    parts = []
    for values in (A, B / scale):
        first = torch.round(values * 2.0**high)
        parts.append((first.long().numpy(), torch.round(values * 2.0**low - first * 2.0**high).long().numpy()))
    (A1, A2), (B1, B2) = parts
    mixed = (A1 @ B2) * 2.0 ** -(high + low) + (A2 @ B1) * 2.0 ** -(high + low)
    assert np.array_equal(found.numpy(), scale * ((A1 @ B1) * 2.0 ** -(2 * high) + mixed))


def test_a_projection_keeps_lengths_in_its_directions_and_is_no_wider() -> None:
    phi, F, units = lift("project", 2)
    Q = phi.projection[0].numpy() / np.sqrt(F.shape[1])
    assert np.abs(Q.T @ Q - np.eye(2)).max() < 1e-3
    assert np.abs(phi(F).numpy() - np.sqrt(F.shape[1]) * units @ Q).max() < 1e-4
    every, _, _ = lift("project", F.shape[1])
    assert (
        np.abs(np.linalg.norm(every(F).numpy(), axis=1) - np.sqrt(F.shape[1]) * np.linalg.norm(units, axis=1)).max()
        < 1e-3
    )
    with pytest.raises(InputError, match="no wider"):
        lift("project", F.shape[1] + 1)


@pytest.mark.parametrize("kind", LANDMARKS)
def test_landmarks_are_normal_with_the_covariance_of_the_rows(kind: LiftKind) -> None:
    phi, _, units = lift(kind, 20_000)
    expected = units.T @ units / len(units)
    Z = _landmarks_of(phi).numpy()
    assert np.abs(Z.T @ Z / len(Z) - expected).max() < 0.05 * expected.max()
    for column in Z.T:
        assert kstest(column / column.std(), "norm").pvalue > 0.001


def _landmarks_of(phi: Lift) -> torch.Tensor:
    """Without their kernel, which is of (w, w)."""
    small = Lift(phi.kind, phi.width, phi.seed, phi.standardization, phi.bandwidth, phi.covariance)
    found: list[torch.Tensor] = []

    def kernel(Z: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        found.append(Z)
        return torch.eye(1, dtype=torch.float64)

    object.__setattr__(small, "_kernel", kernel)
    _ = small.landmarks
    return found[0]


@pytest.mark.parametrize("width", [2, 3, 5, 40])
def test_landmarks_along_axes_follow_the_columns_to_any_place(width: int) -> None:
    """Of two columns no sum of products tells which is which: there the landmarks are mirrored, the same set."""
    F = problem(width=width)[0]
    order = np.roll(np.arange(width), 1)
    a, b = (Lift.of("nystroem-axes", 31, 0, Statistics.from_data(X, np.zeros(60), 1)) for X in (F, F[:, order]))
    Z, moved = a.landmarks[0][:, order], b.landmarks[0]
    distances = torch.cdist(Z, moved)
    assert float(distances.amin(dim=1).max()) < 1e-5
    if width > 2:
        assert float(distances.diagonal().max()) < 1e-5
        assert float((a(F) - b(F[:, order])).abs().max()) < 1e-4
    by_place = [
        Lift.of("nystroem", 31, 0, Statistics.from_data(X, np.zeros(60), 1)).landmarks[0] for X in (F, F[:, order])
    ]
    assert float(torch.cdist(by_place[0][:, order], by_place[1]).amin(dim=1).max()) > 1e-2


def test_an_axis_without_length_mirrors_nothing() -> None:
    """Two columns that are one, but for what is left of rounding, have an axis of neither direction and no length."""
    covariance = torch.tensor([[1.0, 1.0 - 1e-13], [1.0 - 1e-13, 1.0]], dtype=torch.float64)
    standardization = Standardization(torch.zeros(2).double(), torch.ones(2).double(), intercept=False)
    Z, _ = Lift("nystroem-axes", 8, 0, standardization, covariance=covariance).landmarks
    assert float(torch.pdist(Z).min()) > 1e-3


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
    with pytest.raises(InputError, match=r"give at least 0\.00"):
        width_for(1e-6, 100)
    with pytest.raises(InputError, match="give a number above 0"):
        width_for(0.0, 100)


def test_the_first_sum_is_small_unless_it_is_nystroems() -> None:
    survey = 8 * (1 + 52 * 1280)
    assert exchange_bytes("relu", 1280) == exchange_bytes("fourier", 1280) == survey
    assert exchange_bytes("nystroem", 1280) == 8 * (1 + 1280 + 1280 * 1281 // 2)


def test_a_lift_too_wide_for_memory_says_the_width_that_fits() -> None:
    require_memory(4096, 2**30)
    with pytest.raises(InputError, match=r"width 100000 takes 596\.0 GiB of memory and 1\.0 are free; width 4096 fits"):
        require_memory(100_000, 2**30)
    require_memory(4096, 2**30)
    with pytest.raises(InputError, match="width 3344 fits"):
        require_memory(4096, 2**30, at_once=2)
    with pytest.raises(InputError, match="fits") as refusal:
        require_memory(4096, 2**30, rows=60_000)
    fits = int(re.search(r"width (\d+) fits", str(refusal.value))[1])  # type: ignore[index]
    require_memory(fits, 2**30, rows=60_000)
    with pytest.raises(InputError, match=f"width {fits} fits"):
        require_memory(fits + 1, 2**30, rows=60_000)
    with pytest.raises(InputError, match="no width fits"):
        require_memory(1, 10)


def test_bad_input() -> None:
    F, _, standardization = problem()
    with pytest.raises(InputError, match="there are relu, fourier, nystroem"):
        Lift("wavelet", 3, 0, standardization)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1"):
        Lift("relu", 0, 0, standardization)
    with pytest.raises(InputError, match="seed is -1"):
        Lift("relu", 3, -1, standardization)
    with pytest.raises(InputError, match="bandwidth"):
        Lift("fourier", 3, 0, standardization, bandwidth=0.0)
    with pytest.raises(InputError, match="covariance"):
        Lift("nystroem", 3, 0, standardization)
    with pytest.raises(InputError, match="5 wide"):
        Lift("relu", 3, 0, standardization)(F[:, :2])


@pytest.mark.parametrize("bandwidth", [0.7, 2.0])
def test_features_are_the_formulas_of_what_was_drawn(bandwidth: float) -> None:
    phi, F, units = lift("fourier", 30, bandwidth=bandwidth)
    Omega, b = (values.numpy() for values in phi.projection)
    expected = np.sqrt(2 / 30) * np.cos(units @ Omega / bandwidth + b)
    np.testing.assert_allclose(phi(F).numpy(), expected, atol=1e-3)  # units and features go in steps
    phi, F, units = lift("nystroem", 20, bandwidth=bandwidth)
    Z, whitening = (values.numpy() for values in phi.landmarks)
    expected = rbf_kernel(units, Z, gamma=1 / (2 * bandwidth**2))
    np.testing.assert_allclose(phi._kernel(torch.from_numpy(units), torch.from_numpy(Z)), expected, atol=1e-9)
    assert whitening.shape[0] == 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_lift_may_keep_the_features_as_its_last_columns(kind: LiftKind) -> None:
    """Standardised and divided by √m, beside the lift as it is without them."""
    F, total, _ = problem()
    kept = Lift.of(kind, 35, 7, total, keeps=True)
    assert (kept.drawn, kept.kept, kept.width) == (30, 5, 35)
    rows, (alone, _, units) = kept(F), lift(kind, 30, seed=7)
    assert torch.equal(rows[:, :30], alone(F))
    assert np.abs(rows[:, 30:].numpy() - units).max() < 2e-6
    travelled = Lift.restore(json.loads(json.dumps(kept.description)), kept.tensors)
    assert torch.equal(travelled(F), rows)
    assert "keeps" not in alone.description, "files of before have no word for it"
    with pytest.raises(InputError, match="width is 5; give a whole number of at least 6"):
        Lift.of(kind, 5, 7, total, keeps=True)
