"""The heads lda and logistic: against scikit-learn, any division of rows, no test row looked at."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler

from fedhip.core.affine import AffineModel
from fedhip.heads import Head, Lda, Logistic
from fedhip.heads.round import run_head
from fedhip.heads.task import Task
from fedhip.methods import run_method
from fedhip.simulation.client import Client
from tests.methods.problems import CLASSES, WIDTH, federation, rows

SIZES = (40, 50, 70)


def task(clients: list[Client], **options: float) -> Task:
    return Task(clients, CLASSES, {"gradient_rounds": 5.0, **options})


def models_of(kind: type[Head], clients: list[Client]) -> tuple[AffineModel, dict[str, AffineModel]]:
    """The federation's model, and the clients'."""
    found = run_head(kind, task(clients))
    own = {result.client: result.personal.model for result in found.clients if result.personal is not None}
    return found.head.common, own


def redivided(clients: list[Client], seed: int) -> list[Client]:
    """The first client keeps its rows; all others' rows are dealt out again, to more clients."""
    rng = np.random.default_rng(seed)
    F = np.concatenate([client.train[0] for client in clients[1:]])
    y = np.concatenate([client.train[1] for client in clients[1:]])
    parts = np.array_split(rng.permutation(len(y)), 6)
    return [clients[0], *(Client(f"new-{k}", (F[part], y[part]), clients[1].test) for k, part in enumerate(parts))]


def test_lda_is_scikit_learns_of_standardised_rows() -> None:
    clients = federation(SIZES, test=200)
    F, y = np.concatenate([c.train[0] for c in clients]), np.concatenate([c.train[1] for c in clients])
    scaler = StandardScaler().fit(F)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(scaler.transform(F), y)
    found = run_head(Lda, task(clients, shrinkage=0.1))
    common = found.head.common
    expected = theirs.decision_function(scaler.transform(F))
    assert np.abs(common.scores(F).numpy() - expected).max() <= 1e-3 * np.abs(expected).max()  # features are rounded
    assert len(found.clients) == 3
    assert found.head.traffic[1] == 8 * (52 * WIDTH + 1 + WIDTH * (WIDTH + 1) // 2 + WIDTH * CLASSES + CLASSES)


def test_a_client_that_sees_classes_otherwise_has_means_of_its_own() -> None:
    clients = federation((60,) * 8, test=400)
    moved = np.random.default_rng(0).normal(size=(CLASSES, WIDTH)) * 1.5
    (F, y), (unseen, truth) = clients[0].train, clients[0].test
    strange = Client("strange", (F + moved[y], y), (unseen + moved[truth], truth))
    found = run_head(Lda, task([strange, *clients[1:]]))
    common, personal = found.head.common, found.clients[0].personal
    assert personal is not None
    assert personal.alpha == 1.0

    def accuracy(scores: torch.Tensor) -> float:
        return float((scores.argmax(dim=1).numpy() == truth).mean())

    assert accuracy(personal.model.scores(strange.test[0])) > accuracy(common.scores(strange.test[0])) + 0.05


def test_theorem_3_for_the_logistic_head() -> None:
    """The model of a client does not depend on how the other clients' rows are divided."""
    clients = federation((40, 50, 70, 30))
    common, own = models_of(Logistic, clients)
    model = own[clients[0].name]
    for seed in range(2):
        same, others = models_of(Logistic, redivided(clients, seed))
        assert torch.equal(same.weights, common.weights)
        again = others[clients[0].name]
        assert float((again.weights - model.weights).abs().max()) <= 1e-8 * float(model.weights.abs().max())


@pytest.mark.parametrize("kind", [Lda, Logistic])
def test_no_test_row_is_looked_at(kind: type[Head]) -> None:
    """Other test labels change accuracies and nothing else that a run chooses."""
    clients = federation(SIZES)
    shuffled = [Client(c.name, c.train, (c.test[0], np.roll(c.test[1], 1))) for c in clients]
    before, after = (models_of(kind, some)[1] for some in (clients, shuffled))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].weights, after[name].weights) for name in before)


def test_rounds_and_bytes_of_the_logistic_head() -> None:
    run = run_method("fedhip-logistic", federation(SIZES), CLASSES)
    assert run.rounds == 8
    m1 = WIDTH + 1
    answer = 8 * (m1 * CLASSES + CLASSES + 1 + 1 + CLASSES)
    statistics = 8 * (52 * WIDTH + 1 + WIDTH * m1 // 2 + WIDTH * CLASSES + CLASSES)
    assert run.upload_bytes_per_client == statistics + 8 * 16 + 5 * answer + 8 * 9 * 17
    weights = 4 * m1 * CLASSES
    assert run.download_bytes_per_client == statistics + 5 * weights + 2 * (weights + answer) + 2 * weights
    given = run_method("fedhip-logistic", federation(SIZES), CLASSES, options={"temperature": 2, "penalty": 5})
    assert given.rounds == 6


def test_a_wide_federation_sends_less_than_a_tenth_of_two_hundred_rounds_of_fedavg() -> None:
    """Both ways, at the width and classes of CIFAR-100 with the embedded backbone, from shapes alone."""
    m, d = 1280, 100
    up = 8 * (m * (m + 1) // 2 + m * d + d) + 8 * 16 + 5 * 8 * ((m + 1) * d + 2 * d + 2) + 8 * 9 * 17
    down = 4 * ((m + 1) * (m + 2) // 2 + (m + 1) * d) + 8 * (2 * m + d) + 8 + 4 * (m + 1) * d * 7 + 6 * 4
    assert up + down < 0.1 * 200 * 2 * 4 * m * d


def test_a_client_with_one_class_is_served() -> None:
    rng = np.random.default_rng(0)
    one = Client("one", rows(12, rng, [2]), rows(40, rng, [2]))
    for name in ("fedhip-lda", "fedhip-logistic"):
        run = run_method(name, [one, *federation(SIZES)], CLASSES)
        assert run.accuracy[0] is not None
        assert run.accuracy[0] > 0.5
