"""FedPFT: fits against numpy and scikit-learn, moments that the mixtures keep, and the head that draws lead to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from fedhip.errors import InputError
from fedhip.methods import run_method
from fedhip.methods.one_round.fedpft import LEAST_VARIANCE, Mixture, nearest_seeds, train_head
from tests.methods.one_round.rounds import SMALL, client, divided_anew, fitted, task_of
from tests.methods.problems import CLASSES, WIDTH, federation

RNG = np.random.default_rng(4)
CLOUD = torch.from_numpy(np.concatenate((RNG.normal(size=(40, 3)), 6 + 2 * RNG.normal(size=(60, 3)))))


@pytest.mark.parametrize("diagonal", [False, True])
def test_one_component_is_mean_and_variance(diagonal: bool) -> None:
    found = Mixture.fitted(CLOUD, torch.zeros(100, dtype=torch.int64), diagonal)
    x = CLOUD.numpy()
    assert found.means[0].numpy() == pytest.approx(x.mean(axis=0))
    expected = x.var(axis=0) if diagonal else [x.var(axis=0).mean()]
    assert found.variances[0].numpy() == pytest.approx(np.array(expected) + LEAST_VARIANCE)
    # The trace of the products of all rows is kept.
    trace = 100 * float((found.variances.expand(1, 3) - LEAST_VARIANCE).sum() + found.means.square().sum())
    assert trace == pytest.approx(float(np.square(x).sum()))


@pytest.mark.parametrize("diagonal", [False, True])
def test_em_is_scikit_learns(diagonal: bool) -> None:
    first = nearest_seeds(CLOUD, 3, np.random.default_rng(1))
    found, x = Mixture.fitted(CLOUD, first, diagonal), CLOUD.numpy()
    start = Mixture.of(CLOUD, torch.nn.functional.one_hot(first, 3).double(), diagonal)
    precisions = (1 / start.variances).numpy()
    theirs = GaussianMixture(
        3,
        covariance_type="diag" if diagonal else "spherical",
        tol=1e-12,
        max_iter=2000,
        weights_init=start.weights.numpy(),
        means_init=start.means.numpy(),
        precisions_init=precisions if diagonal else precisions[:, 0],
    ).fit(x)
    assert found.weights.numpy() == pytest.approx(theirs.weights_, abs=1e-3)
    assert found.means.numpy() == pytest.approx(theirs.means_, abs=2e-2)
    variances = found.variances.numpy() if diagonal else found.variances[:, 0].numpy()
    assert variances == pytest.approx(theirs.covariances_, rel=2e-2)
    assert found.log_joint(CLOUD).logsumexp(1).numpy() == pytest.approx(theirs.score_samples(x), abs=2e-2)


def test_draws_are_of_the_mixture_and_streams_are_their_own() -> None:
    mixture = Mixture(
        torch.tensor([0.25, 0.75], dtype=torch.float64),
        torch.tensor([[0.0, 0.0], [5.0, 1.0]], dtype=torch.float64),
        torch.tensor([[1.0], [4.0]], dtype=torch.float64),
    )
    found = mixture.draws(40_000, np.random.default_rng(0))
    assert found.mean(dim=0).tolist() == pytest.approx([3.75, 0.75], abs=0.05)
    assert found[:, 1].var().item() == pytest.approx(0.25 * 1 + 0.75 * 4 + 0.1875, abs=0.1)
    x = np.random.default_rng(2).normal(size=(30, 2))
    clients = [client(name, x, [0] * 15 + [1] * 15) for name in "ab"]
    a, b = (fitted("fedpft", [c], 2, epochs=5).scores(torch.eye(2, dtype=torch.float64)) for c in clients)
    assert not torch.equal(a, b)


def test_rounding_to_half_precision_keeps_weights_a_distribution() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = torch.from_numpy(rng.dirichlet(np.ones(10)))
        sent = Mixture(weights, torch.zeros(10, 2).double(), torch.ones(10, 1).double()).sent()
        assert float(sent.weights.sum()) == pytest.approx(1, abs=1e-12)
        rng.multinomial(5, sent.weights.numpy())
    tiny = Mixture(torch.ones(1).double(), torch.zeros(1, 2).double(), torch.full((1, 1), 1e-9).double()).sent()
    assert float(tiny.variances) == 0


def test_the_head_tends_to_the_discriminant_of_equal_spheres() -> None:
    """Classes of one spherical variance: scores tend to μ_c·x/σ² − ‖μ_c‖²/2σ² + log π_c."""
    rng = np.random.default_rng(0)
    means, x, y = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), [], []
    for c, n in enumerate((3000, 1500, 1500)):
        x.append(means[c] + rng.normal(size=(n, 2)))
        y += [c] * n
    found = fitted("fedpft", [client("all", np.concatenate(x), y)], 3, rate=0.003, epochs=15)
    at = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 2.0]], dtype=torch.float64)
    expected = at.numpy() @ means.T - np.square(means).sum(axis=1) / 2 + np.log([0.5, 0.25, 0.25])
    got = found.scores(at).log_softmax(1).numpy()
    assert got == pytest.approx(torch.from_numpy(expected).log_softmax(1).numpy(), abs=0.25)


def test_bytes_and_classes_of_few_rows() -> None:
    """Of a class: q (m + 2) numbers of two bytes, its label and its rows."""
    clients = federation((60, 70))
    run = run_method("fedpft", clients, CLASSES, options={"epochs": 1})
    assert run.upload_bytes_per_client == 3 * (2 * (WIDTH + 2) + 16)
    run = run_method("fedpft", clients, CLASSES, options={"epochs": 1, "components": 2, "diagonal": 1})
    assert run.upload_bytes_per_client == 3 * (2 * 2 * (2 * WIDTH + 1) + 16)
    assert run.download_bytes_per_client == 4 * (WIDTH + 1) * CLASSES
    few = [*clients, client("few", clients[0].train[0][:2], [CLASSES] * 2)]
    found = fitted("fedpft", few, CLASSES + 1, epochs=1, components=2)
    assert "no part in the training" in str(found.note)


def test_it_says_why_it_cannot() -> None:
    single = client("single", np.eye(3), [0, 1, 2])
    with pytest.raises(InputError, match="no client has a class with more than 1 row,"):
        run_method("fedpft", [single], 3)
    with pytest.raises(InputError, match="'huge' has features beyond float16"):
        run_method("fedpft", [client("huge", np.full((3, 2), 1e6), [0, 0, 0])], 1)


def test_another_division_is_another_model() -> None:
    clients, x = federation((60, 70)), torch.from_numpy(federation((20,), seed=8)[0].train[0])
    one, other = (fitted("fedpft", c, CLASSES, **SMALL["fedpft"]).scores(x) for c in (clients, divided_anew(clients)))
    assert not np.allclose(one, other, atol=1e-2)


def test_training_is_adamw() -> None:
    """By autograd, and a step as its paper writes it, entry by entry."""
    x, y = torch.randn(70, 3, generator=torch.Generator().manual_seed(0)), torch.arange(70) % 2
    start = torch.zeros(3, 2) + 0.1, torch.zeros(2)
    W, b = train_head(x, y, start, 2, 0.05, 6, task_of("fedpft", [], 2))
    theirs = [part.double() for part in start]
    moments = [(torch.zeros_like(part), torch.zeros_like(part)) for part in theirs]
    step, generator = 0, torch.Generator().manual_seed(6)
    for _ in range(2):
        for rows in torch.split(torch.randperm(70, generator=generator), 32):
            leaves = [part.clone().requires_grad_() for part in theirs]
            loss = torch.nn.functional.cross_entropy(x[rows].double() @ leaves[0] + leaves[1], y[rows])
            slopes, step = torch.autograd.grad(loss, leaves), step + 1
            for i, g in enumerate(slopes):
                moments[i] = 0.9 * moments[i][0] + 0.1 * g, 0.999 * moments[i][1] + 0.001 * g**2
                mean, square = moments[i][0] / (1 - 0.9**step), moments[i][1] / (1 - 0.999**step)
                theirs[i] = theirs[i] - 0.05 * (mean / (square**0.5 + 1e-8) + 0.01 * theirs[i])
    assert W.numpy() == pytest.approx(theirs[0].numpy(), abs=1e-5)
    assert b.numpy() == pytest.approx(theirs[1].numpy(), abs=1e-5)
