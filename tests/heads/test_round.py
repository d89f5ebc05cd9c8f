"""A federation in one process: the numbers of the core, and no peeking at test rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.heads.round import RIDGES, simulate
from fedhip.simulation import testing
from fedhip.simulation.alone import local_model
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha
from fedhip.simulation.personalization import Personalization
from tests.core.problems import Array


def federation(seed: int = 0, rows: tuple[int, ...] = (30, 40, 12, 50)) -> list[Client]:
    """Clients with a few of six classes each."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(6, 10))
    clients = []
    for k, n in enumerate(rows):
        labels = rng.choice(rng.choice(6, 3, replace=False), n)
        features = means[labels] + 1.5 * rng.normal(size=(n, 10))
        cut = round(0.8 * n)
        clients.append(Client(f"site-{k}", (features[:cut], labels[:cut]), (features[cut:], labels[cut:])))
    return clients


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_models_are_those_of_pooled_and_weighted_ridge(standardize: bool, intercept: bool) -> None:
    clients = federation()
    outcome = simulate(clients, 6, alpha=20.0, beta=2.0, standardize=standardize, intercept=intercept)
    F = np.concatenate([client.train[0] for client in clients])
    mean = F.mean(0) if standardize or intercept else 0.0
    scale = F.std(0) if standardize else 1.0
    Y = np.eye(6)[np.concatenate([client.train[1] for client in clients])]
    start = 0
    for client, result in zip(clients, outcome.clients, strict=True):
        weights = np.ones(len(F))
        weights[start : start + len(client.train[1])] += 20.0
        start += len(client.train[1])
        assert result.personal is not None
        for model, sample_weight in ((outcome.federation.common, None), (result.personal.model, weights)):
            ridge = Ridge(2.0, fit_intercept=intercept, solver="svd").fit((F - mean) / scale, Y, sample_weight)
            expected = ridge.predict((client.test[0] - mean) / scale)
            # The grid rounds a feature to 2^-16 of its deviation.
            np.testing.assert_allclose(model.scores(client.test[0]), expected, atol=2e-4)
            method = "global" if sample_weight is None else "fedhip"
            assert result.accuracy[method] == float((expected.argmax(1) == client.test[1]).mean())
        assert (result.alpha, result.train, result.test) == (20.0, len(client.train[1]), len(client.test[1]))


def test_the_local_model_is_the_ridge_that_leave_one_out_prefers() -> None:
    client = federation()[1]
    F, y = client.train
    X, Y = (F - F.mean(0)) / F.std(0), np.eye(6)[y]
    # Refit by brute force: the smoothed accuracy of each penalty with each row left out.
    soft = {}
    for beta in (len(F) * 10.0 ** (i / 2) for i in range(-12, 3)):
        margins = []
        for i in range(len(F)):
            scores = Ridge(beta, solver="svd").fit(np.delete(X, i, 0), np.delete(Y, i, 0)).predict(X[i : i + 1])[0]
            margins.append(scores[y[i]] - np.delete(scores, y[i]).max())
        soft[beta] = (1 / (1 + np.exp(-np.array(margins) / 0.08))).sum()
    best = max(soft, key=lambda beta: soft[beta])
    expected = Ridge(best, solver="svd").fit(X, Y).predict(X)
    np.testing.assert_allclose(local_model(client, 6).scores(F), expected, atol=1e-8)


@pytest.mark.parametrize("prior", [False, True])
def test_no_model_sees_a_test_row(monkeypatch: pytest.MonkeyPatch, prior: bool) -> None:
    """With noise for test features and shuffled test labels, every model is the same to the last bit."""
    clients = federation()
    rng = np.random.default_rng(1)
    noise = [Client(c.name, c.train, (rng.normal(size=c.test[0].shape), rng.permutation(c.test[1]))) for c in clients]
    models: list[Array] = []

    def scored(
        model: AffineModel, features: Array, classes: Tensor | None = None, shift: Tensor | None = None
    ) -> Tensor:
        models.append(np.concatenate((model.weights.numpy(), model.bias.numpy()[None])))
        return torch.zeros((len(features), 6), dtype=torch.float64)

    monkeypatch.setattr(testing, "scored", scored)
    before = simulate(clients, 6, prior=prior)
    after = simulate(noise, 6, prior=prior)
    assert before.beta == after.beta
    assert [r.alpha for r in before.clients] == [r.alpha for r in after.clients]
    assert [r.priors for r in before.clients] == [r.priors for r in after.clients]
    assert all(set(r.priors) == ({"local", "global", "fedhip"} if prior else set()) for r in before.clients)
    half = len(models) // 2
    assert half == 3 * len(clients)
    assert all(np.array_equal(a, b) for a, b in zip(models[:half], models[half:], strict=True))


def test_a_fixed_alpha_pays_for_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """No eigendecomposition, no curve, and each client's statistics once: leave-one-out takes one for each client."""
    clients = federation()
    summed: list[str] = []
    taken: list[int] = []
    eigh, from_data = torch.linalg.eigh, GridStatistics.from_data

    def decomposed(matrix: Tensor) -> object:
        taken.append(len(matrix))
        return eigh(matrix)

    def once(*args: object, **options: object) -> GridStatistics:
        summed.append(str(options["client"]))
        return from_data(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.linalg, "eigh", decomposed)
    monkeypatch.setattr(GridStatistics, "from_data", once)
    outcome = simulate(clients, 6, alpha=20.0, beta=2.0, methods=("global", "fedhip"))
    assert [result.personal and result.personal.curve for result in outcome.clients] == [None] * len(clients)
    assert sorted(summed) == [client.name for client in clients]
    assert not taken
    simulate(clients, 6, beta=2.0, methods=("global", "fedhip"))
    assert len(taken) >= len(clients)


@pytest.mark.parametrize("alpha", ["loo", 0.0, 20.0])
def test_the_last_client_has_the_same_model_in_less_room(alpha: Alpha) -> None:
    clients = federation()
    outcome = simulate(clients, 6, alpha=alpha, beta=2.0)
    alone = Federation(outcome.federation.grid, 2.0, outcome.federation.encoding)
    found, expected = Personalization.of(alone, clients[1], alpha, last=True), outcome.clients[1].personal
    assert expected is not None
    assert torch.equal(found.model.weights, expected.model.weights)
    assert torch.equal(alone.common.weights, outcome.federation.common.weights)
    assert (found.alpha, found.own, found.curve) == (expected.alpha, expected.own, expected.curve)
    assert found.estimate == expected.estimate
    assert (found.log_losses, found.global_log_losses) == (expected.log_losses, expected.global_log_losses)
    assert "total" not in vars(alone)


def test_a_client_that_is_not_in_the_sum_has_no_model_at_any_alpha() -> None:
    clients = federation()
    outcome = simulate(clients, 6, beta=2.0)
    federation_ = outcome.federation
    stranger = federation_.grid + federation_.encoding.statistics(clients[0], 6)
    for alpha in (0.0, 5.0):
        with pytest.raises(InputError, match="client 'stranger'"):
            federation_.model(stranger, alpha, client="stranger")


def test_summary_weighs_clients_as_it_says() -> None:
    clients = federation(rows=tuple(range(10, 50, 2)))
    outcome = simulate(clients, 6)
    for method in RIDGES:
        values = [result.accuracy[method] or 0.0 for result in outcome.clients]
        rows = [result.test for result in outcome.clients]
        summary = outcome.summary(method)
        assert summary["mean"] == pytest.approx(np.mean(values))
        assert summary["weighted"] == pytest.approx(np.dot(values, rows) / np.sum(rows))
        assert summary["worst_decile"] == pytest.approx(np.mean(sorted(values)[:2]))


def test_a_client_without_test_rows_is_left_out_of_the_means() -> None:
    clients = federation()
    clients[2] = Client("site-2", clients[2].train, (clients[2].test[0][:0], clients[2].test[1][:0]))
    outcome = simulate(clients, 6)
    assert outcome.clients[2].accuracy == {"local": None, "global": None, "fedhip": None}
    others = [result.accuracy["fedhip"] for k, result in enumerate(outcome.clients) if k != 2]
    assert outcome.summary("fedhip")["mean"] == pytest.approx(np.mean(others))  # type: ignore[arg-type]


def test_without_any_test_rows_there_is_no_mean() -> None:
    clients = [Client(c.name, c.train, (c.test[0][:0], c.test[1][:0])) for c in federation()]
    assert simulate(clients, 6).summary("fedhip") == dict.fromkeys(("mean", "weighted", "worst_decile", "std"))


def test_a_client_without_training_rows_is_tested_with_the_global_model() -> None:
    clients = federation()
    new = Client("new", (clients[0].train[0][:0], clients[0].train[1][:0]), clients[0].test)
    outcome, without = simulate([*clients, new], 6), simulate(clients, 6)
    assert [(r.client, r.accuracy) for r in outcome.clients[:4]] == [(r.client, r.accuracy) for r in without.clients]
    result = outcome.clients[4]
    assert (result.alpha, result.train) == (None, 0)
    assert result.accuracy["local"] is None
    assert result.accuracy["fedhip"] == result.accuracy["global"] == outcome.clients[0].accuracy["global"]


def test_nobody_to_train_on_is_an_error() -> None:
    empty = [Client(c.name, (c.train[0][:0], c.train[1][:0]), c.test) for c in federation()]
    with pytest.raises(InputError, match="no client has training rows"):
        simulate(empty, 6)


def test_progress_names_every_phase() -> None:
    seen: list[tuple[str, int, int]] = []
    simulate(federation(), 6, report=lambda *line: seen.append(line))
    assert [line for line in seen if line[1] == line[2]] == [
        ("1 local training", 4, 4),
        ("2 choosing beta", 4, 4),
        ("2 aggregation", 4, 4),
        ("3 personalization", 4, 4),
        ("trained alone", 4, 4),
    ]
