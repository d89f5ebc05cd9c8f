"""A client's own step from the federation's logistic head: its optimum, its leave-one-out, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedhip import Statistics, aggregate
from fedhip.core.errors import AlphaError, DimensionError
from fedhip.core.logistic import logistic_term, rounded_features
from fedhip.core.logistic_fit import LogisticFit, LogisticHead, TemperatureError
from fedhip.core.personal_logistic import LOGISTIC_ALPHAS, PersonalLogistic
from tests.core.problems import Array, Client, relative_error

WIDTH, CLASSES = 5, 4


def rows(number: int, seed: int, turned: float = 0.0) -> Client:
    """Rows about class means that all clients share; a client may see some of them moved."""
    means = np.random.default_rng(1).normal(size=(CLASSES, WIDTH)) * 1.5
    rng = np.random.default_rng(seed)
    labels = (
        np.r_[np.arange(CLASSES), rng.integers(0, CLASSES, number - CLASSES)] if number >= CLASSES else [0] * number
    )
    seen = means + turned * np.random.default_rng(seed % 100).normal(size=means.shape)
    return seen[labels] + rng.normal(size=(number, WIDTH)), np.asarray(labels)


def fitted(*clients: Client, penalty: float = 10.0) -> LogisticHead:
    fit = LogisticFit.of(
        aggregate(Statistics.from_data(F, y, CLASSES) for F, y in clients), penalty=penalty, temperature=2.0
    )
    for _ in range(12):
        model = fit.ask()
        terms = [logistic_term(F, y, model, fit.standardization, rows=fit.rows) for F, y in clients]
        fit.tell(model, sum(terms[1:], start=terms[0]))
    return fit.head()


@pytest.mark.parametrize("number", [3, 40])  # fewer rows than features, and more
@pytest.mark.parametrize("alpha", [0.3, 30.0])
def test_the_optimum_is_scipys(alpha: float, number: int) -> None:
    mine = rows(number, 5, turned=1.0)
    head = fitted(mine, rows(80, 6))
    shift, T = torch.tensor([0.3, -1.0, 0.5, 0.0]).double(), 1.4
    personal = PersonalLogistic(head, *mine, temperature=T, shift=shift)
    X, Y = rounded_features(mine[0], head.fit.standardization).numpy(), np.eye(CLASSES)[mine[1]]
    M = np.diag(np.full(WIDTH + 1, 0.01))
    M[:WIDTH, :WIDTH] = head.fit.discriminant.covariance.numpy()
    H = head.curvature * head.fit.statistics.gram.numpy() + head.rho * M
    G = head.weights.numpy()

    def objective(w: Array) -> tuple[float, Array]:
        W = w.reshape(G.shape)
        Z = X @ W / T + shift.numpy()
        top = np.logaddexp.reduce(Z, axis=1, keepdims=True)
        pull = H @ (W - G)
        value = alpha * (top[:, 0] - (Z * Y).sum(axis=1)).sum() + ((W - G) * pull).sum() / 2
        return float(value), (alpha / T * X.T @ (np.exp(Z - top) - Y) + pull).ravel()

    found = minimize(objective, G.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    mine_value, _ = objective(personal.weights(alpha).numpy().ravel())
    assert mine_value == pytest.approx(found.fun, rel=1e-7)
    assert relative_error(personal.weights(alpha), found.x.reshape(G.shape)) <= 1e-3
    raw = personal.model(alpha).scores(mine[0])
    assert relative_error(raw, X @ personal.weights(alpha).numpy()) <= 1e-3  # but for the features' rounding


def test_no_weight_is_the_federations_head() -> None:
    mine = rows(20, 5)
    head = fitted(mine, rows(50, 6))
    personal = PersonalLogistic(head, *mine)
    assert torch.equal(personal.weights(0.0), head.weights)
    assert relative_error(personal.loo_scores(0.0), head.loo_scores(*mine)) <= 1e-12


@pytest.mark.parametrize("alpha", [0.0, 1.0, 10.0])
def test_leave_one_out_is_near_a_refit(alpha: float) -> None:
    """The row taken from the federation's objective and from the client's; to first order, so not to rounding."""
    mine, others = rows(40, 5, turned=1.0), rows(120, 6)
    personal = PersonalLogistic(fitted(mine, others), *mine)
    found = personal.loo_scores(alpha)
    error = effect = 0.0
    for row in range(0, 40, 4):
        rest = (np.delete(mine[0], row, 0), np.delete(mine[1], row))
        refit = PersonalLogistic(fitted(rest, others), *rest).model(alpha).scores(mine[0][row : row + 1])[0]
        within = personal.model(alpha).scores(mine[0][row : row + 1])[0]
        # Scores mean the same up to a number for each row.
        left, right = (z - z.mean() for z in (found[row], refit))
        error += float((left - right).square().sum())
        effect += float((within - within.mean() - right).square().sum())
    assert error < 0.35 * effect


def test_a_client_that_sees_classes_otherwise_gains_and_others_stay() -> None:
    others = [rows(60, seed) for seed in range(6, 14)]
    strange = rows(60, 205, turned=1.5)
    head = fitted(strange, *others)
    unseen = rows(2000, 305, turned=1.5)
    personal = PersonalLogistic(head, *strange)
    alpha = personal.select()
    assert alpha > 0.0

    def accuracy(at: float) -> float:
        return float((personal.model(at).scores(unseen[0]).argmax(dim=1).numpy() == unseen[1]).mean())

    assert accuracy(alpha) > accuracy(0.0) + 0.05


@pytest.mark.parametrize("turned", [0.0, 0.5])
def test_the_choice_is_never_worse_than_the_federations_head_by_its_own_leave_one_out(turned: float) -> None:
    for seed in range(5):
        mine = rows(15, seed, turned)
        personal = PersonalLogistic(fitted(mine, rows(60, 50)), *mine)
        alpha = personal.select()
        losses = [personal.loo_loss(value) for value in LOGISTIC_ALPHAS]
        assert personal.loo_loss(alpha) == min(losses) <= personal.loo_loss(0.0)


def test_one_row_and_one_class() -> None:
    others = rows(60, 6)
    pooled = rows(30, 5)
    only = pooled[1] == 1
    for F, y in ((pooled[0][:1], pooled[1][:1]), (pooled[0][only], pooled[1][only])):
        personal = PersonalLogistic(fitted((F, y), others), F, y)
        assert bool(torch.isfinite(personal.loo_scores(3.0)).all())
        assert bool(torch.isfinite(personal.weights(personal.select())).all())


def test_bad_input() -> None:
    mine = rows(20, 5)
    head = fitted(mine, rows(50, 6))
    with pytest.raises(AlphaError):
        PersonalLogistic(head, *mine).weights(-1.0)
    with pytest.raises(TemperatureError, match="give a number above 0"):
        PersonalLogistic(head, *mine, temperature=0.0)
    with pytest.raises(DimensionError, match=r"give \(4,\) and \(20, 4\)"):
        PersonalLogistic(head, *mine, shift=torch.zeros(3))
