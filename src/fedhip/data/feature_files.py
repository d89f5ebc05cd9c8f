"""Feature files: rows of numbers with a label each, as `.npz` or `.safetensors`.

`features` (N × m), `labels` (N; integers, or strings in npz), optional `clients` (N; integers or strings) and
optional `split` (N; 0 train, 1 test). An optional `class_names` says what the integers mean; safetensors
holds no strings, so there it and `client_names` are JSON lists in the metadata, which the integers index.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import save

from fedhip.data.array_files import Arrays, as_text, encode_names, named_labels, names_in, read_arrays
from fedhip.data.sets.dataset import set_row_fields, update_array, update_row_fields
from fedhip.errors import InputError
from fedhip.utils.files import private_file, write_private


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features (N × m), labels that index `class_names`, and clients and split where known.

    Features become floats in this machine's byte order, of at most 64 bits. `groups` are rows that belong together,
    such as those of one patient, `weights` how much a row counts, and `targets` (N × t) what a regression predicts, by
    the names `target_names`.
    """

    features: NDArray[np.floating[Any]]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    clients: NDArray[np.str_] | None = None
    split: NDArray[np.int8] | None = None
    groups: NDArray[np.str_] | None = None
    weights: NDArray[np.float64] | None = None
    targets: NDArray[np.float64] | None = None
    target_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        features = np.asarray(self.features)
        if features.ndim != 2 or 0 in features.shape or features.dtype.kind not in "fiu":
            raise InputError(
                f"features are {features.dtype} of shape {features.shape}; give real numbers of shape (N, m)"
            )
        with np.errstate(over="ignore"):  # what does not fit in float64 is infinite, and reported below
            features = features.astype(_native(features.dtype), copy=False)
        finite = np.isfinite(features).all(axis=1)
        if not finite.all():
            others = int((~finite).sum()) - 1
            also = f", and so do those of {others} other row{'s' * (others > 1)}" if others else ""
            raise InputError(
                f"features of row {int(finite.argmin())} hold NaN or infinity{also}; "
                f"remove {'these rows' if others else 'this row'} or repair the extraction"
            )
        view = features.view()
        view.setflags(write=False)
        object.__setattr__(self, "features", view)
        set_row_fields(self, len(features))

    def __len__(self) -> int:
        return len(self.features)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over features, labels, class names, clients and split."""
        digest = hashlib.sha256()
        update_array(digest, self.features)
        update_row_fields(digest, self)
        return digest.hexdigest()


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The float of this machine that holds such numbers; extended precision becomes float64."""
    if dtype.kind != "f":
        return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
    return dtype.newbyteorder("=") if dtype.itemsize <= 8 else np.dtype(np.float64)


def feature_set(
    features: ArrayLike,
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    split: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
) -> FeatureSet:
    """Rows in memory, as a feature file holds them: labels are whole numbers or strings, and so are clients."""
    named, names = named_labels(np.asarray(labels), None if class_names is None else np.asarray(class_names))
    return FeatureSet(
        features=np.asarray(features),
        labels=named,
        class_names=names,
        clients=None if clients is None else as_text(np.asarray(clients), "clients"),
        split=None if split is None else np.asarray(split),
    )


def read_features(path: str | Path, *, labelled: bool = True) -> FeatureSet:
    """Read and check a feature file; the message of every error names the file.

    With `labelled=False`, for rows that are to be classified, labels need not be there and are not used: every row is
    of the class "unknown".
    """
    path = Path(path)
    arrays = read_arrays(path)
    if "features" not in arrays and "images" in arrays:
        raise InputError(f"{path} holds images, not features; give it as a data set, or extract features first")
    for name in ("features", "labels") if labelled else ("features",):
        if name not in arrays:
            raise InputError(
                f"{path} has no array '{name}', only {names_in(path)}; a feature file holds 'features' (N, m), "
                "'labels' (N) and, if the rows have owners, 'clients' (N)"
            )
    if not labelled:
        arrays |= {
            "labels": np.zeros(arrays["features"].shape[:1], dtype=np.int64),
            "class_names": np.array(["unknown"]),
        }
    try:
        return feature_set(
            arrays["features"],
            arrays["labels"],
            arrays.get("clients"),
            split=arrays.get("split"),
            class_names=arrays.get("class_names"),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def write_features(path: str | Path, features: FeatureSet) -> None:
    """Write `.npz` or `.safetensors`, by suffix; a reader sees the old file or the new one, never a part."""
    path = Path(path)
    arrays: Arrays = {"features": features.features, "labels": features.labels}
    if features.split is not None:
        arrays["split"] = features.split
    if path.suffix == ".npz":
        arrays["class_names"] = np.array(features.class_names)
        if features.clients is not None:
            arrays["clients"] = features.clients
        path.parent.mkdir(parents=True, exist_ok=True)
        with private_file(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        metadata = {"class_names": json.dumps(features.class_names)}
        if features.clients is not None:
            arrays["clients"], names = encode_names(features.clients)
            metadata["client_names"] = json.dumps(names)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
        write_private(path, whole)
    else:
        raise InputError(f"{path}: a feature file ends in .npz or .safetensors, not '{path.suffix}'")
