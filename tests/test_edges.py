"""Data at the edge: types, single rows and classes, numbers out of all proportion, and numbers that must hold."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedhip.core import PersonalizationPath, Statistics, personalize, personalize_from_statistics
from fedhip.core.choice.selection import nested, soft_hits
from fedhip.core.exact.columns import Columns, Survey
from fedhip.errors import ColumnError, ColumnWarning, InputError
from fedhip.heads.round import RIDGES, simulate
from fedhip.simulation.client import Client
from tests.core.problems import Array, relative_error


def clients_of(F: Array, y: Array, number: int = 3, names: str = "abcdefghij") -> list[Client]:
    """Rows dealt out, one in five for the tests."""
    clients = []
    for k in range(number):
        own, rest = np.arange(len(y))[k::number], np.arange(len(y))[k::number][::5]
        train = np.setdiff1d(own, rest)
        clients.append(Client(names[k], (F[train], y[train]), (F[rest], y[rest])))
    return clients


def problem(rows: int = 300, width: int = 6, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    return 3.0 * rng.normal(size=(3, width))[y] + rng.normal(size=(rows, width)), y


@pytest.mark.parametrize("rows", [20, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (10, 50, 200))])
def test_on_noise_the_accuracy_to_be_expected_is_that_of_chance(rows: int) -> None:
    """Labels that are pure noise, four classes: the best of 29 on the same rows said .36, .36, .33 and .29."""
    estimates, best = [], []
    clients = max(200 // rows, 6)
    for seed in range(12):
        rng = np.random.default_rng([rows, seed])
        federation = []
        for k in range(clients):
            F, y = rng.normal(size=(rows, 12)), rng.integers(0, 4, rows)
            federation.append(Client(f"{k:02}", (F, y), (F[:0], y[:0])))
        for result in simulate(federation, 4, methods=("fedhip",)).clients:
            assert result.personal is not None
            assert result.personal.curve is not None
            assert result.personal.estimate is not None
            estimates.append(result.personal.estimate)
            best.append(max(result.personal.curve))
    error = np.std(estimates) / len(estimates) ** 0.5
    assert abs(np.mean(estimates) - 0.25) <= 2.0 * error
    assert np.mean(best) > 0.25 + 2.0 * error  # what was shown before


def test_rows_have_no_say_in_what_they_are_judged_by() -> None:
    """Two models: one right on the rows of a fold alone, the other on all others."""
    fold = torch.arange(20) % 5 == 2
    margins = torch.stack((torch.where(fold, 1.0, -1.0), torch.where(fold, -1.0, 1.0)), dim=1).double()
    assert int((nested([margins] * 5, [soft_hits(margins)] * 5) > 0.0).sum()) == 16


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.float16, np.float32, np.bool_])
@pytest.mark.parametrize("balance", [False, True])
def test_types_of_features_do_not_matter(dtype: type, balance: bool) -> None:
    F, y = problem()
    F = (F > 0) if dtype is np.bool_ else np.clip(np.rint(4 * F) + 100, 0, 127)
    found, expected = (
        simulate(clients_of(rows, y), 3, balance=balance, alpha=5.0, beta=1.0)
        for rows in (F.astype(dtype), F.astype(np.float64))
    )
    assert found.federation.digest == expected.federation.digest
    assert [r.accuracy for r in found.clients] == [r.accuracy for r in expected.clients]


def test_weights_of_whole_numbers_are_not_rounded() -> None:
    """Integer rows with balanced classes are the weighted ridge, as scikit-learn has it."""
    rng = np.random.default_rng(1)
    y = rng.choice(3, 400, p=[0.8, 0.15, 0.05])
    F = np.rint(2.0 * rng.normal(size=(3, 5))[y] + rng.normal(size=(400, 5))).astype(np.int64)
    clients = clients_of(F, y)
    outcome = simulate(clients, 3, alpha=0.0, beta=2.0, balance=True, methods=("global",))
    X, labels = (np.concatenate([client.train[i] for client in clients]) for i in (0, 1))
    w = (len(labels) / (3 * np.bincount(labels)))[labels]
    mean = np.average(X, axis=0, weights=w)
    scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
    ridge = Ridge(2.0, solver="svd").fit((X - mean) / scale, np.eye(3)[labels], sample_weight=w)
    np.testing.assert_allclose(outcome.federation.common.scores(X), ridge.predict((X - mean) / scale), atol=1e-3)


def test_balanced_classes_and_a_prior_contradict_each_other() -> None:
    with pytest.raises(InputError, match="give one of the two"):
        simulate(clients_of(*problem()), 3, balance=True, prior=True)


@pytest.mark.parametrize("width", [4, 40])
def test_what_is_chosen_for_a_fold_is_chosen_by_models_without_it(width: int) -> None:
    """Against refits without the fold and the row."""
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(60, width)), rng.integers(0, 3, 60)
    own = np.arange(60) < 17
    path = PersonalizationPath(Statistics.from_data(F, y, 3), F[own], y[own], 2.0)
    alphas = [0.0, 3.0, 100.0]
    margins = path.loo_margins(alphas)
    for fold in range(5):
        inside = np.zeros(60, dtype=bool)
        inside[np.arange(17)[np.arange(17) % 5 == fold]] = True
        found = path.fold_margins(alphas, margins, fold).numpy()
        for place, alpha in enumerate(alphas):
            for i in np.flatnonzero(own):
                rest = ~inside & (np.arange(60) != i) if not inside[i] else np.arange(60) != i
                ridge = Ridge(2.0, fit_intercept=False, solver="svd")
                ridge.fit(F[rest], np.eye(3)[y[rest]], sample_weight=np.where(own, 1 + alpha, 1.0)[rest])
                scores = ridge.predict(F[i : i + 1])[0]
                assert found[i, place] == pytest.approx(scores[y[i]] - np.delete(scores, y[i]).max(), abs=1e-8)


def test_both_ways_to_a_model_agree_where_a_client_hardly_spreads() -> None:
    """In two directions a millionth of everybody's spread, and far more rows than features."""
    rng = np.random.default_rng(0)
    everybody, own = rng.normal(size=(400, 8)), rng.normal(size=(120, 8))
    own[:, :2] *= 1e-6
    labels, mine = rng.integers(0, 3, 400), rng.integers(0, 3, 120)
    own_statistics = Statistics.from_data(own, mine, 3)
    total = Statistics.from_data(everybody, labels, 3) + own_statistics
    path = PersonalizationPath(total, own, mine, 1.0)
    for alpha in (0.1, 20.0, 1000.0):
        by_rows, by_sums = path.weights(alpha), personalize_from_statistics(total, own_statistics, alpha, 1.0)
        assert relative_error(by_rows, by_sums) <= 1e-12
        assert relative_error(personalize(total, own, mine, alpha, 1.0), by_sums) <= 1e-12


def test_what_nobody_can_use_is_one_line_with_a_remedy() -> None:
    F, y = problem()
    cases: list[tuple[Array, type[Exception], str]] = []
    missing = F.copy()
    missing[:, 2] = np.nan
    cases.append((missing, InputError, "client 'a': .*column 2 is nan, as in .* rows; .*drop or repair the column"))
    huge = F.copy()
    huge[7, 4] = -1e300
    cases.append((huge, ColumnError, "client 'b': .*column 4 is -1e\\+300; .*rescale the column .*repair the value"))
    stray = F.copy()
    stray[7, 3] = 1e12
    cases.append((stray, ColumnError, "client 'b', training row 1: column 3 holds a value of about 1e\\+12"))
    cases.append((F.astype(object), InputError, "dtype object; give real numbers"))
    for rows, kind, words in cases:
        with pytest.raises(kind, match=words) as refusal:
            simulate(clients_of(rows, y), 3)
        assert "\n" not in str(refusal.value)


def test_a_label_among_the_features_is_pointed_out() -> None:
    F, y = problem()
    with pytest.warns(ColumnWarning, match="column 6 alone tells every label"):
        simulate(clients_of(np.column_stack((F, 7.0 - 2.0 * y)), y), 3, alpha=5.0, beta=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noisy = np.column_stack((F, y + 0.1 * np.random.default_rng(0).normal(size=len(y))))
        simulate(clients_of(noisy, y), 3, alpha=5.0, beta=1.0)


def test_single_rows_single_classes_and_rows_that_are_all_alike() -> None:
    F, y = problem()
    clients = clients_of(F, y)
    odd = [
        Client("one row", (F[:1], y[:1]), (F[1:9], y[1:9])),
        Client("one class", (F[y == 1][:9], y[y == 1][:9]), (F[:9], y[:9])),
        Client("alike", (np.repeat(F[:1], 6, 0), np.repeat(y[:1], 6)), (F[:9], y[:9])),
        Client("constant", (np.ones((6, 6)), y[:6]), (F[:9], y[:9])),
    ]
    for prior in (False, True):
        outcome = simulate([*clients, *odd], 3, prior=prior)
        for result in outcome.clients:
            assert result.personal is not None
            assert bool(result.personal.model.weights.isfinite().all())
            assert result.personal.estimate is None or 0.0 <= result.personal.estimate <= 1.0
            assert all(value is not None for value in result.accuracy.values())
    for client in odd:  # and each of them alone
        alone = simulate([client], 3).clients[0]
        assert set(alone.accuracy) == set(RIDGES)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_step_of_every_column_is_small_beside_its_deviation(factor: float) -> None:
    rng = np.random.default_rng(0)
    F = rng.normal(size=(500, 4)) * [1.0, 1e-3, 1e3, 20.0] + [0.0, 5.0, 1e6, 0.0]
    F[3, 3] = 1e5
    F *= factor
    columns = Columns.of(Survey.of(F[:200]) + Survey.of(F[200:]))
    step = 2.0**-16 * np.exp2(columns.exponent.numpy())
    spread = np.delete(F, 3, axis=0).std(axis=0)
    assert (step <= 2.0**-10 * spread).all()
    x = columns.features(torch.from_numpy(F)).numpy()
    assert (np.square(x / 2.0**-16).sum(axis=0) < 2.0**62).all()
    whole = Columns.of(Survey.of(F))
    assert torch.equal(whole.offset, columns.offset)
    assert torch.equal(whole.exponent, columns.exponent)
