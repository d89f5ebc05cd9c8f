"""A labelled set of images, in memory or on disk, read in batches of one size."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedhip.data.images.pixels import Pixels, check_images, fit, open_rgb
from fedhip.data.images.window import Values, Window
from fedhip.errors import InputError
from fedhip.utils.bounds import LARGEST


@dataclass(frozen=True)
class ImagePaths:
    """Images that stay on disk because their sizes differ; each is decoded when it is read."""

    root: Path
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, a label for each, and what else is known of them.

    `images` is one uint8 array (N, H, W, C) with C = 1 or 3, or `ImagePaths` where sizes differ. `labels`
    index `class_names`. `clients` names the natural client of each row, `groups` what rows belong together (a patient);
    `split` is 0 for train and 1 for test where there is such a split. `skipped` lists corrupt files that were left out
    on request.

    `window` is what brought images of more than 8 bits to 8, and does so when those on disk are read; None where all
    have 8. `values` are those that these images had.
    """

    name: str
    images: Pixels | ImagePaths
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    clients: NDArray[np.str_] | None = None
    split: NDArray[np.int8] | None = None
    skipped: tuple[str, ...] = field(default=())
    window: Window | None = None
    values: Values | None = None
    groups: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.images, np.ndarray):
            images = check_images(self.images, f"images of {self.name}")
            images = images[..., None] if images.ndim == 3 else images
            object.__setattr__(self, "images", _frozen(images))
        set_row_fields(self, len(self.images))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def read(self, rows: Sequence[int] | NDArray[np.integer[Any]], size: int) -> Pixels:
        """The chosen rows as uint8 (B, size, size, 3): central square, bilinear, grey made RGB."""
        if size < 1:
            raise InputError(f"size must be at least 1 pixel, not {size}")
        if isinstance(self.images, ImagePaths):
            root, names = self.images.root, self.images.names
            decoded = [np.asarray(fit(open_rgb(root / names[row], window=self.window), size)) for row in rows]
            return np.stack(decoded) if decoded else np.empty((0, size, size, 3), np.uint8)
        chosen = self.images[np.asarray(rows, dtype=np.int64)]
        if chosen.shape[1:3] != (size, size):
            resized = np.empty((len(chosen), size, size, chosen.shape[3]), np.uint8)
            for source, target in zip(chosen, resized, strict=True):
                image = Image.fromarray(source[:, :, 0] if source.shape[2] == 1 else source)
                target[:] = np.asarray(fit(image, size)).reshape(target.shape)
            chosen = resized
        return np.repeat(chosen, 3, axis=3) if chosen.shape[3] == 1 else chosen

    @cached_property
    def pixels_fingerprint(self) -> str:
        """sha256 over the pixels (or image files, and what brings them to 8 bits) in their order, and nothing else."""
        digest = hashlib.sha256()
        if isinstance(self.images, ImagePaths):
            for name in self.images.names:
                with (self.images.root / name).open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            if self.window is not None:
                digest.update(f"{self.window.low!r} {self.window.high!r}".encode())
        else:
            update_array(digest, self.images)
        return digest.hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over pixels (or image files), labels, class names, clients and split; not over the name."""
        digest = hashlib.sha256(bytes.fromhex(self.pixels_fingerprint))
        update_row_fields(digest, self)
        return digest.hexdigest()


#: What rows are for, where nothing else is said.
CLASSIFICATION = "classification"


def set_row_fields(target: Any, rows: int) -> None:
    """Check labels, class names, clients and split of a frozen data class, and store them read-only."""
    labels = np.asarray(target.labels)
    if rows == 0:
        raise InputError("there are no rows; at least one is needed")
    task = getattr(target, "task", CLASSIFICATION)
    if task != CLASSIFICATION:
        labels = _targets(labels, rows, task, target.class_names)
    elif labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"labels are {labels.dtype} of shape {labels.shape}; give whole numbers, one for each row")
    classes = len(target.class_names)
    for name in ("labels", "clients", "split", "groups"):
        values = getattr(target, name)
        if values is not None and np.shape(values) != (rows,) and (name != "labels" or task == CLASSIFICATION):
            raise InputError(f"{name} have shape {np.shape(values)}, but there are {rows} rows; give one for each row")
    if task == CLASSIFICATION and (labels.min() < 0 or labels.max() >= classes):
        raise InputError(f"labels run from {labels.min()} to {labels.max()}, but there are {classes} class names")
    if task == CLASSIFICATION and (empty := [n for n, name in enumerate(target.class_names) if not str(name).strip()]):
        where = np.flatnonzero(np.isin(labels, empty))
        which = f"row {int(where[0])} has an empty label" if len(where) else "a class has an empty name"
        raise InputError(f"{which}; say which class it is, or leave such rows out")
    if len(set(target.class_names)) != classes:
        raise InputError("two classes have the same name; give each its own")
    kind = np.int64 if task == CLASSIFICATION else np.float64
    object.__setattr__(target, "labels", _frozen(labels.astype(kind)))
    object.__setattr__(target, "class_names", tuple(str(name) for name in target.class_names))
    for name in ("clients", "groups"):
        if getattr(target, name) is not None:
            names = np.asarray(getattr(target, name)).astype(np.str_)
            if (empty := np.char.strip(names, " ") == "").any():
                what = name.removesuffix("s")
                raise InputError(f"row {int(empty.argmax())} names no {what}; say which it is, or leave such rows out")
            object.__setattr__(target, name, _frozen(names))
    if target.split is not None:
        split = np.asarray(target.split)
        if not np.isin(split, (0, 1)).all():
            raise InputError(
                f"split holds {np.unique(split)[:5].tolist()}; it must be 0 (train) or 1 (test) for each row"
            )
        object.__setattr__(target, "split", _frozen(split.astype(np.int8)))


def _targets(values: NDArray[Any], rows: int, task: str, names: tuple[str, ...]) -> NDArray[np.float64]:
    """Real targets, checked; those of several labels are 0 or 1."""
    if values.shape != (rows, len(names)) or values.dtype.kind not in "fiub":
        raise InputError(
            f"targets are {values.dtype} of shape {values.shape}; give real numbers of shape ({rows}, {len(names)}), "
            "a column for each name"
        )
    values = values.astype(np.float64)
    # Squares of larger ones overflow, and so would every measure of how good a model is.
    bad = ~(np.abs(values) <= LARGEST) if task == "regression" else ~np.isin(values, (0.0, 1.0))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        wanted = f"finite numbers up to {LARGEST:g}; repair or drop such rows" if task == "regression" else "0 or 1"
        raise InputError(f"{names[column]!r} of row {row} is {values[row, column]}; give {wanted}")
    return values


def update_row_fields(digest: "hashlib._Hash", source: Any) -> None:
    """Add labels, class names, clients, split and groups to a fingerprint."""
    update_array(digest, source.labels)
    for name in source.class_names:
        digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
    for values in (source.clients, source.split):
        update_array(digest, np.empty(0, np.int8) if values is None else values)
    if source.groups is not None:  # newer than fingerprints that are kept
        update_array(digest, source.groups)


def update_array(digest: "hashlib._Hash", array: NDArray[Any]) -> None:
    """Add an array to a fingerprint; its shape too, so that two arrays do not run into one another."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    digest.update(f"{little.dtype.str}{little.shape}".encode())
    digest.update(np.ascontiguousarray(little).view(np.uint8).data)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view, so that a value type stays a value and the caller's array stays writable."""
    view = array.view()
    view.setflags(write=False)
    return view
