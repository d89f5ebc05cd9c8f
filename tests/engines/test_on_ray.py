"""The engine on Ray: two nodes of a cluster on loopback, one of which dies; and one that a command starts alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="pip install '.[ray]'")

from fedhip.engines.on_ray import _MANNERS, RayEngine, _patiently, ray_cluster  # noqa: E402
from fedhip.errors import FedHiPWarning, InputError  # noqa: E402
from fedhip.runs.run import run  # noqa: E402
from fedhip.utils.parallel import in_order, summed  # noqa: E402
from fedhip.utils.progress import silent  # noqa: E402
from tests.engines.test_lending import files_of, said  # noqa: E402
from tests.runs.samples import feature_file, feature_set  # noqa: E402

pytestmark = pytest.mark.slow
NEEDED = 2**28


@contextmanager
def on_loopback() -> Iterator[None]:
    from ray._private import ray_constants

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        for name, value in _MANNERS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, of one processor each."""
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 2**27, "memory": 2**30}
    found = Cluster()
    with on_loopback():
        for _ in range(2):
            _patiently(lambda: found.add_node(include_dashboard=False, **node), lambda: None)
        ray.init(address=found.address, log_to_driver=False, configure_logging=False)
    try:
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def children_in(folder: str) -> list[int]:
    """Processes that were told of a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder in (process / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(process.name))
    return found


def heard_at(processes: list[int]) -> set[str]:
    """The addresses, as the kernel writes them, at which they listen."""
    sockets = set()
    for process in processes:
        with suppress(OSError):
            sockets |= {str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(words[1].rpartition(":")[0])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_command_starts_a_cluster_of_its_own_and_ends_it_when_interrupted(tmp_path: Path) -> None:
    data = feature_file(tmp_path / "f.npz", [f"c{k}" for k in range(400)], rows=40)
    words = [sys.executable, "-m", "fedhip", "run", "--features", str(data), "--out", str(tmp_path / "run")]
    with subprocess.Popen(  # noqa: S603
        [*words, "--engine", "ray", "--head", "ridge"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("starting Ray" in line and "1/1" in line for line in lines)
        (session,) = Path("/tmp").glob(f"fedhip-ray-*/session_*_{process.pid}")  # noqa: S108
        folder = session.parent
        processes = children_in(str(folder))
        assert heard_at(processes) <= {"0100007F", "0000000000000000FFFF00000100007F", f"{'0' * 24}01000000"}
        assert heard_at(processes)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert [line for line in lines if "█" not in line and "░" not in line] == ["fedhip: interrupted\n"]
    assert not folder.exists()
    for _ in range(100):
        if not (left := children_in(str(folder))):
            break
        time.sleep(0.1)
    assert not left
    assert not (tmp_path / "run").exists()


@pytest.fixture
def engine(cluster: Any) -> Iterator[RayEngine]:
    with ray_cluster(None, NEEDED, silent) as found:
        yield found


@pytest.mark.usefixtures("cluster", "no_report")
@pytest.mark.parametrize("head", ["ridge", "lda"])
def test_sums_and_models_are_the_same_bits(head: str, tmp_path: Path) -> None:
    told: dict[str, Any] = {"head": head, "methods": ["local", "global", "fedhip"]}
    here = run(feature_set(), out=tmp_path / "here", **told)
    there = run(feature_set(), out=tmp_path / "there", engine="ray", **told)
    assert files_of(there.path) == files_of(here.path) != {}
    assert said(there) == said(here)


def test_answers_come_in_order_with_their_warnings(engine: RayEngine) -> None:
    def answer(n: int) -> int:
        if n == 3:
            warnings.warn("three", FedHiPWarning, stacklevel=1)
        if n == 11:
            raise InputError("eleven")
        time.sleep(0.02 * (5 - n % 5))
        return n

    with pytest.warns(FedHiPWarning, match="three"):
        assert list(in_order(answer, range(10))) == list(range(10))
    with pytest.raises(InputError, match=r"^eleven$"):
        list(in_order(answer, range(10, 20)))


def test_a_sum_is_added_in_a_tree(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhip.engines.on_ray._FAN_IN", 3)
    monkeypatch.setattr("fedhip.engines.on_ray._MOST", 1)
    told: list[int] = []
    total = summed(lambda n: 10**n, range(15), look=lambda n, _: n, seen=lambda n, _: told.append(n))
    assert total == int("1" * 15)
    assert told == list(range(15))


def test_a_cluster_that_is_too_small_is_refused_in_a_line(cluster: Any) -> None:
    line = r"a task takes about 8\.6 GB of memory, and no node of the Ray cluster gives more than 1\.1 GB; start nodes"
    with pytest.raises(InputError, match=line), ray_cluster(None, 2**33, silent):
        raise AssertionError("it was let in")


def test_an_interrupt_ends_the_work_and_not_the_cluster(engine: RayEngine) -> None:
    def answer(n: int) -> int:
        time.sleep(0.2 * n)
        return n

    answers = in_order(answer, range(30))
    assert next(answers) == 0
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            list(answers)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert list(in_order(lambda n: -n, range(4))) == [0, -1, -2, -3]


def test_a_lost_worker_costs_its_task(engine: RayEngine, tmp_path: Path) -> None:
    def answer(n: int) -> int:
        mark = tmp_path / "died"
        if n == 1 and not mark.exists():
            mark.touch()
            os._exit(1)
        return n

    assert list(in_order(answer, range(4))) == list(range(4))
    assert (tmp_path / "died").exists()


def test_a_lost_node_costs_its_tasks(cluster: Any, engine: RayEngine, tmp_path: Path) -> None:
    """Last: it is not there any more afterwards. Sums that were made there are made again."""
    (lost,) = cluster.worker_nodes
    node = lost.node_id

    def answer(n: int) -> Any:
        (tmp_path / f"{n}-{ray.get_runtime_context().get_node_id()}").touch()
        while not list(tmp_path.glob(f"*-{node}")):  # both nodes have work
            time.sleep(0.05)
        time.sleep(0.2)
        return np.full(2**16, 1 << n)  # too large to travel with the answer

    def seen(n: int, _: None) -> None:
        if n == 3:
            cluster.remove_node(lost, allow_graceful=False)

    total = summed(answer, range(12), seen=seen)
    assert total is not None
    assert np.array_equal(total, np.full(2**16, 2**12 - 1))
    assert {int(path.name.split("-")[0]) for path in tmp_path.iterdir()} == set(range(12))
    assert len(list(tmp_path.iterdir())) > 12  # some were done twice
