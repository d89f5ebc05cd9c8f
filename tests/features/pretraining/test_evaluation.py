"""The ridge of the evaluation against scikit-learn's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from fedhip.errors import InputError
from fedhip.features.encoder.pooling import default_concatenation
from fedhip.features.pretraining.evaluation import LabelledSet, evaluate_encoder, fit_and_score, ridge_accuracy
from tests.features.samples import random_encoder, waves


def problem(rows: int = 300, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows)
    features = rng.normal(size=(classes, 12))[labels] + 1.5 * rng.normal(size=(rows, 12)) + 3
    split = (np.arange(rows) % 4 == 0).astype(np.int64)
    return torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(split)


@pytest.mark.parametrize("beta", [1e-6, 1e-2, 1.0, 10.0])
def test_accuracy_is_that_of_scikit_learn(beta: float) -> None:
    features, labels, split = problem()
    fit, score = (split == 0).nonzero().flatten(), (split == 1).nonzero().flatten()
    X, Z = features[fit].numpy(), features[score].numpy()
    # our scale is the unbiased deviation, scikit-learn's the biased one: β moves by N/(N−1)
    scaler = StandardScaler().fit(X)
    ridge = Ridge(alpha=beta * len(X) * len(X) / (len(X) - 1)).fit(scaler.transform(X), np.eye(4)[labels[fit]])
    expected = (ridge.predict(scaler.transform(Z)).argmax(1) == labels[score].numpy()).mean()
    assert fit_and_score(features, labels, fit, score, [beta], 4) == [pytest.approx(expected)]


def test_beta_is_chosen_without_the_test_rows() -> None:
    features, labels, split = problem()
    accuracy, beta = ridge_accuracy(features, labels, split)
    assert 0.5 < accuracy <= 1
    shuffled = labels.clone()
    test = split == 1
    shuffled[test] = (labels[test] + 1) % 4
    assert ridge_accuracy(features, shuffled, split)[1] == beta


def test_every_layer_and_the_concatenation() -> None:
    images = waves(80)
    labels = (images.mean(axis=(1, 2, 3)) > 127).astype(np.int64)
    data = LabelledSet("toy", images, labels, (np.arange(80) % 5 == 0).astype(np.int64))
    data.labels.setflags(write=False)  # as those of a Dataset are
    results = evaluate_encoder(random_encoder(), data, batch=32)
    assert list(results) == [*(f"{k}:{i}" for k in ("mean", "cls") for i in (1, 2, 3)), "mean:2,3+cls"]
    assert all(0 <= result["accuracy"] <= 1 for result in results.values())
    assert default_concatenation(12) == "mean:6,8,10,12+cls"


def test_labelled_sets_from_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "toy.npz", images=waves(10), labels=np.array(list("abababbaab")))
    data = LabelledSet.load(tmp_path / "toy.npz")
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1, 1, 0, 0, 1]
    assert data.split.sum() == 2
    np.savez(tmp_path / "short.npz", images=waves(10), labels=np.arange(9), split=np.zeros(10))
    with pytest.raises(InputError, match="10 images, 9 labels"):
        LabelledSet.load(tmp_path / "short.npz")
    np.savez(tmp_path / "all.npz", images=waves(4), labels=np.arange(4), split=np.zeros(4))
    with pytest.raises(InputError, match="split"):
        LabelledSet.load(tmp_path / "all.npz")
    bad: dict[str, dict[str, Any]] = {
        "labels of .* have shape": {"labels": np.zeros((10, 2), np.int64)},
        "split of .* have shape": {"split": np.arange(20).reshape(10, 2) % 2},
        "split of .* holds": {"split": np.full(10, 0.5)},
        "split .* holds": {"split": np.array(["train", "test"] * 5)},
        "training rows of 1 classes": {"labels": np.zeros(10)},
        "2 training rows of 2": {"split": np.array([0, 0, *[1] * 8])},
    }
    for named, arrays in bad.items():
        np.savez(tmp_path / "bad.npz", **{"images": waves(10), "labels": np.arange(10), **arrays})
        with pytest.raises(InputError, match=named):
            LabelledSet.load(tmp_path / "bad.npz")
    with pytest.raises(InputError, match=r"none\.npz"):
        LabelledSet.load(tmp_path / "none.npz")
