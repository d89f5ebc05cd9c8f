"""What units a column is in, where its zero is, and what stands beside it decides nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip.core.affine import AffineModel
from fedhip.errors import ColumnError, ColumnWarning
from fedhip.features.lifts.kinds import LiftKind
from fedhip.heads.round import simulate
from fedhip.methods import run_method
from fedhip.simulation.alone import local_model
from fedhip.simulation.client import Client
from fedhip.simulation.outcome import Outcome
from fedhip.sklearn import FedHiPClassifier
from tests.core.problems import Array
from tests.drawing import examples

WIDTH, CLASSES, SITES, TRAIN, ROWS = 4, 3, 3, 60, 110
#: With classes' priors and by rounds of gradients it takes several times as long.
heads = pytest.mark.parametrize(
    "options",
    [
        {"head": "ridge"},
        pytest.param({"head": "ridge", "prior": "client"}, marks=pytest.mark.slow),
        {"fit_intercept": False},
        {"head": "lda"},
        pytest.param({"head": "logistic"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
#: The grid rounds a feature to less than 2^-16 of its deviation, and other units to other numbers.
ROUNDED, EXACT = 1e-4, 1e-9
#: In rounds of gradients weights travel with 24 bits.
EXACT_LOGISTIC = 1e-6


@dataclass(frozen=True)
class Change:
    """The same table in other columns: in other units, moved, in another order, with columns that say nothing new.

    `shift` is in deviations of the column, `whole` in units of the table. `copies` are (column, factor, shift, place),
    `constants` (value, place).
    """

    scale: tuple[float, ...] = (1.0,) * WIDTH
    shift: tuple[float, ...] = (0.0,) * WIDTH
    whole: tuple[int, ...] = (0,) * WIDTH
    order: tuple[int, ...] = tuple(range(WIDTH))
    copies: tuple[tuple[int, float, float, int], ...] = ()
    constants: tuple[tuple[float, int], ...] = ()

    def __call__(self, X: Array) -> Array:
        Z: Array = (X + np.array(self.whole) + np.array(self.shift) * X[:TRAIN].std(axis=0)) * np.array(self.scale)
        Z = Z[:, self.order]
        for column, factor, shift, place in self.copies:
            copied = factor * (X[:, column] + shift * X[:TRAIN, column].std())
            Z = np.insert(Z, place, copied, axis=1)
        for value, place in self.constants:
            Z = np.insert(Z, place, value, axis=1)
        return Z


units = st.tuples(*[st.integers(-6, 6).map(lambda k: 10.0**k)] * WIDTH)
powers_of_two = st.tuples(*[st.integers(-20, 20).map(lambda k: 2.0**k)] * WIDTH)
shifts = st.tuples(*[st.floats(-1000.0, 1000.0)] * WIDTH)
whole_shifts = st.tuples(*[st.integers(-1000, 1000)] * WIDTH)
orders = st.permutations(range(WIDTH)).map(tuple)
constants = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, -3.7e5, 1e-9, np.pi, 1e15]), st.integers(0, WIDTH)), max_size=2
).map(tuple)
factors = st.tuples(st.integers(-6, 6), st.sampled_from([-1.0, 1.0])).map(lambda found: found[1] * 10.0 ** found[0])


def copies(first: int) -> st.SearchStrategy[tuple[Any, ...]]:
    """Of one column or two, in front of the table or behind it."""
    one = st.tuples(st.integers(0, WIDTH - 1), factors, st.sampled_from([0.0, 300.0]), st.integers(first, WIDTH))
    return st.lists(one, max_size=2).map(tuple)


#: Not turned about: of a column and its mirror image, landmarks are drawn for the first.
same_way_copies = copies(0).map(lambda found: tuple((at, abs(factor), *rest) for at, factor, *rest in found))
rounded = st.builds(Change, scale=units, shift=shifts, order=orders, copies=copies(0), constants=constants)
#: Changes that leave the same numbers on the grid: the first of two copies stays.
exact = st.builds(
    Change, scale=powers_of_two, whole=whole_shifts, order=orders, copies=copies(WIDTH), constants=constants
)
seeds = st.integers(0, 4)


@lru_cache
def table(seed: int) -> tuple[Array, Array, Array]:
    """Features that the grid holds as they are, labels, and whose each row is."""
    rng = np.random.default_rng(seed)
    y, sites = rng.integers(0, CLASSES, ROWS), rng.integers(0, SITES, ROWS)
    moved = rng.normal(size=(CLASSES, WIDTH))[y] + 0.5 * rng.normal(size=(SITES, WIDTH))[sites]
    return np.rint(256 * (moved + rng.normal(size=(ROWS, WIDTH)))) / 256, y, sites


def require_same(found: Array, expected: Array, tolerance: float) -> None:
    """Scores, and the classes that they choose wherever they choose."""
    size = np.abs(expected).max()
    assert np.abs(found - expected).max() <= tolerance * size
    two = np.sort(expected, axis=1)[:, -2:]
    clear = two[:, 1] - two[:, 0] > 2 * tolerance * size
    assert clear.mean() > 0.9
    assert np.array_equal(found.argmax(axis=1)[clear], expected.argmax(axis=1)[clear])


# --- the estimator ----------------------------------------------------------------------------------------------------


def fitted(X: Array, seed: int, options: dict[str, Any]) -> FedHiPClassifier:
    _, y, sites = table(seed)
    return FedHiPClassifier(**options).fit(X[:TRAIN], y[:TRAIN], groups=sites[:TRAIN])


@lru_cache
def plain(seed: int, options: tuple[tuple[str, Any], ...]) -> FedHiPClassifier:
    return fitted(table(seed)[0], seed, dict(options))


def require_same_estimator(seed: int, change: Change, options: dict[str, Any], tolerance: float) -> None:
    X, _, sites = table(seed)
    Z = change(X)
    before, after = plain(seed, tuple(options.items())), fitted(Z, seed, options)
    assert after.alphas_ == before.alphas_
    assert after.beta_ == (None if before.beta_ is None else pytest.approx(before.beta_, rel=tolerance))
    for groups in (None, sites[TRAIN:]):
        expected = before.decision_function(X[TRAIN:], groups)
        require_same(after.decision_function(Z[TRAIN:], groups), expected, tolerance)
        chances = after.predict_proba(Z[TRAIN:], groups) - before.predict_proba(X[TRAIN:], groups)
        assert np.abs(chances).max() <= 10 * tolerance


@heads
@examples(6)
@given(seed=seeds, change=rounded)
def test_the_estimator_does_not_see_units_nor_columns_that_say_nothing_new(
    options: dict[str, Any], seed: int, change: Change
) -> None:
    require_same_estimator(seed, change, options, ROUNDED)


@heads
@examples(6)
@given(seed=seeds, change=exact)
def test_the_estimator_is_the_same_to_rounding_where_the_grid_holds_the_same_numbers(
    options: dict[str, Any], seed: int, change: Change
) -> None:
    tolerance = EXACT_LOGISTIC if options.get("head") == "logistic" else EXACT
    require_same_estimator(seed, change, options, tolerance)


@pytest.mark.slow
@examples(5)
@given(
    seed=seeds,
    change=st.builds(Change, scale=units, shift=shifts, order=orders, copies=same_way_copies, constants=constants),
)
def test_the_choice_does_not_see_units_nor_columns_that_say_nothing_new(seed: int, change: Change) -> None:
    """That of an estimator without options; a lift competes in it."""
    require_same_estimator(seed, change, {}, 1e-3)


@examples(12)
@given(seed=seeds, change=st.builds(Change, whole=whole_shifts, order=orders, constants=constants))
def test_an_intercept_alone_takes_out_shifts_and_constants(seed: int, change: Change) -> None:
    require_same_estimator(seed, change, {"standardize": False}, EXACT)


def test_the_papers_ridge_does_depend_on_units() -> None:
    """Or the others would say nothing."""
    options = {"standardize": False, "fit_intercept": False, "beta": 1.0}
    for change in (Change(scale=(1e-3, 1.0, 1.0, 1.0)), Change(whole=(5, 0, 0, 0)), Change(constants=((1.0, 0),))):
        with pytest.raises(AssertionError):
            require_same_estimator(0, change, options, 1e-2)


@pytest.mark.parametrize("head", ["ridge", "lda"])
@pytest.mark.parametrize("kind", ["relu", "fourier", "nystroem", "nystroem-axes"])
@examples(8)
@given(seed=seeds, change=st.builds(Change, scale=units, shift=shifts, constants=constants))
@pytest.mark.sampled(3)
def test_lifts_do_not_see_units(kind: LiftKind, head: str, seed: int, change: Change) -> None:
    require_same_estimator(seed, change, {"head": head, "lift": kind, "lift_width": 8}, 1e-3)


@pytest.mark.parametrize("head", ["ridge", "lda", pytest.param("auto", marks=pytest.mark.slow)])
@examples(5)
@given(
    seed=seeds,
    change=st.builds(Change, scale=units, shift=shifts, order=orders, copies=same_way_copies, constants=constants),
)
def test_a_lift_along_axes_does_not_see_units_nor_order_nor_copies(head: str, seed: int, change: Change) -> None:
    require_same_estimator(seed, change, {"head": head, "lift": "nystroem-axes", "lift_width": 8}, 1e-3)


def test_what_is_drawn_by_place_does_see_their_order() -> None:
    """Or the others would say nothing; a survey says the same of all columns in their own units (docs/lifts.md)."""
    for kind in ("relu", "fourier", "nystroem"):
        with pytest.raises(AssertionError):
            require_same_estimator(0, Change(order=(1, 0, 3, 2)), {"head": "ridge", "lift": kind, "lift_width": 8}, 0.1)


@examples(5)
@given(seed=seeds, change=st.builds(Change, scale=powers_of_two, copies=copies(WIDTH), constants=constants))
def test_nystroems_landmarks_do_not_see_copies(seed: int, change: Change) -> None:
    require_same_estimator(seed, change, {"lift": "nystroem", "lift_width": 8}, EXACT)


# --- a round ----------------------------------------------------------------------------------------------------------


def clients_of(X: Array, seed: int) -> list[Client]:
    _, y, sites = table(seed)
    train = np.arange(ROWS) < TRAIN
    return [
        Client(f"site-{k}", (X[own & train], y[own & train]), (X[own & ~train], y[own & ~train]))
        for k in range(SITES)
        for own in [sites == k]
    ]


def models_of(clients: list[Client], outcome: Outcome) -> list[list[AffineModel]]:
    """Of each client: alone, the global one, and its own."""
    found = []
    for client, result in zip(clients, outcome.clients, strict=True):
        assert result.personal is not None
        found.append([local_model(client, CLASSES), outcome.federation.common, result.personal.model])
    return found


@lru_cache
def plain_round(seed: int, balance: bool) -> tuple[Outcome, list[list[AffineModel]]]:
    clients = clients_of(table(seed)[0], seed)
    outcome = simulate(clients, CLASSES, balance=balance)
    return outcome, models_of(clients, outcome)


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize(("kind", "tolerance"), [("rounded", ROUNDED), ("exact", EXACT)])
@examples(10)
@given(data=st.data(), seed=seeds)
def test_models_of_a_round_do_not_see_units_nor_columns_that_say_nothing_new(
    kind: str, tolerance: float, balance: bool, data: st.DataObject, seed: int
) -> None:
    change = data.draw(exact if kind == "exact" else rounded)
    X, Z = table(seed)[0], change(table(seed)[0])
    (before, expected), clients = plain_round(seed, balance), clients_of(Z, seed)
    after = simulate(clients, CLASSES, balance=balance)
    assert [client.alpha for client in after.clients] == [client.alpha for client in before.clients]
    assert after.beta == pytest.approx(before.beta, rel=tolerance)
    for old, new in zip(expected, models_of(clients, after), strict=True):
        for theirs, ours in zip(old, new, strict=True):
            require_same(ours.scores(Z).numpy(), theirs.scores(X).numpy(), tolerance)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("value", [3.7e5, -np.pi, 1e-9])
def test_one_value_in_all_rows_does_not_give_labels_away_where_classes_have_weights(
    value: float, standardize: bool
) -> None:
    """Weighted and then rounded, it is another in every class."""
    X = table(0)[0]
    before, after = (
        simulate(clients_of(Z, 0), CLASSES, balance=True, standardize=standardize)
        for Z in (X, np.column_stack((X, np.full(ROWS, value))))
    )
    assert [client.alpha for client in after.clients] == [client.alpha for client in before.clients]
    assert bool((after.federation.common.weights[-1] == 0.0).all())
    for old, new in zip(before.clients, after.clients, strict=True):
        assert old.personal is not None
        assert new.personal is not None
        assert new.personal.estimate == old.personal.estimate
        np.testing.assert_allclose(new.personal.model.weights[:-1], old.personal.model.weights, atol=1e-9)


METHODS = ("local", "global", "global-oll", "fedhip", "fedhip-lda", "fedhip-logistic")


@lru_cache
def plain_accuracies(seed: int) -> list[tuple[list[float | None], list[float | None] | None]]:
    return accuracies(table(seed)[0], seed)


def accuracies(X: Array, seed: int) -> list[tuple[list[float | None], list[float | None] | None]]:
    runs = [run_method(name, clients_of(X, seed), CLASSES) for name in METHODS]
    return [(run.accuracy, run.alphas) for run in runs]


@pytest.mark.slow
@examples(4)
@given(seed=seeds, change=rounded)
def test_methods_in_closed_form_reach_the_same_in_all_units(seed: int, change: Change) -> None:
    assert accuracies(change(table(seed)[0]), seed) == plain_accuracies(seed)


# --- one column in dollars --------------------------------------------------------------------------------------------

PARTIES, KINDS, FEATURES = 3, 5, 20


def shares(rows: int = 720) -> tuple[Array, Array, Array]:
    """Twenty features from 0 to 1 that tell five classes apart, of three clients."""
    rng = np.random.default_rng(0)
    y, sites = rng.integers(0, KINDS, rows), np.arange(rows) % PARTIES
    centres = rng.uniform(0.25, 0.75, (KINDS, FEATURES))
    return np.clip(centres[y] + 0.07 * rng.normal(size=(rows, FEATURES)), 0.0, 1.0), y, sites


def in_dollars(X: Array) -> Array:
    return np.column_stack((X, np.random.default_rng(7).normal(50_000.0, 20_000.0, len(X))))


def with_outlier(X: Array, value: float) -> Array:
    """In training row 3 of client 2."""
    found = X.copy()
    found[3 * PARTIES + 2, 5] = value
    return found


def said_of_outlier(kind: str) -> AbstractContextManager[object]:
    """What is done in it warns of the outlier, if there is one."""
    return pytest.warns(ColumnWarning, match="column 5 goes to 1e.05") if kind == "outlier" else nullcontext()


def parties(X: Array, y: Array, sites: Array) -> list[Client]:
    """Three quarters of each client's rows to train on."""
    found = []
    for k in range(PARTIES):
        F, labels = X[sites == k], y[sites == k]
        cut = 3 * len(F) // 4
        found.append(Client(f"site-{k}", (F[:cut], labels[:cut]), (F[cut:], labels[cut:])))
    return found


@pytest.mark.parametrize("kind", ["as they are", "dollars", "outlier"])
@pytest.mark.sampled(3)
def test_a_column_in_dollars_and_an_outlier_cost_nobody_anything(kind: str) -> None:
    """But for what the outlier's own column says, of which there is a warning."""
    X, y, sites = shares()
    X = {"dollars": in_dollars(X), "outlier": with_outlier(X, 1e5)}.get(kind, X)
    clients = parties(X, y, sites)
    with said_of_outlier(kind):
        outcome = simulate(clients, KINDS)
    for method in outcome.methods:
        worst = min(result.accuracy[method] or 0.0 for result in outcome.clients)
        assert worst >= 0.98, (method, worst)
    for method in ("fedhip-lda", "fedhip-logistic"):
        with said_of_outlier(kind):
            assert min(found or 0.0 for found in run_method(method, clients, KINDS).accuracy) >= 0.98
    train = np.arange(len(X)) < 3 * len(X) // 4
    with said_of_outlier(kind):
        clf = FedHiPClassifier().fit(X[train], y[train], groups=sites[train])
    assert clf.score(X[~train], y[~train]) >= 0.99
    assert clf.score(X[~train], y[~train], groups=sites[~train]) >= 0.99


@pytest.mark.parametrize("lift", ["relu", "fourier", "nystroem", "nystroem-axes"])
@pytest.mark.parametrize("kind", ["dollars", "outlier"])
@pytest.mark.sampled(3)
def test_nor_does_a_lift_see_them(kind: str, lift: LiftKind) -> None:
    X, y, sites = shares()
    X = in_dollars(X) if kind == "dollars" else with_outlier(X, 1e5)
    train = np.arange(len(X)) < 3 * len(X) // 4
    with said_of_outlier(kind):
        clf = FedHiPClassifier(lift=lift, lift_width=96).fit(X[train], y[train], groups=sites[train])
    assert clf.score(X[~train], y[~train], groups=sites[~train]) >= 0.97


@pytest.mark.parametrize("value", [1e12, -1e12])
def test_a_value_that_no_grid_holds_is_named(value: float) -> None:
    X, y, sites = shares()
    X = with_outlier(X, value)
    message = (
        rf"client '(site-)?2', training row 3: column 5 holds a value of about {'-' if value < 0 else ''}1e\+12, and "
        r"nearly all others lie within 0\.\d+ of 0\.\d+.*repair or drop the row, or clip the column"
    )
    with pytest.raises(ColumnError, match=message) as raised:
        simulate(parties(X, y, sites), KINDS)
    assert (raised.value.column, raised.value.is_value) == (5, True)
    for method in ("fedhip", "fedhip-lda", "fedhip-logistic"):
        with pytest.raises(ColumnError, match=message):
            run_method(method, parties(X, y, sites), KINDS)
    for head in ("ridge", "lda", "logistic"):
        with pytest.raises(ColumnError, match=message):
            FedHiPClassifier(head=head).fit(X, y, groups=sites)


def test_the_paper_would_have_been_lost() -> None:
    """What the change is for: in raw units one column drowns twenty."""
    X, y, sites = shares()
    outcome = simulate(parties(in_dollars(X), y, sites), KINDS, beta="gcv", standardize=False, intercept=False)
    assert torch.tensor([result.accuracy["global"] or 0.0 for result in outcome.clients]).mean() < 0.9
