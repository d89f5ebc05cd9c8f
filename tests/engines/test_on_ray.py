"""The engine on Ray: two nodes of a cluster on loopback, one of which dies; and one that a command starts alone."""

from __future__ import annotations

import gc
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

from fedhip.engines.cluster import _MANNERS, _patiently  # noqa: E402
from fedhip.engines.on_ray import RayEngine, ray_engine  # noqa: E402
from fedhip.engines.rows import Lender  # noqa: E402
from fedhip.errors import FedHiPWarning, InputError  # noqa: E402
from fedhip.heads.task import Task  # noqa: E402
from fedhip.runs import Run  # noqa: E402
from fedhip.runs.packs import recording  # noqa: E402
from fedhip.runs.run import run  # noqa: E402
from fedhip.simulation.client import Client  # noqa: E402
from fedhip.utils.parallel import in_order, is_elsewhere, summed  # noqa: E402
from fedhip.utils.progress import silent  # noqa: E402
from fedhip.utils.text import json_text  # noqa: E402
from tests.runs.samples import EXACT, feature_file, feature_set  # noqa: E402
from tests.waiting import PATIENCE, until  # noqa: E402

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
        assert process.wait(PATIENCE) == 130
        assert [line for line in lines if "█" not in line and "░" not in line] == ["fedhip: interrupted\n"]
    assert not folder.exists()
    until(lambda: not children_in(str(folder)))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def engine(cluster: Any) -> Iterator[RayEngine]:
    with ray_engine(None, NEEDED, silent) as found:
        yield found


def files_of(folder: Path) -> dict[str, bytes]:
    """Sums and models."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] in EXACT
    }


def said(found: Run) -> Any:
    """What its files say, but for seconds."""

    def timeless(value: Any) -> Any:
        return {k: timeless(v) for k, v in value.items() if k != "seconds"} if isinstance(value, dict) else value

    return timeless(found.results), json_text(timeless(found.details))


def same(data: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **told: Any) -> Run:
    """A run, after it gave the same here and on the cluster."""
    here = run(data, out=folder / "here", **told)
    asked, answers = list[int](), RayEngine.in_order

    def counted(self: RayEngine, function: Any, items: Any) -> Any:
        items = list(items)
        asked.append(len(items))
        return answers(self, function, items)

    monkeypatch.setattr(RayEngine, "in_order", counted)
    monkeypatch.setattr("fedhip.engines.on_ray._TASKS", 1)  # several clients to a task
    there = run(data, out=folder / "there", engine="ray", **told)
    assert asked
    assert files_of(there.path) == files_of(here.path) != {}
    assert said(there) == said(here)
    return there


@pytest.mark.usefixtures("cluster", "no_report")
@pytest.mark.parametrize("head", ["ridge", "lda", "logistic", "auto"])
def test_every_head_gives_the_same_bits(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lift = {} if head == "ridge" else {"lift": "none"}
    same(feature_set("abcde"), tmp_path, monkeypatch, head=head, methods=["local", "global", "fedhip"], **lift)


@pytest.mark.usefixtures("cluster", "no_report")
def test_every_rival_gives_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that ask for something of each client, and one that trains by gradients: here, whatever the engine."""
    rivals = ["local", "global", "pfedfda", "apfl", "knn-per-lda", "fedavg"]
    same(feature_set("abcde"), tmp_path, monkeypatch, head="ridge", methods=rivals, rounds=1, prior="client")


@pytest.mark.usefixtures("cluster", "no_report")
def test_rows_that_lie_in_a_file_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhip.data.array_files.MAPPED", 1)
    monkeypatch.setattr("fedhip.engines.rows._SMALL", 0)
    put, before = list[Any](), Lender._put

    def counted(self: Lender, thing: Any) -> Any:
        put.append(thing)
        return before(self, thing)

    monkeypatch.setattr(Lender, "_put", counted)
    file = feature_file(tmp_path / "f.npz", ["a", "b", "c", "d"], rows=40)
    same(file, tmp_path, monkeypatch, head="ridge")
    assert not put
    same(feature_set(), tmp_path / "memory", monkeypatch, head="ridge")
    assert put  # the rows of a client, or of its hold-out: each once
    assert len({id(features) for features, _ in put}) == len(put)


@pytest.mark.usefixtures("cluster", "no_report")
@pytest.mark.parametrize("mapped", [1, 2**28])
def test_very_many_clients_give_the_same_packs(mapped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhip.data.array_files.MAPPED", mapped)
    monkeypatch.setattr(recording, "MANY", 10)
    monkeypatch.setattr("fedhip.simulation.many.rows.PACK", 4)
    monkeypatch.setattr("fedhip.simulation.many.rows._BLOCK_BYTES", 2000)
    there = same(feature_file(tmp_path / "f.npz", [f"c{k}" for k in range(11)]), tmp_path, monkeypatch)
    assert (there.path / "models/pack-00002.safetensors").is_file()


def same_rows(one: Client, other: Client) -> bool:
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True)
    )


def test_a_client_arrives_with_its_rows_and_no_other_is_taken_for_it(engine: RayEngine) -> None:
    for value in range(9):  # objects in the same place, one after the other
        rows = np.full((300, 8), float(value)), np.full(300, value)
        small = np.full((2, 8), float(value)), np.full(2, value)
        for client in (Client("same", rows, rows), Client("small", small, small)):
            found = ray.get(ray.put([client]))[0]
            assert same_rows(found, client)
            assert found.train[0].flags.writeable
            assert found.train[1].flags.writeable
        del client, found
    gc.collect()
    assert not engine.lender._lent


def test_a_task_travels_without_whom_to_tell(engine: RayEngine) -> None:
    class Screen:
        def __call__(self, *_: object) -> None: ...

        def __reduce__(self) -> str:
            raise AssertionError("it stays")

    rows = np.zeros((4, 2)), np.arange(4)
    task = Task([Client("a", rows, rows)], 4, {"alpha": 2.0}, report=Screen(), uploads={"0": Screen()}, seed=3)  # type: ignore[dict-item]
    found = ray.get(ray.put(task))
    assert (found.num_classes, found.options, found.uploads, found.seed) == (4, {"alpha": 2.0}, {}, 3)
    found.report("a", 1, 2)
    assert same_rows(found.clients[0], task.clients[0])
    assert task.uploads


def test_what_is_to_be_done_here_is_done_here(engine: RayEngine) -> None:
    seen: list[int] = []
    assert is_elsewhere()
    assert list(in_order(seen.append, range(4))) == [None] * 4
    assert seen == []  # copies of the list were appended to
    assert list(in_order(seen.append, range(4), here=True)) == [None] * 4
    assert sorted(seen) == [0, 1, 2, 3]


@pytest.mark.parametrize("tasks", [1, 8])
def test_answers_come_in_order_with_their_warnings(
    tasks: int, engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedhip.engines.on_ray._TASKS", tasks)

    def answer(n: int) -> int:
        if n == 3:
            warnings.warn("three", FedHiPWarning, stacklevel=1)
        if n == 11:
            raise InputError("eleven")
        time.sleep(0.02 * (5 - n % 5))
        return n

    with pytest.warns(FedHiPWarning, match="three"):
        assert list(in_order(answer, range(10))) == list(range(10))
    answers = in_order(answer, range(10, 20))
    assert next(answers) == 10
    with pytest.raises(InputError, match=r"^eleven$"):
        next(answers)


def test_a_sum_is_added_in_a_tree(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhip.engines.on_ray._FAN_IN", 3)
    monkeypatch.setattr("fedhip.engines.on_ray._MOST", 1)
    told: list[int] = []
    total = summed(lambda n: 10**n, range(15), look=lambda n, _: n, seen=lambda n, _: told.append(n))
    assert total == int("1" * 15)
    assert told == list(range(15))


def test_a_cluster_that_is_too_small_is_refused_in_a_line(cluster: Any) -> None:
    line = r"a task takes about 8\.6 GB of memory, and no node of the Ray cluster gives more than 1\.1 GB; start nodes"
    with pytest.raises(InputError, match=line), ray_engine(None, 2**33, silent):
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
