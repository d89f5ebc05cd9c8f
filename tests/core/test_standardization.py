"""Standardised features with an intercept, from statistics alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from fedhip import Statistics, aggregate, personalize, solve_global
from fedhip.core import RegularizationPath, Standardization
from fedhip.core.affine import AffineModel
from fedhip.core.balance import weighted_statistics
from fedhip.core.exact.fixedpoint import GridStatistics, decode
from fedhip.errors import InputError
from tests.core.problems import Federation, federations, relative_error


@given(federations(), st.booleans())
def test_statistics_of_standardized_features_follow_from_the_statistics(
    federation: Federation, intercept: bool
) -> None:
    parts = [Statistics.from_data(F, y, federation.num_classes) for F, y in federation.clients]
    total = aggregate(parts)
    standardization = Standardization.of(total, intercept=intercept)
    for statistics, (F, y) in zip(parts, federation.clients, strict=True):
        standardized = standardization.features(torch.from_numpy(F))
        direct = Statistics.from_data(standardized, y, federation.num_classes)
        # Rows far from the mean of a nearly constant feature are large numbers, and cancel.
        scale = max(1.0, float((torch.from_numpy(F) / standardization.scale).abs().max())) ** 2 * len(F)
        assert float((standardization.statistics(statistics).gram - direct.gram).abs().max()) <= 1e-12 * scale
        assert float((standardization.statistics(statistics).cross - direct.cross).abs().max()) <= 1e-12 * scale


def test_mean_and_deviation_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(60, 4)) * [1, 10, 0.1, 0] + [5, 0, 1, 7], rng.integers(0, 3, 60)
    total = Statistics.from_data(F[:20], y[:20], 3) + Statistics.from_data(F[20:], y[20:], 3)
    standardization, scaler = Standardization.of(total), StandardScaler().fit(F)
    assert relative_error(standardization.mean, scaler.mean_) <= 1e-13
    assert relative_error(standardization.scale[:3], scaler.scale_[:3]) <= 1e-10
    assert standardization.used.tolist() == [True, True, True, False]
    assert relative_error(standardization.features(torch.from_numpy(F))[:, :4], scaler.transform(F)) <= 1e-10


def test_a_nearly_constant_feature_is_left_out() -> None:
    """Its variance is rounding: dividing by it would make noise of it."""
    F = np.repeat(np.random.default_rng(0).normal(size=(1, 40)), 50, axis=0)
    total = Statistics.from_data(F, np.zeros(50), 1)
    assert bool((total.gram.diagonal() / 50 > (total.cross.sum(dim=1) / 50).square()).any())  # by rounding
    standardization = Standardization.of(total)
    assert not standardization.used.any()
    assert not standardization.features(F)[:, :40].any()


def test_copies_in_other_units_are_left_out_and_near_copies_are_not() -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 500))
    F = np.column_stack((x, z, 1e6 * x - 3.0, x + 1e-4 * z, -1e-7 * z + 2.0, x))
    total = Statistics.from_data(F, np.zeros(500), 1)
    assert Standardization.of(total).used.tolist() == [True, True, False, True, False, False]
    on_grid = decode(GridStatistics.from_data(F[:, [0, 5]] * [1.0, 0.7] + [0.0, 0.1], np.zeros(500), 1))
    assert Standardization.of(on_grid).used.tolist() == [True, True]  # rounded apart
    assert Standardization.of(on_grid, step=2.0**-14).used.tolist() == [True, False]


def test_what_deviates_by_less_than_a_step_is_the_same_in_every_row() -> None:
    """Weights by class, 1 and 4 here, and rounding make a constant another number in each class."""
    step, labels = 2.0**-16, np.arange(40) % 2
    root = np.array([1.0, 2.0])[labels]
    F = np.random.default_rng(0).normal(size=(40, 2)) * [1.0, 100 * step]
    rounded = np.rint(np.column_stack((F, np.full(40, 0.4112))) * root[:, None] / step) * step
    statistics = Statistics.from_data(rounded, labels, 2)
    weighted = weighted_statistics(statistics, torch.tensor([1.0, 2.0], dtype=torch.float64))
    mass = torch.tensor([20.0, 80.0], dtype=torch.float64)
    assert Standardization.of(weighted, mass=mass).used.tolist() == [True, True, True]
    assert Standardization.of(weighted, mass=mass, step=step).used.tolist() == [True, True, False]


def test_two_maps_one_after_the_other_are_one() -> None:
    rng = np.random.default_rng(0)
    F = rng.normal(3.0, 5.0, (30, 4))
    first = Standardization(
        torch.tensor([1.0, 0.0, -3.0, 2.0]).double(), torch.tensor([2.0, 1.0, 0.5, 4.0]).double(), False
    )
    second = Standardization.of(Statistics.from_data(first.features(F), np.zeros(30), 1))
    np.testing.assert_allclose(first.then(second).features(F), second.features(first.features(F)), atol=1e-12)


def test_other_widths_are_refused() -> None:
    standardization = Standardization.of(Statistics.from_data(np.ones((3, 2)), np.zeros(3), 1))
    with pytest.raises(InputError, match="3 wide, the standardization 2"):
        standardization.features(np.ones((1, 3)))
    with pytest.raises(InputError, match="3 wide, the standardization 2"):
        standardization.statistics(Statistics.from_data(np.ones((3, 3)), np.zeros(3), 1))


def test_least_squares_with_an_intercept_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    F, y = rng.normal(size=(60, 4)) + 3.0, rng.integers(0, 3, 60)
    standardization = Standardization.of(Statistics.from_data(F, y, 3))
    G = solve_global(standardization.statistics(Statistics.from_data(F, y, 3)), 0.0)
    expected = Ridge(alpha=0.0, solver="svd").fit(F, np.eye(3)[y]).predict(F)
    assert np.asarray(standardization.features(torch.from_numpy(F)) @ G) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("beta", [0.1, 30.0])
def test_a_ridge_with_an_intercept_that_is_not_penalised_is_scikit_learns(beta: float) -> None:
    rng = np.random.default_rng(1)
    F, y = rng.normal(size=(60, 4)) * [1.0, 20.0, 0.1, 1.0] + [300.0, 0.0, 1.0, 2.0], rng.integers(0, 3, 60)
    standardization = Standardization.of(Statistics.from_data(F, y, 3))
    total = standardization.statistics(Statistics.from_data(F, y, 3))
    scaled = StandardScaler().fit_transform(F)
    weights = np.where(np.arange(60) < 20, 1.0, 6.0)
    for sample_weight, P in (
        (None, solve_global(total, beta)),
        (None, RegularizationPath(total, [beta]).weights(beta)),
        (weights, personalize(total, standardization.features(F[20:]), y[20:], 5.0, beta)),
    ):
        expected = Ridge(alpha=beta, solver="svd").fit(scaled, np.eye(3)[y], sample_weight).predict(scaled)
        assert np.asarray(standardization.features(F) @ P) == pytest.approx(expected, abs=1e-10)


def test_a_model_goes_to_raw_features_and_back() -> None:
    rng = np.random.default_rng(0)
    F, y = rng.normal(3.0, 5.0, (30, 4)), rng.integers(0, 3, 30)
    standardization = Standardization.of(Statistics.from_data(F, y, 3))
    weights = torch.from_numpy(rng.normal(size=(5, 3)))
    raw = AffineModel.of_standardized(weights, standardization)
    np.testing.assert_allclose(raw.scores(F).numpy(), (standardization.features(F) @ weights).numpy(), atol=1e-12)
    np.testing.assert_allclose(raw.on_standardized(standardization).numpy(), weights.numpy(), atol=1e-12)


@pytest.mark.parametrize("unit", [1e-8, 1e-3, 1e6])
def test_features_in_any_units_have_a_deviation_of_one_and_constant_ones_stay(unit: float) -> None:
    F = unit * (np.random.default_rng(0).normal(size=(50, 3)) + 2.0)
    F[:, 1] = 7.0 * unit
    standardized = Standardization.of(Statistics.from_data(F, np.arange(50) % 2, 2), intercept=False).features(F)
    found = np.asarray(standardized)
    np.testing.assert_allclose(found[:, [0, 2]].std(axis=0), 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-6)
    assert np.abs(found[:, 1]).max() <= 1e-6
