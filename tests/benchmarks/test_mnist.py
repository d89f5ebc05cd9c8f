"""The clients of the race on MNIST: every row is somebody's, training and test rows are MNIST's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks import mnist
from fedhip.data import read_features


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of MNIST's form, of 600 and 100 images of 2 × 2 pixels; each begins with its place."""
    random, known = np.random.default_rng(0), {}
    for part, rows in (("train", 600), ("t10k", 100)):
        images = random.integers(0, 256, (rows, 4), dtype=np.uint8)
        images[:, 0], images[:, 1] = np.arange(rows) % 256, np.arange(rows) // 256
        labels = random.integers(0, 10, rows, dtype=np.uint8)
        for name, head, content in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            data = bytes(head) + content.tobytes()
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(data)
            known[f"{part}-{name}-ubyte"] = hashlib.sha256(data).hexdigest()
    monkeypatch.setattr(mnist, "FILES", known)
    monkeypatch.setattr(mnist, "CLIENTS", 20)
    return tmp_path


def test_clients_of_two_shards(folder: Path) -> None:
    path = folder / "rows.npz"
    mnist.write_rows(folder, path)
    data = read_features(path)
    assert (len(data.labels), int(np.sum(np.asarray(data.split) == 0))) == (700, 600)
    labels = np.fromfile(folder / "train-labels-idx1-ubyte", np.uint8, offset=8)
    seen = np.zeros(600, int)
    for number in range(20):
        X, y = mnist.rows_of(str(path), number)
        pixels = np.rint(X.numpy() * 255).astype(int)
        places = pixels[:, 0] + 256 * pixels[:, 1]
        assert (labels[places] == y.numpy()).all()
        assert 0 < len(set(y.tolist())) <= 4, "two shards of 35 rows, of about 70 of each digit"
        seen[places] += 1
    assert (seen == 1).all(), "each training row is one client's, and no test row is trained on"


def test_files_that_are_not_mnist_s(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").write_bytes(bytes(108))
    with pytest.raises(SystemExit, match="t10k-labels-idx1-ubyte is not MNIST's: its SHA-256 is"):
        mnist.write_rows(folder, folder / "rows.npz")
