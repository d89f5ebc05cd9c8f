"""Which files below a folder, and which names in an archive, are images to be read."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fedhip.data.images.pixels import SUFFIXES
from fedhip.errors import DataMissingError


def is_image_name(name: str) -> bool:
    """Whether a path, with '/' and relative to a folder or archive, is that of an image, by its name alone.

    Hidden files and folders are not, nor is `__MACOSX`, in which macOS keeps a shadow of every archived file.
    """
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not any(map(_passed_over, path.parts))


def image_files(root: Path) -> list[str]:
    """Sorted paths of the images below `root`, relative to it and with '/'; links to folders are followed."""
    return sorted(file for _, files, _ in image_folders(root) for file in files)


def image_folders(root: Path) -> Iterator[tuple[Path, list[str], bool]]:
    """Every folder from `root` down, with its images (as in `image_files`) and whether it has subfolders.

    Only regular files count: to open a pipe or a device may take forever. A link that leads nowhere is kept,
    so that reading it is an error and not a silent loss. A link back to a folder that it lies in is passed
    over; the images there are found without it.
    """
    if not root.is_dir():
        raise DataMissingError(f"{root} is not a folder; check the path")
    yield from _walk(root, "", frozenset({_identity(root)}))


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[tuple[Path, list[str], bool]]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not _passed_over(entry.name))
    images: list[str] = []
    subfolders: list[tuple[str, tuple[int, int]]] = []
    for name in names:
        path = folder / name
        if path.is_dir():
            identity = _identity(path)
            if identity not in above:
                subfolders.append((name, identity))
        elif is_image_name(name) and _readable_file(path):
            images.append(prefix + name)
    yield folder, images, bool(subfolders)
    for name, identity in subfolders:
        yield from _walk(folder / name, f"{prefix}{name}/", above | {identity})


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _readable_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:  # a link that leads nowhere, or to itself
        return True
