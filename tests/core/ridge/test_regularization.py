"""The grid of β: against refits, scikit-learn and the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV

from fedhip import PersonalizationPath, Statistics, aggregate
from fedhip.core import LooScore, RegularizationPath, default_betas
from fedhip.errors import FedHiPWarning, InputError
from tests.core.problems import (
    Federation,
    federations,
    realistic,
    refits,
    relative_error,
    ridge_oracle,
)


def total_of(federation: Federation) -> Statistics:
    return aggregate(Statistics.from_data(F, y, federation.num_classes) for F, y in federation.clients)


def test_scores_of_clients_sum() -> None:
    federation = realistic((10, 20, 5), m=6, d=3, seed=3)
    path = RegularizationPath(total_of(federation), [0.1, 30.0])
    scores = [path.score(*client) for client in federation.clients]
    total = sum(scores)
    assert isinstance(total, LooScore)
    assert total.rows == 35
    assert total.right.tolist() == np.sum([score.right.numpy() for score in scores], axis=0).tolist()
    with pytest.raises(TypeError):
        sum(scores, 1)


@given(federations(), st.sampled_from([1.0, 20.0]))
def test_every_beta_from_one_eigendecomposition(federation: Federation, penalty: float) -> None:
    beta = federation.beta(penalty)
    expected = ridge_oracle(federation.features, federation.one_hot(federation.labels), beta)
    assert relative_error(RegularizationPath(total_of(federation)).weights(beta), expected) <= 1e-9


def test_beta_scores_of_all_clients_are_the_leave_one_out_of_the_pooled_rows() -> None:
    federation = realistic((10, 20, 40), m=6, d=3, seed=3)
    F, Y = federation.features, federation.one_hot(federation.labels)
    betas = [0.1, 1.0, 30.0, 1000.0]
    path = RegularizationPath(total_of(federation), betas)
    first, second, third = (path.score(*client) for client in federation.clients)
    score = first + second + third

    oracle = RidgeCV(alphas=betas, fit_intercept=False, store_cv_results=True).fit(F, Y)
    errors = oracle.cv_results_.reshape(len(F), Y.shape[1], len(betas)).sum(axis=1).mean(axis=0)
    assert score.error.tolist() == pytest.approx(errors.tolist(), rel=1e-9)
    assert score.rows == 70

    accuracy = [
        float(
            (np.concatenate([refits(federation, k, 0.0, beta) for k in range(3)]).argmax(1) == federation.labels).mean()
        )
        for beta in betas
    ]
    assert score.accuracy.tolist() == pytest.approx(accuracy)
    best = max(b for b, a in zip(betas, accuracy, strict=True) if a == max(accuracy))
    assert path.select(score) == path.select(iter([first, second, third])) == best
    with pytest.raises(InputError, match="different grids"):
        score + RegularizationPath(total_of(federation), [1.0]).score(*federation.clients[0])
    with pytest.raises(InputError, match="no client scored"):
        path.select([])


def test_beta_scores_at_each_clients_own_alpha() -> None:
    federation = realistic((12, 30, 30), m=15, d=4, seed=4)
    total, alphas = total_of(federation), (0.0, 5.0, 100.0)
    path = RegularizationPath(total, [1.0, 50.0])
    score = path.score(*federation.clients[0], alphas=alphas[::-1])
    for index, beta in enumerate(path.betas):
        own = PersonalizationPath(total, *federation.clients[0], beta)
        chosen = own.select(alphas)
        assert float(score.accuracy[index]) == pytest.approx(float(own.loo_accuracy([chosen])[0]))
        assert float(score.error[index]) == pytest.approx(float(own.loo_error([chosen])[0]))


def test_gcv_from_statistics_alone_equals_gcv_from_the_rows() -> None:
    federation = realistic((10, 20, 40), m=6, d=3, seed=5)
    F, Y = federation.features, federation.one_hot(federation.labels)
    path = RegularizationPath(total_of(federation), [0.0, 1.0, 30.0])
    for beta, found in zip(path.betas, path.gcv().tolist(), strict=True):
        hat = F @ np.linalg.solve(F.T @ F + beta * np.eye(6), F.T)
        expected = len(F) * np.square(Y - hat @ Y).sum() / (len(F) - np.trace(hat)) ** 2
        assert found == pytest.approx(expected, rel=1e-9)


def test_with_fewer_rows_than_features_gcv_does_not_collapse() -> None:
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(5, 300))
    y = rng.integers(0, 5, 400)
    X = directions[y] + 3.0 * rng.normal(size=(400, 300))
    path = RegularizationPath(Statistics.from_data(X[:120], y[:120], 5))
    with pytest.warns(FedHiPWarning, match="120 rows with 300 features"):
        beta = path.minimize_gcv()
    right = {
        at: float(
            (torch.from_numpy(X[120:]) @ path.weights(at)).argmax(1).eq(torch.from_numpy(y[120:])).double().mean()
        )
        for at in path.betas
    }
    assert beta > path.betas[3]
    assert right[beta] >= max(right.values()) - 0.03
    assert path.betas[int(path.gcv().argmin())] < beta  # which it would have taken


def test_gcv_of_rows_weighted_by_class_that_are_fitted_nearly_perfectly() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), (4, 10, 16))
    root = np.array([1.7, 0.9, 0.6])
    X, T = root[y, None] * (np.eye(3)[y] + 0.02 * rng.normal(size=(30, 3))), root[y, None] * np.eye(3)[y]
    total = Statistics(torch.from_numpy(X.T @ X), torch.from_numpy(X.T @ T), torch.bincount(torch.from_numpy(y)))
    path = RegularizationPath(total, [1e-3, 1.0], targets=torch.from_numpy(root))
    for beta, found in zip(path.betas, path.gcv().tolist(), strict=True):
        hat = X @ np.linalg.solve(X.T @ X + beta * np.eye(3), X.T)
        left = np.square(T - hat @ T).sum()
        assert found == pytest.approx(30 * left / (30 - np.trace(hat)) ** 2, rel=1e-9)
        assert (left < 0.1) == (beta < 0.1)


def test_the_beta_of_smallest_gcv_is_that_of_the_rows() -> None:
    """By the formula on the rows; and of several equally good, the largest."""
    for seed in range(4):
        federation = realistic((15, 25, 40), m=9, d=3, seed=seed)
        F, Y = federation.features, federation.one_hot(federation.labels)
        path = RegularizationPath(total_of(federation))
        expected = []
        for beta in path.betas:
            U, s, _ = np.linalg.svd(F, full_matrices=False)
            shrunk = s**2 / (s**2 + beta)
            residual = Y - U @ (shrunk[:, None] * (U.T @ Y))
            expected.append(len(F) * np.square(residual).sum() / (len(F) - shrunk.sum()) ** 2)
        assert path.minimize_gcv() == path.betas[int(np.argmin(expected))]
        assert 0 < int(np.argmin(expected)) < len(expected) - 1
    assert RegularizationPath(total_of(federation), [2.0, 2.0 * (1 + 1e-16), 2.0]).minimize_gcv() == 2.0
    few = Statistics.from_data(np.eye(3), [0, 1, 2], 3)
    assert RegularizationPath(few, [0.0, 1e-30]).minimize_gcv() == 1e-30  # both interpolate


def test_a_beta_path_over_a_singular_sum_includes_zero() -> None:
    """Minimum norm at β = 0; and what interpolates has no generalized cross-validation."""
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 6)), rng.integers(0, 3, 20)
    path = RegularizationPath(Statistics.from_data(F, y, 3), [0.0, 1.0])
    expected = np.linalg.lstsq(F, np.eye(3)[y], rcond=1e-10)[0]
    assert relative_error(path.weights(0.0), expected) <= 1e-9
    hat = F @ np.linalg.pinv(F, rcond=1e-10)
    loo = (np.eye(3)[y] - hat @ np.eye(3)[y]) / (1 - np.diag(hat))[:, None]
    assert float(path.score(F, y).error[0]) == pytest.approx(np.square(loo).sum(1).mean(), rel=1e-9)
    assert float(path.gcv()[0]) == pytest.approx(20 * np.square(np.eye(3)[y] - hat @ np.eye(3)[y]).sum() / 17**2)

    for seed in range(5):
        wide = np.random.default_rng(seed).normal(size=(20, 50))
        scores = RegularizationPath(Statistics.from_data(wide, y, 3), [0.0, 1.0, 10.0]).gcv()
        assert torch.isinf(scores).tolist() == [True, False, False]


def test_a_sum_of_zeros_has_a_path_too() -> None:
    F, y = np.zeros((4, 3)), np.array([0, 1, 0, 1])
    path = RegularizationPath(Statistics.from_data(F, y, 2))
    assert not path.weights(1.0).any()
    assert path.score(F, y).accuracy.tolist() == [0.5] * 15
    own = PersonalizationPath(Statistics.from_data(F, y, 2), F, y)
    assert not own.weights(20.0).any()


def test_default_betas_follow_the_scale_of_the_features() -> None:
    F, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    small, large = (default_betas(Statistics.from_data(scale * F, y, 2)) for scale in (1.0, 100.0))
    assert np.allclose(np.multiply(small, 1e4), large)
    assert len(small) == 15
    mean_square = float(np.square(F).sum(0).mean())
    assert (small[0], small[-1]) == pytest.approx((1e-6 * mean_square, 10 * mean_square))
