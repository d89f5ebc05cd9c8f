"""Functions and their arguments as bytes, without what is lent; and back in a process that trusts who packed them.

Only for processes of one user: a parcel is a pickle, and whoever can hand one over can run anything.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any, NamedTuple

from ray.cloudpickle import CloudPickler

from fedhip.engines.lending import Lender, Reduced, Store, Stored


class Parcel(NamedTuple):
    """Bytes, and the places of what lies in the store."""

    content: bytes
    places: list[Any]


class _Packer(CloudPickler):  # type: ignore[misc]
    def __init__(self, file: BytesIO, lender: Lender | None) -> None:
        super().__init__(file, protocol=5)
        self._lender = lender
        self.places: list[Any] = []

    def persistent_id(self, thing: Any) -> int | None:
        if not isinstance(thing, Stored):
            return None
        self.places.append(thing.place)
        return len(self.places) - 1

    def reducer_override(self, thing: Any) -> Reduced | Any:
        found = None if self._lender is None else self._lender.reduced(thing)
        return super().reducer_override(thing) if found is None else found


class _Unpacker(pickle.Unpickler):
    def __init__(self, parcel: Parcel, store: Store) -> None:
        super().__init__(BytesIO(parcel.content))
        self._places, self._store = parcel.places, store

    def persistent_load(self, number: int) -> Stored:
        return Stored(self._places[number], self._store)


def pack(thing: Any, lender: Lender | None = None) -> Parcel:
    """Anything; with a lender, clients travel without their rows."""
    with BytesIO() as file:
        packer = _Packer(file, lender)
        packer.dump(thing)
        return Parcel(file.getvalue(), packer.places)


def unpack(parcel: Parcel, store: Store) -> Any:
    """What was packed."""
    return _Unpacker(parcel, store).load()
