"""Feature files: rows of numbers with a label each, as `.npz` or `.safetensors`.

`features` (N × m), `labels` (N; integers, or strings in npz), optional `clients` (N; integers or strings) and
optional `split` (N; 0 train, 1 test). Optional `groups` (N; integers or strings) say which rows belong together, such
as those of one patient: no split and no leave-one-out takes them apart. Optional `weights` (N; numbers of at least 0)
say what a row counts in training. Of a regression `labels` are real targets (N or N × t), of several labels 0 and 1
(N × L), and `class_names` are the targets' names. An optional `class_names` says what the
integers mean; safetensors holds no strings, so there it, `client_names` and `group_names` are JSON lists in the
metadata, which the integers index.
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

from fedhip.data.array_files import Arrays, as_text, encode_names, named_labels, named_targets, names_in, read_arrays
from fedhip.data.sets.dataset import CLASSIFICATION, set_row_fields, update_array, update_row_fields
from fedhip.errors import InputError
from fedhip.utils.files import private_file, write_private

#: Rows that are looked at together: what says of each number whether it is finite is a byte for each.
_CHECKED_ROWS = 2**14
#: Arrays that a feature file may have beside features and labels.
_OPTIONAL = ("clients", "split", "groups", "weights", "class_names")


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features (N × m), labels that index `class_names`, and clients, split, groups and weights where known.

    `task` is "classification"; of a "regression" labels are real targets (N × t), of "multilabel" they are 0 and 1
    (N × L), and `class_names` name the targets. Features become floats in this machine's byte order, of at most 64
    bits.
    """

    features: NDArray[np.floating[Any]]
    labels: NDArray[Any]
    class_names: tuple[str, ...]
    clients: NDArray[np.str_] | None = None
    split: NDArray[np.int8] | None = None
    groups: NDArray[np.str_] | None = None
    weights: NDArray[np.float64] | None = None
    task: str = CLASSIFICATION

    def __post_init__(self) -> None:
        features = np.asarray(self.features)
        if features.ndim != 2 or 0 in features.shape or features.dtype.kind not in "fiu":
            raise InputError(
                f"features are {features.dtype} of shape {features.shape}; give real numbers of shape (N, m)"
            )
        with np.errstate(over="ignore"):  # what does not fit in float64 is infinite, and reported below
            features = features.astype(_native(features.dtype), copy=False)
        finite = _finite_rows(features)
        if not finite.all():
            row, number = int(finite.argmin()), int((~finite).sum())
            columns = np.flatnonzero(~np.isfinite(features[~finite]).all(axis=0))
            if number > 1 and len(columns) == 1:
                raise InputError(
                    f"column {columns[0]} of the features holds NaN or infinity in {number} of {len(features)} rows, "
                    f"first in row {row}; remove the column or these rows, or repair the extraction"
                )
            also = f", and so do those of {number - 1} other row{'s' * (number > 2)}" if number > 1 else ""
            raise InputError(
                f"features of row {row} hold NaN or infinity{also}; "
                f"remove {'these rows' if number > 1 else 'this row'} or repair the extraction"
            )
        view = features.view()
        view.setflags(write=False)
        object.__setattr__(self, "features", view)
        set_row_fields(self, len(features))
        if self.weights is not None:
            object.__setattr__(self, "weights", _checked_weights(self.weights, len(features)))

    @property
    def dealt_labels(self) -> NDArray[np.int64]:
        """What rows are divided among clients by: their classes; real targets are all alike."""
        return self.labels if self.task == CLASSIFICATION else np.zeros(len(self), np.int64)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def num_classes(self) -> int:
        """How many classes there are, or targets."""
        return len(self.class_names)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over features, labels, class names, clients, split and groups."""
        digest = hashlib.sha256()
        update_array(digest, self.features)
        update_row_fields(digest, self)
        if self.weights is not None:  # newer than fingerprints that are kept
            update_array(digest, self.weights)
        return digest.hexdigest()


def _finite_rows(features: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows hold no NaN and nothing infinite, a few thousand at a time."""
    starts = range(0, len(features), _CHECKED_ROWS)
    return np.concatenate([np.isfinite(features[at : at + _CHECKED_ROWS]).all(axis=1) for at in starts])


def _checked_weights(weights: ArrayLike, rows: int) -> NDArray[np.float64]:
    values = np.asarray(weights)
    if values.shape != (rows,) or values.dtype.kind not in "fiub":
        raise InputError(
            f"weights are {values.dtype} of shape {values.shape}; give a number for each of the {rows} rows"
        )
    values = values.astype(np.float64)
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"the weight of row {row} is {values[row]}; give finite numbers of at least 0")
    if not values.any():
        raise InputError("all weights are 0; give at least one row a weight above 0")
    values.setflags(write=False)
    return values


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
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    task: str = CLASSIFICATION,
) -> FeatureSet:
    """Rows in memory, as a feature file holds them: labels are whole numbers or strings, and so are clients.

    Those of another task than classification are real numbers, (N,) or (N, t).
    """
    given = None if class_names is None else np.asarray(class_names)
    named: NDArray[Any]
    named, names = named_labels(np.asarray(labels), given) if task == CLASSIFICATION else named_targets(labels, given)
    return FeatureSet(
        features=np.asarray(features),
        labels=named,
        class_names=names,
        clients=None if clients is None else as_text(np.asarray(clients), "clients"),
        split=None if split is None else np.asarray(split),
        groups=None if groups is None else as_text(np.asarray(groups), "groups"),
        weights=None if weights is None else np.asarray(weights),
        task=task,
    )


def read_features(path: str | Path, *, labelled: bool = True, task: str = CLASSIFICATION) -> FeatureSet:
    """Read and check a feature file; the message of every error names the file. `task` says what its labels are.

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
    if labelled:
        _require_no_misnomer(path, arrays)
    else:
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
            groups=arrays.get("groups"),
            weights=arrays.get("weights"),
            task=task if labelled else CLASSIFICATION,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _require_no_misnomer(path: Path, arrays: Arrays) -> None:
    """Refuse `client` for `clients`: the rows would be taken for nobody's, and divided."""
    for name in names_in(path):
        meant = next((known for known in _OPTIONAL if name.lower().rstrip("s") == known.rstrip("s")), None)
        if meant is not None and meant not in arrays:
            raise InputError(f"{path} has an array '{name}', which would not be used; rename it to '{meant}'")


def write_features(path: str | Path, features: FeatureSet) -> None:
    """Write `.npz` or `.safetensors`, by suffix; a reader sees the old file or the new one, never a part."""
    path = Path(path)
    arrays: Arrays = {"features": features.features, "labels": features.labels}
    for name in ("split", "weights"):
        if getattr(features, name) is not None:
            arrays[name] = getattr(features, name)
    if path.suffix == ".npz":
        arrays["class_names"] = np.array(features.class_names)
        for name in ("clients", "groups"):
            if getattr(features, name) is not None:
                arrays[name] = getattr(features, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with private_file(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        metadata = {"class_names": json.dumps(features.class_names)}
        for name in ("clients", "groups"):
            if getattr(features, name) is not None:
                arrays[name], names = encode_names(getattr(features, name))
                metadata[f"{name[:-1]}_names"] = json.dumps(names)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
        write_private(path, whole)
    else:
        raise InputError(f"{path}: a feature file ends in .npz or .safetensors, not '{path.suffix}'")
