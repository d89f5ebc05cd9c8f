"""An engine that does in this process what a cluster does in others: nothing reaches a task but copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fedhip.engines.lending import Lender
from fedhip.engines.parcels import Parcel, pack, unpack
from fedhip.engines.work import added, mapped, mapped_and_added, results_of


class Shelf:
    """A store of this process, which counts what is put into it."""

    def __init__(self) -> None:
        self.things: list[Any] = []

    def put(self, thing: Any) -> int:
        self.things.append(thing)
        return len(self.things) - 1

    def get(self, place: int) -> Any:
        return self.things[place]


class Copying:
    """Items in tasks of two, sums of three added at a time, the last first."""

    def __init__(self) -> None:
        self.store = Shelf()
        self.lender = Lender(self.store)
        self.functions = 0

    def in_order(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        known = self._copy(function)
        for chunk in _by_two(list(items)):
            yield from self._results(mapped(known, pack(chunk, self.lender), self.store))

    def summed(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        look: Callable[[Any, Any], Any],
        seen: Callable[[Any, Any], None],
    ) -> Any:
        known, terms = self._copy((function, look)), list[Parcel]()
        for chunk in _by_two(list(items)):
            term, found = mapped_and_added(known, pack(chunk, self.lender), self.store)
            for item, told in zip(chunk, self._results(found), strict=True):
                seen(item, told)
            assert term is not None
            terms.append(term)
        while len(terms) > 1:
            terms = [*terms[:-3], added(terms[:-4:-1], self.store)]
        return unpack(terms[0], self.store) if terms else None

    def _copy(self, function: Any) -> Any:
        self.functions += 1
        return unpack(pack(function, self.lender), self.store)

    def _results(self, parcel: Parcel) -> Iterator[Any]:
        return results_of(unpack(parcel, self.store))


def _by_two(items: list[Any]) -> Iterator[list[Any]]:
    return (items[at : at + 2] for at in range(0, len(items), 2))
