"""Statistics and estimators: the same digests, tensors and probabilities as an earlier version's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedhip
from fedhip.sklearn import FedHiPClassifier
from tests.compatibility.stored import COMMANDS, FILES, assert_same_tensors, tolerance_of

SITES = np.load(FILES / "sites.npz")


def test_statistics_are_read_and_written_to_the_bit(tmp_path: Path) -> None:
    path, told = FILES / "statistics.safetensors", COMMANDS["statistics"]
    statistics = fedhip.Statistics.from_file(path)
    assert statistics.digest() == told["digest"]
    statistics.to_file(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_statistics_are_those_of_the_same_rows(tmp_path: Path) -> None:
    own = SITES["clients"] == COMMANDS["statistics"]["client"]
    made = fedhip.Statistics.from_data(SITES["features"][own], SITES["labels"][own], len(SITES["class_names"]))
    made.to_file(tmp_path / "made.safetensors")
    assert_same_tensors(tmp_path / "made.safetensors", FILES / "statistics.safetensors")


@pytest.mark.parametrize("head", ["ridge", "lda", "logistic"])
def test_estimators_answer_as_before(head: str) -> None:
    """The labels exactly, probabilities to the precision of linear algebra; and after a client was forgotten."""
    expected, close = np.load(FILES / "estimators.npz"), tolerance_of(head)
    X, y, groups = SITES["features"], SITES["class_names"][SITES["labels"]], SITES["clients"]
    model = FedHiPClassifier(head=head, prior="client" if head == "lda" else "none").fit(X, y, groups=groups)
    np.testing.assert_array_equal(model.predict(X, groups=groups), expected[f"{head}-labels"])
    np.testing.assert_allclose(model.predict_proba(X, groups=groups), expected[head], rtol=close, atol=close)
    forgotten = model.forget("south").predict_proba(X, groups=groups)
    np.testing.assert_allclose(forgotten, expected[f"{head}-forgotten"], rtol=close, atol=close)
