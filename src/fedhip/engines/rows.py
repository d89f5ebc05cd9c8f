"""How rows travel to tasks: as the place where they lie, and not as a copy with every task.

Rows of a feature file that is memory-mapped stay in it, and a task opens the file. All others are put into Ray's
object store once. A client that arrives reads its rows when somebody looks at them. Ray serializes everything;
`lending` tells it what stands for a client.
"""

from __future__ import annotations

import weakref
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import DataMissingError, FileError
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.many.rows import ManyClients
from fedhip.utils.progress import silent

Places = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
Thing = TypeVar("Thing")
#: Rows of fewer bytes travel with the client.
_SMALL = 2**13


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


# --- at a task


class ArrivedClient(Client):
    """A client in a task: its features are read when somebody looks at its rows, until they are given back."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("train", "test"):
            raise AttributeError(name)
        state = vars(self)
        place, at = state["_place"], state["_at"]
        every = place.get() if isinstance(place, InFile) else _ray().get(place)
        # Copies: rows in the store are read-only, and a client's own may be written to.
        cut = [every[places] for places in at] if at is not None else [np.array(part) for part in every]
        state["train"], state["test"] = zip(cut, state["_labels"], strict=True)
        _LOOKED_AT.append(self)
        return state[name]


#: Clients whose rows are in memory.
_LOOKED_AT: list[ArrivedClient] = []


def give_back() -> None:
    """Forget the rows that were looked at: they can be read again."""
    while _LOOKED_AT:
        state = vars(_LOOKED_AT.pop())
        state.pop("train", None)
        state.pop("test", None)


class ArrivedClients(ManyClients):
    """Very many clients in a task: read when somebody looks at any of them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        state = vars(self)
        features, others = state["_places"]
        found = _read(others)
        state.update(found, features=features.get() if isinstance(features, InFile) else _read(features))
        return state[name]


@lru_cache(maxsize=4)
def _read(place: Any) -> Any:
    return _ray().get(place)


def _ray() -> Any:
    import ray

    return ray


def _client(told: dict[str, Any]) -> Client:
    if "train" in told:
        return Client(**{name: _own(value) for name, value in told.items()})
    return _arrived(ArrivedClient, {name: _own(value) for name, value in told.items()})


def _own(value: Any) -> Any:
    """What arrives is read-only."""
    if isinstance(value, tuple):
        return tuple(map(_own, value))
    return np.array(value) if isinstance(value, np.ndarray) else value


def _many_clients(told: dict[str, Any]) -> ManyClients:
    return _arrived(ArrivedClients, told)


def _task(told: dict[str, Any]) -> Task:
    return _arrived(Task, told | {"report": silent, "uploads": {}})


def _arrived(kind: type[Thing], told: dict[str, Any]) -> Thing:
    thing: Thing = object.__new__(kind)
    vars(thing).update(told)
    return thing


# --- where the run is


class Lender:
    """What stands for clients when Ray serializes what refers to them."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        #: Where something is that was lent before, as long as it is there.
        self._lent: dict[int, tuple[Any, dict[str, Any]]] = {}
        # Asked while Ray serializes something else, which this thread cannot interrupt to put things elsewhere.
        self._putting = ThreadPoolExecutor(1, "fedhip-put")

    def lend(self, clients: Sequence[Client], features: NDArray[Any], places: Places) -> None:
        """Clients whose rows are at these places of the features, to train and to test on: known if in a file."""
        lying = InFile.of(features)
        if lying is not None:
            for client, at in zip(clients, places, strict=True):
                self._remember(client, self._told(client, lying, at))

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Ray serializes clients so."""
        register, forget = self._ray.util.register_serializer, self._ray.util.deregister_serializer
        register(Client, serializer=self._of_client, deserializer=_client)
        register(ManyClients, serializer=self._of_many, deserializer=_many_clients)
        register(Task, serializer=_of_task, deserializer=_task)
        try:
            yield
        finally:
            for kind in (Client, ManyClients, Task):
                forget(kind)
            self._putting.shutdown()
            self._lent.clear()

    def _of_client(self, client: Client) -> dict[str, Any]:
        known = self._lent.get(id(client))
        if known is not None:
            return known[1]
        pair = client.train[0], client.test[0]
        if pair[0].nbytes + pair[1].nbytes < _SMALL:
            return _fields(client)
        return self._remember(client, self._told(client, self._put(pair), None))

    def _of_many(self, clients: ManyClients) -> dict[str, Any]:
        known = self._lent.get(id(clients))
        if known is not None:
            return known[1]
        others = _fields(clients)
        features = others.pop("features")
        return self._remember(clients, {"_places": (InFile.of(features) or self._put(features), self._put(others))})

    def _told(self, client: Client, place: Any, at: Any) -> dict[str, Any]:
        others = _fields(client)
        labels = others.pop("train")[1], others.pop("test")[1]
        return others | {"_place": place, "_at": at, "_labels": labels}

    def _put(self, thing: Any) -> Any:
        return self._putting.submit(self._ray.put, thing).result()

    def _remember(self, thing: Any, told: dict[str, Any]) -> dict[str, Any]:
        """Until it is gone: another may have its number then."""
        number = id(thing)
        self._lent[number] = weakref.ref(thing, lambda _: self._lent.pop(number, None)), told
        return told


def _of_task(task: Task) -> dict[str, Any]:
    """Without whom to tell, who is here, and without what clients sent, which is made again where it is needed."""
    return {name: value for name, value in vars(task).items() if name not in ("report", "uploads")}


def _fields(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}
