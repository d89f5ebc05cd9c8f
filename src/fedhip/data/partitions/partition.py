"""Who holds which rows: partitions of a labelled data set among clients, by name and seed.

Every scheme gives each row to exactly one client. All randomness comes from one generator made from the seed.
A minimum number of rows is constructed, by moving rows from the largest clients, and never hoped for.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhip.data.partitions.schemes import SCHEMES, IntArray, natural_clients, with_minimum
from fedhip.errors import InputError
from fedhip.utils.groups import group_numbers

DEFAULT_CLIENTS = 50  # the paper's
TRAIN_FRACTION = 0.8  # the paper's 8:2
DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "dirichlet": "each class spread by Dirichlet(λ), at most N/K rows a client: near equal sizes",
        "dirichlet-unbalanced": "each class spread by Dirichlet(λ), sizes as they fall",
        "shards": "rows sorted by label and cut into shards, a few shards for each client",
        "iid": "rows dealt at random, sizes differ by at most 1",
        "quantity": "rows dealt at random, sizes drawn from Dirichlet(λ)",
        "natural": "the clients that come with the data",
    }
)
DEFAULTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "dirichlet": {"concentration": 0.1, "min_rows": 1},
        "dirichlet-unbalanced": {"concentration": 0.1, "min_rows": 1},
        "shards": {"shards_per_client": 2, "min_rows": 1},
        "iid": {"min_rows": 1},
        "quantity": {"concentration": 0.1, "min_rows": 1},
        "natural": {"min_rows": 1},
    }
)


@dataclass(frozen=True, eq=False)
class Partition:
    """Which client each row belongs to, and everything needed to make it again.

    `assignment` (N) indexes `clients`, the clients' names. `labels_sha256` says for which labels. `groups` (N) number
    rows that belong together, where that is known: a split leaves them together.
    """

    scheme: str
    parameters: Mapping[str, float]
    seed: int
    clients: tuple[str, ...]
    assignment: IntArray
    labels_sha256: str
    groups: IntArray | None = None

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.clients)

    @cached_property
    def sizes(self) -> IntArray:
        """Rows of each client."""
        return np.bincount(self.assignment, minlength=self.num_clients).astype(np.int64)

    @cached_property
    def rows(self) -> tuple[IntArray, ...]:
        """The rows of each client, in ascending order."""
        order = np.argsort(self.assignment, kind="stable")
        return tuple(np.split(order, np.cumsum(self.sizes)[:-1]))

    @cached_property
    def sha256(self) -> str:
        """Fingerprint of the assignment and the clients' names."""
        return hashlib.sha256(
            "\0".join(self.clients).encode("utf-8", "surrogatepass") + _bytes(self.assignment)
        ).hexdigest()

    @property
    def title(self) -> str:
        """Scheme, parameters and seed in a few words."""
        words = [f"{self.num_clients} clients", self.scheme]
        if "concentration" in self.parameters:
            words.append(f"λ = {self.parameters['concentration']:g}")
        if "shards_per_client" in self.parameters:
            words.append(f"{self.parameters['shards_per_client']} shards a client")
        return ", ".join([*words, f"seed {self.seed}"])

    def class_counts(self, labels: ArrayLike, num_classes: int) -> IntArray:
        """Rows of each client (K) in each class (d), as K × d."""
        cell = self.assignment * num_classes + np.asarray(labels)
        size = self.num_clients * num_classes
        return np.bincount(cell, minlength=size).reshape(self.num_clients, num_classes)


def make_partition(
    labels: ArrayLike,
    scheme: str = "dirichlet",
    num_clients: int | None = None,
    *,
    seed: int = 0,
    concentration: float | None = None,
    shards_per_client: int | None = None,
    min_rows: int = 1,
    clients: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Partition:
    """Divide rows among clients.

    `concentration` is the λ of the Dirichlet and quantity schemes (0.1 if not given), `shards_per_client`
    belongs to shards (2 if not given); a parameter that the scheme does not have is an error. `clients` are
    the natural clients of the rows, for the natural scheme, which needs no `num_clients`. Rows of one of the `groups`
    (N, names) go to one client: groups are dealt, each by the label of its first row.
    """
    given = {"concentration": concentration, "shards_per_client": shards_per_client, "min_rows": min_rows}
    parameters = _parameters(scheme, {name: value for name, value in given.items() if value is not None})
    labels = check_labels(labels)
    _check_seed(seed)
    together = None if groups is None else _group_numbers(groups, len(labels))
    if scheme == "natural":
        names, assignment = natural_clients(len(labels), num_clients, clients, int(parameters["min_rows"]))
    else:
        if num_clients is None:
            raise InputError(f"'{scheme}' needs a number of clients; only 'natural' brings its own")
        dealt = labels if together is None else labels[np.unique(together, return_index=True)[1]]
        _check_clients(num_clients, len(dealt), int(parameters["min_rows"]), "rows" if together is None else "groups")
        random = np.random.default_rng(seed)
        assignment = SCHEMES[scheme](dealt, num_clients, parameters, random)
        assignment = with_minimum(assignment, num_clients, int(parameters["min_rows"]), random)
        assignment = assignment if together is None else assignment[together]
        names = tuple(str(client) for client in range(num_clients))
    assignment.setflags(write=False)
    return Partition(scheme, MappingProxyType(parameters), int(seed), names, assignment, hash_labels(labels), together)


def _group_numbers(groups: ArrayLike, rows: int) -> IntArray:
    """Groups by number, in the order in which they appear."""
    names = np.asarray(groups)
    if names.shape != (rows,):
        raise InputError(f"groups have shape {names.shape}, but there are {rows} rows; give one for each row")
    return group_numbers(names)


def divide_rows(
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    scheme: str | None = None,
    num_clients: int | None = None,
    **parameters: Any,
) -> Partition:
    """As `make_partition`; what is not given: the clients that the rows have, else the paper's scheme with 50."""
    if scheme is None:
        scheme = "natural" if num_clients is None and clients is not None else "dirichlet"
    if num_clients is None and scheme != "natural":
        num_clients = DEFAULT_CLIENTS
    return make_partition(labels, scheme, num_clients, clients=clients, **parameters)


def split_clients(
    partition: Partition, train_fraction: float = TRAIN_FRACTION, seed: int | None = None
) -> NDArray[np.int8]:
    """0 (train) or 1 (test) for each row, drawn client by client; by the partition's seed if none is given.

    A client's draw depends on its name, its number of rows and the seed, and on no other client: whoever joins or
    leaves, the others' rows stay where they were.

    Of a client's n rows, floor(train_fraction·n + 1/2) are for training, but at least one, and at most n − 1
    where n ≥ 2: every client can train, and every client with two rows can be tested. One with a single row
    has no test rows. Where the partition knows of groups, n is the number of its groups, which are drawn whole.
    """
    if not 0 < train_fraction < 1:
        raise InputError(f"the training fraction must lie between 0 and 1, not {train_fraction}")
    seed = partition.seed if seed is None else seed
    _check_seed(seed)
    split = np.empty(len(partition.assignment), dtype=np.int8)
    for client, rows in zip(partition.clients, partition.rows, strict=True):
        if partition.groups is None:
            split[rows] = _split_client(client, len(rows), train_fraction, int(seed))
        else:
            own = group_numbers(partition.groups[rows])
            split[rows] = _split_client(client, int(own.max(initial=-1)) + 1, train_fraction, int(seed))[own]
    return split


def _split_client(client: str, rows: int, train_fraction: float, seed: int) -> NDArray[np.int8]:
    """0 or 1 for each of a client's rows, from a stream of its own: numpy's, as manifests were written with."""
    train = min(max(math.floor(train_fraction * rows + 0.5), 1), max(rows - 1, 1))
    return (client_random(client, seed).permutation(rows) >= train).astype(np.int8)


def client_random(client: str, seed: int, purpose: str = "") -> np.random.Generator:
    """A stream of a client's own, by its name, the seed and what it is for."""
    key = f"{purpose}\0{client}" if purpose else client
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little")])


def split_of(
    data_split: ArrayLike | None, partition: Partition, train_fraction: float = TRAIN_FRACTION
) -> NDArray[np.int8]:
    """The split that the data brings, if it brings one; else one drawn client by client (`split_clients`)."""
    if data_split is None:
        return split_clients(partition, train_fraction)
    split = np.asarray(data_split)
    if split.shape != partition.assignment.shape or not np.isin(split, (0, 1)).all():
        raise InputError(
            f"the data's split is {split.dtype} of shape {split.shape}; give 0 (train) or 1 (test) for each of "
            f"the partition's {len(partition.assignment)} rows"
        )
    return split.astype(np.int8)


def client_parts(partition: Partition, split: NDArray[np.int8]) -> list[tuple[IntArray, IntArray]]:
    """Training rows and test rows of each client, in ascending order."""
    if split.shape != partition.assignment.shape:
        raise InputError(f"the split has shape {split.shape}, the partition {partition.assignment.shape}")
    return [(rows[split[rows] == 0], rows[split[rows] == 1]) for rows in partition.rows]


def list_partitions() -> Mapping[str, str]:
    """The schemes by name, each with a line that describes it."""
    return DESCRIPTIONS


def hash_labels(labels: ArrayLike) -> str:
    """sha256 of the labels, the same on every machine."""
    return hashlib.sha256(_bytes(np.asarray(labels))).hexdigest()


def check_labels(labels: ArrayLike) -> IntArray:
    """Labels as int64; whole numbers from 0, at least one."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0:
        raise InputError(
            f"labels are {array.dtype} of shape {array.shape}; give whole numbers from 0, one for each row"
        )
    return array.astype(np.int64)


def _parameters(scheme: str, given: dict[str, float]) -> dict[str, float]:
    """The scheme's parameters: those given, checked, and its defaults for the others."""
    if scheme not in DEFAULTS:
        raise InputError(f"there is no partition scheme '{scheme}'; choose one of {', '.join(DEFAULTS)}")
    for name in given:
        if name not in DEFAULTS[scheme]:
            raise InputError(f"scheme '{scheme}' has no {name} (got {given[name]}); leave it out")
    parameters: dict[str, float] = {**DEFAULTS[scheme], **given}
    for name, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise InputError(f"{name} must be a number, not {value!r}")
        if name == "concentration":
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"the concentration λ must be a finite number above 0, not {value}")
            parameters[name] = float(value)
        else:
            if not (math.isfinite(value) and value == int(value) and value >= 1):
                raise InputError(f"{name} must be a whole number of at least 1, not {value}")
            parameters[name] = int(value)
    return parameters


def _check_clients(clients: Any, rows: int, min_rows: int, what: str = "rows") -> None:
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise InputError(f"the number of clients must be a whole number of at least 1, not {clients!r}")
    if clients > rows:
        raise InputError(f"{clients} clients cannot share {rows} {what}; take at most {rows} clients")
    if clients * min_rows > rows:
        raise InputError(
            f"{clients} clients with at least {min_rows} {what} each need {clients * min_rows} {what}, but there "
            f"are {rows}; take at most {rows // min_rows} clients or lower min_rows (--min-rows) to {rows // clients}"
        )


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"the seed must be a whole number of at least 0, not {seed!r}")


def _bytes(array: NDArray[Any]) -> bytes:
    return array.astype("<i8").tobytes()
