"""Images of every kind as uint8 RGB pixels.

Grey, palette, CMYK, transparent, 16-bit and animated images all become uint8 RGB: transparent pixels are laid
on white, values of more than 8 bits are brought to 8 by a window (`fedhip.data.images.window`), an animation is its
first frame, and the camera's orientation (EXIF) is honoured.
"""

import re
import warnings
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedhip.data.images.window import Deep, Window
from fedhip.errors import CorruptImageError, InputError

Pixels = NDArray[np.uint8]

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
#: Pillow's modes of more than 8 bits: whole numbers of 16 and 32, and floats.
_DEEP = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N", "F"})


def check_images(images: object, what: str = "images") -> Pixels:
    """uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), or an error that names what was received."""
    array = np.asanyarray(images)
    if array.dtype != np.uint8:
        raise InputError(f"{what} are {array.dtype} of shape {array.shape}; give uint8 pixels from 0 to 255")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise InputError(f"{what} have shape {array.shape}; give (N, H, W), (N, H, W, 1) or (N, H, W, 3)")
    if 0 in array.shape:
        raise InputError(f"{what} have shape {array.shape}: there is nothing in them; no side may be 0")
    return array


def open_rgb(source: Path | IO[bytes], name: str | None = None, window: Window | None = None) -> Image.Image:
    """Decode a file completely; one of more than 8 bits by a window, and not without."""
    return in_rgb(open_image(source, name), window, name or str(source))


def open_image(source: Path | IO[bytes], name: str | None = None) -> Image.Image | Deep:
    """Decode a file completely, so that damage is found here; the error names it (by default, its path).

    An RGB image, or the values of one that has more than 8 bits.
    """
    leave_out = "pass skip_corrupt=True (--skip-corrupt on the command line) to leave such images out"
    try:
        with Image.open(source) as file:
            file.load()
            upright = ImageOps.exif_transpose(file)
            return _values(upright) if upright.mode in _DEEP else to_rgb(upright)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = re.search(r"\d+", str(error))
        size = f"{int(pixels[0]):,} pixels" if pixels else str(error)
        raise CorruptImageError(
            f"{name or source} is too large ({size}; Pillow warns above {Image.MAX_IMAGE_PIXELS or 0:,} and refuses "
            f"twice as many); scale it down, raise PIL.Image.MAX_IMAGE_PIXELS, or {leave_out}"
        ) from error
    # Decoders report damage with many kinds of exception, SyntaxError and struct.error among them.
    except Exception as error:
        raise CorruptImageError(
            f"{name or source} cannot be decoded ({type(error).__name__}: {error}); "
            f"replace or remove the file, or {leave_out}"
        ) from error


def in_rgb(image: Image.Image | Deep, window: Window | None, name: str) -> Image.Image:
    """What `open_image` found, as RGB."""
    if isinstance(image, Image.Image):
        return image
    if window is None:
        raise InputError(
            f"{name} has more than 8 bits, and nobody says which of its values are black and white; "
            "give a window=(LOW, HIGH) (--window LOW HIGH on the command line)"
        )
    return Image.fromarray(window.apply(image)).convert("RGB")


def has_more_bits(source: Path) -> bool:
    """Whether a file holds an image of more than 8 bits, by its header; what cannot be read does not."""
    try:
        # that it is too large is said when it is decoded
        with warnings.catch_warnings(action="ignore"), Image.open(source) as file:
            return file.mode in _DEEP
    except Exception:
        return False


def _values(image: Image.Image) -> Deep:
    values = np.asarray(image)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("a pixel is not a finite number")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode of 8 bits to RGB."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def fit(image: Image.Image, size: int) -> Image.Image:
    """Crop to the central square, in whole pixels, and resize it to size × size, bilinear and anti-aliased."""
    if image.size == (size, size):
        return image
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return square.resize((size, size), Image.Resampling.BILINEAR)
