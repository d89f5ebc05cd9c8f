"""Small federations: folders as `init` makes them, rows at each site, and what `fedhip run` makes of the same rows."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import add
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data import FeatureSet, make_partition
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.init import init
from fedhip.federation.server.round import Round
from fedhip.federation.site.folder import SiteFolder
from fedhip.federation.site.site import Site
from fedhip.federation.site.state import Session
from fedhip.federation.sums.vector import Vector, to_vector
from fedhip.federation.transport.exchange import Exchange
from fedhip.federation.transport.wire import Letter
from fedhip.runs import Run
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.driver import add_up
from fedhip.simulation.encoding import RowEncoding, encoding_of
from fedhip.simulation.options import RidgeOptions
from tests.core.problems import Array
from tests.federation.grid import Clock, Fault, LocalGrid

WIDTH, CLASSES, ROWS = 6, ("ape", "bee", "cat", "dog"), 15
EIGHT = tuple("abcdefgh")
FOUR = EIGHT[:4]
#: An agreement that says what the columns are and how β is found: the statistics are the only sum.
ONE_SUM: dict[str, Any] = {"columns": "plain", "beta": "gcv"}


def rows_of(site: str, rows: int = ROWS) -> tuple[Array, Array]:
    """A site's rows; nobody has a dog."""
    rng = np.random.default_rng(list(site.encode()))
    means = np.random.default_rng(1).normal(size=(3, WIDTH))
    labels = rng.integers(0, 3, rows)
    return means[labels] + rng.normal(size=(rows, WIDTH)), labels


def feature_set(sites: Sequence[str]) -> FeatureSet:
    parts = [rows_of(site) for site in sites]
    clients = np.repeat(np.array(list(sites)), ROWS)
    return FeatureSet(np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), CLASSES, clients)


def clients(sites: Sequence[str]) -> list[Client]:
    """The clients of `fedhip run` on these rows."""
    data = feature_set(sites)
    return clients_of(data, make_partition(data.labels, "natural", clients=data.clients))


def ridge_options(agreement: Agreement) -> RidgeOptions:
    """What `fedhip run` is told to do the same."""
    columns = Columns.plain(agreement.width) if agreement.columns == "plain" else None
    return RidgeOptions(
        agreement.standardize, agreement.intercept, fraction_bits=agreement.fraction_bits, columns=columns
    )


def encoding(agreement: Agreement, surveyed: Sequence[str] = FOUR) -> RowEncoding:
    """How `fedhip run` makes rows part of the sum, if these sites are asked what columns are like."""
    return encoding_of(clients(surveyed), len(CLASSES), ridge_options(agreement))


def sum_of(sites: Sequence[str], agreement: Agreement, surveyed: Sequence[str] | None = None) -> GridStatistics:
    """What `fedhip run` sums; `surveyed` are the sites of the first sum, where others have left since."""
    units = encoding(agreement, surveyed or sites)
    return add_up(units.statistics(client, len(CLASSES)) for client in clients(sites))


def vector_of(site: str, agreement: Agreement, surveyed: Sequence[str] = FOUR) -> Vector:
    (client,) = clients([site])
    return to_vector(encoding(agreement, surveyed).statistics(client, len(CLASSES)))


def survey_of(sites: Sequence[str], outliers: Mapping[str, float] = MappingProxyType({})) -> Vector:
    """The first sum of these sites, as it travels; a site may have an outlier in its first column."""
    surveys = []
    for client in clients(sites):
        client.train[0][0, 0] = outliers.get(client.name, client.train[0][0, 0])
        surveys.append(client.survey())
    return reduce(add, surveys).to_vector().view(np.uint64)


def write_rows(path: Path, site: str, **more: Any) -> Path:
    features, labels = rows_of(site)
    np.savez(path, **{"features": features, "labels": labels, "class_names": np.array(CLASSES), **more})
    return path


@lru_cache
def _made(sites: tuple[str, ...], settings: tuple[tuple[str, Any], ...]) -> Path:
    """Keys and certificates once for all tests that want the same; they go with this process."""
    parent = Path(mkdtemp(prefix="fedhip-federation-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    folder = parent / "made"
    init(folder, **{"name": "trial", "sites": sites, "classes": CLASSES, "width": WIDTH, **dict(settings)})
    return folder


@dataclass
class Trial:
    """A federation on disk and the engine in this process."""

    folder: Path
    sites: tuple[str, ...]
    grid: LocalGrid
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def make(cls, tmp_path: Path, sites: Sequence[str] = FOUR, **settings: Any) -> Trial:
        folder = tmp_path / "federation"
        settings.setdefault("deadline", 60.0)
        settings.setdefault("head", "ridge")  # which has the fewest sums; of the choice see test_choice.py
        settings.setdefault("few_rows", settings.get("secure_sum", True))  # of the census see test_census.py
        shutil.copytree(_made(tuple(sites), tuple(sorted(settings.items()))), folder)
        nodes = {}
        for number, site in enumerate(sites, start=101):
            data = write_rows(tmp_path / f"{site}.npz", site)
            config = {"site-folder": str(folder / f"site-{site}"), "data": str(data)}
            nodes[number] = Context(7, number, config, RecordDict(), {})  # type: ignore[arg-type]
        trial = cls(folder, tuple(sites), LocalGrid(nodes))
        (folder / "state" / "nodes.json").write_text(json.dumps({str(n): s for n, s in zip(nodes, sites, strict=True)}))
        return trial

    @property
    def agreement(self) -> Agreement:
        return Agreement.read(self.folder / "federation.toml")

    @property
    def bits(self) -> int:
        return self.agreement.fraction_bits

    @property
    def result(self) -> Path:
        return self.folder / "state" / "result"

    def node(self, site: str) -> int:
        return 101 + self.sites.index(site)

    def site_folder(self, site: str) -> Path:
        return self.folder / f"site-{site}"

    def data(self, site: str) -> Path:
        return Path(str(self.grid.nodes[self.node(site)].node_config["data"]))

    def log(self, site: str) -> str:
        return (self.site_folder(site) / "state" / "site.log").read_text()

    def policy(self, site: str, text: str) -> None:
        few = "allow_few_rows = true\n" if self.agreement.few_rows else ""
        (self.site_folder(site) / "site.toml").write_text(few + text)

    def fault(
        self,
        kind: str,
        site: str,
        step: str,
        change: Any = None,
        round: int | None = None,  # noqa: A002
        seconds: float = 40.0,
    ) -> None:
        self.grid.faults.append(Fault(kind, self.node(site), step, change, round, seconds))

    def lie(
        self,
        monkeypatch: pytest.MonkeyPatch,
        site: str,
        change: Callable[[Vector], object],
        round: int = 1,  # noqa: A002
    ) -> None:
        """The site gives other numbers to a sum than its rows say."""
        honest = Site._vector

        def vector(own: Site, folder: SiteFolder, session: Session, question: Letter) -> Vector:
            found = honest(own, folder, session, question)
            if (folder.name, session.round) == (site, round):
                change(found := found.copy())
            return found

        monkeypatch.setattr(Site, "_vector", vector)

    def round(self) -> Round:
        clock: Clock = self.grid.clock
        return Round.open(
            self.folder, lambda deadline: Exchange(self.grid, deadline, pause=5.0, clock=clock, sleep=clock.sleep)
        )

    def run(self) -> Run:
        return Run.open(self.round().run())

    def again(self) -> None:
        """The engine without its faults, its sites as they are."""
        self.grid = LocalGrid(self.grid.nodes)

    def events(self) -> list[dict[str, str]]:
        lines = (self.folder / "state" / "progress.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def codes(self) -> dict[str, str]:
        """Why each site was left out."""
        found: dict[str, str] = Run.open(self.result).results["dropped"]
        return found
