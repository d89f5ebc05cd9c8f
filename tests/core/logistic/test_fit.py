"""Logistic regression as sums: exact on the grid, and scikit-learn's optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from fedhip import Statistics, aggregate
from fedhip.core import Standardization
from fedhip.core.logistic.fit import PENALTY_SHAPE, LogisticFit
from fedhip.core.logistic.lbfgs import Point, best_of, propose
from fedhip.core.logistic.sums import (
    GridModel,
    LogisticTerm,
    _exact_product,
    logistic_term,
    residual_bits,
    rounded_features,
)
from fedhip.errors import FedHiPError, GridOverflowError, InputError, LossError
from tests.core.problems import Array, Client, relative_error
from tests.drawing import examples

WIDTH, CLASSES = 6, 4


def rows(number: int, seed: int = 0, width: int = WIDTH) -> Client:
    means = np.random.default_rng(1).normal(size=(CLASSES, width))
    rng = np.random.default_rng(seed)
    labels = np.r_[np.arange(CLASSES), rng.integers(0, CLASSES, number - CLASSES)]
    return means[labels] + rng.normal(size=(number, width)) * 3 + 5, labels


def summed(fit: LogisticFit, model: GridModel, clients: list[Client]) -> LogisticTerm:
    N = fit.rows
    terms = (logistic_term(F, y, model, fit.standardization, rows=N, client=str(k)) for k, (F, y) in enumerate(clients))
    total = sum(terms, start=0)
    assert isinstance(total, LogisticTerm)
    return total


def statistics(clients: list[Client]) -> Statistics:
    return aggregate(Statistics.from_data(F, y, CLASSES) for F, y in clients)


def run(fit: LogisticFit, clients: list[Client], rounds: int) -> None:
    for _ in range(rounds):
        model = fit.ask()
        fit.tell(model, summed(fit, model, clients))


def dealt(client: Client, seed: int, clients: int) -> list[Client]:
    """All rows in any order, to so many clients."""
    rng = np.random.default_rng(seed)
    order, owner = rng.permutation(len(client[1])), rng.integers(0, clients, len(client[1]))
    parts = [order[owner == k] for k in range(clients)]
    return [(client[0][part], client[1][part]) for part in parts if len(part)]


@pytest.mark.parametrize("federation", [70, 2**19, 2**20])  # residuals of 24, 21 and 20 bits
def test_the_term_is_autograds_gradient(federation: int) -> None:
    F, y = rows(70)
    standardization = Standardization.of(statistics([(F, y)]))
    model = GridModel.of(torch.from_numpy(np.random.default_rng(2).normal(size=(WIDTH + 1, CLASSES))))
    term = logistic_term(F, y, model, standardization, rows=federation)
    assert term.gradient_bits - 16 == {70: 24, 2**19: 21, 2**20: 20}[federation]
    W = model.weights.requires_grad_()
    logits = rounded_features(F, standardization) @ W
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    P = torch.softmax(logits.detach(), dim=1)
    assert term.value == pytest.approx(float(loss.detach()), abs=1e-7)
    assert relative_error(term.slopes, W.grad) <= (1e-6 if federation == 70 else 1e-5)
    assert term.mean_curvature == pytest.approx(float((P * (1 - P)).mean()), abs=1e-8)
    assert int(term.right) == int((P.argmax(dim=1).numpy() == y).sum())
    assert term.rows == 70


@examples(8)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([0.01, 1.0, 1000.0]))
def test_theorem_3_the_sums_are_the_same_bits_for_any_division_of_the_rows(
    seed: int, clients: int, size: float
) -> None:
    pooled = rows(300, seed, width=23)
    fit = LogisticFit.of(statistics([pooled]), temperature=3.0, penalty=1.0)
    weights = size * np.random.default_rng(seed).normal(size=(24, CLASSES))
    model = GridModel.of(torch.from_numpy(weights))
    whole = summed(fit, model, [pooled])
    assert summed(fit, model, dealt(pooled, seed, clients)) == whole
    one_by_one = [(pooled[0][i : i + 1], pooled[1][i : i + 1]) for i in range(60)][::-1]
    rest = (pooled[0][60:], pooled[1][60:])
    assert summed(fit, model, [rest, *one_by_one]) == whole


def test_theorem_3_holds_through_all_rounds() -> None:
    pooled = rows(200)
    fits = []
    for clients in ([pooled], dealt(pooled, 1, 5), dealt(pooled, 2, 40)):
        fit = LogisticFit.of(statistics(clients))
        fit.choose_temperature(torch.stack([fit.temperature_losses(*client) for client in clients]).sum(dim=0))
        run(fit, clients, 2)
        fit.choose_penalty(torch.stack([fit.penalty_losses(*client) for client in clients]).sum(dim=0))
        run(fit, clients, 3)
        fits.append(fit)
    assert len({(fit.temperature, round(fit.rho, 9)) for fit in fits}) == 1
    for other in fits[1:]:
        assert relative_error(other.head().weights, fits[0].head().weights) <= 1e-8


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_the_optimum_is_scikit_learns(penalty: float) -> None:
    clients = dealt(rows(150), 0, 4)
    fit = LogisticFit.of(
        statistics(clients),
        penalty=penalty,
        centre=torch.zeros(WIDTH + 1, CLASSES).double(),
        metric=torch.eye(7).double(),
    )
    run(fit, clients, 40)
    X = np.concatenate([rounded_features(F, fit.standardization).numpy() for F, _ in clients])
    y = np.concatenate([y for _, y in clients])
    theirs = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(X, y)

    def objective(W: Array) -> float:
        Z = X @ W
        logs = Z - np.logaddexp.reduce(Z, axis=1, keepdims=True)
        return float(-logs[np.arange(len(y)), y].sum() + penalty / 2 * (W**2).sum())

    best = objective(theirs.coef_.T)
    assert fit.objective == pytest.approx(best, rel=1e-8)
    assert objective(fit.head().weights.numpy()) == pytest.approx(best, rel=1e-8)
    assert fit.slope < 1e-4


def test_the_optimum_towards_lda_is_scipys() -> None:
    clients = dealt(rows(60), 0, 3)
    fit = LogisticFit.of(statistics(clients), penalty=5.0, temperature=2.0)
    run(fit, clients, 25)
    X = np.concatenate([rounded_features(F, fit.standardization).numpy() for F, _ in clients])
    Y = np.eye(CLASSES)[np.concatenate([y for _, y in clients])]
    M = np.diag(np.full(WIDTH + 1, 0.01))
    M[:WIDTH, :WIDTH] = fit.discriminant.covariance.numpy()
    centre = fit.lda.numpy() / 2

    def objective(w: Array) -> tuple[float, Array]:
        W = w.reshape(centre.shape)
        Z = X @ W
        top = np.logaddexp.reduce(Z, axis=1, keepdims=True)
        pull = 5.0 * M @ (W - centre)
        value = float((top[:, 0] - (Z * Y).sum(axis=1)).sum() + ((W - centre) * pull).sum() / 2)
        return value, (X.T @ (np.exp(Z - top) - Y) + pull).ravel()

    found = minimize(objective, centre.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    assert fit.objective == pytest.approx(found.fun, rel=1e-9)
    assert relative_error(fit.head().weights, found.x.reshape(centre.shape)) <= 1e-4


def test_leave_one_out_is_near_a_refit() -> None:
    """To first order, so not to rounding: the error is small against what leaving out does."""
    pooled = rows(120)
    fit = LogisticFit.of(statistics([pooled]), penalty=20.0, temperature=2.0)
    run(fit, [pooled], 15)
    found, within = fit.head().loo_scores(*pooled), fit.head().scores(pooled[0])
    refits = []
    for row in range(0, 120, 10):
        rest = (np.delete(pooled[0], row, 0), np.delete(pooled[1], row))
        other = LogisticFit.of(statistics([rest]), penalty=20.0, temperature=2.0)
        run(other, [rest], 12)
        refits.append(other.head().scores(pooled[0][row : row + 1])[0])
    expected, at = torch.stack(refits), torch.arange(0, 120, 10)
    error = (found[at] - expected).square().mean().sqrt()
    effect = (within[at] - expected).square().mean().sqrt()
    assert float(error) < 0.4 * float(effect)


def test_a_client_that_leaves_takes_its_terms_out_of_the_objective() -> None:
    clients = dealt(rows(200), 0, 4)
    fit = LogisticFit.of(statistics(clients), penalty=5.0, temperature=2.0)
    run(fit, clients, 3)
    run(fit, clients[:3], 12)
    present = sum(len(y) for _, y in clients[:3])
    assert fit.notes == [f"{present} rows took part after 200: the objective is now that of those present"]
    apart = LogisticFit.of(statistics(clients), penalty=5.0, temperature=2.0)  # LDA and its metric are round one's
    run(apart, clients[:3], 15)
    assert relative_error(fit.head().weights, apart.head().weights) <= 1e-5


def test_one_class_one_row_and_a_class_nobody_has() -> None:
    F, y = rows(60)
    only = y == 2
    clients = [(F[only], y[only]), (F[:1], y[:1]), (F[~only][1:], y[~only][1:])]
    total = aggregate(Statistics.from_data(F, y, CLASSES + 1) for F, y in clients)
    fit = LogisticFit.of(total)
    losses = torch.stack([fit.temperature_losses(*client) for client in clients])
    assert bool(torch.isfinite(losses).all())
    fit.choose_temperature(losses.sum(dim=0))
    run(fit, clients, 6)
    head = fit.head()
    assert int(head.scores(F).argmax(dim=1).max()) < CLASSES
    for client in clients:
        assert bool(torch.isfinite(head.loo_scores(*client)).all())


def test_separable_rows_without_a_penalty_are_refused() -> None:
    F, y = rows(20)
    F = F + 100 * np.eye(CLASSES, WIDTH)[y]
    fit = LogisticFit.of(statistics([(F, y)]), penalty=0.0, temperature=1.0)
    with pytest.raises(InputError, match="give a penalty above 0"):
        run(fit, [(F, y)], 10)


def test_rows_that_nothing_is_left_to_learn_of() -> None:
    """Classes so far apart that LDA has no doubt: no loss, no gradient, no curvature, and the weights stay."""
    y = np.arange(60) % CLASSES
    client = 100.0 * np.eye(CLASSES, WIDTH)[y] + 0.01 * np.random.default_rng(0).normal(size=(60, WIDTH)), y
    fit = LogisticFit.of(statistics([client]), temperature=1.0)
    run(fit, [client], 2)
    fit.choose_penalty(fit.penalty_losses(*client))
    run(fit, [client], 1)
    assert fit.objective < 1e-12
    torch.testing.assert_close(fit.ask().weights, GridModel.of(fit.centre).weights, rtol=1e-5, atol=1e-5)
    assert bool(torch.isfinite(fit.head().loo_scores(*client)).all())


def test_a_loss_beyond_all_measure_halves_the_step_and_then_names_the_client() -> None:
    pooled = rows(50)
    fit = LogisticFit.of(statistics([pooled]), penalty=5.0, temperature=2.0)
    run(fit, [pooled], 1)
    far = GridModel.of(fit.ask().weights * 1e9)
    with pytest.raises(LossError, match="client 'site-3': the loss of a row is") as caught:
        logistic_term(*pooled, far, fit.standardization, rows=50, client="site-3")
    start = fit.centre
    model = far
    for _ in range(5):
        fit.fail(model, caught.value)
        shorter = fit.ask()
        assert relative_error(shorter.weights - start, (model.weights - start) / 2) <= 1e-5
        model = shorter
    with pytest.raises(FedHiPError, match="site-3"):
        fit.fail(model, caught.value)


def test_bad_input() -> None:
    F, y = rows(30)
    fit = LogisticFit.of(statistics([(F, y)]))
    with pytest.raises(InputError, match="not known yet"):
        fit.ask()
    with pytest.raises(InputError, match="give a number above 0"):
        LogisticFit.of(statistics([(F, y)]), temperature=0.0)
    model = GridModel.of(torch.ones(WIDTH + 1, CLASSES).double())
    with pytest.raises(InputError, match="client 'b': features are 3 wide, the model's 6"):
        logistic_term(F[:, :3], y, model, fit.standardization, rows=30, client="b")
    with pytest.raises(LossError, match="not a finite number"):
        GridModel.of(torch.full((2, 2), torch.nan))
    with pytest.raises(GridOverflowError, match="client 'b'"):
        logistic_term(F * 1e12, y, model, fit.standardization, rows=30, client="b")
    assert residual_bits(48_000) == 24
    assert residual_bits(2**26) == 14


def test_the_grids_model_is_what_travels() -> None:
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 3)))
    model = GridModel.of(weights)
    assert float((model.weights - weights).abs().max()) <= 2**-23 * float(weights.abs().max())
    assert model.steps.dtype == torch.int32
    assert GridModel.of(torch.zeros(2, 2).double()).weights.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_proposals_reach_the_minimum_of_a_bent_valley() -> None:
    """Rosenbrock's, from where a first step is far too long."""
    history: list[Point] = []
    point = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    for _ in range(80):
        x, z = point.tolist()
        value = 100 * (z - x * x) ** 2 + (1 - x) ** 2
        slopes = [-400 * x * (z - x * x) - 2 * (1 - x), 200 * (z - x * x)]
        history.append(Point(point, value, torch.tensor(slopes, dtype=torch.float64)))
        point = propose(history)
    assert best_of(history).value < 1e-12


def test_products_of_whole_numbers_are_those_of_pythons_integers() -> None:
    """Also where the sum, though not a single product, passes 2^53 and has to go in parts."""
    rng = np.random.default_rng(0)
    for bits in (10, 24, 26):
        for inner in (1, 2, 7):
            A, B = rng.integers(-(2**bits), 2**bits, (3, inner)), rng.integers(-(2**26), 2**26, (inner, 2))
            A[0], B[:, 0] = 2**bits - 1, 2**26 - 1
            found = _exact_product(torch.from_numpy(A).double(), torch.from_numpy(B).double())
            assert found.tolist() == (A.astype(object) @ B.astype(object)).tolist()


@pytest.mark.parametrize("largest", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_weights_keep_their_bits_whatever_the_largest_is(largest: float) -> None:
    weights = torch.tensor([[largest, -largest / 3], [largest / 7, 0.0]]).double()
    assert relative_error(GridModel.of(weights).weights, weights) <= 2.0**-22


def test_rows_that_are_all_certain_have_a_curvature_of_one_step() -> None:
    nothing = torch.zeros(3, dtype=torch.int64)
    term = LogisticTerm(nothing[None], nothing, nothing[:1], nothing[:1], torch.tensor([4, 0, 0]), 40)
    assert term.mean_curvature == 2.0**-32


def test_federations_too_large_for_the_grid_are_refused() -> None:
    F, y = rows(20)
    standardization = Standardization.of(statistics([(F, y)]))
    model = GridModel.of(torch.zeros(WIDTH + 1, CLASSES).double())
    logistic_term(F, y, model, standardization, rows=2**33 - 1)
    with pytest.raises(GridOverflowError, match="8589934592 rows do not fit"):
        logistic_term(F, y, model, standardization, rows=2**33)
    for federation in (2**19, 2**20):
        with pytest.raises(GridOverflowError, match="scale"):
            logistic_term(1e9 * F, y, model, standardization, rows=federation)


def test_losses_over_the_penalties_are_those_of_newtons_step_by_hand() -> None:
    """In standardised coordinates, with dense matrices, from a first model that is not the centre."""
    clients = dealt(rows(60), 0, 2)
    fit = LogisticFit.of(statistics(clients), temperature=2.0)
    fit.start = fit.centre + torch.from_numpy(np.random.default_rng(3).normal(size=(WIDTH + 1, CLASSES))) / 5
    first, terms = fit.ask(), []
    for _ in range(2):
        model = fit.ask()
        terms.append(summed(fit, model, clients))
        fit.tell(model, terms[-1])
        second = model
    A, W = fit.statistics.gram.numpy(), first.weights.numpy()
    s = second.weights.numpy() - W
    kappa = (s * (terms[1].slopes - terms[0].slopes).numpy()).sum() / (s * (A @ s)).sum()
    assert kappa > terms[0].mean_curvature
    assert fit.step_curvature == pytest.approx(kappa, rel=1e-9)

    M = np.diag(np.full(WIDTH + 1, 0.01))
    M[:WIDTH, :WIDTH] = fit.discriminant.covariance.numpy()
    F, y = clients[0]
    X = rounded_features(F, fit.standardization).numpy()
    Z, lda = X @ W, fit.lda.numpy()
    delta = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]
    left_out = fit.discriminant.loo_scores(X[:, :-1], y).numpy()
    found = fit.penalty_losses(F, y)
    assert found.shape == PENALTY_SHAPE == (9, 17)
    for i, factor in enumerate(np.logspace(-2, 2, 9)):
        rho = factor * kappa * 60
        inverse = np.linalg.inv(kappa * A + rho * M)
        step = inverse @ (terms[0].slopes.numpy() + rho * M @ (W - lda / 2))
        own = np.einsum("ij,jk,ik->i", X, inverse, X)[:, None] * delta
        moves = (1 - terms[0].mean_curvature / (kappa + rho / 60)) * (left_out - X @ lda) / 2
        scores = Z - X @ step + own + moves
        for j, T in enumerate(np.logspace(-0.4, 0.4, 17)):
            logs = scores / T - np.logaddexp.reduce(scores / T, axis=1, keepdims=True)
            assert float(found[i, j]) == pytest.approx(-logs[np.arange(len(y)), y].sum(), rel=1e-8)
    every = sum(fit.penalty_losses(*client) for client in clients)
    assert isinstance(every, torch.Tensor)
    best = np.unravel_index(int(every.argmin()), PENALTY_SHAPE)[0]
    assert fit.choose_penalty(every) == pytest.approx(10.0 ** (best / 2 - 2) * kappa * 60)
    run(fit, clients, 2)
    assert fit.step_curvature == pytest.approx(kappa, rel=1e-9)  # later answers do not matter


def test_the_head_is_the_next_step_after_a_good_one_and_else_the_best_model() -> None:
    pooled = rows(120)
    fit = LogisticFit.of(statistics([pooled]), penalty=5.0, temperature=3.0)
    first = fit.ask()
    run(fit, [pooled], 1)
    torch.testing.assert_close(fit.head().weights, first.weights)
    values = [fit.objective]
    second = fit.ask()
    run(fit, [pooled], 1)
    assert fit.objective < values[0]
    assert fit.curvature == summed(fit, second, [pooled]).mean_curvature  # of the latest
    assert fit.curvature != summed(fit, first, [pooled]).mean_curvature
    torch.testing.assert_close(fit.head().weights, fit.ask().weights, rtol=0, atol=1e-5)
    assert relative_error(fit.head().weights, second.weights) > 1e-3
    far = GridModel.of(20 * second.weights)
    fit.tell(far, summed(fit, far, [pooled]))
    torch.testing.assert_close(fit.head().weights, second.weights)


def test_a_class_without_rows_starts_below_all_others() -> None:
    F, y = rows(30)
    fit = LogisticFit.of(Statistics.from_data(F, y, CLASSES + 1))
    intercepts = fit.lda[-1]
    assert float(intercepts[-1]) == pytest.approx(float(intercepts[:-1].min()) - 10.0)
    assert not fit.lda[:-1, -1].any()


def test_before_any_answer_the_curvature_is_that_of_equal_probabilities() -> None:
    p = np.full(CLASSES, 1 / CLASSES)
    assert LogisticFit.of(statistics([rows(30)])).curvature == pytest.approx(np.mean(p * (1 - p)))
