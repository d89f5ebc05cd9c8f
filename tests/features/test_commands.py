"""The commands, through the parser a user talks to."""

import argparse
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhip import FedHiPError, features
from fedhip.cli import extract, pretrain
from fedhip.cli.common.parser import Parser
from fedhip.data import load_dataset, read_features
from fedhip.errors import InputError
from fedhip.features.encoder.checkpoints import load_encoder, save_encoder
from fedhip.features.pretraining import evaluation
from fedhip.features.pretraining.training import TrainingRun
from tests.features.samples import random_encoder, waves

SIZES = [
    *("--image-size", 16, "--patch", 4, "--width", 32, "--depth", 2, "--heads", 2),
    *("--decoder-width", 16, "--decoder-depth", 1, "--decoder-heads", 2),
    *("--batch", 16, "--device", "cpu", "--log-every", 2),
]


def fedhip(*words: object) -> int:
    parser: argparse.ArgumentParser = Parser()
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
    words = ["pretrain", "--pool", pool, pool, "--shares", 1, 2, "--out", out, "--steps", 4, *SIZES]
    assert fedhip(*words, "--evaluate", pool.parent / "labelled.npz", "--save-pool", out / "both.npz") == 0
    printed = capsys.readouterr()
    assert "80 images from pool.npz, pool.npz" in printed.err
    assert "step      4" in printed.err
    assert [line.split()[0] for line in printed.out.splitlines()] == ["labelled"] * 5 + ["encoder"]
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
    assert fedhip(*words, "--stop-after", 0.005) == 3
    assert "go on with --resume" in capsys.readouterr().err
    assert not (out / "encoder.safetensors").exists()
    assert fedhip(*words, "--resume") == 0
    assert (out / "encoder.safetensors").exists()


def test_pretrain_refuses_before_it_trains(pool: Path) -> None:
    words = ["pretrain", "--out", pool.parent / "out", "--steps", 4, *SIZES]
    with pytest.raises(InputError, match="no file or folder"):
        fedhip(*words, "--pool", pool.parent / "none.npz")
    with pytest.raises(InputError, match="patches of 5"):
        fedhip(*words, "--pool", pool, "--patch", 5)
    with pytest.raises(InputError, match="log_every is 0"):
        fedhip(*words, "--pool", pool, "--log-every", 0)
    with pytest.raises(InputError, match="no device 'foo'"):
        fedhip(*words, "--pool", pool, "--device", "foo")
    np.savez(pool.parent / "bad.npz", images=waves(6), labels=np.zeros((6, 2)))
    with pytest.raises(InputError, match=r"labels of .* have shape \(6, 2\)"):
        fedhip(*words, "--pool", pool, "--evaluate", pool.parent / "bad.npz")
    with pytest.raises(FedHiPError, match=r"pool\.npz is a file"):
        fedhip(*words, "--pool", pool, "--out", pool)
    assert not (pool.parent / "out").exists()


def test_an_evaluation_that_fails_loses_nothing(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(evaluation, "evaluate_encoder", fail)
    out = pool.parent / "out"
    words = ["pretrain", "--pool", pool, "--out", out, "--steps", 4, *SIZES]
    with pytest.raises(MemoryError):
        fedhip(*words, "--evaluate", pool.parent / "labelled.npz")
    assert load_encoder(out / "encoder.safetensors").config.width == 32
    assert json.loads((out / "card.json").read_text())["ridge_accuracy"] == {}


def test_an_interrupt_is_exit_code_130(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = TrainingRun.advance

    def interrupted(self: TrainingRun, rate: float) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return advance(self, rate)

    monkeypatch.setattr(TrainingRun, "advance", interrupted)
    words = ["pretrain", "--pool", pool, "--out", pool.parent / "out", "--steps", 4, *SIZES]
    assert fedhip(*words) == 130
    assert (pool.parent / "out" / "checkpoint.safetensors").exists()


def test_extract_hands_the_features_to_the_feature_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.array(["a", "b"] * 6)
    np.savez(tmp_path / "toy.npz", images=waves(12), labels=labels, clients=np.arange(12) % 3)
    save_encoder(tmp_path / "e.safetensors", random_encoder())
    words = ["extract", "--data", tmp_path / "toy.npz", "--weights", tmp_path / "e.safetensors"]
    assert fedhip(*words, "--pooling", "mean:1+cls", "--device", "cpu", "--out", tmp_path / "f.npz") == 0
    found = read_features(tmp_path / "f.npz")
    assert found.features.shape == (12, 64)
    assert [found.class_names[label] for label in found.labels] == labels.tolist()
    assert found.clients is not None
    assert found.clients.tolist() == ["0", "1", "2"] * 4
    assert re.search(r"12 × 64 features of fedhip-vit in (float32|bfloat16), written to ", capsys.readouterr().out)
    words += ["--device", "cpu", "--precision", "bfloat16", "--no-cache", "--out", tmp_path / "g.npz"]
    assert fedhip(*words) == 0
    assert "features of fedhip-vit in bfloat16, written to" in capsys.readouterr().out


def test_extract_refuses_before_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(args: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(extract, "load_images", work)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.npz").mkdir()
    for out, named in {"x.txt": "ends in .npz", "file/x.npz": "is a file", "folder.npz": "is a folder"}.items():
        with pytest.raises(FedHiPError, match=named):
            fedhip("extract", tmp_path / out, "--data", "toy.npz")


def test_the_command_gives_the_features_of_the_function(tmp_path: Path) -> None:
    images = waves(12, 40)[:, :24]
    np.savez(tmp_path / "toy.npz", images=images, labels=np.arange(12) % 2)
    save_encoder(tmp_path / "e.safetensors", random_encoder())
    words = ["extract", "--data", tmp_path / "toy.npz", "--weights", tmp_path / "e.safetensors", "--device", "cpu"]
    fedhip(*words, "--precision", "float32", "--no-cache", "--out", tmp_path / "f.npz")
    dataset = load_dataset(tmp_path / "toy.npz")
    expected = features.extract(
        features.load_backbone("fedhip-vit", weights=tmp_path / "e.safetensors", device="cpu"),
        dataset,
        dtype=torch.float32,
        cache=False,
    )
    np.testing.assert_array_equal(read_features(tmp_path / "f.npz").features, expected)
