"""Folders of images: `class/image`, or `client/class/image` where the data has natural clients."""

import math
import os
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fedhip.data.images.files import image_files, image_folders
from fedhip.data.images.pixels import Pixels, open_image
from fedhip.data.images.window import Deep, Values, Window
from fedhip.data.sets.dataset import Dataset, ImagePaths
from fedhip.errors import CorruptImageError, DataMissingError, FedHiPWarning, InputError
from fedhip.utils.text import readable

IN_MEMORY = 1 << 30  # images of one size are kept in memory up to this many bytes
_CHUNK = 512

IMAGENET_R_ADDRESS = "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar"
IMAGENET_R_CLASSES, IMAGENET_R_IMAGES = 200, 30_000


def load_folder(
    root: Path, *, skip_corrupt: bool = False, name: str | None = None, window: Window | None = None
) -> Dataset:
    """Every image below `root`, in the order of their paths; the depth says whether there are clients.

    Each image is decoded once, so that a corrupt one is known at once and not in the middle of a long run. Those of
    more than 8 bits are brought to 8 by the window, or by the bits that the largest value of all of them uses.
    """
    files = _class_files(root)
    depth = _depth(root, files)
    pixels, corrupt, values = _decode(root, files)
    if corrupt and not skip_corrupt:
        more = f" ({len(corrupt) - 1} more files are corrupt too)" if len(corrupt) > 1 else ""
        raise CorruptImageError(f"{next(iter(corrupt.values()))}{more}")
    if corrupt:
        named = ", ".join(list(corrupt)[:3])
        warnings.warn(
            f"left out {len(corrupt)} corrupt of {len(files)} images in {root}: {named}"
            f"{', …' if len(corrupt) > 3 else ''}",
            FedHiPWarning,
            stacklevel=3,
        )
    class_names = sorted({file.split("/")[-2] for file in files})
    good = tuple(file for file in files if file not in corrupt)
    if not good:
        raise InputError(f"{root}: all {len(files)} images are corrupt; get the data again")
    position = {label: i for i, label in enumerate(class_names)}
    labels = np.array([position[file.split("/")[-2]] for file in good], np.int64)
    lost = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0)
    if lost.size:
        raise InputError(
            f"class '{class_names[lost[0]]}' of {root} has no image that can be decoded; "
            "get its images again or remove the class"
        )
    found = None if values is None else window or Window.of(values)
    return Dataset(
        name=name or readable(root.resolve().name),
        images=ImagePaths(root, good) if pixels is None else pixels.in_bytes(found),
        labels=labels,
        class_names=tuple(map(readable, class_names)),
        clients=np.array([readable(file.split("/")[0]) for file in good]) if depth == 2 else None,
        skipped=tuple(corrupt),
        window=found,
        values=values,
    )


def load_imagenet_r(data_dir: Path | None, *, skip_corrupt: bool = False) -> Dataset:
    """ImageNet-R in its official layout, `imagenet-r/<wnid>/*.jpg`: 200 classes, 30,000 images."""
    get = f"download {IMAGENET_R_ADDRESS} and unpack it"
    if data_dir is None:
        raise DataMissingError(f"imagenet-r needs the folder it lies in; {get}, then give that folder as data")
    root = data_dir / "imagenet-r" if (data_dir / "imagenet-r").is_dir() else data_dir
    files = image_files(root) if root.is_dir() else []
    classes = {file.split("/")[0] for file in files if re.fullmatch(r"n\d{8}/[^/]+", file)}
    if not classes:
        raise DataMissingError(f"{root} has no folders like n01443537; {get} in {data_dir}")
    images = sum(file.split("/")[0] in classes for file in files)
    if (len(classes), images) != (IMAGENET_R_CLASSES, IMAGENET_R_IMAGES):
        raise DataMissingError(
            f"{root} has {images:,} images in {len(classes)} classes, not {IMAGENET_R_IMAGES:,} in "
            f"{IMAGENET_R_CLASSES}: it was not unpacked completely; {get} again in {data_dir}"
        )
    return load_folder(root, skip_corrupt=skip_corrupt, name="imagenet-r")


def _class_files(root: Path) -> list[str]:
    """The images below `root`; a folder with neither images nor folders is an error."""
    found: list[str] = []
    for folder, images, has_folders in image_folders(root):
        if not images and not has_folders and folder != root:
            raise InputError(f"{folder} holds no image; remove the folder or put the class's images in")
        found += images
    return sorted(found)


def _depth(root: Path, files: list[str]) -> int:
    """1 for class/image, 2 for client/class/image."""
    example = {file.count("/"): file for file in files}
    if not files or 0 in example:
        what = f"{example[0]} lies" if 0 in example else "no image lies"
        where = "outside any class folder" if 0 in example else "in any class folder"
        raise InputError(f"{root}: {what} {where}; put each image in a folder named after its class: class/image")
    if len(example) > 1 or max(example) > 2:
        raise InputError(
            f"{root}: {' and '.join(example.values())} lie at depths {sorted(example)}; "
            "use class/image for all, or client/class/image for all"
        )
    return next(iter(example))


class _Pixels:
    """Images of one size in memory; those of more than 8 bits wait as they are until all are known."""

    def __init__(self, rows: int, shape: tuple[int, ...]) -> None:
        self.images = np.empty((rows, *shape), np.uint8)
        self.waiting: dict[int, Deep] = {}
        self.kept = 0

    def add(self, image: Pixels | Deep) -> None:
        if image.ndim == 2:
            self.waiting[self.kept] = image
        else:
            self.images[self.kept] = image
        self.kept += 1

    def in_bytes(self, window: Window | None) -> Pixels:
        """All of them; what waits is let go of one by one, so that there is never room for both."""
        while window is not None and self.waiting:
            row, values = self.waiting.popitem()
            self.images[row] = window.apply(values)[..., None]
        return self.images[: self.kept]


def _decode(root: Path, files: list[str]) -> tuple[_Pixels | None, dict[str, CorruptImageError], Values | None]:
    """Decode every image once: the pixels if all have one size and fit in memory, the corrupt files, and the values.

    These are of images of more than 8 bits, where there are any.
    """
    corrupt: dict[str, CorruptImageError] = {}
    pixels: _Pixels | None = None
    values: Values | None = None
    first = True
    for file, image in _decoded(root, files):
        if isinstance(image, CorruptImageError):
            corrupt[file] = image
            continue
        if image.ndim == 2:
            found = Values.of(image)
            values = found if values is None else values | found
        shape = (*image.shape[:2], 3)
        if first and len(files) * math.prod(shape) <= IN_MEMORY:
            pixels = _Pixels(len(files), shape)
        if pixels is not None and pixels.images.shape[1:] != shape:
            pixels = None
        if pixels is not None:
            pixels.add(image)
        first = False
    return pixels, corrupt, values


def _decoded(root: Path, files: list[str]) -> Iterator[tuple[str, Pixels | Deep | CorruptImageError]]:
    """Each file with its pixels or its error, in order, decoded by a few threads a chunk at a time.

    Pixels are (H, W, 3), or (H, W) where they have more than 8 bits.
    """

    def attempt(file: str) -> Pixels | Deep | CorruptImageError:
        try:
            return np.asarray(open_image(root / file))
        except CorruptImageError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(files), _CHUNK):
            chunk = files[start : start + _CHUNK]
            yield from zip(chunk, pool.map(attempt, chunk), strict=True)
