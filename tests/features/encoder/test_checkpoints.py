"""Weights in every layout give the same encoder; weights of anything else are named by their first misfit."""

import dataclasses
import io
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedhip.errors import FileError
from fedhip.features.encoder.checkpoints import load_encoder, save_encoder
from fedhip.features.encoder.vit import ViT, ViTConfig
from tests.features.samples import SMALL, random_encoder

D = SMALL.width


def original_layout(encoder: ViT) -> dict[str, Tensor]:
    """The names of the original MAE file, written down here by hand."""
    own = encoder.state_dict()
    state = {
        "cls_token": own["class_token"].view(1, 1, D),
        "pos_embed": encoder.positions[None],
        "patch_embed.proj.weight": own["patch_embedding.weight"].view(D, 3, 4, 4),
        "patch_embed.proj.bias": own["patch_embedding.bias"],
        "norm.weight": own["norm.weight"],
        "norm.bias": own["norm.bias"],
        "mask_token": torch.zeros(1, 1, 8),
        "decoder_embed.weight": torch.zeros(8, D),
        "decoder_blocks.0.attn.qkv.weight": torch.zeros(24, 8),
    }
    for i in range(SMALL.depth):
        for kind in ("weight", "bias"):
            b = f"blocks.{i}"
            state[f"{b}.norm1.{kind}"] = own[f"{b}.norm1.{kind}"]
            state[f"{b}.norm2.{kind}"] = own[f"{b}.norm2.{kind}"]
            state[f"{b}.attn.qkv.{kind}"] = own[f"{b}.attention.qkv.{kind}"]
            state[f"{b}.attn.proj.{kind}"] = own[f"{b}.attention.projection.{kind}"]
            state[f"{b}.mlp.fc1.{kind}"] = own[f"{b}.expand.{kind}"]
            state[f"{b}.mlp.fc2.{kind}"] = own[f"{b}.contract.{kind}"]
    return state


def hub_layout(encoder: ViT, prefix: str = "vit.") -> dict[str, Tensor]:
    """The names on the hub, written down here by hand."""
    own = encoder.state_dict()
    state = {
        "embeddings.cls_token": own["class_token"].view(1, 1, D),
        "embeddings.position_embeddings": encoder.positions[None],
        "embeddings.patch_embeddings.projection.weight": own["patch_embedding.weight"].view(D, 3, 4, 4),
        "embeddings.patch_embeddings.projection.bias": own["patch_embedding.bias"],
        "layernorm.weight": own["norm.weight"],
        "layernorm.bias": own["norm.bias"],
    }
    for i in range(SMALL.depth):
        for kind in ("weight", "bias"):
            b, h = f"blocks.{i}", f"encoder.layer.{i}"
            query, key, value = own[f"{b}.attention.qkv.{kind}"].split(D)
            state[f"{h}.attention.attention.query.{kind}"] = query
            state[f"{h}.attention.attention.key.{kind}"] = key
            state[f"{h}.attention.attention.value.{kind}"] = value
            state[f"{h}.attention.output.dense.{kind}"] = own[f"{b}.attention.projection.{kind}"]
            state[f"{h}.layernorm_before.{kind}"] = own[f"{b}.norm1.{kind}"]
            state[f"{h}.layernorm_after.{kind}"] = own[f"{b}.norm2.{kind}"]
            state[f"{h}.intermediate.dense.{kind}"] = own[f"{b}.expand.{kind}"]
            state[f"{h}.output.dense.{kind}"] = own[f"{b}.contract.{kind}"]
    named = {prefix + key: value.contiguous().clone() for key, value in state.items()}
    return named | ({"decoder.mask_token": torch.zeros(1, 1, 8)} if prefix else {})


def same(actual: ViT, expected: ViT, atol: float = 0.0) -> None:
    pixels = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(actual(pixels), expected(pixels), rtol=0, atol=atol)


@pytest.mark.parametrize("prefix", ["vit.", ""])
def test_hub_layout(tmp_path: Path, prefix: str) -> None:
    encoder = random_encoder()
    save_file(hub_layout(encoder, prefix), tmp_path / "model.safetensors", {"format": "pt"})
    same(load_encoder(tmp_path / "model.safetensors", SMALL), encoder)


@pytest.mark.parametrize("wrapped", [True, False])
def test_original_layout(tmp_path: Path, wrapped: bool) -> None:
    encoder = random_encoder()
    state = original_layout(encoder)
    torch.save({"model": state} if wrapped else state, tmp_path / "mae.pth")
    same(load_encoder(tmp_path / "mae.pth", SMALL), encoder)


def test_own_format_brings_its_configuration_and_stores_half_precision(tmp_path: Path) -> None:
    encoder, path = random_encoder(), tmp_path / "encoder.safetensors"
    save_encoder(path, encoder)
    loaded = load_encoder(path)
    assert loaded.config == SMALL
    assert loaded.norm.weight.dtype == torch.float32
    assert path.stat().st_size < 2.2 * sum(p.numel() for p in encoder.parameters()) + 8192
    same(loaded, encoder, atol=2e-2)
    save_encoder(path, encoder, torch.float32)
    same(load_encoder(path), encoder)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (dataclasses.replace(SMALL, width=64), "width 32, expected 64"),
        (dataclasses.replace(SMALL, heads=4), "heads 2, expected 4"),
        (dataclasses.replace(SMALL, image_size=32, depth=6), "image_size 16, expected 32"),
    ],
)
def test_own_format_must_be_what_was_asked_for(tmp_path: Path, asked: ViTConfig, named: str) -> None:
    save_encoder(tmp_path / "encoder.safetensors", random_encoder())
    with pytest.raises(FileError, match=named):
        load_encoder(tmp_path / "encoder.safetensors", asked)
    other = dataclasses.replace(SMALL, layer_norm_eps=1e-12)
    assert load_encoder(tmp_path / "encoder.safetensors", other).config == SMALL


def test_positions_of_the_file_are_used(tmp_path: Path) -> None:
    encoder = random_encoder()
    encoder.positions = torch.randn_like(encoder.positions)
    save_file(hub_layout(encoder), tmp_path / "m.safetensors")
    same(load_encoder(tmp_path / "m.safetensors", SMALL), encoder)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda s: s.pop("vit.encoder.layer.1.layernorm_after.bias"), "no 'blocks.1.norm2.bias'"),
        (lambda s: s.update({"vit.extra": torch.zeros(1)}), "unexpected 'extra'"),
        (
            lambda s: s.update({"vit.layernorm.weight": torch.zeros(31)}),
            r"'norm.weight' .* \(31,\), expected \(32,\)",
        ),
        (lambda s: s.pop("vit.encoder.layer.0.attention.attention.key.bias"), "blocks.0.attention.qkv.bias"),
        (
            lambda s: s.update({"vit.encoder.layer.3.output.dense.bias": torch.zeros(32)}),
            "blocks.3.contract.bias",
        ),
    ],
)
def test_weights_of_another_architecture_name_the_first_key(tmp_path: Path, spoil: object, named: str) -> None:
    state = hub_layout(random_encoder())
    spoil(state)  # type: ignore[operator]
    save_file(state, tmp_path / "m.safetensors")
    with pytest.raises(FileError, match=named):
        load_encoder(tmp_path / "m.safetensors", SMALL)


def test_something_else_entirely(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "resnet.safetensors")
    with pytest.raises(FileError, match="class_token"):
        load_encoder(tmp_path / "resnet.safetensors", SMALL)
    with pytest.raises(FileError, match="configuration"):
        load_encoder(tmp_path / "resnet.safetensors")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no weights file"):
        load_encoder(tmp_path / "none.safetensors", SMALL)
    save_encoder(tmp_path / "whole.safetensors", random_encoder())
    half = tmp_path / "half.safetensors"
    half.write_bytes((tmp_path / "whole.safetensors").read_bytes()[:5000])
    with pytest.raises(FileError, match="not a complete safetensors"):
        load_encoder(half)
    (tmp_path / "half.pth").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(FileError, match=r"half\.pth"):
        load_encoder(tmp_path / "half.pth", SMALL)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(FileError, match="no dictionary of tensors"):
        load_encoder(tmp_path / "list.pth", SMALL)
    save_file({"a": torch.zeros(1)}, tmp_path / "bad.safetensors", {"format": "fedhip-vit", "config": "[1"})
    with pytest.raises(FileError, match="configuration"):
        load_encoder(tmp_path / "bad.safetensors")


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code in a weights file ran",))


def test_a_pickle_with_code_in_it_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(FileError, match=r"trap\.pth"):
        load_encoder(tmp_path / "trap.pth", SMALL)
    assert capsys.readouterr().out == ""
    pickle.load(io.BytesIO(pickle.dumps(Trap())))  # noqa: S301  the trap itself works
    assert "ran" in capsys.readouterr().out


def test_weights_that_overflow_half_precision_are_refused(tmp_path: Path) -> None:
    encoder = random_encoder()
    encoder.norm.weight[0] = 1e6
    with pytest.raises(FileError, match=r"'norm\.weight'"):
        save_encoder(tmp_path / "e.safetensors", encoder)
    assert list(tmp_path.glob("*e.safetensors*")) == []
