"""CIFAR-100 in its official layout, `cifar-100-python/{train,test,meta}`."""

import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.data.download import download
from fedhip.data.sets.dataset import Dataset
from fedhip.data.sets.pickles import read_pickle
from fedhip.errors import DataMissingError, FileError
from fedhip.utils.files import default_cache, sync_folder, whole_file

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
FOLDER = "cifar-100-python"
FILES = ("train", "test", "meta")
ROWS = {"train": 50_000, "test": 10_000}
CLASSES = 100
_LARGEST_FILE = 1 << 28


def load_cifar100(data_dir: Path | None, cache_dir: Path | None, official_split: bool) -> Dataset:
    """Training and test images pooled, in this order; `official_split` also tells which is which.

    With a `data_dir` the files must lie there, in it or in its folder `cifar-100-python`. Without one they
    are taken from the cache, and downloaded into it the first time.
    """
    folder = _cached(cache_dir or default_cache()) if data_dir is None else _find(data_dir)
    class_names = _names(folder / "meta")
    images = np.empty((sum(ROWS.values()), 32, 32, 3), np.uint8)
    labels = np.empty(len(images), np.int64)
    start = 0
    for part, rows in ROWS.items():
        path = folder / part
        content = read_pickle(path)
        pixels = _field(path, content, "data")
        if not isinstance(pixels, np.ndarray):
            raise FileError(f"{path} holds no array as 'data'; get it again from {ADDRESS}")
        fine = _labels(path, content)
        if pixels.shape != (rows, 3072) or pixels.dtype != np.uint8 or fine.shape != (rows,):
            raise FileError(
                f"{path} holds {pixels.dtype} data of shape {pixels.shape} and {fine.size} labels, not "
                f"uint8 ({rows}, 3072) and {rows}; get it again from {ADDRESS}"
            )
        images[start : start + rows] = pixels.reshape(rows, 3, 32, 32).transpose(0, 2, 3, 1)
        labels[start : start + rows] = fine
        start += rows
    if len(class_names) != CLASSES or labels.min() < 0 or labels.max() >= CLASSES:
        raise FileError(
            f"{folder} names {len(class_names)} classes with labels from {labels.min()} to {labels.max()}, "
            f"not {CLASSES} classes from 0; get it again from {ADDRESS}"
        )
    split = np.repeat(np.array([0, 1], np.int8), list(ROWS.values())) if official_split else None
    return Dataset("cifar100", images, labels, class_names, split=split)


def _find(data_dir: Path) -> Path:
    """The folder with the three files: `data_dir` itself or the official folder in it."""
    folder = data_dir if (data_dir / "meta").is_file() else data_dir / FOLDER
    for name in FILES:
        if not (folder / name).is_file():
            raise DataMissingError(
                f"{folder / name} is not there; download {ADDRESS} (md5 {MD5}) and unpack it in {data_dir}, "
                "or leave the data folder out to have this done"
            )
    return folder


def _cached(cache: Path) -> Path:
    """The folder in the cache, downloaded and unpacked if it is not there."""
    folder = cache / FOLDER
    if not folder.is_dir():
        archive = cache / f"{FOLDER}.tar.gz"
        unpack(download(ADDRESS, archive, md5=MD5), folder)
        archive.unlink(missing_ok=True)
    return _find(cache)


def unpack(archive: Path, folder: Path) -> None:
    """Take the three files out of the archive, and nothing else; the folder appears when all are there."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name in FILES:
                member = tar.getmember(f"{FOLDER}/{name}")
                source = tar.extractfile(member) if member.isreg() else None
                if source is None or member.size > _LARGEST_FILE:
                    raise FileError(f"{archive}: '{member.name}' is a link or too large; get it again")
                with whole_file(temporary / name) as target, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
        temporary.chmod(0o755)
        if not folder.is_dir():  # another process may have been faster
            temporary.rename(folder)
            sync_folder(folder.parent)
    except (KeyError, EOFError, tarfile.TarError, zlib.error) as error:
        raise FileError(f"{archive} cannot be unpacked ({error}); delete it and get it again from {ADDRESS}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _names(path: Path) -> tuple[str, ...]:
    """The names of the fine classes; Python 2 wrote them as bytes."""
    names = _field(path, read_pickle(path), "fine_label_names")
    try:
        if isinstance(names, list | tuple) and all(isinstance(name, str | bytes) for name in names):
            return tuple(name.decode() if isinstance(name, bytes) else name for name in names)
        problem = "a list of strings"
    except UnicodeDecodeError:
        problem = "UTF-8"
    raise FileError(f"{path}: 'fine_label_names' are not {problem}; get it again from {ADDRESS}")


def _labels(path: Path, content: Any) -> NDArray[np.integer[Any]]:
    """The fine labels, as an array or a flat list of whole numbers."""
    labels = _field(path, content, "fine_labels")
    # Looked at one by one, since numpy would walk nested lists to their last leaf.
    if isinstance(labels, list | tuple) and all(
        type(label) is int or isinstance(label, np.integer) for label in labels
    ):
        labels = np.asarray(labels)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
        raise FileError(f"{path}: 'fine_labels' are not whole numbers; get it again from {ADDRESS}")
    return labels


def _field(path: Path, content: Any, name: str) -> Any:
    """A field of a pickled dict; Python 2 wrote its keys as bytes."""
    if isinstance(content, dict):
        for key in (name.encode(), name):
            if key in content:
                return content[key]
    raise FileError(f"{path} has no field '{name}'; get it again from {ADDRESS}")
