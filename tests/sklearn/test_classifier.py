"""The estimator against scikit-learn's own ridge, refits, and itself fitted another way."""

from __future__ import annotations

import doctest
import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax
from sklearn import config_context
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedhip.sklearn.classifier
import fedhip.sklearn.regressor
from fedhip import Statistics
from fedhip.core import RegularizationPath, default_betas
from fedhip.errors import ColumnError, ColumnWarning, FedHiPError, InputError
from fedhip.heads.model import Model
from fedhip.simulation.beta import SCORING_ALPHAS
from fedhip.sklearn import FedHiPClassifier

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[2]
SITES = ("east", "north", "south")
PAPER: dict[str, Any] = {"standardize": False, "fit_intercept": False}
both = pytest.mark.parametrize("paper", [False, True])
ridges = pytest.mark.parametrize(
    "options",
    [{"standardize": s, "fit_intercept": i} for s, i in itertools.product((True, False), repeat=2)],
    ids=lambda options: "-".join(name for name, on in options.items() if on) or "paper",
)


def of_ridge(**options: Any) -> FedHiPClassifier:
    """An estimator of ridges, unless another head is asked for."""
    return FedHiPClassifier(**{"head": "ridge", **options})


def problem(seed: int = 0, rows: int = 60, width: int = 5, classes: int = 3) -> tuple[Array, Array, Array]:
    """Features, labels that depend on them differently at each site, and the site of each row.

    Features are whole numbers of 2^-8, which the grid holds as they are.
    """
    rng = np.random.default_rng(seed)
    X = np.rint(256 * (rng.normal(size=(rows, width)) + 0.3)) / 256
    groups = np.array(SITES)[rng.integers(0, len(SITES), rows)]
    rules = {site: rng.normal(size=(width, classes)) for site in SITES}
    common = rng.normal(size=(width, classes))
    y = np.array([np.argmax(x @ (common + rules[site])) for x, site in zip(X, groups, strict=True)])
    return X, y, groups


def seen(X: Array, at: Array, standardize: bool) -> Array:
    """Rows as the ridge sees them: in deviations of the rows X, by scikit-learn."""
    rows: Array = StandardScaler().fit(X).transform(at) if standardize else at
    return rows


def ridge_scores(
    X: Array,
    y: Array,
    weights: Array,
    beta: float,
    at: Array,
    *,
    standardize: bool = True,
    fit_intercept: bool = True,
) -> Array:
    """scikit-learn's weighted ridge on one-hot labels."""
    Y = np.eye(int(y.max()) + 1)[y]
    model = Ridge(alpha=beta, fit_intercept=fit_intercept, solver="svd")
    model.fit(seen(X, X, standardize), Y, sample_weight=weights)
    scores: Array = model.predict(seen(X, at, standardize))
    return scores


def leave_one_out(
    X: Array,
    y: Array,
    groups: Array,
    site: str | None,
    alpha: float,
    beta: float,
    *,
    standardize: bool = True,
    fit_intercept: bool = True,
) -> Array:
    """Scores of each row of a site by refitting without it; None for all rows and weights of 1.

    Mean and deviation are those of all rows.
    """
    weights = np.where(groups == site, 1.0 + alpha, 1.0)
    rows = np.arange(len(X)) if site is None else np.flatnonzero(groups == site)
    d = int(y.max()) + 1
    Z, scores = seen(X, X, standardize), np.empty((len(rows), d))
    for i, row in enumerate(rows):
        rest = np.arange(len(X)) != row
        Y = np.eye(d)[y[rest]]
        model = Ridge(alpha=beta, fit_intercept=fit_intercept, solver="svd")
        scores[i] = model.fit(Z[rest], Y, sample_weight=weights[rest]).predict(Z[row : row + 1])[0]
    return scores


def soft_hits(scores: Array, y: Array) -> float:
    """The smoothed accuracy of scores: each row counts σ(margin / 0.08)."""
    own = scores[np.arange(len(y)), y]
    others = np.where(np.eye(scores.shape[1])[y] > 0, -np.inf, scores).max(axis=1)
    return float(expit((own - others) / 0.08).sum())


def same(a: FedHiPClassifier, b: FedHiPClassifier, X: Array, groups: Array) -> float:
    """The largest difference of their scores and probabilities, personal and global."""
    assert np.array_equal(a.classes_, b.classes_)
    assert a.alphas_ == b.alphas_
    return max(
        float(np.abs(getattr(a, method)(X, g) - getattr(b, method)(X, g)).max())
        for method in ("decision_function", "predict_proba")
        for g in (None, groups)
    )


def what_weights_cannot_be(estimator: Any) -> dict[str, str]:
    """Checks of sample_weight that are not to be passed, and why."""
    choice = {"check_sample_weight_equivalence_on_dense_data": "leave-one-out leaves out a row, not one of two copies"}
    if estimator.head in (None, "ridge") and estimator.prior in (None, "none"):
        return choice
    names = ("list", "not_overwritten")
    return choice | {f"check_sample_weights_{name}": "weights are of the ridge without priors alone" for name in names}


@pytest.mark.filterwarnings("ignore:column 1 alone tells every label")  # so it does in one check's rows
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        FedHiPClassifier(),
        of_ridge(),
        of_ridge(head="lda"),
    ],
    expected_failed_checks=what_weights_cannot_be,
)
@pytest.mark.sampled(3)
def test_scikit_learn_agrees_that_it_is_an_estimator(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column 1 alone tells every label")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        of_ridge(beta=1.0, **PAPER),
        of_ridge(alpha=3.0, only_local_classes=True),
        of_ridge(prior="client"),
        of_ridge(head="logistic", prior="client"),
        of_ridge(lift="fourier", lift_width=8),
        of_ridge(head="lda", lift="relu", lift_width=8),
    ],
    expected_failed_checks=what_weights_cannot_be,
)
def test_scikit_learn_agrees_whatever_the_options(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_the_default_is_the_choice_with_priors() -> None:
    """So scikit-learn's checks of the one are checks of the other."""
    X, y, groups = problem()
    usual, named = (
        clf.fit(X, y, groups=groups) for clf in (FedHiPClassifier(), FedHiPClassifier(head="auto", prior="client"))
    )
    assert usual.choice_ == named.choice_
    assert usual.priors_ == named.priors_
    assert np.array_equal(usual.decision_function(X, groups=groups), named.decision_function(X, groups=groups))


@ridges
@pytest.mark.parametrize("alpha", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("beta", [0.1, 7.0])
def test_theorem_2_a_clients_scores_are_those_of_weighted_ridge(
    alpha: float, beta: float, options: dict[str, Any]
) -> None:
    X, y, groups = problem()
    new = np.random.default_rng(9).normal(size=(11, X.shape[1]))
    clf = of_ridge(alpha=alpha, beta=beta, **options).fit(X, y, groups=groups)
    for site in SITES:
        expected = ridge_scores(X, y, np.where(groups == site, 1.0 + alpha, 1.0), beta, new, **options)
        assert np.abs(clf.decision_function(new, groups=[site] * 11) - expected).max() <= 1e-9
        assert np.array_equal(clf.predict(new, groups=[site] * 11), expected.argmax(axis=1))
    assert clf.alphas_ == dict.fromkeys(SITES, alpha)
    assert clf.beta_ == beta


@ridges
def test_features_are_rounded_to_a_small_part_of_their_deviation(options: dict[str, Any]) -> None:
    """Where they do not lie on the grid, whatever their units."""
    X, y, groups = problem()
    X = X + np.random.default_rng(3).uniform(-1 / 512, 1 / 512, X.shape)
    units = np.array([1e-3, 1.0, 1.0, 1e4, 3.0]) if options["standardize"] else 1.0
    clf = of_ridge(alpha=4.0, beta=2.0, **options).fit(units * X, y, groups=groups)
    expected = ridge_scores(X, y, np.where(groups == "east", 5.0, 1.0), 2.0, X, **options)
    assert np.abs(clf.decision_function(units * X, groups=["east"] * len(X)) - expected).max() <= 2e-5


@ridges
def test_every_row_is_answered_by_the_model_of_its_own_client(options: dict[str, Any]) -> None:
    X, y, groups = problem()
    clf = of_ridge(alpha=5.0, beta=1.0, **options).fit(X, y, groups=groups)
    mixed = clf.decision_function(X, groups=groups)
    for site in SITES:
        alone = ridge_scores(X, y, np.where(groups == site, 6.0, 1.0), 1.0, X[groups == site], **options)
        assert np.abs(mixed[groups == site] - alone).max() <= 1e-9


@ridges
def test_theorem_1_without_groups_and_for_unseen_clients_it_is_the_ridge_of_all_rows(options: dict[str, Any]) -> None:
    X, y, groups = problem()
    expected = ridge_scores(X, y, np.ones(len(X)), 1.0, X, **options)
    clf = of_ridge(alpha=20.0, beta=1.0, **options).fit(X, y, groups=groups)
    assert np.abs(clf.decision_function(X) - expected).max() <= 1e-9
    assert np.abs(clf.decision_function(X, groups=["west"] * len(X)) - expected).max() <= 1e-9
    assert np.abs(of_ridge(beta=1.0, **options).fit(X, y).decision_function(X) - expected).max() <= 1e-9
    assert np.array_equal(clf.predict_proba(X, groups=["west"] * len(X)), clf.predict_proba(X))
    known_and_not = np.where(groups == "north", "west", groups)
    assert (
        np.abs(clf.decision_function(X, known_and_not)[groups == "north"] - expected[groups == "north"]).max() <= 1e-9
    )


@ridges
def test_two_classes_give_the_decision_function_of_ridge_classifier(options: dict[str, Any]) -> None:
    X, y, groups = problem(classes=2)
    clf = of_ridge(alpha=4.0, beta=2.0, **options).fit(X, y, groups=groups)
    Z = seen(X, X, options["standardize"])
    oracle = RidgeClassifier(alpha=2.0, fit_intercept=options["fit_intercept"])
    oracle.fit(Z, y, np.where(groups == "south", 5.0, 1.0))
    found = clf.decision_function(X, groups=["south"] * len(X))
    assert found.shape == (len(X),)
    assert np.abs(found - oracle.decision_function(Z)).max() <= 1e-9
    assert np.array_equal(clf.predict(X, groups=["south"] * len(X)), oracle.predict(Z))


def test_an_intercept_is_not_penalised() -> None:
    """Of a penalty that leaves no weight, the frequencies of classes remain."""
    X, y, groups = problem()
    clf = of_ridge(alpha=3.0, beta=1e12).fit(X + 50.0, y, groups=groups)
    weights = np.where(groups == "east", 4.0, 1.0)
    frequencies = np.bincount(y, weights) / weights.sum()
    assert np.abs(clf.decision_function(X + 50.0, groups=["east"] * len(X)) - frequencies).max() <= 1e-9
    clf.set_params(fit_intercept=False)  # a fitted model stays what it is
    assert np.abs(clf.decision_function(X + 50.0, groups=["east"] * len(X)) - frequencies).max() <= 1e-9


@both
def test_loo_chooses_the_alpha_of_brute_force(paper: bool) -> None:
    X, y, groups = problem(seed=7, rows=36)
    grid, options = [0.0, 0.5, 3.0, 20.0, 100.0], PAPER if paper else {}
    best = {}
    for site in SITES:
        own = y[groups == site]
        soft = [soft_hits(leave_one_out(X, y, groups, site, alpha, 1.0, **options), own) for alpha in grid]
        best[site] = grid[int(np.argmax(soft))]
    assert len(set(best.values())) > 1  # or the test could not tell a constant from a choice
    clf = of_ridge(alphas=grid[::-1], beta=1.0, **options).fit(X, y, groups=groups)
    assert clf.alphas_ == best
    fixed = {site: of_ridge(alpha=best[site], beta=1.0, **options).fit(X, y, groups=groups) for site in SITES}
    for site in SITES:
        of_site = [site] * len(X)
        assert np.array_equal(clf.decision_function(X, of_site), fixed[site].decision_function(X, of_site))


def refitted(X: Array, y: Array, weights: Array, beta: float, rows: Array, *, fit_intercept: bool) -> Array:
    """Scores of rows by ridges without them, all at once."""
    F = np.column_stack((X, np.ones(len(X)))) if fit_intercept else X
    penalty = beta * np.diag([1.0] * X.shape[1] + [0.0] * fit_intercept)
    kept = weights * (np.arange(len(X)) != rows[:, None])
    gram = np.einsum("in,na,nb->iab", kept, F, F) + penalty
    cross = np.einsum("in,na,nc->iac", kept, F, np.eye(int(y.max()) + 1)[y])
    scores: Array = np.einsum("ia,iac->ic", F[rows], np.linalg.solve(gram, cross))
    return scores


@ridges
@pytest.mark.parametrize("alpha", ["loo", 2.0])
def test_beta_auto_is_that_of_brute_force(options: dict[str, Any], alpha: Any) -> None:
    """The largest β of nearly the highest smoothed accuracy of rows left out, each client at the α best for it."""
    X, y, groups = problem(seed=7, rows=40)
    alphas = [0.0, *(10.0 ** (i / 2) for i in range(-2, 7))] if alpha == "loo" else [alpha]
    Z = seen(X, X, options["standardize"])
    if options["fit_intercept"]:
        Z = Z - Z.mean(axis=0)
    betas = [np.square(Z).sum(axis=0).mean() * 10.0**i for i in range(-6, 2)]
    soft = []
    for beta in betas:
        found = 0.0
        for site in SITES:
            rows = np.flatnonzero(groups == site)
            every = [np.where(groups == site, 1.0 + a, 1.0) for a in alphas]
            found += max(
                soft_hits(refitted(Z, y, w, beta, rows, fit_intercept=options["fit_intercept"]), y[rows]) for w in every
            )
        soft.append(found)
    best = max(beta for beta, found in zip(betas, soft, strict=True) if found >= max(soft) * (1 - 5e-4))
    clf = of_ridge(alpha=alpha, **options).fit(X, y, groups=groups)
    assert clf.beta_ == pytest.approx(best, rel=1e-9)
    assert clf.beta_ is not None
    assert min(betas) < clf.beta_ < max(betas) * (1 - 1e-9)
    fixed = of_ridge(alpha=alpha, beta=clf.beta_, **options).fit(X, y, groups=groups)
    assert same(clf, fixed, X, groups) == 0.0


def test_beta_auto_takes_the_largest_of_equals() -> None:
    X = np.zeros((6, 2))  # whatever beta is, nothing can be explained
    clf = of_ridge(beta="auto").fit(X, [0, 1, 0, 1, 0, 1])
    assert clf.beta_ == max(default_betas(Statistics.from_data(X, [0, 1, 0, 1, 0, 1], 2)))


@both
@pytest.mark.parametrize("seed", range(3))
def test_theorem_3_how_others_share_their_rows_changes_nothing(seed: int, paper: bool) -> None:
    """Of a β that is given: by "auto" everybody's rows choose it, by how they are divided."""
    X, y, groups = problem(seed)
    rng = np.random.default_rng(seed)
    others = groups != "north"
    dealt = groups.copy()
    dealt[others] = rng.choice(["a", "b", "c", "d"], others.sum(), p=[0.7, 0.1, 0.1, 0.1])
    options = PAPER if paper else {}
    before = of_ridge(beta=1.0, **options).fit(X, y, groups=groups)
    after = of_ridge(beta=1.0, **options).fit(X, y, groups=dealt)
    north = ["north"] * len(X)
    assert after.alphas_["north"] == before.alphas_["north"]
    assert np.array_equal(after.decision_function(X, north), before.decision_function(X, north))
    assert np.array_equal(after.decision_function(X), before.decision_function(X))
    assert np.abs(after.predict_proba(X) - before.predict_proba(X)).max() <= 1e-9


@pytest.mark.parametrize("parameters", [{}, {"alpha": 7.0}, PAPER])
def test_partial_fit_equals_fit_on_all_rows(parameters: dict[str, Any]) -> None:
    X, y, groups = problem(classes=3)
    late = groups == "east"  # a client that joins, though first by name
    more = ~late & (np.arange(len(X)) % 3 == 0)  # more rows of known clients
    last = more | late
    together = of_ridge(**parameters).fit(
        np.concatenate((X[~last], X[last])),
        np.concatenate((y[~last], y[last])),
        np.concatenate((groups[~last], groups[last])),
    )
    grown = of_ridge(**parameters).partial_fit(X[~last], y[~last], groups[~last])
    grown.partial_fit(X[last], y[last], groups[last])
    assert same(grown, together, X, groups) <= 1e-9
    assert grown.beta_ == pytest.approx(together.beta_, rel=1e-9)
    one_by_one = of_ridge(**parameters).fit(X[~last], y[~last], groups[~last])
    for site in SITES:
        rows = last & (groups == site)
        one_by_one.partial_fit(X[rows], y[rows], groups[rows])
    assert same(one_by_one, together, X, groups) <= 1e-9


def test_partial_fit_takes_new_labels() -> None:
    X, y, groups = problem()
    names = np.array(["a", "long name", "b"])[y]
    two = y != 1
    grown = of_ridge().partial_fit(X[two], names[two], groups[two])
    assert grown.classes_.tolist() == ["a", "b"]
    grown.partial_fit(X[~two], names[~two], groups[~two])
    order = np.concatenate((np.flatnonzero(two), np.flatnonzero(~two)))
    assert same(grown, of_ridge().fit(X[order], names[order], groups[order]), X, groups) <= 1e-9


def test_partial_fit_takes_the_parameters_of_now() -> None:
    X, y, groups = problem()
    grown = of_ridge(alpha=1.0).fit(X[:40], y[:40], groups[:40])
    grown.set_params(alpha=3.0, fit_intercept=False).partial_fit(X[40:], y[40:], groups[40:])
    assert same(grown, of_ridge(alpha=3.0, fit_intercept=False).fit(X, y, groups), X, groups) <= 1e-9


def test_declared_classes_are_there_from_the_first_call() -> None:
    X, y, groups = problem()
    two = y != 2
    clf = of_ridge().partial_fit(X[two], y[two], groups[two], classes=[2, 1, 0])
    assert clf.classes_.tolist() == [0, 1, 2]
    assert clf.decision_function(X).shape == (len(X), 3)
    with pytest.raises(ValueError, match=r"label 5, which is not among the declared classes \[0, 1, 2\]"):
        clf.partial_fit(X[:1], [5], groups[:1])
    with pytest.raises(ValueError, match=r"classes are \[0, 1\], and the estimator has \[0, 1, 2\]"):
        clf.partial_fit(X[two], y[two], groups[two], classes=[0, 1])
    clf.forget("north")
    assert clf.classes_.tolist() == [0, 1, 2]


def test_a_partial_fit_that_fails_changes_nothing() -> None:
    X, y, groups = problem()
    clf = of_ridge(alpha=2.0, beta=1.0).fit(X, y, groups=groups)
    before = clf.decision_function(X, groups)
    clf.set_params(beta=-1.0)
    with pytest.raises(ValueError, match=r"beta is -1\.0"):
        clf.partial_fit(X[:9], y[:9], groups[:9])
    clf.set_params(beta=1.0)
    assert np.array_equal(clf.decision_function(X, groups), before)
    clf.partial_fit(X[:9], y[:9], groups[:9])
    twice = np.concatenate((np.arange(len(X)), np.arange(9)))
    assert same(clf, of_ridge(alpha=2.0, beta=1.0).fit(X[twice], y[twice], groups[twice]), X, groups) <= 1e-9


def test_forget_equals_never_fitted_bit_exact() -> None:
    X, y, groups = problem(classes=4)
    y[(groups != "north") & (y == 3)] = 0  # only north has class 3
    assert (y[groups == "north"] == 3).any()
    rest = groups != "north"
    never = of_ridge(beta="auto").fit(X[rest], y[rest], groups[rest])
    forgotten = of_ridge(beta="auto").fit(X, y, groups=groups).forget("north")
    assert forgotten.classes_.tolist() == [0, 1, 2]
    assert list(forgotten.alphas_) == ["east", "south"]
    assert forgotten.beta_ == never.beta_
    assert same(forgotten, never, X, groups) == 0.0


def test_forget_leaves_no_rounding_of_large_rows_nor_of_the_order_of_joining() -> None:
    X, y, _ = problem(rows=80)
    clients = np.arange(80) % 8
    X[clients == 3] *= 1e5  # a difference would leave 1e-6 of it
    rest = clients != 3
    never = of_ridge().fit(X[rest], y[rest], clients[rest])
    clf = of_ridge()

    def all_join() -> None:
        for client in (5, 3, 7, 0, 2, 6, 4, 1):
            clf.partial_fit(X[clients == client], y[clients == client], clients[clients == client], classes=[0, 1, 2])

    with pytest.warns(ColumnWarning, match="client '3': column . goes to"):
        all_join()
    clf.forget(3)
    assert same(clf, never, X[rest], clients[rest]) == 0.0


def test_forget_refuses_the_last_client_and_strangers() -> None:
    X, y, groups = problem()
    clf = of_ridge().fit(X, y, groups=groups)
    with pytest.raises(InputError, match="client 'west' is not in the federation; its clients are 'east', 'north'"):
        clf.forget("west")
    clf.forget("east").forget("north")
    with pytest.raises(InputError, match="client 'south' is the last one"):
        clf.forget("south")
    assert clf.predict(X, ["south"] * len(X)).shape == (len(X),)
    with pytest.raises(NotFittedError):
        of_ridge().forget("east")


@pytest.mark.parametrize("dtype", [str, object])
def test_labels_and_clients_may_be_strings_or_numbers(dtype: type) -> None:
    X, y, groups = problem()
    names, numbers = np.array(["ant", "bee", "cow"]), np.searchsorted(SITES, groups)
    by_number = of_ridge().fit(X, y, groups=numbers)
    by_name = of_ridge().fit(X, names[y].astype(dtype), groups=groups.astype(dtype))
    assert by_name.classes_.tolist() == names.tolist()
    assert list(by_name.alphas_) == list(SITES)
    assert list(by_number.alphas_) == [0, 1, 2]
    assert by_name.predict(X, groups.tolist()).tolist() == names[by_number.predict(X, numbers)].tolist()
    assert np.array_equal(by_number.predict(X, numbers.astype(float)), by_number.predict(X, numbers.tolist()))


def test_probabilities_sum_to_one_and_agree_with_predict() -> None:
    X, y, groups = problem()
    clf = of_ridge(alpha=5.0).fit(X, y, groups=groups)
    for g in (None, groups):
        P = clf.predict_proba(X, g)
        assert np.abs(P.sum(axis=1) - 1.0).max() <= 1e-12
        assert np.array_equal(clf.classes_[P.argmax(axis=1)], clf.predict(X, g))
        ratios = np.log(P[:, :1] / P[:, 1:]) / (clf.decision_function(X, g)[:, :1] - clf.decision_function(X, g)[:, 1:])
        (temperature,) = {m.temperature for m in ([clf.global_model_] if g is None else clf.models_.values())}
        assert np.abs(ratios * temperature - 1.0).max() <= 1e-6


@both
@pytest.mark.parametrize("alpha", [0.0, 6.0])
def test_the_temperature_is_that_of_highest_likelihood_on_refitted_scores(alpha: float, paper: bool) -> None:
    X, y, groups = problem(seed=1, rows=50)
    options = PAPER if paper else {}
    clf = of_ridge(alpha=alpha, beta=1.0, **options).fit(X, y, groups=groups)
    parts = [leave_one_out(X, y, groups, site, alpha, 1.0, **options) for site in SITES]
    labels = [y[groups == site] for site in SITES]
    common = leave_one_out(X, y, groups, None, 0.0, 1.0, **options)
    (personal,) = {model.temperature for model in clf.models_.values()}
    for scores, own, found in (
        (common, y, clf.global_model_.temperature),
        (np.concatenate(parts), np.concatenate(labels), personal),
    ):

        def loss(log_temperature: float, scores: Array = scores, own: Array = own) -> float:
            return -float(log_softmax(scores / math.exp(log_temperature), axis=1)[np.arange(len(own)), own].mean())

        best = minimize_scalar(loss, bounds=(-6.0, 2.0), method="bounded")
        assert found is not None
        assert found == pytest.approx(math.exp(best.x), rel=0.15)  # between points 58 % apart
        assert loss(math.log(found)) <= best.fun * 1.005


def test_only_local_classes_leaves_the_others_out() -> None:
    X, y, groups = problem()
    y[(groups == "east") & (y == 1)] = 0
    y[groups == "south"] = 2
    free = of_ridge(alpha=0.1, beta=0.1).fit(X, y, groups=groups)
    clf = of_ridge(alpha=0.1, beta=0.1, only_local_classes=True).fit(X, y, groups=groups)
    for site, seen in (("east", [0, 2]), ("south", [2]), ("north", [0, 1, 2]), ("west", [0, 1, 2]), (None, [0, 1, 2])):
        at = None if site is None else [site] * len(X)
        scores, P = clf.decision_function(X, at), clf.predict_proba(X, at)
        unseen = [c for c in range(3) if c not in seen]
        assert np.array_equal(scores[:, seen], free.decision_function(X, at)[:, seen])
        assert (scores[:, unseen] == -np.inf).all()
        assert (P[:, unseen] == 0.0).all()
        assert np.abs(P.sum(axis=1) - 1.0).max() <= 1e-12
        assert set(clf.predict(X, at)) <= set(seen)
    assert 1 in free.predict(X, ["east"] * len(X))
    assert bool(clf.global_model_.local_classes.all())
    assert not clf.global_model_.only_local_classes


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a"] * 5, r"groups has shape \(5,\), and X has 60 rows"),
        ("a", r"groups has shape \(\), and X has 60 rows"),
        ([["a"]] * 60, r"groups has shape \(60, 1\)"),
        (["a"] * 59 + [math.nan], "groups is nan in row 59"),
        ([1.0] * 59 + [math.nan], "groups is nan in row 59"),
        (np.array([1.0] * 7 + [math.inf] * 53), "groups is inf in row 7"),
        (["a"] * 2 + [None] * 58, "groups is None in row 2"),
        ([0.5] * 60, r"groups is 0\.5 in row 0"),
        ([True] * 60, "groups is True in row 0"),
        ([b"a"] * 60, "groups is b'a' in row 0"),
        (["1"] * 59 + [1], "groups mixes numbers and strings"),
    ],
)
def test_groups_must_name_the_client_of_each_row(groups: Any, message: str) -> None:
    X, y, sites = problem()
    with pytest.raises(InputError, match=message):
        of_ridge().fit(X, y, groups=groups)
    clf = of_ridge().fit(X, y, groups=sites)
    for method in (clf.predict, clf.predict_proba, clf.decision_function):
        with pytest.raises(InputError, match=message):
            method(X, groups=groups)
    with pytest.raises(InputError, match=message):
        clf.partial_fit(X, y, groups=groups)


def test_a_number_is_not_taken_for_a_name() -> None:
    X, y, groups = problem()
    numbers = np.searchsorted(SITES, groups)
    clf = of_ridge().fit(X, y, groups=numbers)
    with pytest.raises(InputError, match="groups holds strings such as '0', and the clients are 0, 1, 2"):
        clf.predict(X[:1], groups=["0"])
    with pytest.raises(InputError, match="groups holds strings"):
        clf.partial_fit(X, y, groups=numbers.astype(str))
    named = of_ridge().fit(X, y, groups=groups)
    with pytest.raises(InputError, match="groups holds numbers such as 7"):
        named.predict(X[:1], groups=[7])


def test_rows_without_a_client_are_added_only_where_there_is_just_one() -> None:
    X, y, groups = problem()
    alone = of_ridge().fit(X[:40], y[:40]).partial_fit(X[40:], y[40:])
    assert list(alone.alphas_) == [0]
    assert same(alone, of_ridge().fit(X, y), X, np.zeros(len(X), dtype=int)) <= 1e-9
    for clients in (groups, np.searchsorted(SITES, groups)):
        clf = of_ridge().fit(X, y, groups=clients)
        with pytest.raises(InputError, match="groups is None, and there are clients"):
            clf.partial_fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha": -1.0}, r"alpha is -1\.0"),
        ({"alpha": "best"}, "alpha is 'best'; give 'loo'"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"alpha": np.array([1.0, 2.0])}, r"alpha is array\(\[1"),
        ({"beta": -2}, "beta is -2"),
        ({"beta": "best"}, "beta is 'best'; give 'auto'"),
        ({"beta": None}, "beta is None"),
        ({"alphas": []}, "no alpha to choose from"),
        ({"alphas": [1.0, -1.0]}, r"alpha is -1\.0"),
    ],
)
def test_parameters_that_make_no_sense(parameters: dict[str, Any], message: str) -> None:
    X, y, groups = problem()
    with pytest.raises(ValueError, match=message):
        of_ridge(**parameters).fit(X, y, groups=groups)


def test_errors_of_the_core_name_the_client() -> None:
    X, y, groups = problem()
    huge = X.copy()
    huge[groups == "south"] *= 1e200
    with pytest.raises(
        ColumnError, match=r"client 'south': the feature in row 0, column 0 is .*e\+199; features may be"
    ):
        of_ridge().fit(huge, y, groups=groups)
    stray = X.copy()
    row = np.flatnonzero(groups == "north")[2]
    stray[row, 3] = -1e12
    message = r"client 'north', training row 2: column 3 holds a value of about -1e\+12.*repair or drop the row"
    with pytest.raises(ColumnError, match=message):
        of_ridge().fit(stray, y, groups=groups)


def accuracy_by_fold(folds: Any, X: Array, y: Array, groups: Array, alpha: float) -> list[float]:
    """What cross-validation must give, written out with weighted ridge."""
    result = []
    for train, test in folds:
        right = 0
        for row in test:
            weights = np.where(groups[train] == groups[row], 1.0 + alpha, 1.0)
            right += int(ridge_scores(X[train], y[train], weights, 1.0, X[row : row + 1]).argmax() == y[row])
        result.append(right / len(test))
    return result


def test_cross_validation_across_rows_routes_groups_to_fit_and_score() -> None:
    X, y, groups = problem(rows=90)
    cv = KFold(3, shuffle=True, random_state=0)
    with config_context(enable_metadata_routing=True):
        clf = of_ridge(alpha=20.0, beta=1.0).set_fit_request(groups=True).set_score_request(groups=True)
        found = cross_val_score(clf, X, y, cv=cv, params={"groups": groups})
    expected = accuracy_by_fold(cv.split(X), X, y, groups, 20.0)
    assert found.tolist() == pytest.approx(expected)
    assert found.tolist() != pytest.approx(accuracy_by_fold(cv.split(X), X, y, groups, 0.0))


def test_cross_validation_across_clients_needs_no_routing() -> None:
    X, y, groups = problem(rows=90)
    cv = GroupKFold(3)
    plain = cross_val_score(of_ridge(alpha=20.0, beta=1.0), X, y, groups=groups, cv=cv)
    assert plain.tolist() == pytest.approx(accuracy_by_fold(cv.split(X, y, groups), X, y, groups, 0.0))
    with config_context(enable_metadata_routing=True):
        clf = of_ridge(alpha=20.0, beta=1.0).set_fit_request(groups=True).set_score_request(groups=True)
        routed = cross_val_score(clf, X, y, cv=cv, params={"groups": groups})
    assert np.array_equal(plain, routed)


def test_in_a_pipeline_with_and_without_routing() -> None:
    X, y, groups = problem()
    X = 100.0 * X + 7.0
    expected = ridge_scores(X, y, np.where(groups == "east", 21.0, 1.0), 1.0, X)
    east = groups == "east"
    plain = make_pipeline(StandardScaler(), of_ridge(alpha=20.0, beta=1.0))
    plain.fit(X, y, fedhipclassifier__groups=groups)
    assert np.array_equal(plain.predict(X, groups=groups)[east], expected[east].argmax(axis=1))
    with config_context(enable_metadata_routing=True):
        for again in (True, False):  # what is standardised is not changed by doing it again
            clf = of_ridge(alpha=20.0, beta=1.0, standardize=again).set_fit_request(groups=True)
            routed = make_pipeline(StandardScaler(), clf.set_decision_function_request(groups=True))
            found = routed.fit(X, y, groups=groups).decision_function(X, groups=groups)
            assert np.abs(found[east] - expected[east]).max() <= 2e-5  # the scaler's rows do not lie on the grid


def test_grid_search_over_alpha_and_beta() -> None:
    X, y, groups = problem(rows=90)
    cv = KFold(3, shuffle=True, random_state=0)
    with config_context(enable_metadata_routing=True):
        clf = of_ridge().set_fit_request(groups=True).set_score_request(groups=True)
        search = GridSearchCV(clf, {"alpha": [0.0, 20.0, "loo"], "beta": [1.0, "auto"]}, cv=cv)
        search.fit(X, y, groups=groups)
    for i, alpha in ((0, 0.0), (2, 20.0)):
        assert search.cv_results_["params"][i] == {"alpha": alpha, "beta": 1.0}
        expected = np.mean(accuracy_by_fold(cv.split(X), X, y, groups, alpha))
        assert search.cv_results_["mean_test_score"][i] == pytest.approx(expected)


def test_clone_and_pickle(tmp_path: Path) -> None:
    X, y, groups = problem()
    clf = of_ridge(alphas=[0.0, 2.0], beta=3.0, fit_intercept=False, only_local_classes=True)
    assert clone(clf).get_params() == clf.get_params()
    clf.fit(X, y, groups=groups)
    assert not hasattr(clone(clf), "classes_")
    joblib.dump(clf, tmp_path / "clf.joblib")
    loaded = joblib.load(tmp_path / "clf.joblib")
    assert same(loaded, clf, X, groups) == 0.0
    assert same(loaded.forget("east"), clf.forget("east"), X, groups) == 0.0


def test_a_clients_model_can_be_saved_without_anybodys_rows(tmp_path: Path) -> None:
    X, y, groups = problem()
    of_numpy: dict[str, Any] = {"alpha": np.float32(2.0), "beta": np.int64(1)}
    clf = of_ridge(**of_numpy).fit(X, y, groups=groups)
    clf.models_["north"].to_file(tmp_path / "north.safetensors")
    model = Model.from_file(tmp_path / "north.safetensors")
    assert (model.client, model.class_names, model.alpha, model.beta) == ("north", ("0", "1", "2"), 2.0, 1.0)
    expected = ridge_scores(X, y, np.where(groups == "north", 3.0, 1.0), 1.0, X)
    assert np.abs(model.scores(X).numpy() - expected).max() <= 1e-9
    assert torch.equal(model.probabilities(X), torch.from_numpy(clf.predict_proba(X, ["north"] * len(X))))


def test_the_estimator_keeps_its_own_copy_of_the_rows() -> None:
    X, y, groups = problem()
    clf = of_ridge().fit(X, y, groups=groups)
    expected = of_ridge().fit(X, y, groups=groups).forget("east").decision_function(X, groups)
    at = X.copy()
    X *= 0.0
    y[:] = 0
    assert np.array_equal(clf.forget("east").decision_function(at, groups), expected)


def test_feature_names_are_kept_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the names of a data frame, which the tests do not depend on."""

    class Table(np.ndarray[Any, Any]):
        names: tuple[str, ...] | None = None

    def table(X: Array, *names: str) -> Table:
        named = X.view(Table)
        named.names = names
        return named

    def names_of(X: Any) -> Array | None:
        return None if getattr(X, "names", None) is None else np.array(X.names, dtype=object)

    monkeypatch.setattr("sklearn.utils.validation._get_feature_names", names_of)
    X, y, groups = problem(width=2)
    clf = of_ridge().fit(table(X, "length", "weight"), y, groups=groups)
    assert clf.feature_names_in_.tolist() == ["length", "weight"]
    assert clf.n_features_in_ == 2
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(table(X, "weight", "length"), groups=groups)
    with pytest.raises(ValueError, match="feature names should match"):
        clf.partial_fit(table(X, "weight", "length"), y, groups=groups)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or done.stderr


def test_only_the_estimator_needs_scikit_learn() -> None:
    assert run("import sys, fedhip; print('sklearn' in sys.modules)") == "False"
    said = run(
        "import sys; sys.modules['sklearn'] = None\n"
        "from fedhip.errors import MissingExtraError\n"
        "try: import fedhip.sklearn\n"
        "except MissingExtraError as error: print(error)"
    )
    assert said == "fedhip.sklearn needs scikit-learn; pip install 'fedhip[sklearn]'"


@pytest.mark.usefixtures("few_digits")
@pytest.mark.parametrize("module", [fedhip.sklearn.classifier, fedhip.sklearn.regressor])
def test_the_examples_of_docstrings_run(module: ModuleType) -> None:
    tried = doctest.testmod(module)
    assert tried.attempted
    assert not tried.failed


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
def test_the_page_on_the_estimator_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "sklearn.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: list[dict[str, Any]] = [{} for _ in blocks]
    for block, own in zip(blocks, names, strict=True):
        exec(compile(block, "docs/sklearn.md", "exec"), own)  # noqa: S102
    assert Model.from_file(tmp_path / "site-0.safetensors").client == "site-0"
    assert "site-0" in names[0]["clf"].alphas_
    assert "site-3" not in names[0]["clf"].alphas_
    assert (names[1]["ends"][:, 0] < names[1]["ends"][:, 1]).all()
    assert names[2]["search"].best_score_ > 0.9


# --- other heads, and priors ------------------------------------------------------------------------------------------

beyond = pytest.mark.parametrize("head", ["lda", "logistic"])
KINDS = [
    {"prior": "client"},
    *({"head": head, "prior": prior} for head in ("lda", "logistic") for prior in ("none", "client")),
    {"head": "auto"},
]


def test_the_global_lda_is_scikit_learns_with_its_shrinkage() -> None:
    X, y, groups = problem(rows=90)
    clf = of_ridge(head="lda").fit(X, y, groups=groups)
    scaler = StandardScaler().fit(X)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=clf.settings_["shrinkage"])
    expected = theirs.fit(scaler.transform(X), y).decision_function(scaler.transform(X))
    assert np.abs(clf.decision_function(X) - expected).max() <= 1e-3 * np.abs(expected).max()  # features are rounded
    assert clf.beta_ is None
    assert set(clf.alphas_.values()) <= {0.0, 1.0}
    assert any(clf.alphas_.values())  # the sites disagree


@pytest.mark.parametrize("parameters", KINDS)
def test_every_row_is_answered_by_its_clients_model_of_the_head(parameters: dict[str, Any]) -> None:
    X, y, groups = problem(rows=120)
    clf = of_ridge(**parameters).fit(X, y, groups=groups)
    assert set(clf.models_) == set(SITES)
    assert parameters.get("head", "ridge") in (clf.head_, "auto")
    scores = clf.decision_function(X, groups)
    for site, model in clf.models_.items():
        at = groups == site
        np.testing.assert_array_equal(scores[at], model.scores(X[at]).numpy())
        assert model.head == clf.head_
        assert (model.bias is not None) == (site in clf.priors_)
    np.testing.assert_array_equal(clf.predict(X, groups), clf.classes_[scores.argmax(axis=1)])
    chances = clf.predict_proba(X, groups)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    np.testing.assert_array_equal(chances.argmax(axis=1), scores.argmax(axis=1))
    np.testing.assert_array_equal(clf.predict_proba(X, ["nobody"] * len(X)), clf.predict_proba(X))
    assert clf.score(X, y, groups=groups) > clf.score(X, y)


@pytest.mark.parametrize("parameters", KINDS)
def test_forget_and_partial_fit_of_the_head_are_fits_of_the_rows_there_are(parameters: dict[str, Any]) -> None:
    X, y, groups = problem(rows=48)
    rest = groups != "north"
    never = of_ridge(**parameters).fit(X[rest], y[rest], groups=groups[rest])
    whole = of_ridge(**parameters).fit(X, y, groups=groups)
    assert same(deepcopy(whole).forget("north"), never, X, groups) == 0.0
    joined = never.partial_fit(X[~rest], y[~rest], groups=groups[~rest])
    assert same(joined, whole, X, groups) == 0.0


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(
    "parameters",
    [*KINDS, {}, PAPER, {"alpha": 3.0}, {"only_local_classes": True}, {"lift": "relu", "lift_width": 5}],
)
@pytest.mark.sampled(3)
def test_clients_of_one_row_each_are_served(parameters: dict[str, Any], rows: int) -> None:
    X, y, clients = problem(rows=3)[0][:rows], np.arange(rows), np.arange(rows)
    clf = of_ridge(**parameters).fit(X, y, groups=clients)
    for groups in (None, clients):
        chances = clf.predict_proba(X, groups)
        assert chances.shape == (rows, rows)
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)


def test_priors_help_where_sites_have_their_own_classes() -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(6, 4))
    y = rng.integers(0, 6, 400)
    sites = np.array(SITES)[np.where(rng.random(400) < 0.95, y // 2, rng.integers(0, 3, 400))]
    X = means[y] + rng.normal(size=(400, 4))
    train = np.arange(400) < 250
    for head in ("ridge", "lda", "logistic"):
        scores = {
            prior: of_ridge(head=head, prior=prior)
            .fit(X[train], y[train], groups=sites[train])
            .score(X[~train], y[~train], groups=sites[~train])
            for prior in ("none", "client")
        }
        # A step of its own, as LDA has none, learns part of what frequencies say.
        assert scores["client"] >= scores["none"] + (0.02 if head == "lda" else 0.0), (head, scores)


def gaussian_classes() -> tuple[Array, Array, Array]:
    """One covariance for all classes, and sites alike: LDA's own ground."""
    rng = np.random.default_rng(3)
    y = np.arange(300) % 6
    X = rng.normal(size=(6, 4))[y] * [4.0, 1.0, 1.0, 0.2] + rng.normal(size=(300, 4)) * [4.0, 1.0, 1.0, 0.1]
    return X, y, np.array(SITES)[rng.integers(0, 3, 300)]


def opposite_rules() -> tuple[Array, Array, Array]:
    """One site sees the two classes the other way round: its α lets the ridge follow, shared means do not."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(240, 6))
    groups = np.array(SITES)[np.arange(240) % 3]
    y = np.array([((x[0] > 0) ^ (site == "north")) for x, site in zip(X, groups, strict=True)]).astype(int)
    return X, y, groups


@pytest.mark.parametrize(
    ("rows", "members"), [(gaussian_classes, {"lda"}), (opposite_rules, {"ridge", "alone"})], ids=["lda", "own"]
)
def test_without_arguments_models_are_those_that_rows_held_out_speak_for(
    rows: Callable[[], tuple[Array, Array, Array]], members: set[str]
) -> None:
    X, y, groups = rows()
    clf = FedHiPClassifier().fit(X, y, groups=groups)
    assert clf.head_ == "auto"
    assert clf.head is None, "parameters stay as they were given"
    assert clf.choice_ is not None
    assert clf.choice_["rows"] == len(X)
    assert members & set(clf.choice_["model"].split("+"))
    assert clf.set_params(head="lda").fit(X, y, groups=groups).choice_ is None


@pytest.mark.parametrize("intercept", [True, False])
def test_the_choice_judges_the_ridge_that_is_asked_for(intercept: bool) -> None:
    """With α = 0 and no prior, the ridge is judged by refits without each row."""
    X, y, groups = problem(rows=90)
    options: dict[str, Any] = {"standardize": False, "fit_intercept": intercept}
    right = np.zeros(len(X), bool)
    for row in range(len(X)):
        others = np.arange(len(X)) != row
        scores = ridge_scores(X[others], y[others], np.ones(len(X) - 1), 7.0, X[row : row + 1], **options)
        right[row] = scores[0].argmax() == y[row]
    found = FedHiPClassifier(head="auto", alpha=0.0, beta=7.0, prior="none", **options).fit(X, y, groups=groups)
    assert found.choice_ is not None
    told = {(entry["features"], entry["model"]): entry["held_out"] for entry in found.choice_["candidates"]}
    expected = np.mean([right[groups == site].mean() for site in SITES])
    assert told["as they are", "ridge"] == pytest.approx(expected, abs=0.5 / 1024)  # shares are in steps of 1/1024
    assert told["as they are", "global"] == pytest.approx(expected, abs=0.5 / 1024)


@beyond
def test_what_the_ridge_is_of_says_nothing_to_other_heads(head: str) -> None:
    X, y, groups = problem(rows=90)
    X = X + 1e5  # no grid holds it without moving it
    usual, paper = (of_ridge(head=head, **options).fit(X, y, groups=groups) for options in ({}, PAPER))
    assert same(usual, paper, X, groups) == 0.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head": "auto", "beta": "best"}, "beta is 'best'; give 'auto'"),
        ({"head": "ldaa"}, "there is no head 'ldaa'; choose among ridge, lda, logistic, auto; did you mean 'lda'"),
        ({"prior": "clients"}, "prior is 'clients'; give 'client' or 'none'"),
        ({"head": "lda", "alpha": "best"}, "alpha is 'best'; give 'loo'"),
    ],
)
def test_heads_and_priors_that_there_are_not(parameters: dict[str, Any], message: str) -> None:
    X, y, groups = problem()
    with pytest.raises(FedHiPError, match=message):
        of_ridge(**parameters).fit(X, y, groups=groups)


@beyond
def test_a_clone_with_a_head_is_the_same_estimator(head: str, tmp_path: Path) -> None:
    X, y, groups = problem()
    clf = of_ridge(head=head, prior="client", only_local_classes=True).fit(X, y, groups=groups)
    assert clone(clf).get_params() == clf.get_params()
    joblib.dump(clf, tmp_path / "clf")
    assert same(joblib.load(tmp_path / "clf"), clf, X, groups) == 0.0
    clf.models_["east"].to_file(tmp_path / "east.safetensors")
    assert Model.from_file(tmp_path / "east.safetensors").head == head


def test_beta_is_chosen_for_models_of_the_alphas_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, ...]] = []
    score = RegularizationPath.score

    def watched(self: RegularizationPath, F: Any, y: Any, alphas: Any = (0.0,), **named: Any) -> Any:
        asked.append(tuple(alphas))
        return score(self, F, y, alphas, **named)

    monkeypatch.setattr(RegularizationPath, "score", watched)
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(60, 4)), rng.integers(0, 3, 60), np.repeat(["a", "b", "c"], 20)
    for given, expected in (((0.0, 3.0), (0.0, 3.0)), (None, SCORING_ALPHAS)):
        asked.clear()
        of_ridge(alphas=given).fit(X, y, groups=groups)
        assert set(asked) == {expected}
