"""Clients' work as tasks of a Ray cluster: one of this machine's own cores, or one that is there already.

A task that is lost with its worker or its node is run again elsewhere, from the same function and the same rows. Sums
of whole numbers are added where they are made, sixteen at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import FedHiPError, FedHiPWarning, InputError, MissingExtraError
from fedhip.utils.parallel import available_cores, one_thread, working_on
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
#: Seconds to connect in, between looks at the cluster, and without a node before the run gives up.
_CONNECT, _LOOK, _PATIENCE = 5.0, 2.0, 60.0
#: How often it is started at most.
_STARTS = 4
_MISSING = "--engine ray needs Ray; pip install 'fedhip[ray]'"
_LOOPBACK = "127.0.0.1"
#: Ray sends no statistics of its use, and leaves alone what says which GPUs there are.
_MANNERS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def require_ray(address: str | None) -> None:
    """Refuse a Ray that is not installed, and a cluster that is not there."""
    if find_spec("ray") is None:
        raise MissingExtraError(_MISSING)
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise InputError(f"{address!r} is no address of a Ray cluster; give HOST:PORT, such as 10.0.0.5:6379, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one with ray start --head, or "
            "correct --ray-address"
        ) from error


def _ray() -> Any:
    for name, value in _MANNERS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(_MISSING) from error
    return ray


@contextmanager
def ray_cluster(address: str | None, needed: int, report: ReportProgress) -> Iterator[RayEngine]:
    """Clients' work runs on a cluster: this one, or one of this machine alone; a task needs so many bytes."""
    ray = _ray()
    with ExitStack() as stack:
        if not ray.is_initialized():
            report("starting Ray", 0, 1)
            # Ray puts one of its own in its place.
            if threading.current_thread() is threading.main_thread():
                stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
            stack.callback(ray.shutdown)
            if address is None:
                _start(ray, stack)
            else:
                _join(ray, address)
            report("starting Ray", 1, 1)
        engine = RayEngine(ray, needed)
        engine.require_room()
        stack.enter_context(working_on(engine))
        yield engine


def _start(ray: Any, stack: ExitStack) -> None:
    """A cluster of this machine's cores, which hears nobody but this machine, and leaves nothing behind."""
    from ray._private import ray_constants

    folder = Path(tempfile.mkdtemp(prefix="fedhip-ray-", dir="/tmp" if Path("/tmp").is_dir() else None))  # noqa: S108  (sockets' paths are short)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stack.callback(ray.shutdown)  # before its folder goes
    # Without it, Ray takes the machine's address for 127.0.0.1, and hears everybody on it.
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        _patiently(
            lambda: ray.init(
                address="local",
                num_cpus=available_cores(),
                num_gpus=0,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                _node_ip_address=_LOOPBACK,
                _temp_dir=str(folder),
            ),
            ray.shutdown,
        )
    except Exception as error:
        raise FedHiPError(f"Ray does not start ({_first_line(error)}); try again, or leave --engine ray out") from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
    heard = {node["NodeManagerAddress"] for node in ray.nodes()}
    if heard != {_LOOPBACK}:
        raise FedHiPError(f"this version of Ray listens at {', '.join(sorted(heard))}; install the one of fedhip[ray]")


def _patiently(start: Callable[[], Result], stop: Callable[[], Any]) -> Result:
    """Ray gives itself half a minute to start, which is too little where others work too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_STARTS - 1):
            try:
                return start()
            except Exception:
                stop()
        return start()


def _join(ray: Any, address: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError) as error:
        where = "there is no Ray cluster here" if address == "auto" else f"no Ray cluster answers at {address}"
        raise InputError(f"{where}; start one with ray start --head, or correct --ray-address") from error
    except Exception as error:
        raise InputError(f"the Ray cluster at {address} cannot be joined: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")


class _RayStore:
    """Ray's object store, as it is seen in a worker: what was read lately is kept."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._kept: dict[Any, Any] = {}

    def put(self, thing: Any) -> Any:
        return self._ray.put(thing)

    def get(self, place: Any) -> Any:
        if place not in self._kept:
            while len(self._kept) > 8:
                self._kept.pop(next(iter(self._kept)))
            self._kept[place] = self._ray.get(place)
        return self._kept[place]


class RayEngine:
    """Runs pure functions of items as tasks, each of which may take so many bytes."""

    def __init__(self, ray: Any, needed: int) -> None:
        from fedhip.engines.lending import Lender

        self._ray, self._needed = ray, needed
        self._store = _RayStore(ray)
        self._lender = Lender(self._store)
        self._warned: set[str] = set()
        options = {"num_cpus": 1, "memory": needed, "max_retries": _RETRIES}
        self._map = ray.remote(**options)(_map)
        self._map_and_add = ray.remote(num_returns=2, **options)(_map_and_add)
        self._add = ray.remote(**options)(_add)

    def lend(
        self, clients: Sequence[Any], features: NDArray[Any], places: Sequence[tuple[NDArray[np.int64], ...]]
    ) -> None:
        """Clients whose rows are at these places of the features: they travel without them."""
        self._lender.lend(clients, features, places)  # type: ignore[arg-type]

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function(item)` for each item, in their order."""
        items = list(items)
        if len(items) < 2:
            for item in items:
                with one_thread():
                    yield function(item)
            return
        known = self._shared(function)
        waiting: deque[Any] = deque()
        processors = self._processors()
        try:
            for chunk in _chunks(items, processors):
                waiting.append(self._map.remote(known, self._packed(chunk)))
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
        known = self._shared((function, look))
        waiting: deque[tuple[list[Item], Any, Any]] = deque()
        levels: list[list[Any]] = [[]]
        processors = self._processors()
        try:
            for chunk in _chunks(items, processors):
                waiting.append((chunk, *self._map_and_add.remote(known, self._packed(chunk))))
                if len(waiting) > _AHEAD * processors:
                    self._see(*waiting.popleft(), seen, levels)
            while waiting:
                self._see(*waiting.popleft(), seen, levels)
        finally:
            self._cancel([found for _, _, found in waiting])
        rest = [term for level in levels for term in level]
        while len(rest) > 1:
            rest = [self._added(rest[at : at + _FAN_IN]) for at in range(0, len(rest), _FAN_IN)]
        total: Result = self._unpacked(self._got(rest[0]))
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
        return terms[0] if len(terms) == 1 else self._add.remote(*terms)

    # --- what travels

    def _shared(self, function: Any) -> list[Any]:
        """A function, put where every worker reads it once."""
        from fedhip.engines.parcels import pack
        from fedhip.engines.work import versions

        return [self._ray.put((versions(), *pack(function, self._lender)))]

    def _packed(self, items: list[Any]) -> tuple[bytes, list[Any]]:
        from fedhip.engines.parcels import pack

        return tuple(pack(items, self._lender))  # type: ignore[return-value]

    def _unpacked(self, parcel: Any) -> Any:
        from fedhip.engines.parcels import Parcel, unpack

        return unpack(Parcel(*parcel), self._store)

    def _processors(self) -> int:
        return max(int(sum(node["Resources"].get("CPU", 0) for node in self._nodes())), 1)

    # --- what comes back

    def _results(self, place: Any) -> Iterator[Any]:
        from fedhip.engines.work import results_of

        found = self._unpacked(self._got(place))
        self._compare(found.processor)
        yield from results_of(found)

    def _compare(self, theirs: str) -> None:
        from fedhip.engines.work import processor

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
            if self._fitting():
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
        return FedHiPError(f"a task failed {_RETRIES + 1} times on the Ray cluster: {_first_line(error)}")

    def _cancel(self, places: Iterable[Any]) -> None:
        for place in places:
            with suppress(Exception):  # it is over, or the cluster is gone
                self._ray.cancel(place, force=True)

    # --- the cluster

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]

    def _fitting(self) -> bool:
        return any(node["Resources"].get("memory", 0) >= self._needed for node in self._nodes())

    def require_room(self) -> None:
        """Refuse a cluster none of whose nodes has the memory that a task takes."""
        nodes = self._nodes()
        if not nodes:
            raise InputError("no node of the Ray cluster offers a processor; start one with ray start --num-cpus")
        if not self._fitting():
            most = int(max(node["Resources"].get("memory", 0) for node in nodes))
            raise InputError(
                f"a task takes about {size(self._needed)} of memory, and no node of the Ray cluster gives more than "
                f"{size(most)}; start nodes with more (ray start --memory), or make the features narrower"
            )


def _chunks(items: list[Item], processors: int) -> Iterator[list[Item]]:
    """The items of one task after the other."""
    each = min(max(len(items) // (_TASKS * processors), 1), _MOST)
    return (items[at : at + each] for at in range(0, len(items), each))


#: In a worker: the store, and the functions that were read last.
_WORKER: dict[str, Any] = {}
_FUNCTIONS: dict[Any, Any] = {}


def _worker_store() -> _RayStore:
    if "store" not in _WORKER:
        _WORKER["store"] = _RayStore(_ray())
    store: _RayStore = _WORKER["store"]
    return store


def _known(function: list[Any]) -> Any:
    """The function of a task, which is unpacked once for all its tasks here."""
    from fedhip.engines.parcels import Parcel, unpack
    from fedhip.engines.work import require_versions

    (place,) = function
    if place not in _FUNCTIONS:
        _FUNCTIONS.clear()
        theirs, *parcel = _ray().get(place)
        require_versions(theirs)
        _FUNCTIONS[place] = unpack(Parcel(*parcel), _worker_store())
    return _FUNCTIONS[place]


def _map(function: list[Any], items: tuple[bytes, list[Any]]) -> Any:
    from fedhip.engines.parcels import Parcel
    from fedhip.engines.work import mapped

    return mapped(_known(function), Parcel(*items), _worker_store())


def _map_and_add(function: list[Any], items: tuple[bytes, list[Any]]) -> Any:
    from fedhip.engines.parcels import Parcel
    from fedhip.engines.work import mapped_and_added

    return mapped_and_added(_known(function), Parcel(*items), _worker_store())


def _add(*terms: Any) -> Any:
    # Fetched before the task has a processor: one that waited on it for a lost term would keep the term from being
    # made again.
    from fedhip.engines.parcels import Parcel
    from fedhip.engines.work import added

    return added([Parcel(*term) for term in terms], _worker_store())
