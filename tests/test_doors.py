"""The same rows give the same models through every door: the estimator, a simulated round, a run on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.heads.round import simulate
from fedhip.methods import Protocol, run_method
from fedhip.runs import Run
from fedhip.simulation.client import Client
from fedhip.sklearn import FedHiPClassifier
from tests.cli.samples import done
from tests.core.problems import Array
from tests.methods.problems import CLASSES, federation
from tests.runs.samples import NAMES, feature_file, the_client

SIZES = (40, 9, 50, 30)


def stacked(clients: list[Client]) -> tuple[Array, Array, Array]:
    """The training rows, their labels and whose they are."""
    F, y = (np.concatenate([client.train[part] for client in clients]) for part in (0, 1))
    return F, y, np.repeat([client.name for client in clients], [len(client.train[1]) for client in clients])


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"alpha": 3.0}, {"beta": 2.0}, {"only_local_classes": True}], ids=lambda options: str(options)
)
@pytest.mark.sampled(3)
def test_the_estimator_and_a_round_have_the_same_models(
    options: dict[str, Any], standardize: bool, intercept: bool
) -> None:
    clients = federation(SIZES)
    outcome = simulate(clients, CLASSES, standardize=standardize, intercept=intercept, **options)
    X, y, groups = stacked(clients)
    ridge = {"head": "ridge", "standardize": standardize, "fit_intercept": intercept, **options}
    clf = FedHiPClassifier(**ridge).fit(X, y, groups=groups)
    assert clf.beta_ == outcome.beta
    assert torch.equal(clf.global_model_.affine.weights, outcome.federation.common.weights)
    assert torch.equal(clf.global_model_.affine.bias, outcome.federation.common.bias)
    for client, result in zip(clients, outcome.clients, strict=True):
        assert result.personal is not None
        assert clf.alphas_[client.name] == result.alpha
        assert torch.equal(clf.models_[client.name].affine.weights, result.personal.model.weights)
        assert torch.equal(clf.models_[client.name].affine.bias, result.personal.model.bias)
        assert clf.score(*client.test, groups=[client.name] * len(client.test[1])) == result.accuracy["fedhip"]


@pytest.mark.parametrize("prior", ["none", "client"])
@pytest.mark.parametrize("head", ["ridge", "lda", "logistic"])
@pytest.mark.sampled(3)
def test_the_estimator_and_a_method_reach_the_same(head: str, prior: Any) -> None:
    clients = federation(SIZES)
    X, y, groups = stacked(clients)
    clf = FedHiPClassifier(head=head, prior=prior).fit(X, y, groups=groups)
    method = {"ridge": "fedhip", "lda": "fedhip-lda", "logistic": "fedhip-logistic"}[head]
    run = run_method(method, clients, CLASSES, Protocol(prior=prior))
    assert run.accuracy == [clf.score(*c.test, groups=[c.name] * len(c.test[1])) for c in clients]
    if run.alphas is not None:
        assert run.alphas == [clf.alphas_[client.name] for client in clients]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {}),
        (("--head", "ridge"), {"head": "ridge"}),
        (("--beta", "2"), {"beta": 2.0}),
        (("--prior", "none"), {"prior": "none"}),
        (("--max-rounds", "8"), {"max_rounds": 8}),
        (("--head", "lda"), {"head": "lda"}),
        (("--head", "logistic"), {"head": "logistic"}),
        (("--head", "auto"), {"head": "auto"}),
        (("--lift", "none"), {"lift": "none"}),
        (("--lift", "relu", "--lift-width", "20"), {"lift": "relu", "lift_width": 20}),
        (("--lift", "nystroem-axes", "--lift-width", "20"), {"lift": "nystroem-axes", "lift_width": 20}),
        (
            ("--lift", "fourier", "--lift-width", "9", "--head", "auto"),
            {"lift": "fourier", "lift_width": 9, "head": "auto"},
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
@pytest.mark.sampled(2)
def test_the_estimator_and_a_run_on_disk_have_the_same_models(
    tmp_path: Path, words: tuple[str, ...], options: dict[str, Any]
) -> None:
    done("run", "--features", feature_file(tmp_path / "f.npz"), "--out", tmp_path / "run", *words)
    run = Run.open(tmp_path / "run")
    X, y, groups = stacked([the_client(name) for name in NAMES])
    clf = FedHiPClassifier(**options).fit(X, y, groups=groups)
    for client in (None, *NAMES):
        expected = run.model(client)
        found = clf.global_model_ if client is None else clf.models_[client]
        assert (found.head, found.alpha, found.beta) == (expected.head, expected.alpha, expected.beta)
        assert torch.equal(found.affine.weights, expected.affine.weights)
        assert torch.equal(found.affine.bias, expected.affine.bias)
        assert found.total == expected.total, "it is the same sum"
    assert run.results.get("choice") == clf.choice_
    if options == {"lift": "none"}:
        assert [entry["features"] for entry in run.results["choice"]["candidates"]] == ["as they are"] * 8


@pytest.mark.parametrize("head", ["auto", "ridge", "lda", "logistic"])
def test_a_run_on_disk_sees_no_units_nor_order_nor_copies(tmp_path: Path, head: str) -> None:
    """Columns in other units, moved and turned round, one of them twice, and one that is always the same."""
    with np.load(feature_file(tmp_path / "usual.npz")) as file:
        content = dict(file)
    X = content["features"].astype(np.float64)
    width = X.shape[1]
    other = (X * 2.0 ** np.arange(-8, width - 8) + np.arange(width))[:, ::-1]
    content["features"] = np.column_stack((other, 1024.0 * other[:, 2], np.full(len(X), 7.0)))
    np.savez(tmp_path / "other.npz", **content)
    for name in ("usual", "other"):
        done("run", "--features", tmp_path / f"{name}.npz", "--head", head, "--out", tmp_path / name)
    usual, changed = (Run.open(tmp_path / name) for name in ("usual", "other"))
    for client in (None, *NAMES):
        expected, found = (
            run.model(client).affine.scores(rows).numpy() for run, rows in ((usual, X), (changed, content["features"]))
        )
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-3 * np.abs(expected).max())
    for method, entry in usual.results["methods"].items():
        assert changed.results["methods"][method]["accuracy"] == entry["accuracy"], method
