"""Encoders on disk: our own safetensors, and the layouts MAE encoders are published in.

Own format: float16 (or float32) tensors under the module's own names, the configuration as JSON in the
metadata.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedhip.errors import FileError, InputError
from fedhip.features.encoder.vit import ViT, ViTConfig
from fedhip.utils.files import whole_file

FORMAT = "fedhip-vit"
ORIGINAL_MARK = "patch_embed.proj.weight"
State = dict[str, Tensor]


def save_encoder(path: Path, encoder: ViT, dtype: torch.dtype = torch.float16) -> None:
    """Write an encoder with its configuration; positions are fixed and not stored."""
    state = {key: value.detach().to("cpu", dtype).contiguous() for key, value in encoder.state_dict().items()}
    for key, value in state.items():
        if not torch.isfinite(value).all():
            raise FileError(f"{key!r} does not fit {dtype}; store the encoder as float32")
    with whole_file(path) as temporary:
        save_file(state, temporary, {"format": FORMAT, "config": json.dumps(encoder.config.to_dict())})


def load_encoder(path: Path, config: ViTConfig | None = None) -> ViT:
    """Read an encoder from any known layout; `config` is needed where the file does not bring its own.

    float32 in memory, whatever the file stores. A file of another architecture is an error that names the
    first key, or the first field of its own configuration, that does not fit.
    """
    state, metadata = read_tensors(path)
    if metadata.get("format") == FORMAT:
        config = require_same_architecture(stored_config(path, metadata), config, path)
    elif config is None:
        raise FileError(f"{path} does not say which architecture it is; give its configuration")
    elif ORIGINAL_MARK in state:
        # the original code and the hub's differ in this constant alone
        config = dataclasses.replace(config, layer_norm_eps=1e-6)
    return build(state, config, str(path))


def stored_config(path: Path, metadata: Mapping[str, str]) -> ViTConfig:
    """The configuration in the metadata of our own format."""
    try:
        return ViTConfig.from_dict(json.loads(metadata["config"]))
    except (KeyError, AttributeError, TypeError, json.JSONDecodeError, InputError) as error:
        raise FileError(f"{path} has no readable encoder configuration in its metadata: {error}") from error


def require_same_architecture(own: ViTConfig, asked: ViTConfig | None, path: Path) -> ViTConfig:
    """The file's own configuration, if it is of the architecture that was asked for (where one was)."""
    for field in dataclasses.fields(ViTConfig) if asked is not None else ():
        found, expected = getattr(own, field.name), getattr(asked, field.name)
        # the published files differ among themselves in the norm's constant: the file's own is right
        if field.name != "layer_norm_eps" and found != expected:
            raise FileError(
                f"{path} has {field.name} {found}, expected {expected}: it is another architecture "
                f"or another size of this one"
            )
    return own


def read_tensors(path: Path) -> tuple[State, dict[str, str]]:
    """Tensors and metadata of a safetensors file, or the tensors of a .pth file that holds nothing else."""
    if not path.is_file():
        raise FileError(f"there is no weights file {path}; check the path")
    try:
        if path.suffix in (".pth", ".pt", ".bin"):
            return pth_tensors(torch.load(path, map_location="cpu", weights_only=True), path), {}
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileError:
        raise
    except SafetensorError as error:
        raise FileError(f"{path} is not a complete safetensors file: {error}; fetch it again") from error
    except Exception as error:  # torch.load raises whatever the damaged bytes lead it to
        raise FileError(f"cannot read weights from {path}: {error}") from error


def pth_tensors(content: Any, path: Path) -> State:
    """The state in a .pth file: bare, or under `model` as the original MAE files have it."""
    state = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise FileError(f"{path} holds no dictionary of tensors")
    return state


def build(state: Mapping[str, Tensor], config: ViTConfig, source: str) -> ViT:
    """An encoder with these weights, in evaluation mode."""
    own = to_fedhip_layout(state, config)
    encoder = ViT(config)
    expected = {key: value.shape for key, value in encoder.state_dict().items()}
    expected["positions"] = encoder.positions.shape
    positions = own.pop("positions", None)
    found = dict(own) if positions is None else {**own, "positions": positions}
    check_keys(found, expected, source)
    encoder.load_state_dict({key: value.float() for key, value in own.items()})
    if positions is not None:
        encoder.positions = positions.float().clone()
    return encoder.eval().requires_grad_(False)


def check_keys(found: Mapping[str, Tensor], expected: Mapping[str, torch.Size], source: str) -> None:
    """Name the first key that is missing, misshapen or unexpected."""
    for key, shape in expected.items():
        if key not in found:
            if key == "positions":
                continue
            raise FileError(f"{source} has no {key!r} of shape {tuple(shape)}: it is another architecture")
        if found[key].shape != shape:
            raise FileError(
                f"{key!r} in {source} has shape {tuple(found[key].shape)}, expected {tuple(shape)}: "
                f"it is another architecture or another size of this one"
            )
    unexpected = next((key for key in found if key not in expected), None)
    if unexpected is not None:
        raise FileError(f"{source} has an unexpected {unexpected!r}: it is another architecture")


def to_fedhip_layout(state: Mapping[str, Tensor], config: ViTConfig) -> State:
    """Rename a published layout to our own; unknown keys keep their names and fail the check."""
    if any("embeddings.patch_embeddings" in key for key in state):
        return from_hub(state, config)
    if ORIGINAL_MARK in state:
        return from_original(state, config)
    return dict(state)


def from_hub(state: Mapping[str, Tensor], config: ViTConfig) -> State:
    """ViT-MAE as on the hub: separate query, key and value, an optional `vit.` prefix, a decoder."""
    rules = {
        r"embeddings\.cls_token": "class_token",
        r"embeddings\.position_embeddings": "positions",
        r"embeddings\.patch_embeddings\.projection\.(weight|bias)": r"patch_embedding.\1",
        r"encoder\.layer\.(\d+)\.layernorm_before\.(weight|bias)": r"blocks.\1.norm1.\2",
        r"encoder\.layer\.(\d+)\.layernorm_after\.(weight|bias)": r"blocks.\1.norm2.\2",
        r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)": r"blocks.\1.attention.projection.\2",
        r"encoder\.layer\.(\d+)\.intermediate\.dense\.(weight|bias)": r"blocks.\1.expand.\2",
        r"encoder\.layer\.(\d+)\.output\.dense\.(weight|bias)": r"blocks.\1.contract.\2",
        r"layernorm\.(weight|bias)": r"norm.\1",
    }
    trunk = {k.removeprefix("vit."): v for k, v in state.items() if not k.startswith("decoder.")}
    for layer in range(config.depth):
        stem = f"encoder.layer.{layer}.attention.attention"
        for kind in ("weight", "bias"):
            names = [f"{stem}.{part}.{kind}" for part in ("query", "key", "value")]
            if all(name in trunk for name in names):
                trunk[f"blocks.{layer}.attention.qkv.{kind}"] = torch.cat([trunk.pop(name) for name in names])
    return reshape(rename(trunk, rules), config)


def from_original(state: Mapping[str, Tensor], config: ViTConfig) -> State:
    """The original MAE file: one qkv projection, `blocks.0.attn.…` names, decoder keys that are skipped."""
    rules = {
        r"cls_token": "class_token",
        r"pos_embed": "positions",
        r"patch_embed\.proj\.(weight|bias)": r"patch_embedding.\1",
        r"blocks\.(\d+)\.attn\.qkv\.(weight|bias)": r"blocks.\1.attention.qkv.\2",
        r"blocks\.(\d+)\.attn\.proj\.(weight|bias)": r"blocks.\1.attention.projection.\2",
        r"blocks\.(\d+)\.mlp\.fc1\.(weight|bias)": r"blocks.\1.expand.\2",
        r"blocks\.(\d+)\.mlp\.fc2\.(weight|bias)": r"blocks.\1.contract.\2",
    }
    trunk = {key: value for key, value in state.items() if not key.startswith("decoder_") and key != "mask_token"}
    return reshape(rename(trunk, rules), config)


def rename(state: Mapping[str, Tensor], rules: Mapping[str, str]) -> State:
    """Apply the first rule that fits each whole key."""
    out = {}
    for key, value in state.items():
        rule = next((pattern for pattern in rules if re.fullmatch(pattern, key)), None)
        out[key if rule is None else re.sub(rule, rules[rule], key)] = value
    return out


def reshape(state: State, config: ViTConfig) -> State:
    """Convolution weights as a matrix; tokens and positions without their batch dimensions."""
    out = dict(state)
    kernel = out.get("patch_embedding.weight")
    if kernel is not None and kernel.shape[1:] == (config.channels, config.patch_size, config.patch_size):
        out["patch_embedding.weight"] = kernel.flatten(1)
    for key, batch in (("class_token", 2), ("positions", 1)):
        if key in out and out[key].ndim == 3 and out[key].shape[:batch] == (1,) * batch:
            out[key] = out[key].reshape(out[key].shape[batch:])
    return out
