"""uint8 pixels: shapes people bring, made RGB, resized."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fedhip.features.errors import ImagesError

Pixels = NDArray[np.uint8]


def check_images(images: object, what: str = "images") -> Pixels:
    """uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), or an error that names what was received."""
    array = np.asanyarray(images)
    if array.dtype != np.uint8:
        raise ImagesError(f"{what} are {array.dtype}; give uint8 pixels from 0 to 255")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise ImagesError(f"{what} have shape {array.shape}; give (N, H, W), (N, H, W, 1) or (N, H, W, 3)")
    if 0 in array.shape:
        raise ImagesError(f"{what} have shape {array.shape}: there is nothing in them")
    return array


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


def read_image(source: Path | IO[bytes], size: int, name: str | None = None) -> Pixels:
    """Any image as uint8 RGB (size, size, 3); the first frame of an animation, white behind alpha."""
    try:
        with Image.open(source) as image:
            rgb = opaque(image)
            if rgb.size != (size, size):
                rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(rgb)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImagesError(f"cannot read the image {name or source}: {error}; replace or remove it") from error


def opaque(image: Image.Image) -> Image.Image:
    """Any mode as 8-bit RGB."""
    if image.mode.startswith(("I", "F")):
        # pillow would clip 16-bit pixels at 255: bring them to 8 bits first
        wide = np.asarray(image, dtype=np.float64)
        top = 65535.0 if wide.max(initial=0.0) > 255 else 255.0
        return Image.fromarray((wide * (255.0 / top)).clip(0, 255).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return image.convert("RGB")
