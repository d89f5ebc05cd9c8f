"""Rows of one group are left out together: against refits without the group, by scikit-learn's splitters."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut

from fedhip.core import PersonalizationPath, RegularizationPath, RidgePath, Statistics, personalize
from fedhip.core.choice.prior import SMOOTHINGS, TEMPERATURES, PriorLosses
from fedhip.core.choice.selection import FOLDS, fold_of, nested, soft_hits
from fedhip.core.discriminant import Discriminant
from fedhip.core.groups import classes_without
from fedhip.core.ridge.aggregation import GlobalSystem
from fedhip.core.solvers import factorize
from fedhip.utils.groups import group_numbers

CLASSES = 3


def problem(rows: int, width: int, seed: int = 0, groups: int = 6) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Rows whose groups have a shift of their own, so that leaving out single rows gives other numbers."""
    rng = np.random.default_rng(seed)
    of = rng.integers(groups, size=rows)
    labels = rng.integers(CLASSES, size=rows)
    features = rng.normal(size=(rows, width)) + 2.0 * rng.normal(size=(groups, width))[of]
    features[:, 0] += labels
    return torch.from_numpy(features), torch.from_numpy(labels), of


def without(total: Statistics, F: torch.Tensor, y: torch.Tensor, gone: np.ndarray) -> Statistics:
    return total - Statistics.from_data(F[gone], y[gone], CLASSES)


@pytest.mark.parametrize(("rows", "width"), [(20, 30), (60, 5)])
@pytest.mark.parametrize("alpha", [0.0, 3.0, 200.0])
def test_personalized_scores_are_those_of_a_refit_without_the_group(rows: int, width: int, alpha: float) -> None:
    F, y, groups = problem(rows, width)
    others = Statistics.from_data(*problem(40, width, seed=1)[:2], CLASSES)
    total = others + Statistics.from_data(F, y, CLASSES)
    found = PersonalizationPath(total, F, y, 0.5, groups=groups).loo_scores(alpha)
    for train, test in LeaveOneGroupOut().split(F, y, groups):
        model = personalize(without(total, F, y, test), F[train], y[train], alpha, 0.5)
        torch.testing.assert_close(found[test], F[test] @ model, rtol=1e-8, atol=1e-9)
    single = PersonalizationPath(total, F, y, 0.5).loo_scores(alpha)
    assert float((single - found).abs().max()) > 1e-2  # rows of the same group do say something of each other


def test_a_system_leaves_groups_out_as_the_path_does() -> None:
    F, y, groups = problem(50, 7)
    total = Statistics.from_data(F, y, CLASSES) + Statistics.from_data(*problem(40, 7, seed=1)[:2], CLASSES)
    own, alpha = Statistics.from_data(F, y, CLASSES), 4.0
    system = GlobalSystem.of(
        factorize(lambda: total.gram + alpha * own.gram, total.penalty(0.5)), total.cross + alpha * own.cross
    )
    Y = torch.nn.functional.one_hot(y, CLASSES).double()
    found = system.left_out(F, Y, 1.0 + alpha, torch.from_numpy(group_numbers(groups)))
    expected = PersonalizationPath(total, F, y, 0.5, groups=groups).loo_scores(alpha)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_groups_of_one_row_are_no_groups() -> None:
    F, y, _ = problem(30, 8)
    total = Statistics.from_data(F, y, CLASSES) + Statistics.from_data(*problem(40, 8, seed=1)[:2], CLASSES)
    alone = np.arange(30)[::-1]
    alphas = (0.0, 1.0, 30.0)
    path, grouped = PersonalizationPath(total, F, y, 0.5), PersonalizationPath(total, F, y, 0.5, groups=alone)
    torch.testing.assert_close(path.loo_margins(alphas), grouped.loo_margins(alphas), rtol=1e-8, atol=1e-9)
    for only_local in (False, True):
        margins = path.loo_margins(alphas, only_local_classes=only_local)
        same = grouped.loo_margins(alphas, only_local_classes=only_local)
        torch.testing.assert_close(margins, same, rtol=1e-8, atol=1e-9)
    for fold in range(FOLDS):
        torch.testing.assert_close(
            path.fold_margins(alphas, margins, fold), grouped.fold_margins(alphas, same, fold), rtol=1e-7, atol=1e-8
        )
    betas = RegularizationPath(total, [0.1, 10.0])
    torch.testing.assert_close(
        betas.score(F, y, alphas).soft, betas.score(F, y, alphas, groups=alone).soft, rtol=1e-7, atol=1e-8
    )


def test_a_fold_is_chosen_for_by_models_that_have_seen_none_of_its_groups() -> None:
    F, y, groups = problem(40, 6)
    total = Statistics.from_data(F, y, CLASSES) + Statistics.from_data(*problem(40, 6, seed=1)[:2], CLASSES)
    alphas, numbers = (0.0, 5.0), group_numbers(groups)
    path = PersonalizationPath(total, F, y, 0.5, groups=groups)
    margins, fold = path.loo_margins(alphas), 1
    found = path.fold_margins(alphas, margins, fold)
    held = numbers % FOLDS == fold
    assert 0 < held.sum() < 40
    for group in np.unique(numbers[~held]):
        gone = held | (numbers == group)
        rest, judged = without(total, F, y, gone), numbers == group
        for at, alpha in enumerate(alphas):
            scores = F[judged] @ personalize(rest, F[~gone], y[~gone], alpha, 0.5)
            own = scores.gather(1, y[judged][:, None])[:, 0]
            best = scores.scatter(1, y[judged][:, None], -torch.inf).amax(dim=1)
            torch.testing.assert_close(found[judged, at], own - best, rtol=1e-7, atol=1e-8)


def test_folds_keep_groups_together_as_group_k_fold_does() -> None:
    _, _, groups = problem(200, 3, groups=23)
    fold = fold_of(200, torch.from_numpy(group_numbers(groups))).numpy()
    assert set(fold) == set(range(FOLDS))
    assert all(len(np.unique(fold[groups == group])) == 1 for group in np.unique(groups))
    assert GroupKFold(FOLDS).get_n_splits() == FOLDS  # the splitter it is to be read like


def test_rows_are_judged_by_what_groups_of_other_folds_choose() -> None:
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    # The second model is right on group 0 alone, whose rows must not choose it for themselves.
    margins = torch.tensor([[-1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, -1.0], [1.0, -1.0], [1.0, -1.0]])
    assert int((nested([margins] * FOLDS, [soft_hits(margins)] * FOLDS, groups) > 0.0).sum()) == 4


@pytest.mark.parametrize(("rows", "width"), [(20, 30), (60, 5)])
@pytest.mark.parametrize("intercept", [True, False])
def test_a_client_alone_is_refitted_without_the_group(rows: int, width: int, intercept: bool) -> None:
    F, y, groups = problem(rows, width)
    found = RidgePath(F, y, CLASSES, intercept=intercept, groups=groups).loo_scores(2.0)
    Y = np.eye(CLASSES)[y.numpy()]
    for train, test in LeaveOneGroupOut().split(F, y, groups):
        model = Ridge(alpha=2.0, fit_intercept=intercept).fit(F[train].numpy(), Y[train])
        np.testing.assert_allclose(found[test], model.predict(F[test].numpy()), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("shrinkage", ["oas", 0.3])
def test_the_discriminant_is_refitted_without_the_group(shrinkage: Any) -> None:
    F, y, groups = problem(45, 6)
    total = Statistics.from_data(F, y, CLASSES) + Statistics.from_data(*problem(40, 6, seed=1)[:2], CLASSES)
    found = Discriminant(total, shrinkage).loo_scores(F, y, groups=groups)
    for _, test in LeaveOneGroupOut().split(F, y, groups):
        refit = Discriminant(without(total, F, y, test), shrinkage)
        torch.testing.assert_close(found[test], refit.scores(F[test]), rtol=1e-7, atol=1e-7)


def test_own_means_leave_the_group_out_as_single_rows_do() -> None:
    F, y, groups = problem(45, 6)
    total = Statistics.from_data(F, y, CLASSES) + Statistics.from_data(*problem(40, 6, seed=1)[:2], CLASSES)
    discriminant = Discriminant(total, 0.3)
    own = discriminant.personal(F, y)
    torch.testing.assert_close(own.loo_scores(np.arange(45)), own.loo_scores(), rtol=1e-7, atol=1e-7)
    # A whole group: the client's means from its other rows, among everybody's other rows, the variances as they were.
    found, variances = own.loo_scores(groups), own._weights
    for train, test in LeaveOneGroupOut().split(F, y, groups):
        rest = Discriminant(without(total, F, y, test), 0.3)
        model = rest.personal(F[train], y[train])
        object.__setattr__(model._weights, "shift_variance", variances.shift_variance)
        object.__setattr__(model._weights, "class_variance", variances.class_variance)
        torch.testing.assert_close(found[test], model.scores(F[test]), rtol=1e-6, atol=1e-6)


def test_prior_losses_leave_the_group_out_of_the_counts() -> None:
    _, y, groups = problem(30, 4)
    scores = torch.randn((30, CLASSES), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own, everybody = torch.bincount(y, minlength=CLASSES), torch.bincount(y, minlength=CLASSES) + 7
    found = PriorLosses.of([scores], y, own, everybody, 0.7, torch.from_numpy(group_numbers(groups)))
    t, a = 6, 4
    expected = 0.0
    for row in range(30):
        gone = torch.bincount(y[groups == groups[row]], minlength=CLASSES)
        mine, all_ = (own - gone).double(), (everybody - gone).double()
        pi = (all_ + 1.0) / (all_.sum() + CLASSES)
        logits = scores[row] / (0.7 * TEMPERATURES[t]) + (mine / pi + SMOOTHINGS[a]).log()
        expected -= float(torch.log_softmax(logits, dim=0)[y[row]])
    assert found.rows == 30
    assert float(found.losses[0, t, a]) == pytest.approx(expected, rel=1e-9)
    single = PriorLosses.of([scores], y, own, everybody, 0.7)
    alone = PriorLosses.of([scores], y, own, everybody, 0.7, torch.arange(30))
    torch.testing.assert_close(single.losses, alone.losses)
    assert torch.equal(single.right, alone.right)


def test_classes_that_are_left_without_the_group() -> None:
    labels, groups = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 1])
    left = classes_without(labels, groups, torch.tensor([1, 2, 1]))
    assert left.tolist() == [[0, 1, 1], [0, 1, 1], [1, 1, 0], [1, 1, 0]]


def test_one_group_is_judged_by_the_others_alone() -> None:
    F, y, _ = problem(20, 6)
    others = Statistics.from_data(*problem(40, 6, seed=1)[:2], CLASSES)
    path = PersonalizationPath(others + Statistics.from_data(F, y, CLASSES), F, y, 0.5, groups=np.zeros(20))
    expected = F @ personalize(others, *problem(40, 6, seed=1)[:2], 0.0, 0.5)
    for alpha in (0.0, 10.0, 1000.0):
        torch.testing.assert_close(path.loo_scores(alpha), expected, rtol=1e-6, atol=1e-7)
    assert path.select() == 0.0  # nothing of its own rows is left to say more
