"""The census less the counts of the statistics is what a site has of each class that was in the first sum alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.federation.errors import RoundError
from fedhip.federation.server.sums import RoundSums
from fedhip.federation.sums.kind import SumKind
from fedhip.federation.sums.table import CENSUS
from fedhip.federation.sums.vector import Vector
from tests.federation.samples import CLASSES, FOUR, Trial, clients

pytestmark = pytest.mark.usefixtures("sums_only")


@pytest.fixture
def census(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What the server keeps of the first sum."""
    kept: list[np.ndarray] = []
    honest = RoundSums.get

    def keep(own: RoundSums, kind: SumKind, *about: Any) -> Vector | None:
        found = honest(own, kind, *about)
        if kind is CENSUS and found is not None:
            kept.append(found.astype(np.int64))
        return found

    monkeypatch.setattr(RoundSums, "get", keep)
    return kept


def without_c(tmp_path: Path) -> Trial:
    """The server says that c is gone, once its rows are counted."""
    trial = Trial.make(tmp_path, few_rows=False, quorum=3, threshold=3)
    trial.fault("silent", "c", "keys", round=1)
    return trial


def test_the_others_refuse(tmp_path: Path, census: list[np.ndarray]) -> None:
    trial = without_c(tmp_path)
    with pytest.raises(RoundError):
        trial.run()
    assert len(census) == 1
    for site in ("a", "b", "d"):
        assert "c was in the sum before and is not in this one" in trial.log(site)


def test_where_they_let_sites_leave_the_server_has_its_rows_of_each_class(
    tmp_path: Path, census: list[np.ndarray]
) -> None:
    trial = without_c(tmp_path)
    for site in ("a", "b", "d"):
        trial.policy(site, "allow_leavers = true")
    rest = trial.run().total().counts.numpy()
    (client,) = (one for one in clients(FOUR) if one.name == "c")
    assert (census[0] - rest).tolist() == np.bincount(client.train[1], minlength=len(CLASSES)).tolist()
