"""The schemes row by row: which client each row goes to. Randomness comes in as a generator."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhip.data.array_files import encode_names
from fedhip.data.partitions.apportion import apportion
from fedhip.errors import InputError

IntArray = NDArray[np.int64]
Scheme = Callable[[IntArray, int, Mapping[str, float], np.random.Generator], IntArray]


def _dirichlet(
    labels: IntArray, clients: int, parameters: Mapping[str, float], random: np.random.Generator
) -> IntArray:
    """Each client has room for N/K rows. Classes come in random order, as the last ones fill what is left."""
    return _by_class(labels, _equal_sizes(len(labels), clients, random), parameters["concentration"], random)


def _dirichlet_unbalanced(
    labels: IntArray, clients: int, parameters: Mapping[str, float], random: np.random.Generator
) -> IntArray:
    room = np.full(clients, len(labels), dtype=np.int64)
    return _by_class(labels, room, parameters["concentration"], random)


def _by_class(labels: IntArray, room: IntArray, concentration: float, random: np.random.Generator) -> IntArray:
    """Spread each class over the clients in proportions p ~ Dirichlet(λ), within the room that is left."""
    room = room.copy()
    classes, class_sizes = np.unique(labels, return_counts=True)
    counts = np.empty((len(classes), len(room)), dtype=np.int64)
    for c in random.permutation(len(classes)):
        counts[c] = apportion(int(class_sizes[c]), _log_dirichlet(len(room), concentration, random), room)
        room -= counts[c]
    rows_by_class = _shuffled_by(labels, random)
    assignment = np.empty(len(labels), dtype=np.int64)
    assignment[rows_by_class] = np.repeat(np.tile(np.arange(len(room)), len(classes)), counts.ravel())
    return assignment


def _log_dirichlet(clients: int, concentration: float, random: np.random.Generator) -> NDArray[np.float64]:
    """log g_k with g_k ~ Gamma(λ), so that g / Σ g ~ Dirichlet(λ); not normalised.

    Gamma(λ) is Gamma(λ+1)·U^(1/λ), and log U is minus an exponential variate. For small λ nearly all g_k are
    below the smallest float; their logarithms still say which client comes first, and which next.
    """
    concentration = min(max(concentration, 1e-300), 1e300)  # the logarithms stay finite; beyond, nothing changes
    log_gamma = np.log(random.standard_gamma(concentration + 1.0, clients))
    return np.asarray(log_gamma - random.standard_exponential(clients) / concentration)


def _shards(labels: IntArray, clients: int, parameters: Mapping[str, float], random: np.random.Generator) -> IntArray:
    """Rows sorted by label, cut into K·s shards of near equal size; each client gets s of them at random."""
    each = int(parameters["shards_per_client"])
    shards = clients * each
    if shards > len(labels):
        raise InputError(
            f"{clients} clients with {each} shards each need {shards} rows, but there are {len(labels)}; "
            "take fewer clients (--clients) or fewer shards_per_client (--shards)"
        )
    owner = random.permutation(np.repeat(np.arange(clients), each))
    assignment = np.empty(len(labels), dtype=np.int64)
    shard_of_position = np.arange(len(labels)) * shards // len(labels)
    assignment[_shuffled_by(labels, random)] = owner[shard_of_position]
    return assignment


def _iid(labels: IntArray, clients: int, parameters: Mapping[str, float], random: np.random.Generator) -> IntArray:
    return random.permutation(np.repeat(np.arange(clients), _equal_sizes(len(labels), clients, random)))


def _quantity(labels: IntArray, clients: int, parameters: Mapping[str, float], random: np.random.Generator) -> IntArray:
    log_weights = _log_dirichlet(clients, parameters["concentration"], random)
    sizes = apportion(len(labels), log_weights, np.full(clients, len(labels), dtype=np.int64))
    return random.permutation(np.repeat(np.arange(clients), sizes))


def natural_clients(
    rows: int, num_clients: int | None, clients: ArrayLike | None, min_rows: int
) -> tuple[tuple[str, ...], IntArray]:
    """The data's own clients; their rows are theirs, so a client that is too small is an error."""
    if clients is None:
        raise InputError(
            "the data has no natural clients; bring client/class/image folders or a 'clients' array, "
            "or choose another scheme"
        )
    assignment, names = encode_names(np.asarray(clients).astype(np.str_, copy=False))
    if len(assignment) != rows:
        raise InputError(f"there are {len(assignment)} clients for {rows} rows; give one for each row")
    if num_clients is not None and num_clients != len(names):
        raise InputError(f"the data has {len(names)} natural clients, not {num_clients}; leave the number out")
    sizes = np.bincount(assignment)
    if sizes.min() < min_rows:
        raise InputError(
            f"natural client '{names[int(sizes.argmin())]}' has {sizes.min()} rows, fewer than min_rows = "
            f"{min_rows}; lower min_rows (--min-rows) or leave the client out of the data"
        )
    return names, assignment


def with_minimum(assignment: IntArray, clients: int, min_rows: int, random: np.random.Generator) -> IntArray:
    """Give every client `min_rows` rows, taken at random from the largest, levelled from the top."""
    sizes = np.bincount(assignment, minlength=clients).astype(np.int64)
    deficit = np.maximum(min_rows - sizes, 0)
    if not deficit.any():
        return assignment
    donor = sizes > min_rows
    # Equal weights make `apportion` cut the largest down to one level, which lies at or above min_rows
    # because min_rows·K ≤ N.
    kept = np.where(donor, 0, sizes)
    kept[donor] = apportion(int(sizes[donor].sum() - deficit.sum()), np.zeros(donor.sum()), sizes[donor])
    moved = np.flatnonzero(rank_within(assignment, sizes, random) >= kept[assignment])
    assignment = assignment.copy()
    assignment[moved] = random.permutation(np.repeat(np.arange(clients), deficit))
    return assignment


def _equal_sizes(rows: int, clients: int, random: np.random.Generator) -> IntArray:
    """N/K for every client, and one more for N mod K of them at random."""
    sizes = np.full(clients, rows // clients, dtype=np.int64)
    sizes[random.permutation(clients)[: rows % clients]] += 1
    return sizes


def _shuffled_by(groups: IntArray, random: np.random.Generator) -> IntArray:
    """All rows, group after group, in random order within each group."""
    order = random.permutation(len(groups))
    return order[np.argsort(groups[order], kind="stable")]


def rank_within(groups: IntArray, sizes: IntArray, random: np.random.Generator) -> IntArray:
    """A random place 0 … n − 1 for each row among the n rows of its group."""
    order = _shuffled_by(groups, random)
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "dirichlet": _dirichlet,
        "dirichlet-unbalanced": _dirichlet_unbalanced,
        "shards": _shards,
        "iid": _iid,
        "quantity": _quantity,
    }
)
