"""A federation of real servers, nodes and apps on loopback, and machines on which something is wrong."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.init import init
from fedhip.federation.operations import background, process_registry, round_control, serving
from fedhip.federation.operations.paths import ServerPaths, StatePaths
from fedhip.federation.transport import engine
from fedhip.runs import Run
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, WIDTH, sum_of, write_rows


def own_surroundings(patch: pytest.MonkeyPatch, *first: Path) -> None:
    """Of processes that a test starts: one thread, and modules from these folders before all others."""
    patch.setenv("OMP_NUM_THREADS", "1")
    source = Path(__file__).parents[3] / "src"  # for a checkout that is not installed
    places = [*map(str, (*first, source)), os.environ.get("PYTHONPATH")]
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))


class Demo:
    """A federation of feature files and its processes."""

    def __init__(self, folder: Path, sites: Sequence[str] = FOUR, deadline: float = 90.0) -> None:
        self.folder, self.sites = folder / "fed", sites
        made = init(
            self.folder,
            name="demo",
            sites=sites,
            classes=CLASSES,
            width=WIDTH,
            port=engine.free_port(),
            quorum=3,
            deadline=deadline,  # who is slow is not to be left out; who is gone costs as much
            **ONE_SUM,
        )
        serving.write_endpoint(self.folder, made.address)
        self.place = ServerPaths.open(self.folder)
        self.rows = {site: write_rows(folder / f"{site}.npz", site) for site in sites}

    def serve(self, status_port: int | None = None) -> None:
        page = {} if status_port is None else {"status_port": status_port}
        settings = {"folder": str(self.folder), "bind": None, "port": None, "proxy": True, "log_format": "json", **page}
        background.apart("serve", settings)

    def come(self, *sites: str) -> None:
        """Start sites at once."""
        settings = [
            {
                "folder": str(self.folder / f"site-{name}"),
                "settings": {"data": str(self.rows[name])},
                "log_format": "json",
            }
            for name in sites
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(background.apart, ["site"] * len(sites), settings))

    def run(self, say: Callable[[str], None] = lambda _: None) -> Run:
        return Run.open(round_control.run(self.place, say=say))

    def pids(self, folder: str) -> Path:
        return StatePaths(self.folder / folder / "state").pids

    def kill(self, name: str, folder: str = ".") -> None:
        """Kill one process, and nothing that it started."""
        found = process_registry.find(self.pids(folder), name)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)

    def kill_forks(self, folder: str, *, all_of_them: bool) -> bool:
        """Kill what answers at a site, and what that is forked from; the first of these too, if all are to go.

        False where its node is being started again.
        """
        node = process_registry.find(self.pids(folder), "node")
        if node is None:
            return False
        for pid in set(process_registry._members(node)) - {node.pid}:
            with contextlib.suppress(OSError):  # it has just ended
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if all_of_them or parent != node.pid:
                    os.kill(pid, signal.SIGKILL)
        return True

    def signal_all(self, folder: str, number: signal.Signals) -> None:
        """To every process of a site."""
        for record in process_registry.recorded(self.pids(folder)):
            for pid in process_registry._members(record):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def sum_of(self, sites: Sequence[str]) -> GridStatistics:
        """What one process makes of the same rows."""
        return sum_of(sites, Agreement.read(self.folder / "federation.toml"))
