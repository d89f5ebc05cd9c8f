"""uint8 pixels in batches: made RGB, cropped to the central square, resized, normalised.

The rule is that of `fedhip.data.images.pixels.fit`: the central square, then bilinear and antialiased. An image gives
the same features, to the rounding of its pixels, whether it comes in an array or in a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from fedhip.data.images.pixels import Pixels


def to_rgb(images: Pixels) -> Pixels:
    """(N, H, W[, 1 or 3]) → (N, H, W, 3); grey is repeated."""
    planes = images[..., None] if images.ndim == 3 else images
    return planes if planes.shape[3] == 3 else planes.repeat(3, axis=3)


def central_square(images: Tensor) -> Tensor:
    """The middle of images (B, C, H, W), as wide as high; an odd pixel is left out at the right or the bottom."""
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return images[..., top : top + side, left : left + side]


def resize(images: Tensor, size: int) -> Tensor:
    """The central square of images (B, C, H, W) in float32 whole numbers (B, C, size, size)."""
    square = central_square(images).float()
    if square.shape[-1] == size:
        return square
    # rows, then columns, each rounded half up (a tie may be a little less in float32), as pillow does: encoders
    # see the difference in smooth images
    for shape in ((square.shape[-1], size), (size, size)):
        square = functional.interpolate(square, shape, mode="bilinear", antialias=True, align_corners=False)
        square = (square + 0.5001).floor_()
    return square


def normalise(images: Tensor, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (B, H, W, 3) → normalised float32 (B, 3, size, size), on the device the images are on."""
    return scaled(images, size, pixel_constants(mean, std).to(images.device))


def pixel_constants(mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """What pixels (0 to 255) are shifted and divided by: (2, 3, 1, 1)."""
    return torch.tensor([mean, std])[:, :, None, None] * 255


def scaled(images: Tensor, size: int, constants: Tensor) -> Tensor:
    """The same with constants that are on the device already."""
    return (resize(images.permute(0, 3, 1, 2), size) - constants[0]) / constants[1]


def resize_uint8(images: Pixels, size: int, block: int = 2048) -> Pixels:
    """(N, H, W[, 1 or 3]) → uint8 (N, size, size, 3), block by block."""
    if images.shape[1:3] == (size, size):
        return to_rgb(images)
    out = np.empty((len(images), size, size, 3), dtype=np.uint8)
    for start in range(0, len(images), block):
        part = images[start : start + block]
        planes = torch.from_numpy(np.array(part[..., None] if part.ndim == 3 else part)).permute(0, 3, 1, 2)
        small = resize(planes, size).clamp_(0, 255).byte().permute(0, 2, 3, 1).numpy()
        out[start : start + block] = small
    return out
