"""`fedhip run` from features, from images and with natural clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.cli.main import main
from fedhip.features import ViT, ViTConfig, save_encoder


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """Embeddings of five classes that can be told apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 300)
    path = tmp_path / "mine.npz"
    np.savez(path, features=rng.normal(size=(5, 8))[labels] + rng.normal(size=(300, 8)), labels=labels)
    return path


def squares(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A random encoder, and images of dark and bright squares."""
    monkeypatch.setenv("FEDHIP_CACHE", str(folder / "cache"))
    torch.manual_seed(0)
    encoder = ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2))
    save_encoder(folder / "encoder.safetensors", encoder)
    labels = np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 60, (40, 16, 16, 3)) + 180 * labels[:, None, None, None]
    np.savez(folder / "squares.npz", images=images.astype(np.uint8), labels=labels)
    return folder / "encoder.safetensors", folder / "squares.npz"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without --out go to a folder of their own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["run", *arguments, "--json", "--out", "run", "--force"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_run_from_features_prints_the_means_and_what_it_took(
    features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--features", str(features), "--clients", "6", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert "mine · 6 clients, dirichlet, λ = 0.1, seed 3 · given features, 8 wide" in shown.out
    for text in (
        "trained alone",
        "global model",
        "personalized",
        "mean over clients",
        "worst tenth",
        "rounds",
        "report",
    ):
        assert text in shown.out
    assert [line.split()[0] for line in shown.err.splitlines()] == ["1", "3", "trained"]


def test_the_same_seed_gives_the_same_numbers(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--features", str(features), "--clients", "6")
    first, second, other = (run_json(capsys, *arguments, "--seed", seed) for seed in ("1", "1", "2"))
    for result in (first, second, other):
        del result["seconds"]
        for method in result["methods"].values():
            del method["seconds"]
    assert first == second
    assert first["methods"] != other["methods"]


def test_fixed_alpha_and_beta_are_used(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "--features", str(features), "--clients", "4", "--alpha", "0", "--beta", "2.5")
    assert result["beta"] == 2.5
    personal, shared = (result["methods"][method]["per_client"] for method in ("fedhip", "global"))
    assert [client["alpha"] for client in personal] == [0.0] * 4
    assert [client["accuracy"] for client in personal] == [client["accuracy"] for client in shared]


@pytest.mark.parametrize("option", ["--alpha", "--beta"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "much"])
def test_bad_alpha_and_beta_are_refused(
    option: str, value: str, features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "--features", str(features), "--clients", "4", f"{option}={value}"])
    assert stop.value.code == 2
    assert f"'{value}' is neither" in capsys.readouterr().err


def test_without_a_number_there_are_fifty_clients(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "--features", str(features))["num_clients"] == 50


def test_natural_clients_and_a_given_split_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "sites.npz"
    clients = np.array(["north", "south"]).repeat(30)
    split = np.tile([0, 0, 1], 20)
    np.savez(path, features=rng.normal(size=(60, 4)), labels=rng.integers(0, 2, 60), clients=clients, split=split)
    result = run_json(capsys, "--features", str(path))
    entries = result["methods"]["fedhip"]["per_client"]
    assert [(c["client"], c["train"], c["test"]) for c in entries] == [("north", 20, 10), ("south", 20, 10)]


def test_options_that_would_do_nothing_are_refused(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--features", str(features), "--clients", "4", "--pooling", "cls", "--mask-ratio", "0.75"]
    assert main(arguments) == 2
    assert "--pooling, --mask-ratio has no effect on --features" in capsys.readouterr().err


def test_as_many_clients_as_rows_leaves_nothing_to_test_on(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--features", str(features), "--clients", "300", "--partition", "iid")
    assert run_json(capsys, *arguments)["methods"]["fedhip"]["accuracy"]["mean"] is None
    assert main(["run", *arguments]) == 0
    assert "–" in capsys.readouterr().out


def test_a_client_that_only_tests_gets_the_global_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "sites.npz"
    clients = np.array(["old", "new"]).repeat(20)
    split = np.r_[np.tile([0, 1], 10), np.ones(20, dtype=int)]
    np.savez(path, features=rng.normal(size=(40, 4)), labels=rng.integers(0, 2, 40), clients=clients, split=split)
    result = run_json(capsys, "--features", str(path))
    personal, shared = (
        next(client for client in result["methods"][method]["per_client"] if client["client"] == "new")
        for method in ("fedhip", "global")
    )
    assert personal["alpha"] is None
    assert personal["accuracy"] == shared["accuracy"] is not None


def test_extract_then_run_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, images = squares(tmp_path, monkeypatch)
    backbone = ["--weights", str(encoder), "--precision", "float32"]
    assert main(["extract", "--data", str(images), *backbone, "--out", str(tmp_path / "f.npz")]) == 0
    capsys.readouterr()
    partition = ["--clients", "3", "--partition", "iid"]
    direct = run_json(capsys, "--data", str(images), *backbone, *partition)
    from_file = run_json(capsys, "--features", str(tmp_path / "f.npz"), *partition)
    for method in ("local", "global", "fedhip"):
        assert direct["methods"][method]["per_client"] == from_file["methods"][method]["per_client"]
    assert direct["beta"] == from_file["beta"]


def test_run_from_images_through_a_backbone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights are enough to tell black squares from white ones."""
    encoder, images = squares(tmp_path, monkeypatch)
    arguments = ["--data", str(images), "--clients", "2", "--partition", "iid"]
    result = run_json(capsys, *arguments, "--weights", str(encoder), "--pooling", "mean")
    assert result["methods"]["global"]["accuracy"]["mean"] == 1.0
    assert "squares · 2 clients, iid, seed 0" in result["title"]
