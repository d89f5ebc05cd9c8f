"""FedCGS and GH-OFL: the cards' hand examples, scikit-learn, and the same model however rows are divided."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB

from fedhip.methods.engine.gaussian import Sums
from tests.methods.one_round.rounds import AT, client, divided_anew, fitted, scores_of, task_of, toy
from tests.methods.problems import CLASSES, WIDTH, federation, rows

#: No more than the floor of the hand examples, which have none.
NO_FLOOR = {"floor": 1e-300}
SIZES = (40, 50, 70)


def pooled() -> tuple[np.ndarray, np.ndarray]:
    clients = federation(SIZES)
    return np.concatenate([c.train[0] for c in clients]), np.concatenate([c.train[1] for c in clients])


TEST = torch.from_numpy(rows(60, np.random.default_rng(9))[0])


def test_toy_sums() -> None:
    sums = Sums.of_all(task_of("gh-lda", toy(), 2))
    assert sums.means.numpy() == pytest.approx(np.array([[2 / 3, 1], [13 / 3, 14 / 3]]))
    assert (sums.total / 5).numpy() == pytest.approx(np.array([[4.7, 3.5], [3.5, 5.766667]]), abs=1e-6)
    within = np.array([[0.833333, -0.666667], [-0.666667, 2.166667]])
    assert (sums.within / 4).numpy() == pytest.approx(within, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("fedcgs", {}, (-0.415494, -0.942125)),
        ("gh-lda", NO_FLOOR, (3.008567, -3.660658)),
        ("gh-qda", NO_FLOOR, (-2.648329, -16.963987)),
        ("gh-nb", NO_FLOOR, (-2.230829, -16.132217)),
    ],
)
def test_toy_scores(name: str, options: dict[str, float], expected: tuple[float, float]) -> None:
    assert scores_of(name, toy(), 2, AT, **options)[0].tolist() == pytest.approx(expected, abs=2e-6)


def test_lda_is_scikit_learns_up_to_the_number_it_divides_by() -> None:
    """scikit-learn divides the scatter within classes by N: its Σ at shrinkage s is ours times (N − d)/N."""
    x, y = pooled()
    sums = Sums.of_all(task_of("gh-lda", federation(SIZES), CLASSES))
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.05).fit(x, y)
    ratio = len(y) / (len(y) - CLASSES)
    # Twice the same Σ: scores less log π are inversely as Σ.
    prior = torch.log(sums.counts / sums.counts.sum())
    found = (scores_of("gh-lda", federation(SIZES), CLASSES, TEST, floor=1e-300) - prior) * ratio + prior
    apart = found.numpy() - theirs.decision_function(TEST.numpy())
    assert apart - apart[:, :1] == pytest.approx(np.zeros_like(apart), abs=1e-8)


def test_fedcgs_is_a_discriminant_of_all_rows_covariance() -> None:
    x, y = pooled()
    inverse = np.linalg.inv(np.cov(x.T))
    means = np.stack([x[y == c].mean(axis=0) for c in range(CLASSES)])
    expected = TEST.numpy() @ inverse @ means.T - np.einsum("ci,ij,cj->c", means, inverse, means) / 2
    expected += np.log(np.bincount(y) / len(y))
    assert scores_of("fedcgs", federation(SIZES), CLASSES, TEST).numpy() == pytest.approx(expected, abs=1e-9)


def test_naive_bayes_is_scikit_learns() -> None:
    theirs = GaussianNB(var_smoothing=0.0).fit(*pooled())
    found = scores_of("gh-nb", federation(SIZES), CLASSES, TEST, floor=1e-300)
    assert found.log_softmax(dim=1).numpy() == pytest.approx(theirs.predict_log_proba(TEST.numpy()), abs=1e-9)


def test_quadratic_is_the_density_of_scipy() -> None:
    x, y = pooled()
    found = scores_of("gh-qda", federation(SIZES), CLASSES, TEST, shrinkage=0.0, floor=1e-300)
    for c in range(CLASSES):
        own = x[y == c]
        density = multivariate_normal(own.mean(axis=0), np.cov(own.T)).logpdf(TEST.numpy())
        expected = density + np.log(len(own) / len(y)) + WIDTH * np.log(2 * np.pi) / 2
        assert found[:, c].numpy() == pytest.approx(expected, abs=1e-9)


def test_equal_covariances_make_the_quadratic_linear() -> None:
    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(30, WIDTH))
    cloud -= cloud.mean(axis=0)
    means = rng.normal(size=(3, WIDTH))
    given = [client(str(c), cloud + means[c], [c] * 30) for c in range(3)]
    quadratic, linear = (scores_of(name, given, 3, TEST, shrinkage=0.1) for name in ("gh-qda", "gh-lda"))
    # (N − 1 per class and N − d in all are the same number here: Σ is one.)
    assert quadratic.log_softmax(1).numpy() == pytest.approx(linear.log_softmax(1).numpy(), abs=1e-8)


@pytest.mark.parametrize("name", ["fedcgs", "gh-nb", "gh-lda", "gh-qda"])
def test_the_same_however_rows_are_divided(name: str) -> None:
    clients = federation(SIZES)
    one, other = (scores_of(name, given, CLASSES, TEST) for given in (clients, divided_anew(clients)))
    assert one.numpy() == pytest.approx(other.numpy(), abs=1e-9)


def test_a_class_of_one_row_has_the_pooled_covariance() -> None:
    given = [*federation(SIZES), client("one", rows(1, np.random.default_rng(2), [3])[0] + 30, [4])]
    found = fitted("gh-qda", given, CLASSES + 1)
    sums = Sums.of_all(task_of("gh-qda", given, CLASSES + 1))
    covariance = sums.within / (161 - 5)
    covariance = 0.9 * covariance + (0.1 * covariance.trace() / WIDTH + 1e-6) * torch.eye(WIDTH).double()
    apart = TEST - sums.means[4]
    expected = np.log(1 / 161) - (apart @ covariance.inverse() * apart).sum(1) / 2 - covariance.logdet() / 2
    assert found.scores(TEST)[:, 4].numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_a_singular_covariance_is_said_and_changes_nothing_it_cannot_see() -> None:
    """A copy of a column says nothing new: scores are those without it."""
    clients = federation(SIZES)
    twice = [client(c.name, np.hstack((c.train[0], c.train[0][:, :1])), c.train[1].tolist()) for c in clients]
    more = torch.cat((TEST, TEST[:, :1]), dim=1)
    plain, doubled = fitted("fedcgs", clients, CLASSES), fitted("fedcgs", twice, CLASSES)
    assert plain.note is None
    assert "pseudo-inverse" in str(doubled.note)
    assert doubled.scores(more).numpy() == pytest.approx(plain.scores(TEST).numpy(), abs=1e-8)
