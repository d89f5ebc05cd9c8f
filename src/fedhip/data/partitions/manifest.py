"""`partition.json`: who holds which rows, how that was decided, and the hashes that guard it.

The client of each row and its side of the split are in the file, so that they are the same whatever a later numpy draws
from the same seed. The labels must be those for which the partition was made. `split` says where the split is from:
"given" with the data, or drawn, with this fraction of each client's rows for training.

    client_of_row   for each row, the number of its client among `clients`
    split_of_row    for each row, 0 (train) or 1 (test)

Both are {"type": T, "zlib": TEXT}: little-endian whole numbers of the numpy type T, compressed by zlib, in base64.

    numpy.frombuffer(zlib.decompress(base64.b64decode(TEXT)), T)

Files of schema 3 hold neither. From them the partition is drawn again and compared by its hashes.
"""

import base64
import binascii
import hashlib
import json
import zlib
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhip.data.partitions.partition import (
    DEFAULTS,
    TRAIN_FRACTION,
    Partition,
    check_labels,
    hash_labels,
    make_partition,
    split_of,
)
from fedhip.data.partitions.schemes import natural_clients
from fedhip.errors import DataMissingError, FileError, InputError
from fedhip.utils.files import write_text
from fedhip.utils.text import json_text

SCHEMA = 4
DRAWN_AGAIN = 3  # the schema without rows
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
_STORED: dict[str, tuple[type, ...]] = {
    "clients": (list,),
    "client_of_row": (dict,),
    "split_of_row": (dict,),
    "sha256": (str,),
}
_TYPES = ("uint8", "uint16", "uint32")


def manifest(
    partition: Partition, train_fraction: float = TRAIN_FRACTION, *, data_split: ArrayLike | None = None
) -> dict[str, Any]:
    """What `partition.json` holds."""
    split = split_of(data_split, partition, train_fraction)
    content = {
        "schema": SCHEMA,
        "scheme": partition.scheme,
        "parameters": dict(partition.parameters),
        "seed": partition.seed,
        "num_rows": len(partition.assignment),
        "num_clients": partition.num_clients,
        "split": float(train_fraction) if data_split is None else GIVEN,
        "labels_sha256": partition.labels_sha256,
        "assignment_sha256": partition.sha256,
        "split_sha256": _hash_split(split),
        "numpy": np.__version__,
        "clients": list(partition.clients),
        "client_of_row": packed(partition.assignment),
        "split_of_row": packed(split),
    }
    return {**content, "sha256": _hash_content(content)}


def save_partition(
    path: str | Path,
    partition: Partition,
    train_fraction: float = TRAIN_FRACTION,
    *,
    data_split: ArrayLike | None = None,
) -> None:
    """Write the manifest atomically; `data_split` is the split that the data brings, if it brings one."""
    content = manifest(partition, train_fraction, data_split=data_split)
    # a line for each field: the lists are long, and nobody reads them
    lines = (f"  {json_text(field)}: {json_text(value)}" for field, value in content.items())
    write_text(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")


def load_partition(
    path: str | Path,
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    data_split: ArrayLike | None = None,
) -> tuple[Partition, NDArray[np.int8]]:
    """The manifest's partition of the data with these labels, and its split (0 train, 1 test).

    `data_split` is the split that the data brings: needed if the manifest was made with it, and an error if
    it was made without one. So are `clients`, those that the data brings, for the natural scheme.
    """
    path = Path(path)
    content = _read(path)
    labels = check_labels(labels)
    if len(labels) != content["num_rows"] or hash_labels(labels) != content["labels_sha256"]:
        raise FileError(
            f"{path} was made for {content['num_rows']} rows with labels {content['labels_sha256'][:12]}…, "
            f"this data has {len(labels)} with {hash_labels(labels)[:12]}…; give the data it was made for"
        )
    given = content["split"] == GIVEN
    if given != (data_split is not None):
        made = "the split that came with the data" if given else f"{content['split']:g} of each client for training"
        now = "brings a split of its own" if data_split is not None else "brings no split"
        raise FileError(f"{path} was made with {made}, but this data {now}; give the same data, or make it again")
    try:
        if content["schema"] == DRAWN_AGAIN:
            return _drawn_again(path, content, labels, clients, data_split)
        partition, split = _stored(path, content)
        if partition.scheme == "natural":
            _require_clients(path, partition, clients)
        if data_split is not None:
            _require_split(path, content, split_of(data_split, partition))
    except InputError as error:
        raise FileError(f"{path} does not describe a partition of this data: {error}") from error
    return partition, split


def stored_split(path: str | Path, client: str) -> NDArray[np.int8] | None:
    """The split of one client's rows, in their order; None where the file holds none, or not this client."""
    content = _read(Path(path))
    if content["schema"] == DRAWN_AGAIN or client not in content["clients"]:
        return None
    partition, split = _stored(Path(path), content)
    return split[partition.rows[partition.clients.index(client)]]


def packed(numbers: NDArray[np.integer[Any]]) -> dict[str, str]:
    """Whole numbers from 0 as {"type", "zlib"}, in the smallest type that holds them."""
    largest = int(numbers.max(initial=0))
    kind = next(name for name in _TYPES if largest <= np.iinfo(name).max)
    raw = numbers.astype(np.dtype(kind).newbyteorder("<")).tobytes()
    return {"type": kind, "zlib": base64.b64encode(zlib.compress(raw, 9)).decode()}


def unpacked(value: object, length: int, below: int) -> NDArray[np.int64]:
    """So many whole numbers, each below a bound, as `packed` wrote them; an `InputError` if they are not there."""
    kind, text = (value.get(key) for key in ("type", "zlib")) if isinstance(value, dict) else (None, None)
    if kind not in _TYPES or not isinstance(text, str):
        raise InputError(f"rows are of type {_shown(kind)}; one of {', '.join(_TYPES)} is expected")
    dtype = np.dtype(str(kind)).newbyteorder("<")
    size = length * dtype.itemsize
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise InputError(f"rows cannot be unpacked ({error})") from error
    if len(raw) != size:
        raise InputError(f"there are not the {length} rows that it speaks of")
    numbers = np.frombuffer(raw, dtype).astype(np.int64)
    if length and numbers.max() >= below:
        raise InputError(f"a row has number {numbers.max()}, and there are {below} to choose from")
    return numbers


def _stored(path: Path, content: dict[str, Any]) -> tuple[Partition, NDArray[np.int8]]:
    """The partition and the split that the file holds, as their hashes say."""
    if _hash_content(content) != content["sha256"]:
        raise FileError(f"{path} does not have the digest that stands in it: it was altered; make it again")
    names = tuple(map(str, content["clients"]))
    if len(names) != content["num_clients"]:
        raise FileError(f"{path} names {len(names)} clients of {content['num_clients']}; make it again")
    try:
        assignment = unpacked(content["client_of_row"], content["num_rows"], len(names))
        split = unpacked(content["split_of_row"], content["num_rows"], 2).astype(np.int8)
    except InputError as error:
        raise FileError(f"{path}: {error}; make it again") from error
    assignment.setflags(write=False)
    partition = Partition(
        content["scheme"],
        MappingProxyType(dict(content["parameters"])),
        content["seed"],
        names,
        assignment,
        content["labels_sha256"],
    )
    for field, value in (("assignment_sha256", partition.sha256), ("split_sha256", _hash_split(split))):
        if content[field] != value:
            raise FileError(
                f"{path} says {field} {content[field][:12]}…, but its rows give {value[:12]}…: it was altered; "
                "make it again"
            )
    return partition, split


def _drawn_again(
    path: Path, content: dict[str, Any], labels: NDArray[np.int64], clients: ArrayLike | None, data_split: Any
) -> tuple[Partition, NDArray[np.int8]]:
    """The partition of a file without rows: made again from its scheme, parameters and seed."""
    natural = content["scheme"] == "natural"
    partition = make_partition(
        labels,
        content["scheme"],
        content["num_clients"],
        seed=content["seed"],
        clients=clients if natural else None,
        **content["parameters"],
    )
    split = split_of(data_split, partition, TRAIN_FRACTION if data_split is not None else content["split"])
    if data_split is not None:
        _require_split(path, content, split)
    for field, value in (("assignment_sha256", partition.sha256), ("split_sha256", _hash_split(split))):
        if content[field] != value:
            same = content["numpy"] == np.__version__
            version = "by another version" if same else f"with numpy {content['numpy']}"
            cause = " or the data's clients changed" if natural else ""
            raise FileError(
                f"{path} says {field} {content[field][:12]}…, but its own scheme, parameters and seed give "
                f"{value[:12]}…: it was altered{cause}, or made {version}; make it again"
            )
    return partition, split


def _require_clients(path: Path, partition: Partition, clients: ArrayLike | None) -> None:
    """The data's own clients must be those that the partition was made of."""
    names, assignment = natural_clients(
        len(partition.assignment), partition.num_clients, clients, int(partition.parameters["min_rows"])
    )
    if names != partition.clients or not np.array_equal(assignment, partition.assignment):
        raise FileError(
            f"{path} was made of the clients that came with the data, and the data's clients changed; give the data it "
            "was made for, or make it again"
        )


def _require_split(path: Path, content: dict[str, Any], split: NDArray[np.int8]) -> None:
    """The data's own split must be the one that the partition was made with."""
    if content["split_sha256"] != (found := _hash_split(split)):
        raise FileError(
            f"{path} says split_sha256 {content['split_sha256'][:12]}…, but the split that comes with this data has "
            f"{found[:12]}…; give the data it was made for, or make it again"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataMissingError(f"{path} is not there; make it with fedhip partition") from error
    except IsADirectoryError as error:
        raise FileError(f"{path} is a folder; give the file in it, such as {path / 'partition.json'}") from error
    except RecursionError as error:
        raise FileError(f"{path} is not a partition manifest (it is nested too deeply); make it again") from error
    except ValueError as error:
        raise FileError(f"{path} is not a partition manifest ({error}); make it again") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise FileError(f"{path} is not a partition manifest: it has no 'schema'; make it again")
    if type(content["schema"]) is not int or content["schema"] not in (SCHEMA, DRAWN_AGAIN):
        raise FileError(
            f"{path} has schema {_shown(content['schema'])}, this version reads {DRAWN_AGAIN} and {SCHEMA}; "
            "make it again, or use the version that wrote it"
        )
    fields = _FIELDS if content["schema"] == DRAWN_AGAIN else _FIELDS | _STORED
    for field, kinds in fields.items():
        if type(content.get(field)) not in kinds:
            raise FileError(
                f"{path}: field '{field}' is missing or malformed ({_shown(content.get(field))}); make it again"
            )
    if isinstance(content["split"], str) and content["split"] != GIVEN:
        raise FileError(f"{path}: field 'split' is '{content['split']}', neither '{GIVEN}' nor a fraction")
    _check_parameters(path, content["scheme"], content["parameters"])
    return content


def _check_parameters(path: Path, scheme: str, parameters: dict[str, Any]) -> None:
    """Exactly the scheme's parameters, each of the type it was written with."""
    if scheme not in DEFAULTS:
        raise FileError(f"{path}: there is no partition scheme '{scheme}'; choose one of {', '.join(DEFAULTS)}")
    expected = DEFAULTS[scheme]
    if parameters.keys() != expected.keys():
        raise FileError(
            f"{path}: scheme '{scheme}' has the parameters {', '.join(expected)}, but the file holds "
            f"{', '.join(parameters) or 'none'}; make it again"
        )
    for name, default in expected.items():
        if type(parameters[name]) is not type(default):
            raise FileError(
                f"{path}: parameter '{name}' must be of type {type(default).__name__}, "
                f"not {_shown(parameters[name])}; make it again"
            )


def _shown(value: Any) -> str:
    """A value of a file in a message: its beginning if it is long, its type if it is nested."""
    text = type(value).__name__ if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _hash_split(split: NDArray[np.int8]) -> str:
    return hashlib.sha256(split.tobytes()).hexdigest()


def _hash_content(content: dict[str, Any]) -> str:
    """Of everything that the file says but this digest, in one form whatever the file looks like."""
    values = {field: value for field, value in content.items() if field != "sha256"}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()
