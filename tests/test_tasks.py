"""Real targets, weights and several labels in one process: against scikit-learn's Ridge and refits."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from sklearn.model_selection import LeaveOneGroupOut, LeaveOneOut

from fedhip.core import RidgePath
from fedhip.core.targets import TargetRows
from fedhip.heads.round import simulate
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.options import PAPER, RidgeOptions
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.tasks import regression_metrics

WIDTH = 4


def make(rows: int, seed: int, targets: int = 1, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in odd units, and targets in other ones."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(rows, WIDTH)) * [1.0, 1e-4, 1e5, 3.0] + [0.0, 1.0, -1e6, 7.0]
    signal = (F - [0.0, 1.0, -1e6, 7.0]) / [1.0, 1e-4, 1e5, 3.0] @ rng.normal(size=(WIDTH, targets))
    return F, (signal + shift + 0.3 * rng.normal(size=(rows, targets))) * np.logspace(0, 5, targets) - 40.0


def federation_of(
    sizes: tuple[int, ...] = (25, 40, 12), *, targets: int = 1, weighted: str = "", grouped: bool = False
) -> list[Client]:
    clients = []
    for k, rows in enumerate(sizes):
        F, Y = make(rows + 10, k, targets, shift=0.5 * k)
        rng = np.random.default_rng(100 + k)
        weights = {
            "": None,
            "whole": rng.integers(1, 6, size=rows).astype(float),
            "real": rng.uniform(0.1, 3.0, size=rows),
        }[weighted]
        groups = np.arange(rows) // 3 if grouped else None
        train, test = (F[:rows], Y[:rows]), (F[rows:], Y[rows:])
        clients.append(Client(f"c{k}", train, test, groups, weights=weights))
    return clients


def standardised(clients: list[Client]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    F = np.concatenate([client.train[0] for client in clients])
    Y = np.concatenate([client.train[1] for client in clients])
    w = np.concatenate([np.ones(len(c.train[1])) if c.weights is None else c.weights for c in clients])
    mean = np.average(F, axis=0, weights=w)
    scale = np.sqrt(np.average((F - mean) ** 2, axis=0, weights=w))
    return (F - mean) / scale, Y, w, np.stack((mean, scale))


@pytest.mark.parametrize("weighted", ["", "whole", "real"])
@pytest.mark.parametrize("targets", [1, 3])
def test_global_and_personalized_models_are_sklearns_ridge_with_weights(weighted: str, targets: int) -> None:
    clients = federation_of(targets=targets, weighted=weighted)
    federation = federate(clients, targets, 2.0)
    Z, Y, w, (mean, scale) = standardised(clients)
    x = clients[0].test[0]
    tolerance = 2e-3 * Y.std(axis=0)  # steps of the grid: 2^-16 of a deviation
    expected = Ridge(alpha=2.0).fit(Z, Y, sample_weight=w).predict((x - mean) / scale)
    found = federation.common.scores(x).numpy()
    assert (np.abs(found - expected.reshape(found.shape)) < tolerance).all()
    alpha = 7.0
    own = w.copy()
    own[: len(clients[0].train[1])] *= 1.0 + alpha
    expected = Ridge(alpha=2.0).fit(Z, Y, sample_weight=own).predict((x - mean) / scale)
    personal = Personalization.of(federation, clients[0], alpha)
    found = personal.model.scores(x).numpy()
    assert (np.abs(found - expected.reshape(found.shape)) < tolerance).all()
    path = federation.path(clients[0])
    by_path = federation.on_raw(path.weights(alpha)).scores(x).numpy()
    np.testing.assert_allclose(by_path, found, rtol=1e-7)


@pytest.mark.parametrize("weighted", ["", "real"])
@pytest.mark.parametrize("grouped", [False, True])
def test_rows_left_out_are_refitted_by_sklearn(weighted: str, grouped: bool) -> None:
    clients = federation_of(weighted=weighted, grouped=grouped, targets=2)
    federation = federate(clients, 2, 2.0)
    Z, Y, w, _ = standardised(clients)
    alpha, rows = 3.0, len(clients[0].train[1])
    own = w.copy()
    own[:rows] *= 1.0 + alpha
    found = federation.target_values(federation.path(clients[0]).loo_scores(alpha)).numpy()
    splitter = LeaveOneGroupOut() if grouped else LeaveOneOut()
    for _, test in splitter.split(Z[:rows], groups=clients[0].groups):
        kept = np.setdiff1d(np.arange(len(Z)), test)
        model = Ridge(alpha=2.0).fit(Z[kept], Y[kept], sample_weight=own[kept])
        assert (np.abs(found[test] - model.predict(Z[test])) < 2e-3 * Y.std(axis=0)).all()


@pytest.mark.parametrize("real", [True, False])
def test_whole_weights_are_repeated_rows_to_the_bit(real: bool) -> None:
    clients = federation_of(weighted="whole", targets=2)
    if not real:
        clients = [
            Client(c.name, (c.train[0], (c.train[1][:, 0] > -40.0).astype(int)), c.test, weights=c.weights)
            for c in clients
        ]
    again = []
    for c in clients:
        w = np.asarray(c.weights).astype(int)
        again.append(Client(c.name, (np.repeat(c.train[0], w, axis=0), np.repeat(c.train[1], w, axis=0)), c.test))
    one, other = (federate(every, 2, 2.0) for every in (clients, again))
    assert one.encoding.targets is not None
    assert one.encoding.targets.unit == 1.0
    assert torch.equal(one.grid.gram, other.grid.gram)
    cross = other.grid.cross
    assert torch.equal(one.grid.cross[:, :2], cross[:, :2])
    x = clients[1].test[0]
    np.testing.assert_allclose(one.common.scores(x), other.common.scores(x), rtol=1e-12)
    own, same = (
        federation.model(federation.encoding.statistics(every[1], 2), 5.0)
        for federation, every in ((one, clients), (other, again))
    )
    np.testing.assert_allclose(own.scores(x), same.scores(x), rtol=1e-12)


def test_weights_of_classes_are_those_of_sklearn() -> None:
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(60, WIDTH)), rng.integers(3, size=60)
    F[:, 0] += y
    w = rng.uniform(0.2, 4.0, size=60)
    clients = [
        Client(str(k), (F[at], y[at]), (F[:0], y[:0]), weights=w[at]) for k, at in enumerate(np.split(np.arange(60), 3))
    ]
    federation = federate(clients, 3, 1.5)
    mean = np.average(F, axis=0, weights=w)
    Z = (F - mean) / np.sqrt(np.average((F - mean) ** 2, axis=0, weights=w))
    expected = Ridge(alpha=1.5).fit(Z, np.eye(3)[y], sample_weight=w).predict(Z)
    np.testing.assert_allclose(federation.common.scores(F), expected, atol=2e-3)
    found = Personalization.of(federation, clients[0])
    assert found.estimate is not None
    assert 0.0 <= found.estimate <= 1.0
    assert len(found.misses[0]) == 20


@pytest.mark.parametrize("options", [RidgeOptions(), RidgeOptions(standardize=False), PAPER])
def test_units_of_targets_decide_nothing_but_units(options: RidgeOptions) -> None:
    clients = federation_of(targets=1)
    scaled = [Client(c.name, (c.train[0], c.train[1] * 1e6), (c.test[0], c.test[1] * 1e6)) for c in clients]
    one, other = (simulate(every, 1, **vars(options)) for every in (clients, scaled))
    assert one.beta == other.beta
    for a, b in zip(one.clients, other.clients, strict=True):
        assert a.alpha == b.alpha
        assert a.metrics["fedhip"]["rmse"] * 1e6 == pytest.approx(b.metrics["fedhip"]["rmse"], rel=1e-3)
        assert a.metrics["fedhip"]["r2"] == pytest.approx(b.metrics["fedhip"]["r2"], rel=1e-3, abs=1e-4)


def test_the_choice_of_alpha_is_the_least_squared_error_of_refits() -> None:
    clients = federation_of((14, 30))
    federation = federate(clients, 1, 2.0)
    Z, Y, w, _ = standardised(clients)
    alphas, rows = (0.0, 1.0, 10.0, 100.0), 14
    errors = []
    for alpha in alphas:
        own = w.copy()
        own[:rows] *= 1.0 + alpha
        left = 0.0
        for i in range(rows):
            kept = np.setdiff1d(np.arange(len(Z)), [i])
            model = Ridge(alpha=2.0).fit(Z[kept], Y[kept], sample_weight=own[kept])
            left += float(((model.predict(Z[i : i + 1]).reshape(-1) - Y[i]) ** 2).item())
        errors.append(left)
    found = Personalization.of(federation, clients[0], alphas=alphas)
    assert found.alpha == alphas[int(np.argmin(errors))]
    assert found.curve is not None
    assert found.curve[1] * Y.var() * rows == pytest.approx(errors[1], rel=1e-2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [3, 30])
def test_a_client_alone_is_sklearns_ridge(weighted: bool, rows: int) -> None:
    F, Y = make(rows, 5, 2)
    F = (F - F.mean(axis=0)) / F.std(axis=0)
    rng = np.random.default_rng(1)
    w = rng.uniform(0.5, 2.0, rows) if weighted else np.ones(rows)
    root = torch.from_numpy(np.sqrt(w)) if weighted else None
    path = RidgePath.of(TargetRows(torch.from_numpy(F), torch.from_numpy(Y), None, root), intercept=True)
    expected = Ridge(alpha=1.3).fit(F, Y, sample_weight=w).predict(F)
    np.testing.assert_allclose(path.model(1.3).scores(F), expected, rtol=1e-8)
    left = path.loo_scores(1.3).numpy()
    for i in range(rows):
        kept = np.arange(rows) != i
        model = Ridge(alpha=1.3).fit(F[kept], Y[kept], sample_weight=w[kept])
        np.testing.assert_allclose(left[i], model.predict(F[i : i + 1])[0], rtol=1e-6)


def test_a_constant_target_is_predicted_and_says_nothing() -> None:
    clients = [Client(c.name, (c.train[0], np.full((len(c.train[1]), 1), 3.0)), c.test) for c in federation_of()]
    outcome = simulate(clients, 1)
    np.testing.assert_allclose(outcome.federation.common.scores(clients[0].test[0]), 3.0, rtol=1e-6)


def test_metrics_are_those_of_sklearn() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.normal(size=(20, 3)), rng.normal(size=(20, 3))
    found = regression_metrics(predicted, truth)
    assert found["r2"] == pytest.approx(r2_score(truth, predicted))
    assert found["rmse"] == pytest.approx(root_mean_squared_error(truth, predicted))
    assert found["mae"] == pytest.approx(mean_absolute_error(truth, predicted))
    assert regression_metrics(predicted[:1], truth[:1])["r2"] is None


def test_personalization_beats_the_global_model_where_clients_differ() -> None:
    clients = federation_of((40, 40, 40, 40))
    outcome = simulate(clients, 1)
    rmse = {m: np.mean([c.metrics[m]["rmse"] for c in outcome.clients]) for m in ("local", "global", "fedhip")}
    assert rmse["fedhip"] < rmse["global"]
