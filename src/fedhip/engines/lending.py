"""What is lent to other processes beside a function: clients' rows, where they lie, and not a copy with every task.

Rows in a feature file that is mapped stay there, and whoever needs them opens the file; all other rows are put into a
store once, and read from there. A client that was lent cuts its rows out when somebody looks at them.
"""

from __future__ import annotations

import weakref
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import DataMissingError, FileError
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.many.rows import ManyClients
from fedhip.utils.progress import silent

Ints = NDArray[np.int64]
#: Rows of fewer bytes travel with what needs them.
_SMALL = 2**13
#: What a pickle asks for: a function, its arguments and, of an object, its state.
Reduced = tuple[Any, ...]


class Store(Protocol):
    """Where objects lie that many processes read."""

    def put(self, thing: Any) -> Any:
        """Its place."""

    def get(self, place: Any) -> Any:
        """What is at a place: the same object as before, where it was asked for before."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Something in a store. Travels as its place."""

    place: Any
    store: Store

    def get(self) -> Any:
        """It."""
        return self.store.get(self.place)


@dataclass(frozen=True)
class InFile:
    """An array in a file, which has this size and this mark wherever it is opened."""

    path: str
    size: int
    mark: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    by_column: bool

    @classmethod
    def of(cls, array: NDArray[Any]) -> InFile | None:
        """Where an array lies; None of one that is in memory."""
        root: Any = array
        while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
            root = root.base
        whole = array.flags.c_contiguous or array.flags.f_contiguous
        if not (isinstance(root, np.memmap) and isinstance(root.filename, str | Path) and root.mode == "r" and whole):
            return None
        path = Path(root.filename).absolute()
        before = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        size, mark = _mark(path)
        return cls(
            str(path), size, mark, root.offset + before, array.dtype.str, array.shape, not array.flags.c_contiguous
        )

    def get(self) -> NDArray[Any]:
        """The array, mapped."""
        return _mapped(self)


@cache
def _mapped(lying: InFile) -> NDArray[Any]:
    path = Path(lying.path)
    if not path.is_file():
        raise DataMissingError(
            f"{path} is not there on a node of the cluster; put it where every node finds it under this path"
        )
    if _mark(path) != (lying.size, lying.mark):
        raise FileError(f"{path} is another file on a node of the cluster; put the same one there")
    order = "F" if lying.by_column else "C"
    return np.memmap(path, np.dtype(lying.dtype), "r", lying.offset, lying.shape, order)  # type: ignore[call-overload, no-any-return]


def _mark(path: Path) -> tuple[int, int]:
    """A file's size, and what tells it from others: the checksums in an archive, else when it was written."""
    status = path.stat()
    if not zipfile.is_zipfile(path):
        return status.st_size, status.st_mtime_ns
    with zipfile.ZipFile(path) as archive:
        sums = [(member.filename, member.CRC, member.header_offset) for member in archive.infolist()]
    return status.st_size, zlib.crc32(repr(sums).encode())


class LentClient(Client):
    """A client whose rows are cut out of where they lie when somebody looks at them, until they are given back."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("train", "test"):
            raise AttributeError(name)
        state = vars(self)
        features, at, labels = state["_rows"], state["_at"], state["_labels"]
        every = features.get()
        # Copies, which may be written to, as those of a client that was not lent.
        cut = [np.array(part) for part in every] if at is None else [every[places] for places in at]
        state["train"], state["test"] = zip(cut, labels, strict=True)
        _LOOKED_AT.append(self)
        return state[name]

    def __reduce__(self) -> Reduced:
        return Client, tuple(getattr(self, field.name) for field in fields(Client))


#: Lent clients whose rows are in memory.
_LOOKED_AT: list[LentClient] = []


def give_back() -> None:
    """Forget the rows of all lent clients: they can be cut out again."""
    while _LOOKED_AT:
        state = vars(_LOOKED_AT.pop())
        state.pop("train", None)
        state.pop("test", None)


def lent_client(rows: Any, at: tuple[Ints, Ints] | None, labels: Any, others: dict[str, Any]) -> LentClient:
    """A client that was lent: its features lie in `rows`, at these places, or are `rows` themselves."""
    client = LentClient.__new__(LentClient)
    vars(client).update(others, _rows=rows, _at=at, _labels=labels)
    return client


def many_clients(features: Any, others: Stored) -> ManyClients:
    """Very many clients that were lent."""
    return ManyClients(features=features.get(), **others.get())


class Lender:
    """What one process lends, and how it travels."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Where something is that was lent before, as long as it is there.
        self._lent: dict[int, tuple[Any, Reduced]] = {}
        self._arrays: list[tuple[NDArray[Any], InFile | Stored]] = []

    def lend(self, clients: Sequence[Client], features: NDArray[Any], places: Sequence[tuple[Ints, Ints]]) -> None:
        """Clients whose rows are those at these places of the features, to train and to test on."""
        rows = self._array(features)
        for client, at in zip(clients, places, strict=True):
            self._remember(client, self._client(client, rows, at))

    def reduced(self, thing: Any) -> Reduced | None:
        """What travels in the place of something; None of what travels as it is."""
        kind = type(thing)
        if isinstance(thing, Task):
            # Whom to tell is here; and what clients sent is made again where it is needed.
            return object.__new__, (kind,), vars(thing) | {"report": silent, "uploads": {}}
        if kind not in (Client, ManyClients):
            return None
        known = self._lent.get(id(thing))
        if known is not None:
            return known[1]
        if isinstance(thing, ManyClients):
            others = {field.name: getattr(thing, field.name) for field in fields(ManyClients)}
            found: Reduced = many_clients, (self._array(others.pop("features")), self._put(others))
        else:
            pair = thing.train[0], thing.test[0]
            if pair[0].nbytes + pair[1].nbytes < _SMALL:
                return None
            found = self._client(thing, self._put(pair), None)
        self._remember(thing, found)
        return found

    def _client(self, client: Client, rows: InFile | Stored, at: tuple[Ints, Ints] | None) -> Reduced:
        others = {field.name: getattr(client, field.name) for field in fields(Client)}
        (_, train), (_, test) = others.pop("train"), others.pop("test")
        return lent_client, (rows, at, (train, test), others)

    def _put(self, thing: Any) -> Stored:
        return Stored(self._store.put(thing), self._store)

    def _array(self, array: NDArray[Any]) -> InFile | Stored:
        for known, place in self._arrays:
            if known is array:
                return place
        place = InFile.of(array) or self._put(array)
        self._arrays.append((array, place))
        return place

    def _remember(self, thing: Any, found: Reduced) -> None:
        """Until it is gone: another may have its number then."""
        number = id(thing)
        self._lent[number] = weakref.ref(thing, lambda _: self._lent.pop(number, None)), found
