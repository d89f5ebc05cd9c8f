"""The α path and the β path: leave-one-out against refits, selection against brute force."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip import PersonalizationPath, Statistics, aggregate, personalize, solve_global
from fedhip.core import DEFAULT_ALPHAS, RegularizationPath
from fedhip.errors import NumericalWarning
from tests.core.problems import (
    Federation,
    federations,
    mpmath_oracle,
    realistic,
    refits,
    relative_error,
    ridge_oracle,
)

seeds = st.integers(0, 2**32 - 1)
ALPHAS = [0.0, 0.3, 20.0, 1000.0]


def total_of(federation: Federation) -> Statistics:
    return aggregate(Statistics.from_data(F, y, federation.num_classes) for F, y in federation.clients)


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
@pytest.mark.sampled(3)
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


def test_what_is_returned_may_be_written_into() -> None:
    federation = realistic((8, 9), m=5, d=3, seed=2)
    total = total_of(federation)
    solve_global(total).zero_()
    personalize(total, *federation.clients[0], 0.0).zero_()
    PersonalizationPath(total, *federation.clients[0]).weights(0.0).zero_()
    assert solve_global(total).any()


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
