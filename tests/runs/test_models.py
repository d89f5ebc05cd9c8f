"""A model as a file: the same model back, or an error that says why not."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedhip.errors import FedHiPError, FileError, InputError
from fedhip.features.reference import BackboneReference
from fedhip.heads.model import Model
from fedhip.runs.models import models_digest

NAMES = ("ape", "bée", "c\udcff", "dog")
BACKBONE = BackboneReference("vit", "abc", "bfloat16", pooling="mean", weights="/x", mask_ratio=0.5, mask_seed=3)


def model(**changes: Any) -> Model:
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 4)))
    local = torch.tensor([True, False, True, False])
    made = Model("nörth\udcfe", weights, NAMES, 12.5, 0.25, None, local, True, BACKBONE, "32-total", "32-own")
    return replace(made, **changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model().to_file(tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize(
    "changes",
    [{}, {"client": None, "alpha": None, "own": None, "backbone": None}, {"temperature": 0.3}, {"client": ""}],
)
def test_round_trip(tmp_path: Path, changes: dict[str, Any]) -> None:
    written = model(**changes)
    written.to_file(tmp_path / "m.safetensors")
    again = Model.from_file(tmp_path / "m.safetensors")
    for field in fields(Model):
        ours, theirs = getattr(written, field.name), getattr(again, field.name)
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs
    assert again.digest() == written.digest()


def test_a_model_without_a_lift_is_written_as_it_always_was(file: Path) -> None:
    written = "7254068251dbbb3033433c4660e0f7148e82457fb41b1536041cccc5263cf5c4"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == written


def test_the_same_model_is_the_same_bytes(tmp_path: Path) -> None:
    """The library writes metadata in any order; ten files agree by chance once in many."""
    for i in range(10):
        model().to_file(tmp_path / f"{i}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_every_field_is_in_the_digest() -> None:
    weights, local = model().weights.clone(), model().local_classes.clone()
    weights[4, 3] = np.nextafter(float(weights[4, 3]), 9.0)
    local[1] = True
    others = [
        model(client="other"), model(client=None), model(weights=weights), model(class_names=("x", *NAMES[1:])),
        model(alpha=12.0), model(alpha=None), model(beta=0.3), model(temperature=1.0), model(local_classes=local),
        model(only_local_classes=False), model(backbone=None), model(backbone=replace(BACKBONE, mask_seed=4)),
        model(total="32-x"), model(own=None),
    ]  # fmt: skip
    assert len({model().digest(), *(other.digest() for other in others)}) == len(others) + 1


def test_every_truncation_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"m\.safetensors"):
            Model.from_file(file)


def test_no_altered_byte_gives_another_model(file: Path) -> None:
    """Refused, or (a space of the header) the same model."""
    whole, digest, refused = file.read_bytes(), model().digest(), 0
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for position in range(len(whole)):
        altered = bytearray(whole)
        altered[position] ^= 1
        file.write_bytes(altered)
        try:
            assert Model.from_file(file).digest() == digest
            assert position < header
        except FedHiPError:
            refused += 1
    assert refused >= len(whole) - header + 300


def rewrite(path: Path, **metadata: str) -> None:
    stored = {"format": "fedhip.model", "schema": "1", "digest": model().digest(), "model": "{}"}
    save_file(load_file(path), path, metadata={**stored, **metadata})


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"schema": "3"}, FileError, "upgrade fedhip"),
        ({"format": "fedhip.grid"}, FileError, "not of fedhip model"),
        ({"model": "nonsense"}, FileError, "does not describe a model"),
        ({"model": "[]"}, FileError, "does not describe a model"),
        ({"model": "{}"}, FileError, "does not describe a model"),
        ({"model": json.dumps({"backbone": {"name": 1}, "class_names": []})}, FileError, "does not describe"),
    ],
)
def test_other_files_are_refused(file: Path, metadata: dict[str, str], error: type[Exception], message: str) -> None:
    rewrite(file, **metadata)
    with pytest.raises(error, match=message):
        Model.from_file(file)


def test_weights_of_somebody_else_are_noticed(file: Path) -> None:
    other = file.with_name("other.safetensors")
    model(client="other", alpha=1.0).to_file(other)
    whole, theirs = file.read_bytes(), other.read_bytes()
    description = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])["__metadata__"]
    save_file(load_file(file) | {"weights": torch.zeros(5, 4).double()}, file, metadata=description)
    with pytest.raises(FileError, match="was altered"):
        Model.from_file(file)
    assert theirs != whole


def test_scores_are_the_product_and_left_out_classes_are_minus_infinity() -> None:
    F = np.random.default_rng(1).normal(size=(6, 5))
    expected = F @ model().weights.numpy()
    everything = model(only_local_classes=False).scores(F)
    np.testing.assert_allclose(everything.numpy(), expected, rtol=1e-13)
    local = model().scores(F).numpy()
    assert np.isneginf(local[:, [1, 3]]).all()
    np.testing.assert_allclose(local[:, [0, 2]], expected[:, [0, 2]], rtol=1e-13)
    chances = model(temperature=0.5).probabilities(F).numpy()
    assert (chances[:, [1, 3]] == 0.0).all()
    powers = np.exp(expected[:, [0, 2]] / 0.5)
    np.testing.assert_allclose(chances[:, [0, 2]], powers / powers.sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", ">f4"])
def test_features_of_any_kind_are_taken(dtype: str) -> None:
    F = np.arange(10).reshape(2, 5).astype(dtype)
    F.setflags(write=False)
    assert torch.equal(model().scores(F), model().scores(np.arange(10.0).reshape(2, 5)))


def test_features_of_another_width_are_refused_by_whom() -> None:
    for wrong in (np.zeros((2, 4)), np.zeros(5), torch.zeros(2, 6)):
        with pytest.raises(InputError, match=r"the model of client 'nörth.*takes \(N, 5\); use the backbone"):
            model().scores(wrong)


def test_without_a_temperature_there_are_no_probabilities() -> None:
    with pytest.raises(FileError, match="no temperature"):
        model().probabilities(np.zeros((1, 5)))


def test_the_digest_of_a_set_of_models_knows_whose_is_whose() -> None:
    digests: list[dict[str | None, str]] = [
        {None: "a", "x": "b"}, {None: "b", "x": "a"}, {None: "a", "y": "b"}, {None: "a"}, {"": "a", "x": "b"},
        {"x": "a", "y": "b"}, {"x": "b", "y": "a"}, {},
    ]  # fmt: skip
    assert len({models_digest(each) for each in digests}) == len(digests)
    assert models_digest({"x": "a", None: "b"}) == models_digest({None: "b", "x": "a"})
