"""The commands, through the parser a user talks to."""

import argparse
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhip.cli import extract, pretrain
from fedhip.features.checkpoints import load_encoder, save_encoder
from fedhip.features.errors import ConfigError, PoolError
from tests.features.samples import random_encoder, waves

SIZES = [
    *("--image-size", 16, "--patch", 4, "--width", 32, "--depth", 2, "--heads", 2),
    *("--decoder-width", 16, "--decoder-depth", 1, "--decoder-heads", 2),
    *("--batch", 16, "--device", "cpu", "--log-every", 2),
]


def fedhip(*words: object) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(required=True)
    extract.register(subparsers)
    pretrain.register(subparsers)
    args = parser.parse_args([str(word) for word in words])
    code: int = args.handler(args)
    return code


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    np.savez(tmp_path / "pool.npz", images=waves(40))
    np.savez(tmp_path / "labelled.npz", images=waves(40), labels=np.arange(40) % 2)
    return tmp_path / "pool.npz"


def test_pretrain_writes_encoder_card_and_curve(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = pool.parent / "out"
    words = ["pretrain", "--pool", pool, pool, "--weights", 1, 2, "--out", out, "--steps", 4, *SIZES]
    assert fedhip(*words, "--evaluate", pool.parent / "labelled.npz", "--save-pool", out / "both.npz") == 0
    printed = capsys.readouterr().out
    assert "80 images from pool.npz, pool.npz" in printed
    assert "step      4" in printed
    card = json.loads((out / "card.json").read_text())
    assert card["cost"]["steps"] == 4
    assert [row["share"] for row in card["data"]] == pytest.approx([1 / 3, 2 / 3])
    assert "mean:1,2+cls" in card["ridge_accuracy"]["labelled"]
    assert load_encoder(out / "encoder.safetensors").config.width == 32
    assert {p.name for p in out.iterdir()} == {
        "both.npz",
        "card.json",
        "card.md",
        "checkpoint.safetensors",
        "encoder.safetensors",
        "loss.csv",
    }


def test_pretrain_stops_and_resumes(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = pool.parent / "out"
    words = ["pretrain", "--pool", pool, "--out", out, "--minutes", 0.03, *SIZES]
    assert fedhip(*words, "--stop-after", 0.005) == 1
    assert "go on with --resume" in capsys.readouterr().err
    assert not (out / "encoder.safetensors").exists()
    assert fedhip(*words, "--resume") == 0
    assert (out / "encoder.safetensors").exists()


def test_pretrain_refuses_before_it_trains(pool: Path) -> None:
    words = ["pretrain", "--out", pool.parent / "out", "--steps", 4, *SIZES]
    with pytest.raises(PoolError, match="no file or folder"):
        fedhip(*words, "--pool", pool.parent / "none.npz")
    with pytest.raises(ConfigError, match="patches of 5"):
        fedhip(*words, "--pool", pool, "--patch", 5)
    assert not (pool.parent / "out").exists()


def test_extract_hands_the_features_to_the_feature_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in for the data package: what is asked of it, and what it gets."""

    class DataSet:
        fingerprint, clients, split, class_names = "f", None, None, ["a", "b"]
        labels = np.arange(12) % 2

        def __len__(self) -> int:
            return 12

        def read(self, indices: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
            return waves(12, size)[indices]

    class FeatureSet:
        def __init__(self, **fields: object) -> None:
            self.fields = fields

        def save(self, path: Path) -> None:
            np.savez(path, features=self.fields["features"], labels=self.fields["labels"])  # type: ignore[arg-type]

    asked: list[object] = []

    def load_dataset(name: str, data_dir: Path | None) -> DataSet:
        asked.append((name, data_dir))
        return DataSet()

    stand_in = types.ModuleType("fedhip.data")
    stand_in.FeatureSet = FeatureSet  # type: ignore[attr-defined]
    stand_in.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedhip.data", stand_in)
    save_encoder(tmp_path / "e.safetensors", random_encoder())
    words = [
        "extract",
        "--dataset",
        "toy",
        "--weights",
        tmp_path / "e.safetensors",
        "--pooling",
        "mean:1+cls",
    ]
    assert fedhip(*words, "--device", "cpu", "--out", tmp_path / "f.npz") == 0
    assert asked == [("toy", None)]
    with np.load(tmp_path / "f.npz") as file:
        assert file["features"].shape == (12, 64)
    streams = capsys.readouterr()
    assert "12/12" in streams.err
    assert "12 × 64 features of fedhip-vit-tiny" in streams.out
