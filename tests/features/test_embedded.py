"""The backbone in the package: what it is, and that its features are worth more than pixels."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedhip.data import load_dataset
from fedhip.features import extract, load_backbone, ridge_accuracy
from fedhip.features.backbones import embedded_weights
from fedhip.features.encoder.checkpoints import load_encoder


def test_the_file_and_its_card() -> None:
    path = embedded_weights()
    assert path.stat().st_size <= 20_000_000
    with safe_open(path, framework="pt") as file:
        kinds = {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
    assert kinds == {torch.float16}
    config = load_encoder(path).config
    assert (config.image_size, config.patch_size, config.width, config.depth, config.heads) == (64, 8, 256, 12, 4)
    card = json.loads(path.with_suffix(".card.json").read_text())
    assert card["recipe"]["encoder"] == config.to_dict()
    assert "256 wide, 12 deep, 4 heads" in path.with_suffix(".card.md").read_text()


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_ridge_on_its_features_beats_one_on_pixels() -> None:
    sketches = load_dataset("sketches")
    pixels = np.asarray(sketches.images)
    rows = np.concatenate([np.flatnonzero(sketches.labels == label)[:32] for label in range(8)])
    images, labels = pixels[rows], torch.from_numpy(sketches.labels[rows])
    split = torch.from_numpy((np.arange(len(rows)) % 4 == 0).astype(np.int64))
    backbone = load_backbone("fedhip-vit", device="cpu")
    assert backbone.feature_dim == 1280
    features = extract(backbone, images, batch=32, dtype=torch.float32, cache=False)
    again = extract(backbone, images[:32], batch=32, dtype=torch.float32, cache=False)
    np.testing.assert_array_equal(again, features[:32])
    accuracy = ridge_accuracy(torch.from_numpy(features), labels, split)[0]
    on_pixels = ridge_accuracy(torch.from_numpy(images.reshape(len(rows), -1).copy()).float(), labels, split)[0]
    assert accuracy > 0.75
    assert accuracy > on_pixels + 0.15
