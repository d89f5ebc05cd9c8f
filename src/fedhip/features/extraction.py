"""From images to a feature matrix: batched, cached by content, resumable.

Rows go through in chunks. A chunk is read (and pinned, for a GPU) by one thread while the one before is
computed, and fetched back and written by another while the next one is. Each is a file that is either whole
or not there, so that an interrupted run continues, and a finished one takes no time the second time.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.data import Dataset
from fedhip.data.images.pixels import Pixels, check_images
from fedhip.errors import CacheWarning, InputError
from fedhip.features.backbones import Backbone
from fedhip.features.cache import begin, require_own_cache
from fedhip.features.images import to_rgb
from fedhip.features.precision import choose_dtype
from fedhip.utils.files import default_cache, whole_file, write_private
from fedhip.utils.progress import ReportProgress

# part of every key of the cache: to be raised when the same weights and images give other features
FEATURES_VERSION = 2

Features = NDArray[np.float32]
DIGEST_BYTES = hashlib.sha256().digest_size


class ImageSource(Protocol):
    """Images that are read when they are needed."""

    def __len__(self) -> int:
        """Number of images."""

    def read(self, rows: Sequence[int] | NDArray[np.int64], size: int, /) -> Pixels:
        """uint8 (B, size, size, 3)."""


def extract(
    backbone: Backbone,
    images: Pixels | ImageSource,
    *,
    batch: int | None = None,
    dtype: torch.dtype | None = None,
    compile_backbone: bool = False,
    cache: bool | Path = True,
    fingerprint: str | None = None,
    kept: list[Path] | None = None,
    report: ReportProgress | None = None,
) -> Features:
    """Features (N, m) in float32 of uint8 images (N, H, W[, 1 or 3]), or of an object with `len` and `read`.

    `dtype` is the precision of the matrix products: by default bfloat16 on a GPU and on a CPU whose processor
    multiplies it by itself, and float32 elsewhere (`choose_dtype`). A batch that does not fit in memory is
    halved. `compile_backbone` goes through torch.compile, which takes a minute and pays for millions of images; it is
    offered here and not by the commands, because it needs a compiler on
    the machine. `cache` is a folder, True for the usual one, or False; a folder that cannot be used is a
    `CacheWarning`. An object is known to the cache by its `pixels_fingerprint` or `fingerprint`; without one it
    is not cached. `kept` gets the folder of the cache that the features are in. `report` gets (done, total, images
    per second, seconds left).
    """
    if batch is not None and batch < 1:
        raise InputError(f"batch is {batch}; it must be at least 1")
    if dtype not in (None, torch.float32) and not backbone.mixed_precision:
        raise InputError(f"{backbone.name} has a precision of its own; leave {dtype} out")
    source = str(getattr(images, "name", "an array"))
    if isinstance(images, Dataset) and isinstance(images.images, np.ndarray):
        images = images.images  # resized on the device
    read, total = reader(images, backbone.image_size)
    if cache and backbone.identity is not None:
        fingerprint = fingerprint or fingerprint_of(images)
    remembered = bool(cache and fingerprint and backbone.identity)
    folder = cache_folder(cache) if remembered else None
    precision = dtype or choose_dtype(backbone)
    store = None
    if remembered and folder is not None:
        settings = [FEATURES_VERSION, fingerprint, total, backbone.identity, backbone.device.type, str(precision)]
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
        try:
            store = ChunkStore(begin(folder, key, source, backbone.name, total))
        except OSError as error:
            warn_of(folder, error)
        if store is not None and kept is not None:
            kept.append(store.folder)
    engine = Engine(backbone, batch or default_batch(backbone), precision, compile_backbone)
    return run(engine, read, total, store, report)


def run(
    engine: Engine, read: Callable[[range], Pixels], total: int, store: ChunkStore | None, report: ReportProgress | None
) -> Features:
    """Fill the feature matrix chunk by chunk."""
    out = np.empty((total, engine.backbone.feature_dim), dtype=np.float32)
    step = chunk_rows(engine.backbone)
    chunks = [range(start, min(start + step, total)) for start in range(0, total, step)]
    missing = [rows for rows in chunks if store is None or not store.load(rows, out)]
    done = total - sum(map(len, missing))

    def progress(fresh: int) -> None:
        nonlocal done
        done += fresh
        if report is not None:
            report("features", done, total)

    progress(0)
    pending: tuple[Future[None], range] | None = None

    def finish(rows: range, features: Tensor) -> None:
        host = features.cpu().numpy()
        check_finite(host, rows, engine.backbone.name)
        out[rows.start : rows.stop] = host
        if store is not None:
            store.save(rows, host)

    def settle() -> None:
        if pending is not None:
            pending[0].result()
            if engine.asynchronous:
                progress(len(pending[1]))

    threads = ThreadPoolExecutor(2)
    try:
        coming = threads.submit(engine.fetch, read, missing[0]) if missing else None
        for number, rows in enumerate(missing):
            pixels = cast("Future[Tensor]", coming).result()
            if number + 1 < len(missing):
                coming = threads.submit(engine.fetch, read, missing[number + 1])
            features = engine.features(pixels, rows, progress)
            settle()
            pending = threads.submit(finish, rows, features), rows
        settle()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
    return out


def cache_folder(cache: bool | Path = True) -> Path | None:
    """The folder to keep features in, made if need be; None, with a warning, where that cannot be done."""
    if cache is False:
        return None
    folder = default_cache() if cache is True else Path(cache)
    require_own_cache(folder)
    try:
        with whole_file(folder / "writable") as temporary:
            temporary.touch()
        (folder / "writable").unlink()
    except OSError as error:
        warn_of(folder, error)
        return None
    return folder


def warn_of(folder: Path, error: OSError) -> None:
    """Say that features are not kept, and why."""
    warnings.warn(
        f"the cache {folder} cannot be used ({error.strerror or error}); features are computed and not kept; "
        f"set FEDHIP_CACHE to a folder that can be written to",
        CacheWarning,
        stacklevel=3,
    )


def check_finite(features: Features, rows: range, name: str) -> None:
    """Features that are not numbers are an error that names the first row of them."""
    if not np.isfinite(features).all():
        row = rows[int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])]
        raise InputError(f"{name} gave features of row {row} that are not finite numbers")


@dataclass
class Engine:
    """A backbone with its batch size, which shrinks when memory runs out."""

    backbone: Backbone
    batch: int
    dtype: torch.dtype
    compile_backbone: bool = False

    def __post_init__(self) -> None:
        self.call: Callable[[Tensor, Tensor], Tensor] = self.backbone
        if self.compile_backbone:
            self.call = torch.compile(self.backbone.__call__, dynamic=False)

    def fetch(self, read: Callable[[range], Pixels], rows: range) -> Tensor:
        """One chunk of pixels in memory, pinned where that makes the copy to the device asynchronous."""
        pixels = torch.from_numpy(np.require(read(rows), requirements=["C", "W"]))
        return pixels.pin_memory() if self.asynchronous else pixels

    @property
    def asynchronous(self) -> bool:
        """Whether work is only queued when a call returns."""
        return self.backbone.device.type == "cuda"

    @torch.no_grad()
    def features(self, pixels: Tensor, rows: range, progress: Callable[[int], None]) -> Tensor:
        """Features of one chunk, on the device; on a GPU they may still be under way."""
        device = self.backbone.device
        resident = pixels.to(device, non_blocking=True)
        numbers = torch.arange(rows.start, rows.stop, device=device)
        parts, start = [], 0
        while start < len(rows):
            stop = min(start + self.batch, len(rows))
            try:
                parts.append(self.forward(resident[start:stop], numbers[start:stop]))
            except (MemoryError, RuntimeError) as error:
                self.shrink(error)
                continue
            if not self.asynchronous:
                progress(stop - start)
            start = stop
        return torch.cat(parts)

    def forward(self, pixels: Tensor, numbers: Tensor) -> Tensor:
        """One batch; a compiled backbone always gets a full one, so that it is compiled once."""
        count = len(pixels)
        if self.compile_backbone and count < self.batch:
            fill = torch.arange(self.batch, device=pixels.device).clamp_(max=count - 1)
            pixels, numbers = pixels[fill], numbers[fill]
        mixed = self.backbone.mixed_precision and self.dtype != torch.float32
        with torch.autocast(self.backbone.device.type, torch.bfloat16, enabled=mixed):
            return self.call(pixels, numbers)[:count]

    def shrink(self, error: Exception) -> None:
        """Halve the batch if memory ran out; anything else is an error."""
        typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not typed and "can't allocate memory" not in str(error):
            raise error
        if self.batch == 1:
            raise InputError(
                f"{self.backbone.name} does not fit in the memory of {self.backbone.device} with a single "
                f"image; use a smaller backbone or another device"
            ) from error
        self.batch //= 2
        if self.backbone.device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass
class ChunkStore:
    """Finished chunks of one extraction on disk, each an .npy followed by its SHA-256."""

    folder: Path
    writable: bool = True

    def path(self, rows: range) -> Path:
        """The file of a chunk."""
        return self.folder / f"{rows.start:09d}-{rows.stop:09d}.npy"

    def load(self, rows: range, out: Features) -> bool:
        """Put a chunk in its place; False where there is none, or none that is as it was written."""
        try:
            content = self.path(rows).read_bytes()
            body, mark = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
            if hashlib.sha256(body).digest() != mark:
                return False
            found = np.load(io.BytesIO(body), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        if found.dtype != out.dtype or found.shape != (len(rows), out.shape[1]) or not np.isfinite(found).all():
            return False
        out[rows.start : rows.stop] = found
        return True

    def save(self, rows: range, features: Features) -> None:
        """Write a chunk; a disk that takes no more of them is a warning, since the features are there."""
        if not self.writable:
            return
        body = io.BytesIO()
        np.save(body, features)
        try:
            write_private(self.path(rows), body.getvalue() + hashlib.sha256(body.getvalue()).digest())
        except OSError as error:
            self.writable = False
            warn_of(self.folder, error)


def reader(images: Pixels | ImageSource, size: int) -> tuple[Callable[[range], Pixels], int]:
    """How to get a range of rows as uint8 (B, H, W, 3), and how many rows there are."""
    if hasattr(images, "read"):
        source = cast(ImageSource, images)

        def from_source(rows: range) -> Pixels:
            found = check_images(source.read(np.arange(rows.start, rows.stop), size))
            if len(found) != len(rows):
                raise InputError(f"asked for {len(rows)} images, read() returned {len(found)}")
            return to_rgb(found)

        if len(source) == 0:
            raise InputError("there are no images to extract features from")
        return from_source, len(source)
    array = check_images(images)
    return lambda rows: to_rgb(array[rows.start : rows.stop]), len(array)


def fingerprint_of(images: Pixels | ImageSource) -> str | None:
    """What the images are: a source's own word for it, or the digest of an array."""
    if hasattr(images, "read"):
        # the labels do not change the features: a word for the pixels alone is better
        found = getattr(images, "pixels_fingerprint", None) or getattr(images, "fingerprint", None)
        return None if found is None else str(found)
    array = np.asanyarray(images)
    sha = hashlib.sha256(repr((array.shape, str(array.dtype))).encode())
    for start in range(0, len(array), 4096):
        sha.update(np.ascontiguousarray(array[start : start + 4096]).data)
    return sha.hexdigest()


def default_batch(backbone: Backbone) -> int:
    """As many images as keep the device busy: by their pixels, within limits."""
    pixels = 2**24 if backbone.device.type == "cuda" else 2**19
    return max(8, min(4096, pixels // backbone.image_size**2))


def chunk_rows(backbone: Backbone) -> int:
    """Rows that are written at once: seconds of work on a CPU, a quarter of a gigabyte of pixels on a GPU."""
    if backbone.device.type != "cuda":
        return 1024
    return max(512, min(16384, 2**28 // (3 * backbone.image_size**2)))
