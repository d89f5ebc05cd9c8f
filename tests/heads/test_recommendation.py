"""The head that training rows speak for: what is counted, what is chosen, and that no test row is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from fedhip.core import DEFAULT_ALPHAS
from fedhip.core.choice.prior import PriorLosses, choose_prior, scale_of
from fedhip.core.choice.selection import FOLDS
from fedhip.errors import InputError
from fedhip.heads import HEADS, Head, Lda
from fedhip.heads.lda import LdaFit
from fedhip.heads.recommendation import (
    HeadScore,
    Recommendation,
    compare_with_lda,
    describe,
    judge_heads,
)
from fedhip.heads.round import HeadRound, run_head, simulate
from fedhip.heads.task import Task
from fedhip.methods import Protocol, run_method
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.federation import Federation
from fedhip.simulation.hold_out import hold_out_fold
from fedhip.simulation.options import PAPER, STANDARD, RidgeOptions
from tests.methods.problems import CLASSES, federation

WIDTH = 4


def gaussian(clients: int, rows: int, classes: int, concentration: float, seed: int) -> list[Client]:
    """Clients with few rows of many classes, whose features deviate by very different amounts and together."""
    rng = np.random.default_rng(seed)
    width = 24
    means = 0.6 * rng.normal(size=(classes, width))
    mix = rng.normal(size=(width, width)) * np.geomspace(1.0, 6.0, width)

    def drawn(number: int, shares: np.ndarray) -> LabelledRows:
        labels = rng.choice(classes, number, p=shares)
        return means[labels] + 0.15 * rng.normal(size=(number, width)) @ mix, labels

    found = []
    for k in range(clients):
        shares = rng.dirichlet([concentration] * classes)
        found.append(Client(f"client-{k}", drawn(rows, shares), drawn(400, shares)))
    return found


def labelled(name: str, labels: Sequence[int]) -> Client:
    """A client with these labels and features to match."""
    y = np.array(labels, dtype=np.int64)
    F = 2.0 * np.eye(5, WIDTH)[y] + np.random.default_rng(list(name.encode())).normal(size=(len(y), WIDTH))
    return Client(name, (F, y), (F[:0], y[:0]))


def judged(right: Sequence[int], rows: Sequence[int]) -> HeadScore:
    return HeadScore(np.array(right), np.array(rows))


# --- folds ------------------------------------------------------------------------------------------------------------


@given(labels=st.lists(st.integers(0, 4), max_size=40), name=st.text(max_size=5), seed=st.integers(0, 99))
def test_every_row_is_held_out_once_and_a_class_is_spread_evenly(labels: list[int], name: str, seed: int) -> None:
    y = np.array(labels, dtype=np.int64)
    F = np.arange(len(y), dtype=float)[:, None]
    client = Client(name, (F, y), (F[:1], y[:1]))
    folds = [hold_out_fold(client, fold, seed) for fold in range(FOLDS)]
    assert sorted(np.concatenate([fold.test[0][:, 0] for fold in folds]).tolist()) == list(range(len(y)))
    for fold in folds:
        assert sorted([*fold.train[0][:, 0], *fold.test[0][:, 0]]) == list(range(len(y)))
        assert (y[fold.test[0][:, 0].astype(int)] == fold.test[1]).all()
        assert (y[fold.train[0][:, 0].astype(int)] == fold.train[1]).all()
    for label in (None, *range(5)):
        sizes = [np.sum(fold.test[1] == label) if label is not None else len(fold.test[1]) for fold in folds]
        assert max(sizes) - min(sizes) <= 1


def test_other_seeds_and_names_draw_other_folds() -> None:
    client = labelled("a", [0, 1, 2, 3, 4] * 6)
    first = hold_out_fold(client, 0, seed=0).test[0]
    assert not np.array_equal(first, hold_out_fold(client, 0, seed=1).test[0])
    assert not np.array_equal(first, hold_out_fold(replace(client, name="b"), 0, seed=0).test[0])


# --- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [STANDARD, PAPER], ids=["standard", "paper"])
def test_rows_right_are_those_of_ridges_fitted_without_them(ridge: RidgeOptions) -> None:
    """By scikit-learn: with α = 0 every client has the ridge of all rows but the fold's."""
    clients, beta = federation((40, 25, 33), test=0), 3.0
    right = np.zeros(len(clients))
    for fold in range(FOLDS):
        parts = [hold_out_fold(client, fold, seed=4) for client in clients]
        F, y = (np.concatenate([part.train[i] for part in parts]) for i in (0, 1))
        scaler = StandardScaler(with_mean=ridge.standardize, with_std=ridge.standardize).fit(F)
        model = Ridge(beta, fit_intercept=ridge.intercept, solver="svd").fit(scaler.transform(F), np.eye(CLASSES)[y])
        right += [
            (model.predict(scaler.transform(part.test[0])).argmax(axis=1) == part.test[1]).sum() for part in parts
        ]
    options = {"ridge": {"alpha": 0.0, "beta": beta}}
    found = judge_heads(clients, CLASSES, seed=4, options=options, ridge=ridge)
    assert found.rows == 98, "every row was judged once"
    assert found.right["ridge"] == right.sum()
    assert found.shares["ridge"] == pytest.approx((right / [40, 25, 33]).mean())


def test_clients_weigh_alike_in_the_share() -> None:
    assert judged([90, 0, 0], [100, 10, 0]).share == pytest.approx(0.45)


def test_the_standard_error_is_that_of_rows_drawn_at_random() -> None:
    rows, chance = np.array([5, 20, 80]), 0.7
    drawn = np.random.default_rng(0).binomial(rows, chance, size=(20000, 3))
    expected = (drawn / rows).mean(axis=1).var()
    assert judged([3500, 14000, 56000], (1000 * rows).tolist()).variance * 1000 == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("right", "clear"), [((900, 700), True), ((730, 700), False), ((1, 0), False)])
def test_a_head_is_clearly_ahead_by_three_standard_errors(right: tuple[int, int], clear: bool) -> None:
    rows = 1000 if right[0] > 1 else 1  # one row says nothing
    assert judged([right[0]], [rows]).is_clearly_ahead_of(judged([right[1]], [rows])) is clear


def test_the_judging_ends_when_one_head_is_clearly_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, called = federation((40, 50), test=0), []

    def all_right_or_wrong(kind: type[Head], task: Task) -> HeadRound:
        called.append(kind.name)
        found, right = run_head(kind, task), float(kind is Lda)
        return replace(found, clients=[replace(one, accuracy={kind.method: right}) for one in found.clients])

    monkeypatch.setattr("fedhip.heads.recommendation.run_head", all_right_or_wrong)
    found = judge_heads(clients, CLASSES)
    assert found.head == "lda"
    assert called == list(HEADS)
    assert found.rows == 18


# --- what is chosen ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "head"),
    [
        ((700, 800, 900), "logistic"),
        ((900, 800, 850), "ridge"),
        ((700, 900, 700), "lda"),
        ((900, 899, 902), "lda"),
        ((902, 900, 898), "lda"),
    ],
)
def test_lda_is_taken_unless_another_is_ahead_by_more_than_chance(shares: tuple[int, ...], head: str) -> None:
    """Of 40 clients: what moves all of them alike is no chance, and what moves each by itself is."""
    own = np.random.default_rng(0).integers(-60, 60, (len(HEADS), 40))
    own -= own.mean(axis=1, keepdims=True).astype(int)
    judgements = {
        name: judged((right + noise).tolist(), [1000] * 40)
        for name, right, noise in zip(HEADS, shares, own, strict=True)
    }
    found = Recommendation.of(judgements, "lda", dict.fromkeys(HEADS, "none"), "held out")
    assert found.head == head
    said = describe(found.to_dict())
    assert said.startswith(f"The head {head} was chosen by training rows held out; right of 40,000")
    assert ("may be chance" in said) == (found.shares[head] < max(found.shares.values()))


def test_a_lead_is_measured_by_the_clients_differences() -> None:
    better, worse = judged([60, 70, 80], [100] * 3), judged([58, 69, 77], [100] * 3)
    assert better.is_ahead_of(worse)  # by 2 points, and 0.58 of standard error
    assert not judged([60, 70, 80], [100] * 3).is_ahead_of(judged([48, 69, 85], [100] * 3))  # 2.7, and 5.0
    assert not better.is_ahead_of(better)
    assert judged([2], [10]).is_ahead_of(judged([1], [10]))  # one client is all there is
    assert not judged([0, 3], [0, 10]).is_ahead_of(judged([0, 3], [0, 10]))  # and one without rows is none


def test_the_chosen_head_is_within_half_a_point_of_the_best_in_hindsight() -> None:
    clients, protocol = gaussian(8, 30, 20, concentration=1.0, seed=0), Protocol(prior="client")
    chosen = judge_heads(clients, 20, prior="client").head
    reached = {}
    for name, head in HEADS.items():
        accuracy = run_method(head.method, clients, 20, protocol).accuracy
        reached[name] = 100 * float(np.mean([value for value in accuracy if value is not None]))
    assert max(reached.values()) - min(reached.values()) > 0.5, "there is something to lose"
    assert max(reached.values()) - reached[chosen] <= 0.5


def test_no_test_row_is_looked_at() -> None:
    clients = federation((40, 50), test=20)
    shuffled = [Client(c.name, c.train, (c.test[0], np.roll(c.test[1], 1))) for c in clients]
    assert judge_heads(clients, CLASSES) == judge_heads(shuffled, CLASSES)


@pytest.mark.parametrize("prior", ["none", "client"])
@pytest.mark.parametrize(
    "labels",
    [
        ([0], [1], [2]),
        ([0] * 6, [0] * 4),
        ([0] * 6, [1] * 6, [2]),
        ([0, 1] * 5, []),
        ([0, 3] * 5, [1, 3] * 3),
    ],
    ids=["one row each", "one class in all", "one class each", "nobody's rows", "a class that nobody has"],
)
def test_few_rows_and_few_classes_break_nothing(labels: tuple[list[int], ...], prior: str) -> None:
    clients = [labelled(f"client-{k}", own) for k, own in enumerate(labels)]
    found = judge_heads(clients, 5, prior="client" if prior == "client" else "none")
    assert 0 < found.rows <= sum(map(len, labels))
    assert all(0 <= right <= found.rows for right in found.right.values())


@pytest.mark.parametrize("labels", [[], [0]])
def test_rows_too_few_to_judge_by_are_refused(labels: list[int]) -> None:
    with pytest.raises(InputError, match=r"too few training rows.*name the head, one of ridge, lda, logistic"):
        judge_heads([labelled("only", labels)], 2)


# --- by leave-one-out -------------------------------------------------------------------------------------------------


def nested_right(federation: Federation, client: Client) -> int:
    """Rows right by the α and β that rows of the other folds choose: a row's fold is its place modulo five."""
    y = client.train[1]
    right = 0
    for fold, beta in enumerate(federation.fold_betas):
        path = federation.with_beta(beta).path(client)
        scores = np.stack([path.loo_scores(alpha).numpy() for alpha in DEFAULT_ALPHAS])
        own = scores[:, np.arange(len(y)), y]
        margins = own - np.where(np.eye(CLASSES)[y] > 0, -np.inf, scores).max(axis=2)
        held = np.arange(len(y)) % 5 == fold
        best = int(expit(margins[:, ~held] / 0.08).sum(axis=1).argmax())
        right += int((margins[best, held] > 0).sum())
    return right


@pytest.mark.parametrize("prior", ["none", "client"])
def test_leave_one_out_counts_what_the_losses_of_priors_count(prior: str) -> None:
    clients = federation((40, 50, 30), test=5)
    outcome = simulate(clients, CLASSES, prior=prior == "client")
    task = Task(clients, CLASSES, prior="client" if prior == "client" else "none")
    found = compare_with_lda(outcome, task)
    everybody = outcome.federation.grid.counts

    fit = LdaFit(outcome.federation)
    scores = [fit.left_out(client) for client in clients]
    scale = scale_of(scores)
    losses = [
        PriorLosses.of([part], torch.tensor(client.train[1]), task.counts(client), everybody, scale)
        for part, client in zip(scores, clients, strict=True)
    ]
    lda = 0
    for k, client in enumerate(clients):
        y, counts = torch.tensor(client.train[1]), task.counts(client)
        for fold in range(5):  # its rows have no say in the prior that they are counted with
            inside = torch.arange(len(y)) % 5 == fold
            own = PriorLosses.of([scores[k][~inside]], y[~inside], counts, everybody, scale)
            _, chosen = choose_prior(own, reduce(add, [own, *losses[:k], *losses[k + 1 :]]))
            counted = PriorLosses.of([scores[k][inside]], y[inside], counts, everybody, scale)
            lda += int(counted.right_with(0, chosen))
    assert found.right["lda"] == lda

    ridge: list[float] = []
    for client, result in zip(clients, outcome.clients, strict=True):
        assert result.personal is not None
        if prior == "none":
            ridge.append(nested_right(outcome.federation, client))
            continue
        assert result.personal.estimate is not None  # tests/test_estimates.py says what it is
        ridge.append(round(result.personal.estimate * len(client.train[1])))
    assert found.right["ridge"] == sum(ridge)
    rows = [40, 50, 30]
    assert found.shares["ridge"] == pytest.approx(np.mean(np.array(ridge) / rows))
    assert (found.rows, found.by) == (120, "left out")
    assert found.prior == (prior if found.head == "ridge" else "client")


@pytest.mark.parametrize(("lda", "advice"), [(0.8, "worth a try"), (0.6, "no reason to change")])
def test_leave_one_out_in_words(lda: float, advice: str) -> None:
    heads = {"ridge": judged([70], [100]), "lda": judged([round(100 * lda)], [100])}
    told = Recommendation.of(heads, "ridge", {"ridge": "none", "lda": "client"}, "left out").to_dict()
    assert describe(told) == (
        f"Leave-one-out on training rows, mean over clients: 70.0% right with these models, {lda:.1%} with "
        f"--head lda --prior client, in one round too; {advice}."
    )


def test_a_lead_that_may_be_chance_is_called_so() -> None:
    heads = {"ridge": judged([70, 70], [100, 100]), "lda": judged([90, 60], [100, 100])}
    told = Recommendation.of(heads, "ridge", {"ridge": "none", "lda": "client"}, "left out").to_dict()
    assert describe(told).endswith(
        "75.0% with --head lda --prior client, in one round too; that LDA is better may be chance; no reason to change."
    )
