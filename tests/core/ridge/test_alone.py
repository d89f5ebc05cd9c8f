"""One client alone: the ridge path against scikit-learn, and leave-one-out against refits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV

from fedhip.core import PersonalizationPath, RidgePath, Statistics
from fedhip.core.ridge.alone import penalty_grid
from fedhip.errors import FedHiPError, InputError
from tests.core.problems import Array, relative_error

BETAS = [1e-4, 0.03, 1.0, 20.0, 1e4]
SHAPES = {"long": (60, 6, 6), "wide": (9, 30, 30), "square": (12, 12, 12), "long, deficient": (40, 10, 4),
          "wide, deficient": (10, 25, 5), "one row": (1, 5, 5), "one feature": (20, 1, 1)}  # fmt: skip
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def problem(shape: tuple[int, int, int], seed: int = 0, scale: float = 1.0) -> tuple[Array, Array]:
    rows, width, rank = shape
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    mix = rng.normal(size=(rank, width)) / rank**0.5
    means = rng.normal(size=(3, rank))
    return scale * (means[labels] + 1.5 * rng.normal(size=(rows, rank))) @ mix, labels


def refit(F: Array, Y: Array, beta: float) -> Array:
    return np.asarray(Ridge(alpha=beta, fit_intercept=False, solver="svd").fit(F, Y).coef_).reshape(Y.shape[1], -1).T


@shapes
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_weights_are_those_of_scikit_learn(shape: tuple[int, int, int], scale: float) -> None:
    F, y = problem(shape, scale=scale)
    path = RidgePath(F, y, 3)
    for beta in BETAS:
        assert relative_error(path.weights(beta * scale**2), refit(F, np.eye(3)[y], beta * scale**2)) <= 1e-8


@shapes
def test_leave_one_out_accuracy_is_that_of_refits(shape: tuple[int, int, int]) -> None:
    F, y = problem(shape, seed=3)
    Y = np.eye(3)[y]
    expected = []
    for beta in BETAS:
        right = 0
        for i in range(len(F)):
            others = np.arange(len(F)) != i
            scores = F[i] @ refit(F[others], Y[others], beta) if others.any() else np.zeros(3)
            right += int(scores.argmax() == y[i])
        expected.append(right / len(F))
    found = RidgePath(F, y, 3).loo_accuracy(BETAS)
    assert found.tolist() == pytest.approx(expected)
    if len(F) > 10 and F.shape[1] > 1:
        assert len(set(expected)) > 1


@pytest.mark.parametrize("shape", [(60, 6, 6), (9, 30, 30), (40, 10, 4)], ids=["long", "wide", "deficient"])
def test_a_federation_of_one_at_alpha_zero_is_the_same_path(shape: tuple[int, int, int]) -> None:
    F, y = problem(shape, seed=1)
    total, path = Statistics.from_data(F, y, 3), RidgePath(F, y, 3)
    for beta in BETAS:
        other = PersonalizationPath(total, F, y, beta)
        assert relative_error(path.weights(beta), other.weights(0.0)) <= 2e-9
        assert float(path.loo_accuracy([beta])[0]) == float(other.loo_accuracy([0.0])[0])


@pytest.mark.parametrize("shape", [(50, 8, 8), (20, 40, 40)], ids=["long", "wide"])
def test_the_penalty_chosen_is_that_of_highest_smoothed_accuracy(shape: tuple[int, int, int]) -> None:
    F, y = problem(shape, seed=2)
    path = RidgePath(F, y, 3)
    grid = penalty_grid(float(np.square(F).sum(0).mean()))
    soft = []
    for beta in grid:
        scores = path.loo_scores(beta).numpy()
        margins = scores[np.arange(len(y)), y] - np.where(np.eye(3)[y] == 1, -np.inf, scores).max(1)
        soft.append((1 / (1 + np.exp(-margins / 0.08))).sum())
    assert path.select() == grid[int(np.argmax(soft))]
    assert path.select(list(reversed(grid))) == path.select(grid)


def test_scikit_learns_leave_one_out_agrees_on_the_errors() -> None:
    """RidgeCV keeps each left-out prediction: classify by them."""
    F, y = problem((50, 8, 8), seed=4)
    Y = np.eye(3)[y]
    cv = RidgeCV(alphas=BETAS, fit_intercept=False, scoring=None, store_cv_results=True, gcv_mode="eigen").fit(F, Y)
    # (N, d, betas) of squared errors; which class is best needs the predictions themselves: y ± sqrt(error).
    by_hand = [RidgePath(F, y, 3).loo_accuracy([beta]).item() for beta in BETAS]
    for k, beta in enumerate(BETAS):
        errors = []
        for i in range(len(F)):
            others = np.arange(len(F)) != i
            errors.append(np.square(F[i] @ refit(F[others], Y[others], beta) - Y[i]))
        np.testing.assert_allclose(cv.cv_results_[:, :, k], errors, rtol=1e-6, atol=1e-10)
    assert max(by_hand) <= 1.0


def test_the_grid_scales_with_the_features() -> None:
    assert len(penalty_grid(3.0)) == 15
    assert penalty_grid(3.0)[0] == pytest.approx(3e-6)
    assert penalty_grid(3.0)[-1] == pytest.approx(30.0)
    assert penalty_grid(0.0) == penalty_grid(1.0)


def test_features_that_are_all_zero_have_a_model_of_zeros() -> None:
    for rows in (3, 12):
        path = RidgePath(np.zeros((rows, 5)), np.arange(rows) % 3, 3)
        assert torch.equal(path.weights(path.select()), torch.zeros(5, 3).double())


def test_bad_penalties_and_rows_are_refused() -> None:
    F, y = problem((6, 3, 3))
    for beta in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match=r"give (numbers above 0|a number from 0)"):
            RidgePath(F, y, 3).loo_accuracy([beta])
    with pytest.raises(FedHiPError, match="'north'"):
        RidgePath(F, y + 9, 3, client="north")


@pytest.mark.parametrize("shape", [(60, 6, 6), (9, 30, 30), (40, 10, 4)], ids=["long", "wide", "deficient"])
@pytest.mark.parametrize("standardize", [False, True])
def test_with_an_intercept_leave_one_out_is_that_of_refits(shape: tuple[int, int, int], standardize: bool) -> None:
    """Mean and deviation of the features stay: they are units, and the intercept makes the mean immaterial."""
    F, y = problem(shape, seed=3)
    F = F * np.geomspace(0.01, 100.0, F.shape[1]) + 5.0
    path, Y = RidgePath(F, y, 3, standardize=standardize, intercept=True), np.eye(3)[y]
    seen = (F - F.mean(0)) / F.std(0) if standardize else F - F.mean(0)
    for beta in (0.1, 10.0):
        expected = Ridge(beta, solver="svd").fit(seen, Y).predict(seen)
        np.testing.assert_allclose(path.model(beta).scores(F), expected, atol=1e-8)
        refits = []
        for i in range(len(F)):
            others = np.arange(len(F)) != i
            refits.append(Ridge(beta, solver="svd").fit(seen[others], Y[others]).predict(seen[i : i + 1])[0])
        np.testing.assert_allclose(path.loo_scores(beta), refits, atol=1e-7)


def test_a_penalty_of_nothing_gives_the_solution_of_least_norm() -> None:
    for shape in ((9, 30, 30), (40, 10, 4)):
        F, y = problem(shape, seed=1)
        expected = np.linalg.lstsq(F, np.eye(3)[y], rcond=None)[0]
        assert relative_error(RidgePath(F, y, 3).weights(0.0), expected) <= 1e-8


@pytest.mark.parametrize("rows", [12, 200])
def test_units_copies_and_constants_do_not_matter_to_a_client_alone(rows: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, rows)
    F = rng.normal(size=(3, 20))[y] + rng.normal(size=(rows, 20))
    units = 10.0 ** rng.integers(-6, 7, 20)
    other = np.column_stack((F * units + 3.0 * units, np.full(rows, 7.0), -1e3 * F[:, 4] + 2.0, F[:, 2]))
    plain, changed = (RidgePath(X, y, 3, standardize=True, intercept=True) for X in (F, other))
    assert plain.select() == pytest.approx(changed.select(), rel=1e-9)
    np.testing.assert_allclose(changed.model(5.0).scores(other), plain.model(5.0).scores(F), atol=1e-8)
