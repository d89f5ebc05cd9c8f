"""`partition.json`: how a partition was made, and the hashes that prove it was made again.

The rows themselves are not in the file. Loading divides the data anew and compares: the labels must be those
for which the partition was made, and the assignment and the split must come out as they did then. `split` says
where the split is from: "given" with the data, or drawn, with this fraction of each client's rows for training.
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
from fedhip.data.partitions import (
    DEFAULTS,
    TRAIN_FRACTION,
    Partition,
    check_labels,
    hash_labels,
    make_partition,
    split_of,
)

SCHEMA = 3
GIVEN = "given"
_FIELDS: dict[str, tuple[type, ...]] = {
    "scheme": (str,),
    "parameters": (dict,),
    "seed": (int,),
    "num_rows": (int,),
    "num_clients": (int,),
    "split": (float, str),
    "labels_sha256": (str,),
    "assignment_sha256": (str,),
    "split_sha256": (str,),
    "numpy": (str,),
}


def manifest(
    partition: Partition, train_fraction: float = TRAIN_FRACTION, *, data_split: ArrayLike | None = None
) -> dict[str, Any]:
    """What `partition.json` holds."""
    return {
        "schema": SCHEMA,
        "scheme": partition.scheme,
        "parameters": dict(partition.parameters),
        "seed": partition.seed,
        "num_rows": len(partition.assignment),
        "num_clients": partition.num_clients,
        "split": float(train_fraction) if data_split is None else GIVEN,
        "labels_sha256": partition.labels_sha256,
        "assignment_sha256": partition.sha256,
        "split_sha256": _hash_split(split_of(data_split, partition, train_fraction)),
        "numpy": np.__version__,
    }


def save_partition(
    path: str | Path,
    partition: Partition,
    train_fraction: float = TRAIN_FRACTION,
    *,
    data_split: ArrayLike | None = None,
) -> None:
    """Write the manifest atomically; `data_split` is the split that the data brings, if it brings one."""
    content = manifest(partition, train_fraction, data_split=data_split)
    write_text(Path(path), json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def load_partition(
    path: str | Path,
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    data_split: ArrayLike | None = None,
) -> tuple[Partition, NDArray[np.int8]]:
    """Make the manifest's partition again from the data's labels, and its split (0 train, 1 test).

    `data_split` is the split that the data brings: needed if the manifest was made with it, and an error if
    it was made without one.
    """
    path = Path(path)
    content = _read(path)
    labels = check_labels(labels)
    if len(labels) != content["num_rows"] or hash_labels(labels) != content["labels_sha256"]:
        raise ManifestMismatchError(
            f"{path} was made for {content['num_rows']} rows with labels {content['labels_sha256'][:12]}…, "
            f"this data has {len(labels)} with {hash_labels(labels)[:12]}…; give the data it was made for"
        )
    given = content["split"] == GIVEN
    if given != (data_split is not None):
        made = "the split that came with the data" if given else f"{content['split']:g} of each client for training"
        now = "brings a split of its own" if data_split is not None else "brings no split"
        raise ManifestMismatchError(
            f"{path} was made with {made}, but this data {now}; give the same data, or make it again"
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
        split = split_of(data_split, partition, TRAIN_FRACTION if given else content["split"])
    except PartitionError as error:
        raise ManifestError(f"{path} does not describe a partition of this data: {error}") from error
    found = {"assignment_sha256": partition.sha256, "split_sha256": _hash_split(split)}
    for field, value in found.items():
        if content[field] != value:
            if given and field == "split_sha256":
                raise ManifestMismatchError(
                    f"{path} says {field} {content[field][:12]}…, but the split that comes with this data has "
                    f"{value[:12]}…; give the data it was made for, or make it again"
                )
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
    except IsADirectoryError as error:
        raise ManifestError(f"{path} is a folder; give the file in it, such as {path / 'partition.json'}") from error
    except RecursionError as error:
        raise ManifestError(f"{path} is not a partition manifest (it is nested too deeply); make it again") from error
    except ValueError as error:
        raise ManifestError(f"{path} is not a partition manifest ({error}); make it again") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise ManifestError(f"{path} is not a partition manifest: it has no 'schema'; make it again")
    if type(content["schema"]) is not int or content["schema"] != SCHEMA:
        raise ManifestVersionError(
            f"{path} has schema {_shown(content['schema'])}, this version reads {SCHEMA}; "
            "make it again, or use the version that wrote it"
        )
    for field, kinds in _FIELDS.items():
        if type(content.get(field)) not in kinds:
            raise ManifestError(
                f"{path}: field '{field}' is missing or malformed ({_shown(content.get(field))}); make it again"
            )
    if isinstance(content["split"], str) and content["split"] != GIVEN:
        raise ManifestError(f"{path}: field 'split' is '{content['split']}', neither '{GIVEN}' nor a fraction")
    _check_parameters(path, content["scheme"], content["parameters"])
    return content


def _check_parameters(path: Path, scheme: str, parameters: dict[str, Any]) -> None:
    """Exactly the scheme's parameters, each of the type it was written with."""
    if scheme not in DEFAULTS:
        raise ManifestError(f"{path}: there is no partition scheme '{scheme}'; choose one of {', '.join(DEFAULTS)}")
    expected = DEFAULTS[scheme]
    if parameters.keys() != expected.keys():
        raise ManifestError(
            f"{path}: scheme '{scheme}' has the parameters {', '.join(expected)}, but the file holds "
            f"{', '.join(parameters) or 'none'}; make it again"
        )
    for name, default in expected.items():
        if type(parameters[name]) is not type(default):
            raise ManifestError(
                f"{path}: parameter '{name}' must be of type {type(default).__name__}, "
                f"not {_shown(parameters[name])}; make it again"
            )


def _shown(value: Any) -> str:
    """A value of a file in a message: its beginning if it is long, its type if it is nested."""
    text = type(value).__name__ if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _hash_split(split: NDArray[np.int8]) -> str:
    return hashlib.sha256(split.tobytes()).hexdigest()
