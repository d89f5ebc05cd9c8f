"""`partition.json`: how a partition was made, and the hashes that prove it was made again.

The rows themselves are not in the file. Loading divides the data anew and compares: the labels must be those
for which the partition was made, and the assignment and the split must come out as they did then.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhip.data.errors import (
    DataMissingError,
    ManifestError,
    ManifestMismatchError,
    ManifestVersionError,
    PartitionError,
)
from fedhip.data.files import write_text
from fedhip.data.partitions import Partition, check_labels, hash_labels, make_partition, split_clients

SCHEMA = 1
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "scheme": str,
    "parameters": dict,
    "seed": int,
    "num_rows": int,
    "num_clients": int,
    "train_fraction": (float, int),
    "labels_sha256": str,
    "assignment_sha256": str,
    "split_sha256": str,
    "numpy": str,
}


def manifest(partition: Partition, train_fraction: float = 0.8) -> dict[str, Any]:
    """What `partition.json` holds."""
    return {
        "schema": SCHEMA,
        "scheme": partition.scheme,
        "parameters": dict(partition.parameters),
        "seed": partition.seed,
        "num_rows": len(partition.assignment),
        "num_clients": partition.num_clients,
        "train_fraction": train_fraction,
        "labels_sha256": partition.labels_sha256,
        "assignment_sha256": partition.sha256,
        "split_sha256": _hash_split(split_clients(partition, train_fraction)),
        "numpy": np.__version__,
    }


def save_partition(path: str | Path, partition: Partition, train_fraction: float = 0.8) -> None:
    """Write the manifest atomically."""
    text = json.dumps(manifest(partition, train_fraction), indent=2, ensure_ascii=False)
    write_text(Path(path), text + "\n")


def load_partition(
    path: str | Path, labels: ArrayLike, clients: ArrayLike | None = None
) -> tuple[Partition, NDArray[np.int8]]:
    """Make the manifest's partition again from the data's labels, and its split (0 train, 1 test)."""
    path = Path(path)
    content = _read(path)
    labels = check_labels(labels)
    if len(labels) != content["num_rows"] or hash_labels(labels) != content["labels_sha256"]:
        raise ManifestMismatchError(
            f"{path} was made for {content['num_rows']} rows with labels {content['labels_sha256'][:12]}…, "
            f"this data has {len(labels)} with {hash_labels(labels)[:12]}…; give the data it was made for"
        )
    natural = content["scheme"] == "natural"
    try:
        partition = make_partition(
            labels,
            content["scheme"],
            content["num_clients"],
            seed=content["seed"],
            clients=clients if natural else None,
            **content["parameters"],
        )
        split = split_clients(partition, content["train_fraction"])
    except (PartitionError, TypeError) as error:
        raise ManifestError(f"{path} does not describe a partition of this data: {error}") from error
    found = {"assignment_sha256": partition.sha256, "split_sha256": _hash_split(split)}
    for field, value in found.items():
        if content[field] != value:
            same = content["numpy"] == np.__version__
            version = "by another version" if same else f"with numpy {content['numpy']}"
            cause = " or the data's clients changed" if natural else ""
            raise ManifestMismatchError(
                f"{path} says {field} {content[field][:12]}…, but its own scheme, parameters and seed give "
                f"{value[:12]}…: it was altered{cause}, or made {version}; make it again"
            )
    return partition, split


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataMissingError(f"{path} is not there; make it with fedhip partition") from error
    except ValueError as error:
        raise ManifestError(f"{path} is not a partition manifest ({error}); make it again") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise ManifestError(f"{path} is not a partition manifest: it has no 'schema'; make it again")
    if content["schema"] != SCHEMA:
        raise ManifestVersionError(
            f"{path} has schema {content['schema']!r}, this version reads {SCHEMA}; "
            "make it again, or use the version that wrote it"
        )
    for field, kind in _FIELDS.items():
        value = content.get(field)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ManifestError(f"{path}: field '{field}' is missing or malformed ({value!r}); make it again")
    return content


def _hash_split(split: NDArray[np.int8]) -> str:
    return hashlib.sha256(split.tobytes()).hexdigest()
