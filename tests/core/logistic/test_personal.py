"""A client's own step from the federation's logistic head: its optimum, its leave-one-out, and what it is for."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.optimize import minimize
from sklearn.metrics import log_loss

from fedhip import Statistics, aggregate
from fedhip.core.logistic.fit import HeadRows, LogisticFit, LogisticHead
from fedhip.core.logistic.personal import FOLDS, LOGISTIC_ALPHAS, PersonalLogistic
from fedhip.core.logistic.sums import logistic_term, rounded_features
from fedhip.errors import InputError, NumericalWarning
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


def wide(client: int, turned: float) -> Client:
    """40 rows of 40 features, in which every client sees classes otherwise."""
    means = np.random.default_rng(1).normal(size=(CLASSES, 40)) * 0.35
    rng = np.random.default_rng((2, client))
    seen, labels = means + rng.normal(size=means.shape) * turned, rng.integers(0, CLASSES, 40)
    return seen[labels] + rng.normal(size=(40, 40)), labels


def fitted(*clients: Client, penalty: float = 10.0, rounds: int = 8, classes: int = CLASSES) -> LogisticHead:
    fit = LogisticFit.of(
        aggregate(Statistics.from_data(F, y, classes) for F, y in clients), penalty=penalty, temperature=2.0
    )
    for _ in range(rounds):
        model = fit.ask()
        terms = [logistic_term(F, y, model, fit.standardization, rows=fit.rows) for F, y in clients]
        fit.tell(model, sum(terms[1:], start=terms[0]))
    return fit.head()


@pytest.mark.parametrize("number", [3, 40])  # fewer rows than features, and more
@pytest.mark.parametrize("alpha", [0.3, 2.0, 30.0])
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
    told = (G - G.mean(axis=1, keepdims=True))[:WIDTH]
    C = told.T @ M[:WIDTH, :WIDTH] @ told
    C /= np.sqrt(np.mean(np.diag(C @ C)))

    def objective(d: Array) -> tuple[float, Array]:
        D = d.reshape(G.shape)
        Z = X @ (G + D @ C) / T + shift.numpy()
        top = np.logaddexp.reduce(Z, axis=1, keepdims=True)
        pull = H @ D
        value = alpha * (top[:, 0] - (Z * Y).sum(axis=1)).sum() + (D * pull).sum() / 2
        return float(value), (alpha / T * X.T @ (np.exp(Z - top) - Y) @ C.T + pull).ravel()

    found = minimize(objective, np.zeros(G.size), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    expected = G + found.x.reshape(G.shape) @ C
    assert relative_error(personal.weights(alpha) - head.weights, expected - G) <= 1e-3
    raw = personal.model(alpha).scores(mine[0])
    assert relative_error(raw, X @ personal.weights(alpha).numpy()) <= 1e-3  # but for the features' rounding


def test_the_step_is_a_change_of_features() -> None:
    """P − Ĝ = RĜ for one R: of four classes on two features, no scores that are not a mix of two."""
    (F, y), others = rows(40, 5, turned=1.0), rows(80, 6)
    head = fitted((F[:, :2], y), (others[0][:, :2], others[1]))
    change = PersonalLogistic(head, F[:, :2], y).weights(3.0) - head.weights
    told = (head.weights - head.weights.mean(dim=1, keepdim=True))[:-1]
    mixed = change @ torch.linalg.pinv(told) @ told
    assert float(change.norm()) > 0.1
    assert relative_error(mixed, change) <= 1e-10


def test_a_head_that_tells_no_classes_apart() -> None:
    mine = rows(40, 5, turned=1.0)
    fit = fitted(mine, rows(80, 6)).fit
    personal = PersonalLogistic(LogisticHead(fit, torch.zeros((WIDTH + 1, CLASSES)).double(), 10.0, 0.1), *mine)
    assert float(personal.loo_losses(10.0).mean()) < float(personal.loo_losses(0.0).mean())


def test_rows_of_some_classes_tell_of_the_others() -> None:
    """A client whose features are turned, the same for all classes, gains where it has no rows."""
    rng = np.random.default_rng(3)
    means, skew = rng.normal(size=(12, 6)) * 2, rng.normal(size=(6, 6))
    turn = expm((skew - skew.T) / np.linalg.norm(skew - skew.T, 2))  # by a radian at most

    def drawn(number: int, classes: range, turned: Array) -> Client:
        labels = rng.choice(classes, number)
        return (means[labels] + rng.normal(size=(number, 6))) @ turned, labels

    mine = drawn(100, range(8), turn)
    personal = PersonalLogistic(fitted(drawn(600, range(12), np.eye(6)), mine, classes=12), *mine)
    F, y = drawn(2000, range(8, 12), turn)

    def loss(alpha: float) -> float:
        return float(log_loss(y, torch.softmax(personal.model(alpha).scores(F)[:, 8:], dim=1).numpy()))

    assert loss(personal.select()) < 0.5 * loss(0.0)


def test_no_weight_is_the_federations_head() -> None:
    mine = rows(20, 5)
    head = fitted(mine, rows(50, 6))
    assert torch.equal(PersonalLogistic(head, *mine).weights(0.0), head.weights)


def test_the_head_without_one_row_is_that_of_leave_one_out() -> None:
    mine = rows(20, 5)
    head = fitted(mine, rows(50, 6))
    own, expected = head.rows(*mine), head.loo_scores(*mine)
    for row in range(20):
        assert relative_error(own.without(torch.arange(20) == row)[row], expected[row]) <= 1e-12


@pytest.mark.parametrize(("penalty", "alpha"), [(10.0, 0.0), (100.0, 3.0)])
def test_a_fifth_is_judged_as_refits_without_it_judge(penalty: float, alpha: float) -> None:
    """The federation's head and the client's step are fitted again without each fifth of the client's rows."""
    (F, y), others = wide(0, 0.4), [wide(k, 0.4) for k in range(1, 5)]
    personal = PersonalLogistic(fitted((F, y), *others, penalty=penalty), F, y)
    found, seen = personal.loo_scores(alpha), personal.model(alpha).scores(F)
    order = np.argsort(y, kind="stable")
    off = naive = 0.0
    for fold in range(FOLDS):
        judged = np.sort(order[fold::FOLDS])
        rest = np.delete(F, judged, 0), np.delete(y, judged)
        refit = PersonalLogistic(fitted(rest, *others, penalty=penalty), *rest).model(alpha).scores(F[judged])
        a, b, c = (scores - scores.mean(dim=1, keepdim=True) for scores in (found[judged], seen[judged], refit))
        off, naive = off + float((a - c).square().sum()), naive + float((b - c).square().sum())
    assert off <= 0.06 * naive


@pytest.mark.parametrize(("penalty", "turned", "gain"), [(3.0, 0.2, False), (100.0, 0.6, True)])
def test_leave_one_out_promises_of_a_large_weight_what_refits_keep(penalty: float, turned: float, gain: bool) -> None:
    """A federation of many features; refits lose by the weight where clients are alike and the penalty is small."""
    mine, others = wide(0, turned), [wide(k, turned) for k in range(1, 5)]
    head = fitted(mine, *others, penalty=penalty)
    personal, judged = PersonalLogistic(head, *mine), range(0, len(mine[1]), 3)
    promised = float((personal.loo_losses(0.0) - personal.loo_losses(10.0))[list(judged)].mean())
    kept = 0.0
    for row in judged:
        rest = (np.delete(mine[0], row, 0), np.delete(mine[1], row))
        refit = PersonalLogistic(fitted(rest, *others, penalty=penalty, rounds=6), *rest)
        losses = [
            -torch.log_softmax(refit.model(alpha).scores(mine[0][row : row + 1]), dim=1)[0, mine[1][row]]
            for alpha in (0.0, 10.0)
        ]
        kept += float(losses[0] - losses[1]) / len(judged)
    assert abs(promised - kept) < 0.1
    assert (kept > 0.0) == gain


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


def test_a_client_that_sees_all_classes_otherwise_may_weigh_its_rows_more_than_a_hundredfold() -> None:
    """And is right to, on rows that nobody has seen."""
    strange, unseen = rows(80, 5, turned=2.0), rows(2000, 105, turned=2.0)
    personal = PersonalLogistic(fitted(strange, rows(800, 6)), *strange)
    alpha = personal.select()
    assert alpha > 100.0

    def loss(at: float) -> float:
        scores = personal.model(at).scores(unseen[0])
        return float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(unseen[1])))

    assert loss(alpha) < loss(100.0) < loss(0.0)


def test_the_choice_gains_a_standard_error_by_its_own_leave_one_out_or_is_none() -> None:
    chosen = []
    for seed, turned in ((1, 0.0), (2, 0.0), (3, 0.0), (4, 1.5), (5, 1.5)):
        personal = PersonalLogistic(fitted(rows(24, seed, turned), rows(60, 50)), *rows(24, seed, turned))
        alpha = personal.select()
        gains = personal.loo_losses(0.0) - personal.loo_losses(alpha)
        assert alpha == 0.0 or float(gains.mean()) > float(gains.std()) / 24**0.5
        chosen.append(alpha)
    assert min(chosen) == 0.0
    assert max(chosen) > 0.0


def test_one_row_and_one_class() -> None:
    others = rows(60, 6)
    pooled = rows(30, 5)
    only = pooled[1] == 1
    for F, y in ((pooled[0][:1], pooled[1][:1]), (pooled[0][only], pooled[1][only])):
        personal = PersonalLogistic(fitted((F, y), others), F, y)
        assert bool(torch.isfinite(personal.loo_scores(3.0)).all())
        assert bool(torch.isfinite(personal.weights(personal.select())).all())


def test_a_step_that_has_not_converged_says_so_once_and_names_client_and_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = rows(40, 5, turned=1.0)
    head = fitted(mine, rows(80, 6))
    monkeypatch.setattr("fedhip.core.logistic.personal._STEPS", 5)
    personal = PersonalLogistic(head, *mine, client="chur")
    expected = (
        r"client 'chur': the step with alpha = 30 has not converged in 5 evaluations: its slope is (\S+), and \S+ was"
    )
    with pytest.warns(NumericalWarning, match=expected) as caught:
        personal.weights(30.0)
    assert len(caught) == 1
    # The slope at the weights that were taken, in the whitened coordinates of the curvature.
    theta = personal._found[None, 30.0]
    scale = (1.0 + 30.0 * head.curvature * torch.outer(personal._rows.basis[1], head.spread[0].square())).sqrt()
    slope = float((personal.objective(30.0, theta)[1] / scale).norm())
    assert float(re.search(expected, str(caught[0].message))[1]) == pytest.approx(slope, rel=0.1)  # type: ignore[index]
    personal.weights(90.0)  # not again
    with pytest.warns(
        NumericalWarning, match=r"^a step fitted without a fifth of the rows, which judges with alpha = 30 "
    ):
        PersonalLogistic(head, *mine).loo_losses(30.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [3, 40, 200])
def test_every_alpha_of_the_grid_and_far_beyond_converges(number: int) -> None:
    """To a gradient that is small beside that of no step."""
    mine = rows(number, 5, turned=1.0)
    personal = PersonalLogistic(fitted(mine, rows(80, 6)), *mine)
    for alpha in (*LOGISTIC_ALPHAS[1:], 1_000.0, 10_000.0):
        theta = personal._solve(alpha)
        still = personal.objective(alpha, torch.zeros_like(theta))[1].norm()
        assert float(personal.objective(alpha, theta)[1].norm()) <= 1e-3 * float(still)
        personal.loo_losses(alpha)


def test_bad_input() -> None:
    mine = rows(20, 5)
    head = fitted(mine, rows(50, 6))
    with pytest.raises(InputError, match="alpha"):
        PersonalLogistic(head, *mine).weights(-1.0)
    with pytest.raises(InputError, match="give a number above 0"):
        PersonalLogistic(head, *mine, temperature=0.0)
    with pytest.raises(InputError, match=r"give \(4,\) and \(20, 4\)"):
        PersonalLogistic(head, *mine, shift=torch.zeros(3))


@pytest.mark.parametrize("number", [1, 2, 3, 12])
def test_the_alpha_chosen_is_that_of_the_losses_by_hand(number: int) -> None:
    """The least sum; but 0 where the gain is within a standard error, or there is but one row."""
    chosen = set()
    for seed in range(4):
        mine = rows(number, seed, turned=2.0)
        personal = PersonalLogistic(fitted(mine, rows(80, 6), rounds=3), *mine)
        for alphas in ([0.0, 1.0], [3.0, 1.0]):
            losses = {alpha: personal.loo_losses(alpha).numpy() for alpha in (0.0, *alphas)}
            best = min(sorted(losses), key=lambda alpha: losses[alpha].sum())
            gains = losses[0.0] - losses[best]
            sure = number > 1 and gains.mean() > gains.std(ddof=1) / np.sqrt(number)
            assert personal.select(alphas) == (best if sure else 0.0)
            chosen.add(personal.select(alphas))
    assert (chosen == {0.0}) == (number == 1)


def test_rows_that_are_gone_are_no_part_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the federation's head is the same without them, it is the step of the other rows alone."""
    mine, gone = rows(30, 5, turned=1.0), np.arange(30) % 5 == 1
    head = fitted(mine, rows(80, 6))
    left = mine[0][~gone], mine[1][~gone]
    monkeypatch.setattr(HeadRows, "without", lambda self, gone: self.scores)
    found, expected = PersonalLogistic(head, *mine, gone=torch.from_numpy(gone)), PersonalLogistic(head, *left)
    assert found.select() == expected.select()
    for alpha in (0.0, 1.0, 30.0):
        scores = expected.model(alpha).scores(mine[0][gone])
        # Up to a number for each row: the centre of the scores is no matter.
        torch.testing.assert_close(
            torch.log_softmax(found.gone_scores(alpha), dim=1), torch.log_softmax(scores, dim=1), rtol=1e-3, atol=1e-3
        )
        torch.testing.assert_close(
            found.loo_losses(alpha)[torch.from_numpy(~gone)], expected.loo_losses(alpha), rtol=1e-2, atol=1e-2
        )


def test_the_heads_scores_without_a_fold_are_those_of_rows_left_out_one_by_one() -> None:
    """With nobody else gone they are leave-one-out; with others gone, near `without` of all of them together."""
    mine = rows(30, 5, turned=1.0)
    head = fitted(mine, rows(200, 6))
    nobody, gone = torch.zeros(30, dtype=torch.bool), torch.arange(30) % 5 == 1
    torch.testing.assert_close(head.rows(*mine).fold_scores(nobody), head.loo_scores(*mine))
    client = head.rows(*mine)
    together = torch.stack(
        [client.without(gone | (torch.arange(30) == row))[row] for row in range(30) if not gone[row]]
    )
    found = client.fold_scores(gone)
    plain = head.loo_scores(*mine)[~gone]
    assert float((found - together).abs().max()) < 0.3 * float((plain - together).abs().max())


def test_what_steps_of_the_same_rows_share_changes_no_bit() -> None:
    """Another prior, or rows gone: as if each were made from the rows by itself, however the first was used before."""
    mine = rows(40, 5, turned=2.0)
    head, gone = fitted(mine, rows(80, 6)), torch.arange(40) % 5 == 1
    first = PersonalLogistic(head, *mine)
    first.loo_losses(10.0)
    shift = torch.linspace(-1.0, 1.0, head.weights.shape[1], dtype=torch.float64)
    for more in (None, gone):
        again = first.with_others(1.5, shift, shift, more)
        anew = PersonalLogistic(head, *mine, temperature=1.5, shift=shift, loo_shift=shift, gone=more)
        assert torch.equal(again.loo_losses(3.0), anew.loo_losses(3.0))
        assert torch.equal(again.weights(10.0), anew.weights(10.0))


def test_some_rows_may_judge_alone() -> None:
    mine = rows(40, 5, turned=2.0)
    step = PersonalLogistic(fitted(mine, rows(80, 6)), *mine)
    assert step.select(judges=torch.ones(40, dtype=torch.bool)) == step.select() > 0.0
    nobody = torch.zeros(40, dtype=torch.bool)
    nobody[3] = True
    assert step.select(judges=nobody) == 0.0
