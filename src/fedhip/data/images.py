"""Image files of every kind as RGB pixels.

Grey, palette, CMYK, transparent, 16-bit and animated images all become uint8 RGB: transparent pixels are laid
on white, 16-bit values keep their high byte, an animation is its first frame, and the camera's orientation
(EXIF) is honoured.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedhip.data.errors import CorruptImageError

Pixels = NDArray[np.uint8]

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def open_rgb(path: Path) -> Image.Image:
    """Decode one file completely, so that damage is found here and carries the file's name."""
    try:
        with Image.open(path) as file:
            file.load()
            return to_rgb(ImageOps.exif_transpose(file))
    # Decoders report damage with many kinds of exception, SyntaxError and struct.error among them.
    except Exception as error:
        raise CorruptImageError(
            f"{path} cannot be decoded ({type(error).__name__}: {error}); "
            "replace or remove the file, or pass skip_corrupt=True to leave such images out"
        ) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to 8-bit RGB."""
    if image.mode in {"I", "I;16", "I;16B", "I;16L", "I;16N"}:
        # Pillow's own conversion clips at 255 and turns a 16-bit image white.
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray((wide >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range; save the image with 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def fit(image: Image.Image, size: int) -> Image.Image:
    """Crop to the central square and resize it to size × size, bicubic and anti-aliased."""
    if image.size == (size, size):
        return image
    return ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)
