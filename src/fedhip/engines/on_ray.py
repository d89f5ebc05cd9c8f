"""Clients' work as tasks of a Ray cluster, with Ray's own serialization of what travels.

A task that is lost with its worker or its node is run again elsewhere, from the same function and the same rows. Sums
of whole numbers are added where they are made, sixteen at a time.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from fedhip.engines.cluster import first_line, has_room, nodes_of, ray_connected, require_room
from fedhip.engines.rows import Lender
from fedhip.engines.tasks import Known, each, each_and_sum, processor, sum_of, versions
from fedhip.errors import FedHiPError, FedHiPWarning, InputError
from fedhip.utils.parallel import one_thread, working_on
from fedhip.utils.progress import ReportProgress
from fedhip.utils.words import size

Item = TypeVar("Item")
Result = TypeVar("Result")

#: How often a task is run again whose worker or node was lost.
_RETRIES = 8
#: Tasks for each processor, in which all items are divided, and items of a task at most.
_TASKS, _MOST = 8, 16
#: Tasks for each processor that have begun, or wait for one.
_AHEAD = 3
#: Sums that are added by one task.
_FAN_IN = 16
#: Seconds between looks at the cluster, and without a node before the run gives up.
_LOOK, _PATIENCE = 2.0, 60.0


@contextmanager
def ray_engine(address: str | None, needed: int, report: ReportProgress) -> Iterator[RayEngine]:
    """Clients' work runs on a Ray cluster; a task needs so many bytes."""
    with ray_connected(address, report) as ray:
        require_room(ray, needed)
        engine = RayEngine(ray, needed)
        with engine.lender.lending(), working_on(engine):
            yield engine


class RayEngine:
    """Runs pure functions of items as tasks, each of which may take so many bytes."""

    def __init__(self, ray: Any, needed: int) -> None:
        self._ray, self._needed = ray, needed
        self.lender = Lender(ray)
        self._warned: set[str] = set()
        options = {"num_cpus": 1, "memory": needed, "max_retries": _RETRIES}
        self._each = ray.remote(**options)(each)
        self._each_and_sum = ray.remote(num_returns=2, **options)(each_and_sum)
        self._sum = ray.remote(**options)(sum_of)

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function(item)` for each item, in their order."""
        items = list(items)
        if len(items) < 2:
            for item in items:
                with one_thread():
                    yield function(item)
            return
        known = self._known(function)
        waiting: deque[Any] = deque()
        processors = self._processors()
        try:
            for chunk in _chunks(items, processors):
                waiting.append(self._each.remote(known, versions(), chunk))
                if len(waiting) > _AHEAD * processors:
                    yield from self._results(waiting.popleft())
            while waiting:
                yield from self._results(waiting.popleft())
        finally:
            self._cancel(waiting)

    def summed(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        look: Callable[[Item, Result], Any],
        seen: Callable[[Item, Any], None],
    ) -> Result | None:
        """The sum of `function(item)`, in a tree."""
        items = list(items)
        if not items:
            return None
        known = self._known((function, look))
        waiting: deque[tuple[list[Item], Any, Any]] = deque()
        levels: list[list[Any]] = [[]]
        processors = self._processors()
        try:
            for chunk in _chunks(items, processors):
                waiting.append((chunk, *self._each_and_sum.remote(known, versions(), chunk)))
                if len(waiting) > _AHEAD * processors:
                    self._see(*waiting.popleft(), seen, levels)
            while waiting:
                self._see(*waiting.popleft(), seen, levels)
        finally:
            self._cancel([found for _, _, found in waiting])
        rest = [term for level in levels for term in level]
        while len(rest) > 1:
            rest = [self._added(rest[at : at + _FAN_IN]) for at in range(0, len(rest), _FAN_IN)]
        total: Result = self._got(rest[0])
        return total

    def _see(
        self, chunk: list[Item], total: Any, found: Any, seen: Callable[[Item, Any], None], levels: list[list[Any]]
    ) -> None:
        for item, told in zip(chunk, self._results(found), strict=True):
            seen(item, told)
        levels[0].append(total)
        for level, terms in enumerate(levels):
            if len(terms) == _FAN_IN:
                if level + 1 == len(levels):
                    levels.append([])
                levels[level + 1].append(self._added(terms))
                levels[level] = []

    def _added(self, terms: list[Any]) -> Any:
        return terms[0] if len(terms) == 1 else self._sum.remote(*terms)

    def _known(self, function: Any) -> Known:
        """A function, put where every worker reads it once."""
        return [self._ray.put(function)]

    def _processors(self) -> int:
        return max(int(sum(node["Resources"].get("CPU", 0) for node in nodes_of(self._ray))), 1)

    def _results(self, place: Any) -> Iterator[Any]:
        """What a task found, one after the other; then how the first item failed that did. Its warnings are given."""
        found = self._got(place)
        self._compare(found.processor)
        for one in found.warned:
            warnings.warn_explicit(one.message, one.category, one.file, one.line)
        yield from found.results
        if found.error is not None:
            raise found.error

    def _compare(self, theirs: str) -> None:
        if theirs != processor() and theirs not in self._warned:
            self._warned.add(theirs)
            warnings.warn(
                f"a node of the cluster computes with {theirs}, and this one with {processor()}: sums are the same "
                "bits, and models may differ in their last",
                FedHiPWarning,
                stacklevel=2,
            )

    def _got(self, place: Any) -> Any:
        since: float | None = None
        while not self._ray.wait([place], timeout=_LOOK)[0]:
            if has_room(self._ray, self._needed):
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                raise FedHiPError(
                    "no node of the Ray cluster is left that has room for a task; start one, and run again"
                )
        try:
            return self._ray.get(place)
        except self._ray.exceptions.RayError as error:
            raise self._in_words(error) from error

    def _in_words(self, error: Exception) -> Exception:
        """What Ray says, in a line."""
        kinds = self._ray.exceptions
        if isinstance(error, kinds.OutOfMemoryError | kinds.ObjectStoreFullError | kinds.OutOfDiskError):
            return InputError(
                f"a node of the Ray cluster ran out of memory (a task takes about {size(self._needed)}); give it "
                "fewer processors (ray start --num-cpus), or more memory"
            )
        cause = getattr(error, "cause", None)
        if isinstance(cause, FedHiPError):
            return cause
        if isinstance(cause, ImportError) or "ModuleNotFoundError" in str(error):
            return InputError("a node of the Ray cluster cannot import fedhip; install the same version on all nodes")
        return FedHiPError(f"a task failed {_RETRIES + 1} times on the Ray cluster: {first_line(error)}")

    def _cancel(self, places: Iterable[Any]) -> None:
        for place in places:
            with suppress(Exception):  # it is over, or the cluster is gone
                self._ray.cancel(place, force=True)


def _chunks(items: list[Item], processors: int) -> Iterator[list[Item]]:
    """The items of one task after the other."""
    number = min(max(len(items) // (_TASKS * processors), 1), _MOST)
    return (items[at : at + number] for at in range(0, len(items), number))
