"""Pools of unlabelled images for pre-training: .npz, folders and zip files, at one size in memory."""

from __future__ import annotations

import functools
import hashlib
import operator
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

import numpy as np
from PIL import Image

from fedhip.data.images.pixels import SUFFIXES, Pixels, check_images, fit, in_rgb, open_image
from fedhip.data.images.window import Deep, Values, Window
from fedhip.errors import CorruptImageError, FileError, InputError
from fedhip.features.images import resize_uint8
from fedhip.utils.files import whole_file


@dataclass(frozen=True)
class Pool:
    """uint8 images (N, S, S, 3) of some sources, one after the other, and how often each is drawn."""

    images: Pixels
    names: tuple[str, ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.counts) == len(self.weights):
            raise InputError(f"{len(self.names)} sources need as many weights; got {len(self.weights)}")
        if sum(self.counts) != len(self.images):
            raise InputError(f"the sources hold {sum(self.counts)} images, the pool {len(self.images)}")
        if min(self.weights) < 0 or not 0 < sum(self.weights) < float("inf"):
            raise InputError(f"the weights {list(self.weights)} must be non-negative and not all zero")

    @property
    def digest(self) -> str:
        """What the pool contains, in 16 hexadecimal digits."""
        sha = hashlib.sha256(repr((self.images.shape, self.counts, self.weights)).encode())
        sha.update(np.ascontiguousarray(self.images).data)
        return sha.hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Write an .npz that `load_pool` reads back."""
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                images=self.images,
                names=np.array(self.names),
                counts=np.array(self.counts),
                weights=np.array(self.weights),
            )


def load_pool(
    sources: Sequence[str | Path],
    image_size: int,
    weights: Sequence[float] | None = None,
    skip_corrupt: bool = False,
) -> Pool:
    """Read every source and put them side by side.

    `weights` are the sources' shares of the draws; by default every image is drawn equally often. A source with images
    of more than 8 bits has the window that brought these to 8 in its name.
    """
    if not sources:
        raise InputError("no source of images was given; name at least one .npz, .zip or folder")
    if weights is not None and len(weights) != len(sources):
        raise InputError(f"{len(sources)} sources need as many weights; got {len(weights)}")
    pools = [read_source(Path(source), image_size, skip_corrupt) for source in sources]
    shares = []
    for i, pool in enumerate(pools):
        scale = len(pool.images) if weights is None else weights[i]
        shares += [scale * weight / sum(pool.weights) for weight in pool.weights]
    return Pool(
        np.concatenate([pool.images for pool in pools]) if len(pools) > 1 else pools[0].images,
        tuple(name for pool in pools for name in pool.names),
        tuple(count for pool in pools for count in pool.counts),
        tuple(shares),
    )


def read_source(path: Path, image_size: int, skip_corrupt: bool = False) -> Pool:
    """One source of images, resized."""
    if path.is_dir():
        return read_folder(path, image_size, skip_corrupt)
    if not path.is_file():
        raise InputError(f"there is no file or folder {path}; check the name of the pool")
    if path.suffix == ".npz":
        return read_npz(path, image_size)
    if zipfile.is_zipfile(path):
        return read_zip(path, image_size, skip_corrupt)
    raise InputError(f"{path} is neither an .npz file, a zip file nor a folder of images")


def read_npz(path: Path, image_size: int) -> Pool:
    """An .npz with `images`; sources and weights if it was written by `Pool.save`."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if "images" not in file:
                raise InputError(f"{path} holds {sorted(file)}, but no array 'images'")
            images = resize_uint8(check_images(file["images"], f"the images of {path}"), image_size)
            if "counts" not in file:
                return Pool(images, (path.name,), (len(images),), (1.0,))
            return Pool(
                images,
                tuple(str(name) for name in file["names"]),
                tuple(int(count) for count in file["counts"]),
                tuple(float(weight) for weight in file["weights"]),
            )
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise FileError(f"cannot read {path}: {error}; is the file complete?") from error


def read_folder(path: Path, image_size: int, skip_corrupt: bool) -> Pool:
    """All images below a folder, in the order of their names."""
    files = sorted(file for file in path.rglob("*") if is_image(file.relative_to(path)) and file.is_file())
    names = [str(file) for file in files]
    return decode(path.name, names, lambda i: open_image(files[i]), image_size, skip_corrupt)


def read_zip(path: Path, image_size: int, skip_corrupt: bool) -> Pool:
    """All images in a zip file, in the order of their names."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if is_image(PurePosixPath(name)))

        def read(i: int) -> Image.Image | Deep:
            try:
                with archive.open(names[i]) as file:
                    return open_image(file, f"{path}:{names[i]}")
            except zipfile.BadZipFile as error:
                raise CorruptImageError(
                    f"{path}:{names[i]} cannot be unpacked ({error}); "
                    "replace the zip file, or pass skip_corrupt=True to leave such images out"
                ) from error

        return decode(path.name, names, read, image_size, skip_corrupt)


def is_image(path: PurePath) -> bool:
    """Whether a name inside a source is that of an image; hidden files and what macOS adds to zips are not."""
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def decode(
    name: str, files: Sequence[str], read: Callable[[int], Image.Image | Deep], image_size: int, skip_corrupt: bool
) -> Pool:
    """Decode with threads (pillow works outside the interpreter's lock), and resize.

    Images of more than 8 bits are read twice: for their values, and again when the values of all are known.
    """

    def attempt(i: int) -> Pixels | Values | None:
        try:
            image = read(i)
        except CorruptImageError:
            if skip_corrupt:
                return None
            raise
        return resized(image, i) if isinstance(image, Image.Image) else Values.of(image)

    def resized(image: Image.Image | Deep, i: int, window: Window | None = None) -> Pixels:
        return np.asarray(fit(in_rgb(image, window, files[i]), image_size))

    with ThreadPoolExecutor() as threads:
        found = list(threads.map(attempt, range(len(files))))
        if deep := [i for i, one in enumerate(found) if isinstance(one, Values)]:
            window = Window.of(functools.reduce(operator.or_, (one for one in found if isinstance(one, Values))))
            again = threads.map(lambda i: resized(read(i), i, window), deep)
            found = [next(again) if isinstance(one, Values) else one for one in found]
            name = f"{name} ({window} in 8 bits)"
    images = [image for image in found if isinstance(image, np.ndarray)]
    if not images:
        raise InputError(f"{name} holds no readable image; known endings: {', '.join(sorted(SUFFIXES))}")
    return Pool(np.stack(images), (name,), (len(images),), (1.0,))
