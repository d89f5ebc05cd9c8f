"""The discriminant from sums against scikit-learn's, and leave-one-out against refits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedhip import Statistics, aggregate
from fedhip.core import Standardization
from fedhip.core.discriminant import Discriminant
from fedhip.errors import InputError
from tests.core.problems import Array, Client, relative_error
from tests.drawing import examples

WIDTH, CLASSES = 6, 4

Shrinkage = float | Literal["oas"]


def gaussians(rows: int, seed: int = 0, shift: float = 0.0, by_class: float = 0.0, width: int = WIDTH) -> Client:
    """Rows about class means that all clients share, moved by the client, and by the client and class."""
    means = np.random.default_rng(1).normal(size=(CLASSES, width)) * 2
    rng = np.random.default_rng(seed)
    labels = np.r_[np.arange(CLASSES), rng.integers(0, CLASSES, rows - CLASSES)]
    moved = means + shift * rng.normal(size=width) + by_class * rng.normal(size=means.shape)
    return moved[labels] + rng.normal(size=(rows, width)), labels


def summed(*clients: Client) -> Statistics:
    return aggregate(Statistics.from_data(F, y, CLASSES) for F, y in clients)


def without(client: Client, row: int) -> Client:
    kept = np.arange(len(client[1])) != row
    return client[0][kept], client[1][kept]


@pytest.mark.parametrize("shrinkage", [0.0, 1e-3, 0.3, 1.0])
def test_scores_are_scikit_learns(shrinkage: float) -> None:
    F, y = gaussians(50)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage or None).fit(F, y).decision_function(F)
    parts = [(F[:13], y[:13]), (F[13:14], y[13:14]), (F[14:], y[14:])]
    assert relative_error(Discriminant(summed(*parts), shrinkage).scores(F), theirs) <= 1e-12


def test_oas_is_scikit_learns_on_the_rows_left_after_the_class_means() -> None:
    F, y = gaussians(40)
    # An orthonormal basis of what the class indicators leave: rows that are centred and independent.
    left = scipy.linalg.null_space(np.eye(CLASSES)[y].T).T @ F
    assert len(left) == 36
    assert Discriminant(summed((F, y))).shrinkage == pytest.approx(oas(left, assume_centered=True)[1], rel=1e-10)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, "oas"])
def test_features_that_are_zero_in_every_row_change_nothing(shrinkage: Shrinkage) -> None:
    mine, others = gaussians(25, 3, shift=1.0), gaussians(60, 4)
    wide = [(np.insert(F, [0, 2, WIDTH], 0.0, axis=1), y) for F, y in (mine, others)]
    found, expected = Discriminant(summed(*wide), shrinkage), Discriminant(summed(mine, others), shrinkage)
    assert found.shrinkage == pytest.approx(expected.shrinkage, rel=1e-12)
    assert bool((found.model.weights[[0, 3, WIDTH + 2]] == 0.0).all())
    own, theirs = found.personal(*wide[0]), expected.personal(*mine)
    for ours, those in (
        (found.scores(wide[0][0]), expected.scores(mine[0])),
        (found.loo_scores(*wide[0]), expected.loo_scores(*mine)),
        (own.scores(wide[0][0]), theirs.scores(mine[0])),
        (own.loo_scores(), theirs.loo_scores()),
        (found.personal_affine(summed(wide[0])).scores(wide[0][0]), theirs.scores(mine[0])),
    ):
        assert relative_error(ours, those) <= 1e-10
    live = np.delete(np.arange(WIDTH + 3), [0, 3, WIDTH + 2])
    assert relative_error(found.covariance[live][:, live], expected.covariance) <= 1e-12
    assert bool((torch.linalg.eigvalsh(found.covariance) > 0.0).all()), "a metric for the penalty of logistic heads"


@examples(25)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.01, 0.5, 1.0, "oas"]), st.integers(1, 8))
def test_leave_one_out_is_a_refit(seed: int, shrinkage: Shrinkage, width: int) -> None:
    mine, others = gaussians(9, seed, width=width), gaussians(20, seed + 1, width=width)
    found = Discriminant(summed(mine, others), shrinkage).loo_scores(*mine)
    for row in range(9):
        refit = Discriminant(summed(without(mine, row), others), shrinkage).scores(mine[0][row : row + 1])
        assert relative_error(found[row], refit[0]) <= 1e-9


@pytest.mark.parametrize(("shift", "by_class"), [(0.0, 0.0), (1.5, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_leave_one_out_of_personal_means_is_a_refit_at_the_same_variances(shift: float, by_class: float) -> None:
    mine, others = gaussians(25, 3, shift, by_class), gaussians(60, 4)
    personal = Discriminant(summed(mine, others), 0.1).personal(*mine)
    assert (personal.shift_weight > 0.2) >= (shift > 0 and by_class == 0)
    assert bool((personal.class_weights > 0.3).all()) == (by_class > 0)
    found = personal.loo_scores()
    for row in range(25):
        rest = without(mine, row)
        refit = Discriminant(summed(rest, others), 0.1).personal(*rest)
        refit._weights = replace(
            refit._weights,
            shift_variance=personal._weights.shift_variance,
            class_variance=personal._weights.class_variance,
        )
        assert relative_error(found[row], refit.scores(mine[0][row : row + 1])[0]) <= 1e-10


@dataclass(frozen=True)
class ByHand:
    """The moments and the Bayes means of a client, class by class in raw coordinates, from its rows and the others'."""

    tau: float
    tau0: float
    w: Array
    w0: float
    means: Array

    @classmethod
    def of(cls, mine: Client, others: Client, covariance: Array, given: tuple[float, float] | None = None) -> ByHand:
        inverse, width = np.linalg.inv(covariance), mine[0].shape[1]
        shared = [c for c in range(CLASSES) if (mine[1] == c).any() and (others[1] == c).any()]
        own, rest = ([F[y == c] for c in range(CLASSES)] for F, y in (mine, others))
        d = {c: own[c].mean(axis=0) - rest[c].mean(axis=0) for c in shared}
        noise = {c: 1 / len(own[c]) + 1 / len(rest[c]) for c in shared}
        V = sum(1 / noise[c] for c in shared)
        q = {c: 1 / noise[c] / V for c in shared}
        b = sum((q[c] * d[c] for c in shared), np.zeros(width))
        size = sum((d[c] - b) @ inverse @ (d[c] - b) / width for c in shared)
        squares = sum(q[c] ** 2 for c in shared)
        tau = tau0 = 0.0
        if len(shared) > 1:  # a sum of (1 − q_c)² and of the others' q², of τ² and noise alike
            of_tau = sum((1 - q[c]) ** 2 + squares - q[c] ** 2 for c in shared)
            of_noise = sum(
                (1 - q[c]) ** 2 * noise[c] + sum(q[e] ** 2 * noise[e] for e in shared if e != c) for c in shared
            )
            tau = max((size - of_noise) / of_tau, 0.0)
        if shared:
            tau0 = max(b @ inverse @ b / width - sum(q[c] ** 2 * (tau + noise[c]) for c in shared), 0.0)
        tau, tau0 = given or (tau, tau0)
        w0 = tau0 / (tau0 + sum(q[c] ** 2 * (tau + noise[c]) for c in shared)) if shared else 0.0
        means, w = [], np.zeros(CLASSES)
        for c in range(CLASSES):
            if c not in d:  # one of both has no rows of it
                means.append(own[c].mean(axis=0) if len(own[c]) else rest[c].mean(axis=0) + w0 * b)
                continue
            # Where the others' mean and the shift put the client's, and where its rows do: by their precisions.
            prior, rows = 1 / (tau + 1 / len(rest[c])), len(own[c])
            means.append((prior * (rest[c].mean(axis=0) + w0 * b) + rows * own[c].mean(axis=0)) / (prior + rows))
            w[c] = tau / (tau + noise[c])
        return cls(tau, tau0, w, w0, np.stack(means))

    def scores(self, F: Array, covariance: Array, counts: Array) -> Array:
        weights = np.linalg.solve(covariance, self.means.T)
        scores: Array = F @ weights - (self.means * weights.T).sum(axis=1) / 2 + np.log(counts / counts.sum())
        return scores


#: Rows of which some classes are the client's alone, one is nobody else's and of one row, or one is not its own.
DIVISIONS = {
    "all shared": (np.repeat(np.arange(4), (6, 1, 9, 4)), np.repeat(np.arange(4), (3, 20, 1, 12))),
    "one of its own": (np.repeat(np.arange(4), (6, 2, 9, 4)), np.repeat(np.arange(3), (3, 20, 7))),
    "most its own": (np.repeat(np.arange(4), (6, 2, 9, 4)), np.repeat([1], 20)),
    "one not its own": (np.repeat(np.arange(3), (6, 2, 9)), np.repeat(np.arange(4), (3, 20, 7, 5))),
    "nothing shared": (np.repeat([0, 1], (6, 3)), np.repeat([2, 3], (8, 9))),
    "a row of its own": (np.repeat(np.arange(4), (6, 2, 9, 1)), np.repeat(np.arange(3), (3, 20, 7))),
}


def divided(division: str, shift: float = 1.0, by_class: float = 0.7) -> tuple[Client, Client]:
    means = np.random.default_rng(1).normal(size=(CLASSES, WIDTH)) * 2
    rng = np.random.default_rng(5)
    y, labels = DIVISIONS[division]
    moved = means + shift * rng.normal(size=WIDTH) + by_class * rng.normal(size=means.shape)
    mine = moved[y] + rng.normal(size=(len(y), WIDTH)), y
    return mine, (means[labels] + rng.normal(size=(len(labels), WIDTH)), labels)


@pytest.mark.parametrize("division", DIVISIONS)
def test_personal_means_by_hand(division: str) -> None:
    """From the others' means, by precisions; and both doors, from rows and from statistics, are the same."""
    mine, others = divided(division)
    total = summed(mine, others)
    federation = Discriminant(total, 0.2)
    personal, covariance = federation.personal(*mine), federation.covariance.numpy()
    expected = ByHand.of(mine, others, covariance)
    assert personal._weights.class_variance == pytest.approx(expected.tau, rel=1e-9, abs=1e-12)
    assert personal._weights.shift_variance == pytest.approx(expected.tau0, rel=1e-9, abs=1e-12)
    assert personal.shift_weight == pytest.approx(expected.w0, rel=1e-9)
    assert personal.class_weights.tolist() == pytest.approx(expected.w.tolist(), rel=1e-9)
    if division in ("all shared", "one of its own", "one not its own"):
        assert expected.tau > 0.1
        assert expected.tau0 > 0.1
    scores = expected.scores(mine[0], covariance, total.counts.numpy())
    assert relative_error(personal.scores(mine[0]), scores) <= 1e-10
    by_sums = federation.personal_affine(Statistics.from_data(*mine, CLASSES))
    assert relative_error(by_sums.weights, personal.model.weights) <= 1e-10
    assert relative_error(by_sums.bias, personal.model.bias) <= 1e-10


@pytest.mark.parametrize("shrinkage", [0.1, "oas"])
@pytest.mark.parametrize("given", [(0.0, 0.0), (0.6, 0.0), (0.0, 0.6), (0.3, 0.8)])
@pytest.mark.parametrize("division", DIVISIONS)
def test_leave_one_out_of_personal_means_is_by_hand_without_the_row(
    division: str, given: tuple[float, float], shrinkage: Shrinkage
) -> None:
    """The variances are given, and the covariance of the others' rows is a refit's, with its own choice of "oas"."""
    mine, others = divided(division)
    personal = Discriminant(summed(mine, others), shrinkage).personal(*mine)
    personal._weights = replace(personal._weights, class_variance=given[0], shift_variance=given[1])
    found = personal.loo_scores()
    for row in range(len(mine[1])):
        rest = without(mine, row)
        total = summed(rest, others)
        covariance = Discriminant(total, shrinkage).covariance.numpy()
        if mine[1][row] not in rest[1] and mine[1][row] not in others[1]:
            assert found[row, mine[1][row]] == -torch.inf
            continue
        expected = ByHand.of(rest, others, covariance, given).scores(
            mine[0][row : row + 1], covariance, total.counts.numpy()
        )
        assert relative_error(found[row], expected[0]) <= 1e-10


def test_the_means_are_the_federations_without_variances_and_the_clients_with_large_ones() -> None:
    mine, others = divided("one of its own")
    federation = Discriminant(summed(mine, others), 0.1)
    personal = federation.personal(*mine)
    for variance, expected in ((0.0, federation.model), (1e12, None)):
        own = replace(personal._weights, class_variance=variance, shift_variance=variance)
        model = federation._with_means(own)
        if expected is None:
            means = np.stack([mine[0][mine[1] == c].mean(axis=0) for c in range(CLASSES)])
            weights = np.linalg.solve(federation.covariance.numpy(), means.T)
        else:
            weights = expected.weights.numpy()
        assert relative_error(model.weights, weights) <= 1e-9


@pytest.mark.parametrize("own_classes", [0, 2, 4])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_client_finds_its_shift_whatever_classes_are_its_own(shift: float, own_classes: int) -> None:
    """Its rows are of five classes, some of them nobody else's; fresh rows of all ten, as it sees them."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        means, moved = 0.6 * rng.normal(size=(10, 30)), shift * rng.normal(size=30)
        labels = [np.arange(80) % 5, rng.integers(0, 10, 400), rng.integers(own_classes, 10, 720)]
        mine, fresh, others = (means[y] + rng.normal(size=(len(y), 30)) for y in labels)
        total = aggregate(Statistics.from_data(F, y, 10) for F, y in ((mine + moved, labels[0]), (others, labels[2])))
        federation = Discriminant(total)
        personal = federation.personal(mine + moved, labels[0])
        right = [
            np.mean(head.scores(fresh + moved).argmax(dim=1).numpy() == labels[1]) for head in (federation, personal)
        ]
        found.append((personal.shift_weight, right[1] - right[0]))
    weight, gain = np.mean(found, axis=0)
    if shift:
        assert weight > 0.85
        assert gain > {0: 0.02, 2: 0.1, 4: 0.2}[own_classes]
    else:
        assert gain > -0.01


def test_the_weights_find_the_variances_that_were_drawn() -> None:
    """Of means that stray by τ² in units of the covariance, clients like each other on average."""
    rng = np.random.default_rng(0)
    width, tau, tau0 = 40, 0.3, 0.5
    found = []
    # So many that the client itself does not stretch the covariance along its shift.
    others = rng.normal(size=(80_000, width)), np.arange(80_000) % CLASSES
    for _ in range(12):
        labels = np.repeat(np.arange(CLASSES), 20)
        moved = np.sqrt(tau0) * rng.normal(size=width) + np.sqrt(tau) * rng.normal(size=(CLASSES, width))
        mine = moved[labels] + rng.normal(size=(80, width)), labels
        weights = Discriminant(summed(mine, others), 0.0).personal(*mine)._weights
        found.append((weights.class_variance, weights.shift_variance))
    assert np.mean(found, axis=0) == pytest.approx((tau, tau0), rel=0.15)


def test_clients_that_do_not_differ_keep_the_federations_means() -> None:
    clients = [gaussians(40, seed) for seed in range(8)]
    discriminant = Discriminant(summed(*clients), 0.01)
    weights = [discriminant.personal(*client).class_weights.mean() for client in clients]
    assert float(torch.stack(weights).mean()) < 0.1


def test_a_client_of_one_row_or_one_class() -> None:
    mine, others = gaussians(20, 0, shift=1.0), gaussians(50, 1)
    only = mine[1] == 2
    for F, y in ((mine[0][:1], mine[1][:1]), (mine[0][only], mine[1][only])):
        discriminant = Discriminant(summed((F, y), others))
        personal = discriminant.personal(F, y)
        assert personal.class_weights.tolist() == [0.0] * CLASSES
        assert bool(torch.isfinite(personal.scores(F)).all() & torch.isfinite(personal.loo_scores()).all())


def test_a_class_that_nobody_has_is_never_chosen_and_one_row_alone_in_its_class_cannot_be_judged() -> None:
    F, y = gaussians(30)
    total = Statistics.from_data(F, y, CLASSES + 2) + Statistics.from_data(F[:1] + 5, [CLASSES], CLASSES + 2)
    discriminant = Discriminant(total)
    assert bool((discriminant.scores(F)[:, -1] == -torch.inf).all())
    alone = discriminant.loo_scores(F[:1] + 5, [CLASSES])
    assert alone[0, CLASSES] == -torch.inf
    assert bool(torch.isfinite(alone[0, :CLASSES]).all())


def test_rows_all_alike_and_a_single_row() -> None:
    for rows in (1, 5):
        F, y = np.ones((rows, 3)), np.zeros(rows, dtype=int)
        discriminant = Discriminant(Statistics.from_data(F, y, 2))
        assert discriminant.shrinkage == 1.0
        assert discriminant.scores(F).argmax(dim=1).tolist() == [0] * rows
        assert bool(torch.isfinite(discriminant.scores(F)[:, 0]).all())
        assert not bool(torch.isnan(discriminant.loo_scores(F, y)).any())


def test_the_models_weights_on_raw_features() -> None:
    F, y = gaussians(40)
    total = summed((F * 7 + 3, y))
    standardization = Standardization.of(total, intercept=False)
    discriminant = Discriminant(standardization.statistics(total))
    raw = discriminant.model.on_raw(standardization)
    assert relative_error(raw.scores(F * 7 + 3), discriminant.scores(standardization.features(F * 7 + 3))) <= 1e-12


def test_bad_input() -> None:
    mine = gaussians(20)
    discriminant = Discriminant(summed(mine))
    with pytest.raises(InputError, match=r"shrinkage is 1\.5; give a number from 0 to 1"):
        Discriminant(summed(mine), 1.5)
    with pytest.raises(InputError, match="rank 16 of 30; give a shrinkage above 0"):
        Discriminant(summed(gaussians(20, width=30)), 0.0)
    with pytest.raises(InputError, match="6 wide"):
        discriminant.scores(mine[0][:, :3])
    with pytest.raises(InputError, match="'mine'"):
        discriminant.personal(mine[0], np.zeros(20), client="mine")
    with pytest.raises(InputError, match="no rows"):
        Discriminant(Statistics.zeros(3, 2))


def test_any_partition_gives_the_same_model() -> None:
    F, y = gaussians(60)
    order = np.random.default_rng(0).permutation(60)
    models: list[Array] = []
    for parts in (np.split(np.arange(60), [20, 21]), np.array_split(order, 7)):
        models.append(Discriminant(summed(*((F[part], y[part]) for part in parts))).model.weights.numpy())
    assert relative_error(*models) <= 1e-10


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_a_clients_model_from_its_statistics_is_that_from_its_rows(rows: int) -> None:
    F, y = gaussians(40, seed=1, shift=0.7, by_class=0.9)
    clients = [gaussians(80), (F[:rows], y[:rows])]
    federation = Discriminant(summed(*clients))
    by_rows = federation.personal(*clients[1]).model
    by_sums = federation.personal_affine(summed(clients[1]))
    assert relative_error(by_sums.weights, by_rows.weights) <= 1e-12
    assert relative_error(by_sums.bias, by_rows.bias) <= 1e-12
    if rows > 2:
        assert relative_error(by_sums.weights, federation.model.weights) > 0.01  # its means are its own


@pytest.mark.parametrize("scale", [1e-4, 1e3])
def test_the_units_of_the_features_do_not_matter(scale: float) -> None:
    """Nor is a class of a single row anything else."""
    F, y = gaussians(30, shift=1.0)
    y = np.where(y == 3, 2, y)
    y[5] = 3
    for shrinkage in ("oas", 0.2):
        one, other = (Discriminant(summed((by * F, y), gaussians_of(by)), shrinkage) for by in (1.0, scale))
        assert 0.0 < one.shrinkage < 1.0
        assert other.shrinkage == pytest.approx(one.shrinkage, rel=1e-9)
        assert relative_error(other.scores(scale * F), one.scores(F)) <= 1e-9
        scores = other.personal(scale * F, y).loo_scores(), one.personal(F, y).loo_scores()
        assert torch.isinf(scores[1]).nonzero().tolist() == [[5, 3]]  # not judged
        np.testing.assert_allclose(*scores, rtol=1e-7)


def gaussians_of(scale: float) -> Client:
    """Thirty rows of three classes, in units of `scale`."""
    F, y = gaussians(30, seed=9)
    return scale * F[y < 3], y[y < 3]


@pytest.mark.filterwarnings("ignore:Only one sample")
def test_means_of_classes_of_one_row_are_scikit_learns() -> None:
    F, y = gaussians_of(1.0)
    F, y = np.r_[F, [np.arange(WIDTH)]], np.r_[y, 3]
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(F, y).decision_function(F)
    assert relative_error(Discriminant(summed((F, y)), 0.3).scores(F), theirs) <= 1e-12


@pytest.mark.parametrize("labels", [[0], [0, 0], [0, 1], [2, 1, 2]])
def test_leave_one_out_of_a_client_of_few_rows_is_a_refit_at_the_same_variances(labels: list[int]) -> None:
    rows, others = len(labels), gaussians(60, 4)
    mine = gaussians(8, 3, shift=1.0)[0][:rows], np.array(labels)
    personal = Discriminant(summed(mine, others), 0.1).personal(*mine)
    personal._weights = replace(personal._weights, shift_variance=0.7, class_variance=0.4)
    found = personal.loo_scores()
    for row in range(rows):
        rest = without(mine, row)
        refit = Discriminant(summed(rest, others) if rows > 1 else summed(others), 0.1)
        expected = refit.scores(mine[0][row : row + 1])
        if rows > 1:
            own = refit.personal(*rest)
            own._weights = replace(own._weights, shift_variance=0.7, class_variance=0.4)
            expected = own.scores(mine[0][row : row + 1])
        assert relative_error(found[row], expected[0]) <= 1e-10


@pytest.mark.parametrize("width", [3, 40])
def test_a_row_that_strays_far_is_left_out_of_the_choice_of_shrinkage_too(width: int) -> None:
    """It stretches the covariance along itself: another shrinkage is best without it. One row is alone in its class."""
    F, y = gaussians(30, 2, width=width)
    F[7] += 40.0
    y[y == 3] = 2
    y[11] = 3
    total = Statistics.from_data(F, y, CLASSES)
    found = Discriminant(total).loo_scores(F, y)
    for row in (7, 8, 11):
        rest = Statistics.from_data(*without((F, y), row), CLASSES)
        refit = Discriminant(rest)
        expected = refit.scores(F[row : row + 1])[0]
        known = torch.isfinite(expected)
        assert torch.equal(torch.isfinite(found[row]), known)
        assert relative_error(found[row][known], expected[known]) <= 1e-9
        if row == 7:
            assert abs(refit.shrinkage - Discriminant(total).shrinkage) > 0.05
            fixed = Discriminant(rest, Discriminant(total).shrinkage).scores(F[row : row + 1])[0]
            assert relative_error(fixed[known], expected[known]) > 0.01


def test_rows_standardised_by_all_flatter_where_few_make_up_a_deviation() -> None:
    """What leave-one-out does not refit: 30 rows of heavy tails. With tails as usual there is nothing in it."""
    rng = np.random.default_rng(0)
    found = []
    for heavy in (True, False):
        for _ in range(6):
            y = np.arange(30) % 3
            F = rng.normal(size=(3, 60))[y] + (rng.standard_t(1.5, (30, 60)) if heavy else rng.normal(size=(30, 60)))
            total = Statistics.from_data(F, y, 3)
            unit = Standardization.of(total, intercept=False)
            scores = Discriminant(unit.statistics(total)).loo_scores(unit.features(F), y)
            right = 0
            for row in range(30):
                rest = Statistics.from_data(*without((F, y), row), 3)
                refit = Standardization.of(rest, intercept=False)
                right += (
                    int(Discriminant(refit.statistics(rest)).scores(refit.features(F[row : row + 1])).argmax())
                    == y[row]
                )
            found.append((np.mean(scores.argmax(dim=1).numpy() == y), right / 30))
    said, true = np.mean(np.reshape(found, (2, 6, 2)), axis=1).T
    assert said[0] > true[0] + 0.08
    assert abs(said[1] - true[1]) < 0.02


@pytest.mark.parametrize("shrinkage", [1e-4, 0.5, 1.0, "oas"])
def test_leave_one_out_of_the_only_row_that_strays_is_a_refit(shrinkage: Shrinkage) -> None:
    """Without it all rows are at their classes' means, and there is no covariance."""
    for stray in ([5.0, 7.0], [0.3, 0.1]):
        F, y = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0], stray]), np.array([0, 0, 1, 1, 1])
        found = Discriminant(Statistics.from_data(F, y, 2), shrinkage).loo_scores(F, y)[4]
        refit = Discriminant(Statistics.from_data(F[:4], y[:4], 2), shrinkage).scores(F[4:])[0]
        assert bool(torch.isfinite(refit).all())
        assert relative_error(found, refit) <= 1e-9


def test_moves_without_some_rows_are_those_of_the_means_by_hand() -> None:
    """Scores with the same covariance, and means and counts of the rows that are left."""
    (F, y), others = gaussians(20, 3), gaussians_of(1.0)
    y = np.where(y == 3, 2, y)
    y[7] = 3  # alone in its class, of which nothing is then left
    federation = Discriminant(summed((F, y), others), 0.3)
    inverse = np.linalg.inv(federation.covariance.numpy())
    every, labels = np.r_[F, others[0]], np.r_[y, others[1]]

    def scores(kept: Array) -> Array:
        columns = []
        for c in range(CLASSES):
            rows = every[kept & (labels == c)] if c < 3 else every[labels == c]
            mean = rows.mean(axis=0)
            columns.append(F @ inverse @ mean - mean @ inverse @ mean / 2 + np.log(len(rows)))
        return np.stack(columns, axis=1)

    every_row = np.ones(len(labels), dtype=bool)
    gone = np.arange(20) % 3 == 1
    moves, alone = federation.moves_without(federation.rows(F, y), torch.from_numpy(gone))
    left = np.r_[~gone, every_row[20:]]
    np.testing.assert_allclose(moves, scores(left) - scores(every_row), atol=1e-10)
    for i in range(20):
        left = np.arange(len(labels)) != i
        assert float(alone[i]) == pytest.approx((scores(left) - scores(every_row))[i, y[i]], abs=1e-10)


def test_without_rows_the_means_are_those_of_the_others() -> None:
    """Written out: means and counts of all other rows, the covariance of all of them."""
    mine, others = gaussians(20, seed=3, shift=1.0, by_class=0.5), gaussians(40, seed=4)
    federation = Discriminant(summed(mine, others))
    gone = np.arange(20) % 5 == 2
    left = (np.concatenate([mine[0][~gone], others[0]]), np.concatenate([mine[1][~gone], others[1]]))
    means = np.stack([left[0][left[1] == c].mean(axis=0) for c in range(CLASSES)])
    counts = np.bincount(left[1], minlength=CLASSES)
    inverse = np.linalg.inv(federation.covariance.numpy())
    expected = mine[0] @ inverse @ means.T - np.einsum("cm,mn,cn->c", means, inverse, means) / 2
    expected = expected + np.log(counts / counts.sum())
    found = federation.personal(*mine).without(torch.from_numpy(gone))
    assert relative_error(found._federation.scores(mine[0]), expected) <= 1e-9
    # The client's means in it: those of its other rows, by the definition that test_personal_means has.
    own = Statistics.from_data(mine[0][~gone], mine[1][~gone], CLASSES)
    assert relative_error(found.scores(mine[0]), found._federation.personal_affine(own).scores(mine[0])) <= 1e-9
    assert len(found.loo_scores()) == len(found.common_scores()) == 16


def test_a_row_has_no_say_in_the_variances_that_its_fold_is_judged_by() -> None:
    """Rows of fold 2 are moved a mile: the variances that fold is scored with stay, and others' grow."""
    mine, others = gaussians(20, seed=3), gaussians(40, seed=4)
    fold = torch.arange(20) % 5
    federation = Discriminant(summed(mine, others))
    personal = federation.personal(*mine)
    for number in range(5):
        at = fold == number
        weights = personal.without(at)._weights
        plain = replace(personal._weights, shift_variance=weights.shift_variance, class_variance=weights.class_variance)
        expected = personal._rows.left_out(federation, plain)[at]
        torch.testing.assert_close(personal.fold_scores(fold)[at], expected)
    assert not torch.allclose(personal.fold_scores(fold), personal.loo_scores())
