"""The α path and the β path: leave-one-out against refits, selection against brute force."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV

from fedhip import PersonalizationPath, Statistics, aggregate, personalize, solve_global
from fedhip.core import DEFAULT_ALPHAS, LooScore, RegularizationPath, default_betas
from fedhip.errors import FedHiPWarning, InputError, NumericalWarning
from tests.core.problems import Array, Federation, federations, mpmath_oracle, relative_error, ridge_oracle

seeds = st.integers(0, 2**32 - 1)
ALPHAS = [0.0, 0.3, 20.0, 1000.0]


def total_of(federation: Federation) -> Statistics:
    return aggregate(Statistics.from_data(F, y, federation.num_classes) for F, y in federation.clients)


def refits(federation: Federation, k: int, alpha: float, beta: float) -> Array:
    """Scores of each of client k's rows by scikit-learn's ridge fitted without that row."""
    F, Y = federation.features, federation.one_hot(federation.labels)
    own = federation.rows_of(k)
    scores = []
    for i in range(own.start, own.stop):
        weights = np.ones(len(F))
        weights[own] += alpha
        others = np.arange(len(F)) != i
        scores.append(F[i] @ ridge_oracle(F[others], Y[others], beta, weights[others]) if others.any() else 0 * Y[i])
    return np.array(scores)


@given(federations(max_clients=3, max_width=6), st.sampled_from([1.0, 20.0]), st.sampled_from(ALPHAS), seeds)
def test_leave_one_out_equals_explicit_refits(federation: Federation, penalty: float, alpha: float, seed: int) -> None:
    k, beta = seed % len(federation.clients), federation.beta(penalty)
    path = PersonalizationPath(total_of(federation), *federation.clients[k], beta)
    expected = refits(federation, k, alpha, beta)
    assert np.abs(path.loo_scores(alpha).numpy() - expected).max() <= 1e-9
    Y = federation.one_hot(federation.clients[k][1])
    assert path.loo_error([alpha])[0] == pytest.approx(np.square(expected - Y).sum(1).mean(), abs=1e-9)


@pytest.mark.parametrize("rows", [(4, 3), (4, 30), (20, 5)], ids=["few in all", "few of many", "more than features"])
@pytest.mark.parametrize("alpha", [0.0, 20.0, 1000.0, 1e6])
@pytest.mark.parametrize("beta", [1.0, 1e-3, 1e-6])
def test_leave_one_out_in_fifty_digits_for_small_beta_and_large_alpha(
    rows: tuple[int, ...], alpha: float, beta: float
) -> None:
    """Where 1 − h_i is small: each row left out nearly takes a direction with it."""
    rng = np.random.default_rng(sum(rows))
    federation = Federation([(rng.normal(size=(n, 8)), rng.integers(0, 3, n)) for n in rows], 3)
    F, Y = federation.features, federation.one_hot(federation.labels)
    scores = PersonalizationPath(total_of(federation), *federation.clients[0], beta).loo_scores(alpha).numpy()
    for i in range(rows[0]):
        weights = np.ones(len(F))
        weights[: rows[0]] += alpha
        others = np.arange(len(F)) != i
        expected = F[i] @ mpmath_oracle(F[others], Y[others], beta, weights[others])
        # What is lost is lost in A + βI itself, whose rounding is relative to its largest entries.
        assert np.abs(scores[i] - expected).max() <= 1e-14 / beta + 1e-12


def test_unscaled_features_do_not_spoil_leave_one_out() -> None:
    """Features in the thousands, β = 1: the models are those of least squares, and α must not matter to the scores."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, 30))
    clients = []
    for n in (12, 25):
        labels = rng.integers(0, 4, n)
        clients.append((1e5 * (means[labels] + 0.5 * rng.normal(size=(n, 30))), labels))
    federation = Federation(clients, 4)
    path = PersonalizationPath(total_of(federation), *clients[0], beta=1.0)
    for alpha in (0.0, 20.0, 1000.0):
        expected = refits(federation, 0, alpha, 1.0)
        assert np.abs(path.loo_scores(alpha).numpy() - expected).max() <= 1e-4


def realistic(rows: tuple[int, ...], m: int, d: int, seed: int) -> Federation:
    """Clients whose classes can be told apart, some of the time."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(d, m))
    clients = []
    for n in rows:
        labels = rng.integers(0, d, n)
        clients.append((means[labels] + 2.0 * rng.normal(size=(n, m)), labels))
    return Federation(clients, d)


@pytest.mark.parametrize("rows", [(10, 60, 80), (70, 30, 30)], ids=["fewer rows than features", "more"])
def test_leave_one_out_accuracy_and_selection_by_brute_force(rows: tuple[int, ...]) -> None:
    federation = realistic(rows, m=15, d=4, seed=1)
    F, y = federation.clients[0]
    path = PersonalizationPath(total_of(federation), F, y, beta=2.0)
    scores = [refits(federation, 0, alpha, 2.0) for alpha in ALPHAS]
    accuracy = [float((found.argmax(1) == y).mean()) for found in scores]
    assert len(set(accuracy)) > 1
    assert path.loo_accuracy(ALPHAS).tolist() == pytest.approx(accuracy)
    margins = [found[np.arange(len(y)), y] - np.where(np.eye(4)[y] == 1, -np.inf, found).max(1) for found in scores]
    np.testing.assert_allclose(path.loo_margins(ALPHAS).T, margins, atol=1e-9)
    soft = [(1 / (1 + np.exp(-margin / 0.08))).sum() for margin in margins]
    assert path.select(ALPHAS) == ALPHAS[int(np.argmax(soft))]
    assert path.select(ALPHAS[::-1]) == path.select(ALPHAS)


def test_ties_go_to_the_smaller_alpha() -> None:
    F, y = np.concatenate([np.eye(3), 2 * np.eye(3)]), np.tile(np.arange(3), 2)
    total = aggregate([Statistics.from_data(F, y, 3), Statistics.from_data(np.repeat(F, 9, 0), np.repeat(y, 9), 3)])
    path = PersonalizationPath(total, F, y)
    assert path.loo_accuracy([0.0, 5.0, 20.0]).tolist() == [1.0, 1.0, 1.0]
    assert path.select([20.0, 5.0]) == 5.0
    assert path.select() == 0.0
    score = RegularizationPath(total, [1.0]).score(F, y, alphas=[20.0, 5.0])
    assert float(score.error[0]) == pytest.approx(float(path.loo_error([5.0])[0]))
    assert float(score.error[0]) != pytest.approx(float(path.loo_error([20.0])[0]))


def test_default_alphas_cover_the_range_and_hold_the_papers_values() -> None:
    assert list(DEFAULT_ALPHAS) == sorted(set(DEFAULT_ALPHAS))
    assert (DEFAULT_ALPHAS[0], DEFAULT_ALPHAS[-1]) == (0.0, 1000.0)
    assert set(range(0, 65, 5)) <= set(DEFAULT_ALPHAS)
    ratios = np.divide(DEFAULT_ALPHAS[2:], DEFAULT_ALPHAS[1:-1])
    assert ratios.max() < 10**0.25 + 1e-9


@given(federations(), st.sampled_from([1.0, 20.0]), seeds)
def test_weights_and_leave_one_out_agree_at_alpha_zero(federation: Federation, penalty: float, seed: int) -> None:
    """α = 0 takes a short cut; the limit of small α does not."""
    total, beta = total_of(federation), federation.beta(penalty)
    path = PersonalizationPath(total, *federation.clients[seed % len(federation.clients)], beta)
    assert torch.equal(path.weights(0.0), solve_global(total, beta))
    assert (path.loo_scores(0.0) - path.loo_scores(1e-13)).abs().max() <= 1e-9


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_every_alpha_of_the_path_is_its_own_ridge(alpha: float) -> None:
    federation = realistic((10, 30), m=6, d=3, seed=7)
    weights = np.r_[np.full(10, 1.0 + alpha), np.ones(30)]
    expected = ridge_oracle(federation.features, federation.one_hot(federation.labels), 2.0, weights)
    path = PersonalizationPath(total_of(federation), *federation.clients[0], beta=2.0)
    assert relative_error(path.weights(alpha), expected) <= 1e-10


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


def test_a_row_that_nobody_else_can_predict_counts_as_wrong() -> None:
    """β = 0, and one row alone carries feature 2."""
    F = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    y = np.array([0, 0, 1, 1, 0])
    for alpha in (0.0, 20.0, 1000.0):
        path = PersonalizationPath(Statistics.from_data(F, y, 2), F, y, beta=0.0)
        with pytest.warns(NumericalWarning, match="1 of 5 rows alone determine .*a larger beta helps"):
            path.loo_scores(alpha)
        assert path.loo_scores(alpha)[4].tolist() == [0.0, 0.0]
        assert path.loo_accuracy([alpha]).tolist() == [0.8]
        # Feature 1 is predicted 0.5 for 1 and 2 for 1; feature 2 not at all.
        assert path.loo_error([alpha]).tolist() == pytest.approx([(0.25 + 1.0 + 1.0) / 5])


def test_path_with_a_singular_sum_takes_the_minimum_norm_solution() -> None:
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(12, 3)) @ rng.normal(size=(3, 6)), rng.integers(0, 3, 12)
    total = Statistics.from_data(F, y, 3)
    with pytest.warns(NumericalWarning, match="minimum norm"):
        path = PersonalizationPath(total, F[:5], y[:5], beta=0.0)
    root = np.ones((12, 1))
    root[:5] = np.sqrt(21.0)
    expected = np.linalg.lstsq(root * F, root * np.eye(3)[y], rcond=1e-10)[0]
    assert relative_error(path.weights(20.0), expected) <= 1e-9


def test_the_factorisation_is_shared_by_the_clients_of_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = realistic((8, 9, 30), m=15, d=3, seed=2)
    total = total_of(federation)
    cholesky = Mock(wraps=torch.linalg.cholesky_ex)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", cholesky)
    for client in federation.clients:
        PersonalizationPath(total, *client, beta=1.0).select()
        personalize(total, *client, 0.0, 1.0)
    assert cholesky.call_count == 1
    solve_global(total, 2.0)
    assert cholesky.call_count == 2


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


@pytest.mark.parametrize("rows", [(12, 40, 30), (45, 20, 20)], ids=["fewer rows than features", "more"])
def test_only_local_classes_by_brute_force(rows: tuple[int, ...]) -> None:
    """Each model refitted without the row names the best of the classes that the client's other rows have."""
    federation = realistic(rows, m=15, d=6, seed=3)
    F, y = federation.clients[0]
    y = y % 4  # two classes are elsewhere only
    y[0], y[1:][y[1:] == 3] = 3, 2  # and one has a single row here
    federation = Federation([(F, y), *federation.clients[1:]], 6)
    path = PersonalizationPath(total_of(federation), F, y, beta=2.0)
    expected, everywhere = [], []
    for alpha in ALPHAS:
        scores = refits(federation, 0, alpha, 2.0)
        everywhere.append(float((scores.argmax(1) == y).mean()))
        right = 0
        for i in range(len(y)):
            allowed = np.unique(np.delete(y, i))
            right += int(allowed[scores[i, allowed].argmax()] == y[i])
        expected.append(right / len(y))
    assert path.loo_accuracy(ALPHAS, only_local_classes=True).tolist() == pytest.approx(expected)
    assert expected != everywhere == pytest.approx(path.loo_accuracy(ALPHAS).tolist())
    assert path.select(ALPHAS, only_local_classes=True) == ALPHAS[int(np.argmax(expected))]


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


def test_what_is_returned_may_be_written_into() -> None:
    federation = realistic((8, 9), m=5, d=3, seed=2)
    total = total_of(federation)
    solve_global(total).zero_()
    personalize(total, *federation.clients[0], 0.0).zero_()
    PersonalizationPath(total, *federation.clients[0]).weights(0.0).zero_()
    assert solve_global(total).any()


def test_default_betas_follow_the_scale_of_the_features() -> None:
    F, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    small, large = (default_betas(Statistics.from_data(scale * F, y, 2)) for scale in (1.0, 100.0))
    assert np.allclose(np.multiply(small, 1e4), large)
    assert len(small) == 15
    mean_square = float(np.square(F).sum(0).mean())
    assert (small[0], small[-1]) == pytest.approx((1e-6 * mean_square, 10 * mean_square))


@given(federations(max_clients=3, max_width=6), st.sampled_from([1.0, 20.0]), seeds)
def test_scores_without_a_fold_equal_refits_without_it(federation: Federation, penalty: float, seed: int) -> None:
    """scikit-learn's ridge without the rows of a fold of the client, and without the row itself."""
    k, fold, beta = seed % len(federation.clients), seed % 5, federation.beta(penalty)
    path = PersonalizationPath(total_of(federation), *federation.clients[k], beta)
    own = federation.rows_of(k)
    outside = [i for i in range(own.start, own.stop) if (i - own.start) % 5 != fold]
    F, Y = federation.features, federation.one_hot(federation.labels)
    found = path.fold_scores(ALPHAS, fold).numpy()
    assert found.shape == (len(ALPHAS), len(outside), federation.num_classes)
    for alpha, scores in zip(ALPHAS, found, strict=True):
        weights = np.ones(len(F))
        weights[own] += alpha
        for i, row in zip(outside, scores, strict=True):
            kept = np.array([j != i and not (own.start <= j < own.stop and j not in outside) for j in range(len(F))])
            expected = F[i] @ ridge_oracle(F[kept], Y[kept], beta, weights[kept]) if kept.any() else 0 * Y[i]
            assert np.abs(row - expected).max() <= 1e-9
