"""uint8 pixels in batches: made RGB, resized, normalised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from fedhip.data.images import Pixels


def to_rgb(images: Pixels) -> Pixels:
    """(N, H, W[, 1 or 3]) → (N, H, W, 3); grey is repeated."""
    planes = images[..., None] if images.ndim == 3 else images
    return planes if planes.shape[3] == 3 else planes.repeat(3, axis=3)


def resize(images: Tensor, size: int) -> Tensor:
    """Float images (B, C, H, W) → (B, C, size, size), bilinear, antialiased; the aspect ratio is not kept."""
    if images.shape[-2:] == (size, size):
        return images
    return functional.interpolate(images, (size, size), mode="bilinear", antialias=True, align_corners=False)


def normalise(images: Tensor, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (B, H, W, 3) → normalised float32 (B, 3, size, size), on the device the images are on."""
    pixels = resize(images.permute(0, 3, 1, 2).float(), size)
    constants = torch.tensor([mean, std], device=pixels.device)[:, :, None, None] * 255
    return (pixels - constants[0]) / constants[1]


def resize_uint8(images: Pixels, size: int, block: int = 2048) -> Pixels:
    """(N, H, W[, 1 or 3]) → uint8 (N, size, size, 3), block by block."""
    if images.shape[1:3] == (size, size):
        return to_rgb(images)
    out = np.empty((len(images), size, size, 3), dtype=np.uint8)
    for start in range(0, len(images), block):
        part = images[start : start + block]
        planes = torch.from_numpy(np.array(part[..., None] if part.ndim == 3 else part)).permute(0, 3, 1, 2).float()
        small = resize(planes, size).round_().clamp_(0, 255).byte().permute(0, 2, 3, 1).numpy()
        out[start : start + block] = small
    return out
