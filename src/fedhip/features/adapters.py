"""Backbones that other people made: the hub's encoders, ONNX files, Python callables."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhip.errors import FileError, InputError, MissingExtraError
from fedhip.features.backbones import digest
from fedhip.features.encoder.masking import check_seed, row_noise
from fedhip.features.encoder.vit import IMAGENET_MEAN, IMAGENET_STD, num_kept
from fedhip.features.images import normalise


def pool_output(output: Tensor, pooling: str | None, what: str) -> Tensor:
    """An encoder's output as (B, m): vectors as they are, tokens by `cls` or `mean`, maps by their mean."""
    if pooling not in (None, "cls", "mean"):
        raise InputError(f"{what} offers the poolings 'cls' and 'mean'; got {pooling!r}")
    if output.ndim == 2:
        if pooling is not None:
            raise InputError(f"{what} gives one vector for each image; leave the pooling {pooling!r} out")
        return output.float()
    if output.ndim == 3:
        return (output[:, 1:].mean(dim=1) if pooling == "mean" else output[:, 0]).float()
    if output.ndim == 4 and pooling != "cls":
        return output.mean(dim=(2, 3)).float()
    raise InputError(f"{what} returned shape {tuple(output.shape)}, which cannot be pooled to features")


class HubBackbone:
    """Any image encoder that transformers' AutoModel loads; the last hidden state, class token by default."""

    mixed_precision = True

    def __init__(self, name: str, pooling: str | None, device: torch.device, mask_ratio: float, mask_seed: int) -> None:
        try:
            from transformers import AutoConfig, AutoModel
        except ImportError as error:
            raise MissingExtraError(f"hf:{name} needs transformers; pip install 'fedhip[hf]'") from error
        try:
            config = AutoConfig.from_pretrained(name)
            # models with a vision half (CLIP and its kin) are used by that half
            model = AutoModel.from_pretrained(name)
            model = getattr(model, "vision_model", model)
        except (OSError, ValueError, KeyError) as error:
            raise FileError(f"cannot load hf:{name}: {error}") from error
        self.takes_noise = "noise" in inspect.signature(model.forward).parameters
        if mask_ratio and not self.takes_noise:
            raise InputError(f"hf:{name} has no mask; leave mask_ratio {mask_ratio} out")
        if self.takes_noise:
            model.config.mask_ratio = mask_ratio
        vision = getattr(config, "vision_config", config)
        size, self.mean, self.std = pixel_settings(name, int(getattr(vision, "image_size", 224)))
        self.patches = (size // int(getattr(vision, "patch_size", size))) ** 2
        num_kept(self.patches, mask_ratio)
        self.name, self.image_size, self.pooling = f"hf:{name}", size, pooling
        self.mask_seed = check_seed(mask_seed, "mask_seed")
        self.device = device
        mask = [mask_ratio, mask_seed] if mask_ratio else None
        self.identity = digest(model, ["hf", architecture(model), size, self.mean, self.std, pooling, mask])
        self.model = model.to(device).eval().requires_grad_(False)
        self.feature_dim = self(torch.zeros(1, size, size, 3, dtype=torch.uint8)).shape[1]

    @torch.no_grad()
    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Features of uint8 images (B, H, W, 3)."""
        pixels = normalise(images.to(self.device), self.image_size, self.mean, self.std)
        extra = {}
        if self.takes_noise:
            # given even without a mask: these models shuffle their patches at random otherwise
            rows = torch.arange(len(images)) if rows is None else rows
            extra["noise"] = row_noise(self.mask_seed, rows.to(self.device), self.patches)
        output = self.model(pixel_values=pixels, **extra)
        return pool_output(output.last_hidden_state, self.pooling, self.name)


def architecture(model: Any) -> dict[str, Any]:
    """A model's configuration, without where it came from: what its weights alone do not tell."""
    settings: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return {key: value for key, value in settings.items() if key not in ("_name_or_path", "transformers_version")}


def pixel_settings(name: str, image_size: int) -> tuple[int, list[float], list[float]]:
    """Size, mean and deviation from the model's own preprocessor file; ImageNet's where it has none.

    The file is read rather than the processor built, because processors need torchvision.
    """
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(name, "preprocessor_config.json", _raise_exceptions_for_missing_entries=False)
        settings: dict[str, Any] = json.loads(Path(found).read_text()) if found else {}
    except (OSError, ValueError):
        settings = {}
    size = settings.get("crop_size") or settings.get("size") or image_size
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or image_size
    mean = settings.get("image_mean") or IMAGENET_MEAN
    std = settings.get("image_std") or IMAGENET_STD
    return int(size), [float(v) for v in mean], [float(v) for v in std]


class OnnxBackbone:
    """An ONNX file: one input (B, 3, S, S) with ImageNet's normalisation, features as its first output."""

    mixed_precision = False

    def __init__(self, path: Path, pooling: str | None, device: torch.device) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError(f"onnx:{path} needs onnxruntime; pip install 'fedhip[onnx]'") from error
        if not path.is_file():
            raise FileError(f"there is no ONNX file {path}; check the path")
        wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
        available = onnxruntime.get_available_providers()
        providers = [provider for provider in [*wanted, "CPUExecutionProvider"] if provider in available]
        try:
            self.session = onnxruntime.InferenceSession(str(path), providers=providers)
        except Exception as error:  # onnxruntime's errors have no common base
            raise FileError(f"{path} is not a readable ONNX file: {error}") from error
        inputs = self.session.get_inputs()
        shape = inputs[0].shape if inputs else []
        if len(inputs) != 1 or len(shape) != 4 or (isinstance(shape[1], int) and shape[1] != 3):
            raise InputError(f"{path} has inputs {[(i.name, i.shape) for i in inputs]}; expected one of (B, 3, S, S)")
        self.input = inputs[0].name
        self.image_size = shape[2] if isinstance(shape[2], int) else 224
        self.name, self.pooling = f"onnx:{path}", pooling
        self.device = torch.device("cpu")  # arrays go in and out through the host
        self.identity = hashlib.sha256(path.read_bytes() + str(pooling).encode()).hexdigest()
        blank = torch.zeros(1, self.image_size, self.image_size, 3, dtype=torch.uint8)
        self.feature_dim = self(blank).shape[1]

    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Features of uint8 images (B, H, W, 3)."""
        pixels = normalise(images.to(self.device), self.image_size, IMAGENET_MEAN, IMAGENET_STD)
        output = self.session.run(None, {self.input: pixels.contiguous().numpy()})[0]
        return pool_output(torch.from_numpy(output), self.pooling, self.name)


class CallableBackbone:
    """A function from uint8 images (B, H, W, 3) to features (B, m), torch or numpy.

    `image_size` and `identity` are taken from attributes of the function; without an identity nothing is
    cached, since nobody can say whether the function is still the same.
    """

    mixed_precision = False

    def __init__(self, function: Callable[[Any], Any], device: torch.device) -> None:
        self.function, self.device = function, device
        self.name = getattr(function, "__name__", type(function).__name__)
        self.image_size = int(getattr(function, "image_size", 224))
        identity = getattr(function, "identity", None)
        self.identity = None if identity is None else hashlib.sha256(str(identity).encode()).hexdigest()
        blank = torch.zeros(2, self.image_size, self.image_size, 3, dtype=torch.uint8)
        self.feature_dim = self(blank).shape[1]

    @torch.no_grad()
    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Features of uint8 images (B, H, W, 3), checked."""
        features = self.function(images.to(self.device))
        result = features if isinstance(features, Tensor) else torch.from_numpy(np.asarray(features))
        if result.ndim != 2 or len(result) != len(images):
            raise InputError(
                f"the backbone {self.name} returned shape {tuple(result.shape)} for {len(images)} images; "
                f"expected ({len(images)}, m)"
            )
        return result.float()
