"""Balanced classes: scikit-learn's weighted ridge, refits, and the same bits for any division."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedhip.core import PersonalizationPath, RegularizationPath, Statistics
from fedhip.core.balance import class_weights, weighted_statistics
from fedhip.errors import InputError
from fedhip.features.lifts.budget import upload_bytes
from fedhip.heads.round import simulate
from fedhip.runs import Run, life, verify
from fedhip.simulation.client import Client
from tests.cli.samples import done, refused
from tests.core.problems import Array, relative_error
from tests.runs.samples import CLASSES, EXACT, NAMES, WIDTH, contents, feature_file, make_run, the_client

pytestmark = pytest.mark.usefixtures("no_report")

BETA = 0.7


def problem(rows: int = 40) -> tuple[Array, Array, Array]:
    """Features, labels of which one in ten is of the last class, and weights by scikit-learn's formula."""
    rng = np.random.default_rng(0)
    y = np.r_[rng.choice(2, rows - 4, p=[0.8, 0.2]), [2] * 4]
    F = rng.normal(size=(3, 5))[y] + rng.normal(size=(rows, 5))
    return F, y, len(y) / (3 * np.bincount(y))[y]


def statistics(F: Array, y: Array, w: Array) -> Statistics:
    scale = class_weights(torch.from_numpy(np.bincount(y, minlength=3))).sqrt()
    return weighted_statistics(Statistics.from_data(np.sqrt(w)[:, None] * F, y, 3), scale)


def ridge(F: Array, y: Array, weights: Array) -> Array:
    """(m, d)."""
    return np.asarray(
        Ridge(BETA, fit_intercept=False, solver="svd").fit(F, np.eye(3)[y], sample_weight=weights).coef_
    ).T


def test_every_class_weighs_the_same_and_all_rows_together_as_many_as_they_are() -> None:
    counts = torch.tensor([7, 0, 1, 300])
    w = class_weights(counts)
    assert torch.allclose((w * counts)[counts > 0], torch.tensor(308 / 3).double())
    assert w[1] == 1.0
    with pytest.raises(InputError, match="no rows"):
        class_weights(torch.zeros(3))


def test_statistics_of_scaled_rows_are_the_weighted_ones() -> None:
    F, y, w = problem()
    total = statistics(F, y, w)
    np.testing.assert_allclose(total.gram, F.T @ (w[:, None] * F), rtol=1e-12)
    np.testing.assert_allclose(total.cross, F.T @ (w[:, None] * np.eye(3)[y]), rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("only_local_classes", [False, True])
def test_leave_one_out_is_that_of_weighted_refits(alpha: float, only_local_classes: bool) -> None:
    F, y, w = problem()
    own = np.arange(12) * 3
    scale = torch.from_numpy(np.sqrt(len(y) / (3 * np.bincount(y))))
    path = PersonalizationPath(statistics(F, y, w), np.sqrt(w[own])[:, None] * F[own], y[own], BETA, targets=scale)
    weights = w * np.where(np.isin(np.arange(len(y)), own), 1 + alpha, 1.0)
    assert relative_error(path.weights(alpha), ridge(F, y, weights)) < 1e-10
    expected = np.stack([F[i] @ ridge(np.delete(F, i, 0), np.delete(y, i), np.delete(weights, i)) for i in own])
    assert relative_error(path.loo_scores(alpha), expected) < 1e-10
    hits = []
    for scores, label in zip(expected, y[own], strict=True):
        others = np.bincount(y[own], minlength=3) - np.eye(3, dtype=int)[label]
        allowed = others > 0 if only_local_classes else np.full(3, True)
        hits.append(np.where(allowed, scores, -np.inf).argmax() == label and allowed[label])
    found = path.loo_accuracy([alpha], only_local_classes=only_local_classes)
    assert float(found) == pytest.approx(np.mean(hits))


def test_cross_validation_is_that_of_the_weighted_rows() -> None:
    F, y, w = problem()
    scale = torch.from_numpy(np.sqrt(len(y) / (3 * np.bincount(y))))
    # Weights of another round, whose sum is not the number of rows.
    total = weighted_statistics(Statistics.from_data(1.3 * np.sqrt(w)[:, None] * F, y, 3), 1.3 * scale)
    path = RegularizationPath(total, [0.1, 5.0], targets=1.3 * scale)
    X, Y = 1.3 * np.sqrt(w)[:, None] * F, 1.3 * np.sqrt(w)[:, None] * np.eye(3)[y]
    for beta, found in zip(path.betas, path.gcv(), strict=True):
        hat = X @ np.linalg.solve(X.T @ X + beta * np.eye(5), X.T)
        expected = len(y) * np.square(Y - hat @ Y).sum() / (len(y) - np.trace(hat)) ** 2
        assert float(found) == pytest.approx(expected, rel=1e-9)


def test_models_of_a_balanced_run_are_weighted_ridges(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", alpha=7.5, beta=BETA, balance=True)
    parts = [the_client(name).train for name in NAMES]
    F, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    whose = np.repeat(NAMES, [len(labels) for _, labels in parts])
    w = (len(y) / (3 * np.bincount(y)))[y]
    for client in (None, *NAMES):
        weights = w * np.where(whose == client, 8.5, 1.0)
        mean = np.average(F, axis=0, weights=w)
        scale = np.sqrt(np.average((F - mean) ** 2, axis=0, weights=w))
        expected = Ridge(BETA, solver="svd").fit((F - mean) / scale, np.eye(3)[y], sample_weight=weights)
        np.testing.assert_allclose(run.model(client).scores(F), expected.predict((F - mean) / scale), atol=1e-3)
    plain = make_run(tmp_path / "plain", alpha=7.5, beta=BETA)
    assert "balance" not in plain.results
    for method, more in (("local", 0), ("global", 24), ("fedhip", 24)):
        sent = (found.results["methods"][method]["upload_bytes_per_client"] for found in (run, plain))
        assert next(sent) - next(sent) == more
    assert plain.results["methods"]["fedhip"]["upload_bytes_per_client"] == upload_bytes(WIDTH, len(CLASSES))
    assert run.results["methods"]["local"]["accuracy"] == plain.results["methods"]["local"]["accuracy"]


def test_alpha_is_chosen_by_the_weighted_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", beta=BETA, balance=True, standardize=False, intercept=False)
    parts = {name: the_client(name).train for name in NAMES}
    F, y = (np.concatenate([part[i] for part in parts.values()]) for i in (0, 1))
    scale = np.sqrt(len(y) / (3 * np.bincount(y)))
    for name, (own, labels) in parts.items():
        rows = scale[labels][:, None] * own
        path = PersonalizationPath(statistics(F, y, scale[y] ** 2), rows, labels, BETA, targets=torch.from_numpy(scale))
        assert run.details["clients"][name]["loo_accuracy"] == path.loo_accuracy().tolist()
        assert run.details["clients"][name]["alpha"] == path.select()


@pytest.mark.parametrize("beta", ["gcv", 2.0])
def test_any_division_gives_the_same_bits(beta: float | Literal["gcv"]) -> None:
    F, y, _ = problem(60)
    order = np.random.default_rng(1).permutation(60)
    totals = []
    for parts in (np.array_split(np.arange(60), 3), np.array_split(order, 8)):
        clients = [Client(str(k), (F[rows], y[rows]), (F[:0], y[:0])) for k, rows in enumerate(parts)]
        outcome = simulate(clients, 3, beta=beta, balance=True, methods=("global",))
        totals.append((outcome.federation.digest, outcome.beta, outcome.federation.common.weights))
    assert totals[0][:2] == totals[1][:2]
    assert torch.equal(totals[0][2], totals[1][2])


def test_who_comes_and_goes_is_weighted_as_the_round_was(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", alpha=7.5, beta="gcv", balance=True)
    before = contents(run.path, EXACT)
    life.join(run, the_client("east"))
    run = Run.open(run.path)
    assert all(check.problem is None for check in verify(run))
    life.personalize(run, {"east": the_client("east"), "north": the_client("north")})
    life.forget(Run.open(run.path), "east")
    assert contents(run.path, EXACT) == before


def test_what_it_is_not_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("run", "--features", feature_file(tmp_path / "f.npz"), "--out", tmp_path / "run", "--balance")
    assert "leave out fedhip-lda" in refused(capsys, *command, "--methods", "fedhip,fedhip-lda")
    assert "not both" in refused(capsys, *command, "--prior", "client")
    for head in ("lda", "logistic"):
        line = refused(capsys, *command, "--head", head)
        assert "are for models of the ridge, whose sum is weighted in closed form" in line
        assert f"leave out --head {head}, or --balance" in line
    assert not (tmp_path / "run").exists()
    done(*command)
    assert "balanced classes: a row weighs from" in capsys.readouterr().out
    done("run", tmp_path / "run" / "config.toml", "--out", tmp_path / "again")
    assert contents(tmp_path / "again", EXACT) == contents(tmp_path / "run", EXACT)
