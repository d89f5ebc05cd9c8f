"""Methods in closed form against scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import StandardScaler

from fedhip.core import DEFAULT_ALPHAS
from fedhip.heads.round import simulate
from fedhip.methods import run_method
from fedhip.methods.one_round.pfedfda import BETAS, GaussianClassifier, Gaussians, choose_beta
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.options import PAPER, STANDARD, RidgeOptions
from fedhip.simulation.orders import client_order
from tests.methods.problems import CLASSES, PROTOCOL, federation

SIZES = (40, 50, 70)
ridges = pytest.mark.parametrize("ridge", [STANDARD, PAPER], ids=["standard", "paper"])


def pooled(clients: list[Client]) -> LabelledRows:
    return np.concatenate([c.train[0] for c in clients]), np.concatenate([c.train[1] for c in clients])


def accuracies(clients: list[Client], predicted: list[np.ndarray]) -> list[float]:
    return [float((found == client.test[1]).mean()) for client, found in zip(clients, predicted, strict=True)]


def test_fedncm_is_the_nearest_normalised_centroid_of_all_rows() -> None:
    clients = federation(SIZES, test=200)
    nearest = NearestCentroid().fit(*pooled(clients))
    nearest.centroids_ /= np.linalg.norm(nearest.centroids_, axis=1, keepdims=True)
    expected = accuracies(clients, [nearest.predict(c.test[0]) for c in clients])
    assert run_method("fedncm", clients, CLASSES).accuracy == expected


def test_fedncm_never_chooses_a_class_nobody_has() -> None:
    clients = federation(SIZES)
    flipped = [Client(c.name, (-abs(c.train[0]), c.train[1]), (abs(c.test[0]), c.test[1])) for c in clients]
    with_one_more = run_method("fedncm", flipped, CLASSES + 1)
    assert with_one_more.accuracy == run_method("fedncm", flipped, CLASSES).accuracy


class Oracle:
    """scikit-learn's ridge on standardised features with an intercept, or the paper's."""

    def __init__(self, ridge: RidgeOptions, penalty: float) -> None:
        self.scaler = StandardScaler(with_mean=ridge.standardize, with_std=ridge.standardize)
        self.ridge = Ridge(alpha=penalty, fit_intercept=ridge.intercept, solver="svd")

    def fit(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Oracle:
        self.ridge.fit(self.scaler.fit_transform(x), np.eye(CLASSES)[y], sample_weight=weights)
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.ridge.predict(self.scaler.transform(x)).argmax(1))


@ridges
def test_global_is_the_ridge_of_all_rows(ridge: RidgeOptions) -> None:
    clients = federation(SIZES, test=200)
    oracle = Oracle(ridge, 3.0).fit(*pooled(clients))
    expected = accuracies(clients, [oracle.predict(c.test[0]) for c in clients])
    assert run_method("global", clients, CLASSES, options={"beta": 3}, ridge=ridge).accuracy == expected


@ridges
def test_fedhip_is_the_ridge_in_which_own_rows_weigh_more(ridge: RidgeOptions) -> None:
    clients = federation(SIZES, test=200)
    x, y = pooled(clients)
    predicted = []
    for k, client in enumerate(clients):
        weights = 1 + 4.0 * (np.repeat(range(3), SIZES) == k)
        predicted.append(Oracle(ridge, 3.0).fit(x, y, weights).predict(client.test[0]))
    run = run_method("fedhip", clients, CLASSES, options={"alpha": 4, "beta": 3}, ridge=ridge)
    assert run.accuracy == accuracies(clients, predicted)
    assert run.alphas == [4.0] * 3


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
def test_gcv_is_the_least_of_generalized_cross_validation(standardize: bool, intercept: bool) -> None:
    """β from the sum alone: however rows are divided."""
    clients = federation(SIZES, seed=2)
    x, y = pooled(clients)
    x = (x - x.mean(axis=0)) / x.std(axis=0) if standardize else x - intercept * x.mean(axis=0)
    F, Y = np.column_stack((x, np.ones(len(x)))) if intercept else x, np.eye(CLASSES)[y]
    free = np.diag([1.0] * x.shape[1] + [0.0] * intercept)

    def gcv(beta: float) -> float:
        hat = F @ np.linalg.solve(F.T @ F + beta * free, F.T)
        return float(len(F) * np.square(Y - hat @ Y).sum() / (len(F) - np.trace(hat)) ** 2)

    betas = [np.square(x).sum(axis=0).mean() * 10.0 ** (i / 2) for i in range(-12, 3)]
    found = simulate(clients, CLASSES, beta="gcv", standardize=standardize, intercept=intercept).beta
    assert found == pytest.approx(min(betas, key=gcv), rel=1e-4)
    assert min(betas) < found < max(betas) * (1 - 1e-3)
    rows, labels = pooled(clients)
    dealt = [
        Client(str(k), (rows[k::4], labels[k::4]), (rows[:0], labels[:0]))  # by turns, among four
        for k in range(4)
    ]
    assert simulate(dealt, CLASSES, beta="gcv", standardize=standardize, intercept=intercept).beta == found


def test_the_papers_fedhip_has_its_beta_from_the_sum() -> None:
    clients = federation(SIZES, test=200)
    beta = simulate(clients, CLASSES, beta="gcv", standardize=False, intercept=False).beta
    free, given = (run_method("fedhip", clients, CLASSES, ridge=PAPER, options=o) for o in (None, {"beta": beta}))
    assert (free.accuracy, free.alphas) == (given.accuracy, given.alphas)


def test_fedhip_chooses_alpha_unless_it_is_given() -> None:
    run = run_method("fedhip", federation(SIZES), CLASSES)
    assert run.options == {}
    assert run.alphas is not None
    assert all(alpha in DEFAULT_ALPHAS for alpha in run.alphas)
    assert len(set(run.alphas)) > 1


@ridges
def test_local_is_the_ridge_of_the_clients_rows_alone_that_refits_without_each_row_choose(ridge: RidgeOptions) -> None:
    clients = federation(SIZES, test=200)
    found = run_method("local", clients, CLASSES, ridge=ridge).accuracy
    for k, client in enumerate(clients):
        assert run_method("local", [client], CLASSES, ridge=ridge).accuracy == [found[k]]
        x, y = client.train
        z = (x - x.mean(axis=0)) / x.std(axis=0) if ridge.standardize else x
        soft = {}
        for penalty in (np.square(z).sum(axis=0).mean() * 10.0 ** (i / 2) for i in range(-12, 3)):
            margins = []
            for i, label in enumerate(y):
                left = Ridge(penalty, fit_intercept=ridge.intercept, solver="svd")
                left.fit(np.delete(z, i, 0), np.eye(CLASSES)[np.delete(y, i)])
                scores = left.predict(z[i : i + 1])[0]
                margins.append(scores[label] - np.delete(scores, label).max())
            soft[penalty] = expit(np.array(margins) / 0.08).sum()
        best = Oracle(ridge, max(soft, key=lambda penalty: soft[penalty])).fit(x, y)
        assert [found[k]] == accuracies([client], [best.predict(client.test[0])])


def discriminant(x: np.ndarray, y: np.ndarray, shrinkage: float) -> LinearDiscriminantAnalysis:
    """Scikit-learn's, with the class frequencies that the package uses."""
    counts = np.bincount(y, minlength=CLASSES)
    priors = (counts + 1 / CLASSES) / (counts.sum() + 1)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    model.fit(x, y)
    model.intercept_ += np.log(priors) - np.log(model.priors_)
    return model


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
def test_pfedfda_of_one_client_is_linear_discriminant_analysis(shrinkage: float) -> None:
    x, y = federation((160,), seed=4)[0].train
    y = np.arange(len(y)) % CLASSES  # all classes
    own = Gaussians.of(torch.from_numpy(x), torch.from_numpy(y), CLASSES)
    model = discriminant(x, y, shrinkage)
    for beta in (0.0, 0.3, 1.0):  # the client's Gaussians are everybody's
        scores = GaussianClassifier.of(own, own, beta, shrinkage).scores(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(scores, model.decision_function(x), rtol=1e-9, atol=1e-9)


def test_pfedfda_pools_means_by_class_and_covariances_by_rows() -> None:
    clients = federation(SIZES)
    parts = [Gaussians.of(torch.from_numpy(c.train[0]), torch.from_numpy(c.train[1]), CLASSES) for c in clients]
    everybody = Gaussians.of_all(parts)
    x, y = pooled(clients)
    np.testing.assert_allclose(everybody.means.numpy(), NearestCentroid().fit(x, y).centroids_, rtol=1e-12)
    inside = sum(
        np.cov(c.train[0][c.train[1] == label].T, bias=True) * (c.train[1] == label).sum()
        for c in clients
        for label in np.unique(c.train[1])
    )
    np.testing.assert_allclose(everybody.covariance.numpy(), inside / sum(SIZES), rtol=1e-12)


def test_pfedfda_between_the_clients_gaussians_and_everybodys() -> None:
    """By hand, for a class that the client has and one that it lacks."""
    clients = federation(SIZES)
    parts = [Gaussians.of(torch.from_numpy(c.train[0]), torch.from_numpy(c.train[1]), CLASSES) for c in clients]
    own, everybody = parts[0], Gaussians.of_all(parts)
    assert int(own.counts[0]) == 0 < int(own.counts[1])
    model = GaussianClassifier.of(own, everybody, beta=0.25, shrinkage=0.1)
    covariance = (0.25 * own.covariance + 0.75 * everybody.covariance).numpy()
    covariance = 0.9 * covariance + 0.1 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    for label, mean in ((0, everybody.means[0]), (1, 0.25 * own.means[1] + 0.75 * everybody.means[1])):
        w = np.linalg.inv(covariance) @ mean.numpy()
        prior = (int(own.counts[label]) + 0.25) / (SIZES[0] + 1)
        np.testing.assert_allclose(model.W[:, label].numpy(), w, rtol=1e-9)
        assert float(model.b[label]) == pytest.approx(np.log(prior) - mean.numpy() @ w / 2)


def test_pfedfda_chooses_beta_by_two_folds() -> None:
    """The oracle fits everybody anew without the half that is held out."""
    clients = federation((60, 200, 200), seed=2)
    for shift, client in enumerate(clients):
        client.train[0][:] += shift
    parts = [Gaussians.of(torch.from_numpy(c.train[0]), torch.from_numpy(c.train[1]), CLASSES) for c in clients]
    everybody = Gaussians.of_all(parts)
    chosen = []
    for k, client in enumerate(clients):
        x, y = map(torch.from_numpy, client.train)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        losses = []
        for beta in BETAS:
            found = np.zeros((len(y), CLASSES))
            for a, b in ((order[::2], order[1::2]), (order[1::2], order[::2])):
                fitted = Gaussians.of(x[a], y[a], CLASSES)
                rest = Gaussians.of_all([fitted if i == k else part for i, part in enumerate(parts)])
                found[b] = GaussianClassifier.of(fitted, rest, beta, 0.01).scores(x[b]).softmax(1)
            losses.append(log_loss(y, found, labels=range(CLASSES)))
        chosen.append(choose_beta(x, y, everybody, 0.01, order))
        assert chosen[-1] == BETAS[int(np.argmin(losses))]
    assert len({0.0, *chosen}) > 2, chosen
    assert choose_beta(x[:1], y[:1], everybody, 0.01, order[:1]) == 0


def test_pfedfda_as_a_run() -> None:
    clients = federation(SIZES, test=200)
    protocol = replace(PROTOCOL, seed=3)
    parts = [Gaussians.of(torch.from_numpy(c.train[0]), torch.from_numpy(c.train[1]), CLASSES) for c in clients]
    everybody, predicted = Gaussians.of_all(parts), []
    for k, client in enumerate(clients):
        x, y = map(torch.from_numpy, client.train)
        beta = choose_beta(x, y, everybody, 0.2, torch.from_numpy(client_order(len(y), 3, client.name, 0, 0)))
        model = GaussianClassifier.of(parts[k], everybody, beta, 0.2)
        predicted.append(model.scores(torch.from_numpy(client.test[0])).argmax(1).numpy())
    run = run_method("pfedfda", clients, CLASSES, protocol, options={"shrinkage": 0.2})
    assert run.accuracy == accuracies(clients, predicted)
    fixed = [run_method("pfedfda", clients, CLASSES, options={"beta": beta}).accuracy for beta in (0, 1)]
    assert fixed[0] != fixed[1]


def test_pfedfda_with_fewer_rows_than_features_and_rows_all_alike() -> None:
    x = np.ones((3, 7))
    same = Client("same", (x, np.zeros(3, np.int64)), (x, np.zeros(3, np.int64)))
    assert run_method("pfedfda", [same], 2).accuracy == [1.0]
    assert run_method("pfedfda", [same], 2, options={"shrinkage": 0.0}).accuracy == [1.0]


def test_the_global_ridge_among_own_classes_is_the_global_ridge_with_that_option() -> None:
    clients = federation()
    option = run_method("global", clients, CLASSES, replace(PROTOCOL, only_local_classes=True))
    method = run_method("global-oll", clients, CLASSES, PROTOCOL)
    assert (method.name, method.accuracy) == ("global-oll", option.accuracy)
    assert method.accuracy != run_method("global", clients, CLASSES, PROTOCOL).accuracy
