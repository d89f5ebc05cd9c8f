"""Two sums that differ by one site are that site's own statistics: by a new federation, an old folder or a new key.

Each of these gave the statistics of `d` to the last bit before there was a ledger of sums.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import RoundError
from fedhip.runs import Run
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, Trial, clients, encoding

pytestmark = pytest.mark.usefixtures("sums_only")

THREE = FOUR[:3]


def of_d(trial: Trial) -> GridStatistics:
    """What nobody is to know."""
    (client,) = clients(["d"])
    return encoding(trial.agreement).statistics(client, len(CLASSES))


def second_sum(trial: Trial) -> GridStatistics | None:
    """What the server gets of another round; None where the sites refuse."""
    try:
        return Run.open(trial.round().run()).total()
    except RoundError:
        return None


def test_a_new_federation_with_one_site_fewer(tmp_path: Path) -> None:
    first = Trial.make(tmp_path / "first", **ONE_SUM)
    total = first.run().total()
    again = Trial.make(tmp_path / "second", THREE, fraction_bits=first.bits, **ONE_SUM)
    second = second_sum(again)
    assert second is None or total - second != of_d(first), "the server has the statistics of d"
    assert second is None
    for site in THREE:
        assert "differs from it only by d" in again.log(site)
        assert "refused (difference)" in again.log(site)


def test_a_restored_folder(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    backup = tmp_path / "backup"
    shutil.copytree(trial.folder, backup)
    total = trial.run().total()
    shutil.rmtree(trial.folder)
    backup.rename(trial.folder)
    trial.again()
    trial.fault("silent", "d", "keys")
    second = second_sum(trial)
    assert second is None or total - second != of_d(trial), "the server has the statistics of d"
    assert second is None
    assert "was it restored?" in trial.log("a")


def test_a_new_key(tmp_path: Path) -> None:
    """All sites are told that a key had to be changed, so that there is a new roster, and a new agreement."""
    first = Trial.make(tmp_path / "first", **ONE_SUM)
    total = first.run().total()
    again = Trial.make(tmp_path / "second", THREE, fraction_bits=first.bits, **ONE_SUM)
    rosters = [Roster.read(trial.folder / "roster.json").keys for trial in (first, again)]
    assert not set(rosters[0].values()) & set(rosters[1].values())
    second = second_sum(again)
    assert second is None or total - second != of_d(first), "the server has the statistics of d"
    assert second is None
    assert "differs from it only by d" in again.log("a")
