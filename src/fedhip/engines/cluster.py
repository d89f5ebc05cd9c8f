"""A Ray cluster: one of this machine's own cores, or one that is there already, and whether a task has room on it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from fedhip.errors import FedHiPError, InputError, MissingExtraError
from fedhip.utils.parallel import available_cores
from fedhip.utils.progress import ReportProgress
from fedhip.utils.words import size

Result = TypeVar("Result")

#: Seconds to connect in, and how often a cluster is started at most.
_CONNECT, _STARTS = 5.0, 4
_MISSING = "--engine ray needs Ray; pip install 'fedhip[ray]'"
_LOOPBACK = "127.0.0.1"
#: Ray sends no statistics of its use, and leaves alone what says which GPUs there are.
_MANNERS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
#: Bytes of a process with torch before it has any rows; matrices (m, m) of float64 at once; copies of rows (N, m).
_PROCESS, _MATRICES, _COPIES = 400 * 2**20, 10, 6
#: Of very many clients blocks and batches are worked on at a time.
_BLOCKS = 2**28


def bytes_of_a_task(width: int, largest: int) -> int:
    """How much memory a client's work takes: of features this wide, and clients of at most so many rows."""
    m = width + 1
    return _PROCESS + _BLOCKS + 8 * m * (_MATRICES * m + _COPIES * largest)


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
def ray_connected(address: str | None, report: ReportProgress) -> Iterator[Any]:
    """Ray, on the cluster at this address; without one, on that of this process, or on one for this run alone."""
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
        yield ray


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
        raise FedHiPError(f"Ray does not start ({first_line(error)}); try again, or leave --engine ray out") from error
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
        raise InputError(f"the Ray cluster at {address} cannot be joined: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error of Ray says, without where it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")


def nodes_of(ray: Any) -> list[dict[str, Any]]:
    """The nodes that are alive and offer a processor."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def has_room(ray: Any, needed: int) -> bool:
    """Whether a node gives so many bytes of memory to a task."""
    return any(node["Resources"].get("memory", 0) >= needed for node in nodes_of(ray))


def require_room(ray: Any, needed: int) -> None:
    """Refuse a cluster none of whose nodes has the memory that a task takes."""
    nodes = nodes_of(ray)
    if not nodes:
        raise InputError("no node of the Ray cluster offers a processor; start one with ray start --num-cpus")
    if not has_room(ray, needed):
        most = int(max(node["Resources"].get("memory", 0) for node in nodes))
        raise InputError(
            f"a task takes about {size(needed)} of memory, and no node of the Ray cluster gives more than "
            f"{size(most)}; start nodes with more (ray start --memory), or make the features narrower"
        )
