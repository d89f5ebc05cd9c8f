"""Training and test rows by a hash of each row, or of its group's name, and of nothing else.

With differential privacy a row more must not change what becomes of the others. A division that counts a client's rows,
as the usual one does, would draw all of them anew, and the sum would change by many rows where noise hides one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedhip.data.feature_files import FeatureSet
from fedhip.data.partitions.partition import TRAIN_FRACTION
from fedhip.data.sets.dataset import Dataset, ImagePaths
from fedhip.data.tables import TableRows


def divide_one_by_one(
    data: Dataset | FeatureSet | TableRows, seed: int, rows: NDArray[np.intp] | None = None
) -> NDArray[np.int8]:
    """0 (train) or 1 (test) for each of the rows at these places, or of all."""
    rows = np.arange(len(data)) if rows is None else rows
    known = row_contents(data, rows)[1]
    if data.groups is not None:
        known = (str(group).encode("utf-8", "surrogatepass") for group in data.groups[rows])
    drawn = [hashlib.sha256(b"fedhip.division %d\0" % seed + each).digest()[:8] for each in known]
    return np.array([int.from_bytes(each, "big") >= TRAIN_FRACTION * 2.0**64 for each in drawn], np.int8)


def row_contents(data: Dataset | FeatureSet | TableRows, rows: NDArray[np.intp]) -> tuple[str, Iterator[bytes]]:
    """What these rows are: bytes for each, and of which kind."""
    if not isinstance(data, Dataset):
        # In float32, as half of all files are: else a copy of the same rows would be other rows.
        features = data.matrix if isinstance(data, TableRows) else data.features

        def written(row: np.intp) -> bytes:
            with np.errstate(over="ignore"):  # what is too large is refused with its column, where it matters
                return bytes(features[row].astype("<f4").tobytes())

        return f"{features.shape[1]} features", (written(row) for row in rows)
    images = data.images
    if isinstance(images, ImagePaths):
        return "image files", ((images.root / images.names[row]).read_bytes() for row in rows)
    return "pixels", (np.ascontiguousarray(images[row]).tobytes() for row in rows)
