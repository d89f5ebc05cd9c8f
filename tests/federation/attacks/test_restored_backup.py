"""Sites' folders are restored from a backup after they have unmasked a sum, and asked to unmask it for other sites.

From the two answers a server has the sum of all and the sum of all but d, and so d's statistics. The ledger of sums
lies outside of the folders: it knows what was unmasked, and the second question is refused. Where the ledger is
restored with the folders the attack succeeds: hence "keep it out of backups that are restored" in the docs.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedhip.federation.secure_sum import Collector
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.vector import Vector
from fedhip.federation.transport.wire import RoundStep, by_site
from tests.federation.samples import FOUR, ONE_SUM, vector_of
from tests.federation.table import Table

THREE = FOUR[:3]


class Backups(Table):
    """A server that keeps two sums of the same masked vectors: of all, and without d's."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path / "trial", quorum=3, threshold=3, **ONE_SUM)
        self.place = tmp_path

    def begin(self, session: bytes = b"s" * 32) -> None:
        super().begin(session)
        self.without_d = Collector.from_bytes(self.collector.to_bytes())

    def until_masked(self) -> None:
        self.until(RoundStep.HELLO)
        for site in FOUR:
            keys = self._ok(site, RoundStep.KEYS).data("keys")
            for collector in (self.collector, self.without_d):
                collector.keys(site, keys)
        cohort = by_site("keys", self.collector.cohort())
        assert self.without_d.cohort() == self.collector.cohort()
        for site in FOUR:
            shares = self._ok(site, RoundStep.SHARE, cohort).mapping("shares")
            for collector in (self.collector, self.without_d):
                collector.shares(site, shares)
        for site in FOUR:
            answer = self._ok(site, RoundStep.MASK, self.dealt(site))
            assert self.without_d.dealt_to(site) == self.collector.dealt_to(site)
            for collector in (self.collector, self.without_d)[: 1 + (site != "d")]:
                collector.add(site, answer.array("vector").copy(), answer.data("signature"))

    def back_up(self, name: str) -> None:
        shutil.copytree(self.trial.folder, self.place / name)

    def restore(self, name: str) -> None:
        shutil.rmtree(self.trial.folder)
        shutil.copytree(self.place / name, self.trial.folder)

    def unmask_all(self) -> Vector:
        assert self.collector.survivors() == list(FOUR)
        for site in FOUR:
            answer = self._ok(site, RoundStep.UNMASK, self.unmask(*FOUR))
            self.collector.unmask(site, answer.data("shares"))
        return self.collector.result()


@pytest.mark.parametrize("ledger_too", [False, True], ids=["folder", "folder and ledger"])
def test_a_restored_site_unmasks_once(tmp_path: Path, ledger_too: bool) -> None:
    table = Backups(tmp_path)
    table.until_masked()
    table.back_up("masked")
    assert table.without_d.survivors() == list(THREE)
    for site in THREE:
        agreed = table._ok(site, RoundStep.AGREE, {"survivors": list(THREE)})
        table.without_d.signature(site, agreed.data("signature"))
    table.back_up("agreed")
    table.restore("masked")
    ledger = Path(os.environ["FEDHIP_STATE"])
    shutil.copytree(ledger, tmp_path / "ledger")
    total = table.unmask_all()
    table.restore("agreed")
    if ledger_too:
        shutil.rmtree(ledger)
        shutil.copytree(tmp_path / "ledger", ledger)
    question = table.unmask(*THREE, signatures=table.without_d.signatures())
    answers = {site: table.ask(site, RoundStep.UNMASK, question) for site in THREE}
    if not ledger_too:
        assert {answer.code for answer in answers.values()} == {SiteCode.SECOND_SUM}
        assert not any(answer.body or answer.arrays for answer in answers.values())
        assert "was unmasked before" in table.trial.log("a")
        return
    for site, answer in answers.items():
        table.without_d.unmask(site, answer.data("shares"))
    of_d = total - table.without_d.result()
    np.testing.assert_array_equal(of_d, vector_of("d", table.trial.agreement), "the attack is real")


def test_the_very_same_question_is_answered_by_a_restored_site(tmp_path: Path) -> None:
    """A backup that is younger than the masks costs no round: to the bit the same shares, and so the same sum."""
    table = Backups(tmp_path)
    table.until_masked()
    table.back_up("masked")
    first = {site: table._ok(site, RoundStep.UNMASK, table.unmask(*FOUR)).data("shares") for site in FOUR}
    table.restore("masked")
    again = {site: table._ok(site, RoundStep.UNMASK, table.unmask(*FOUR)).data("shares") for site in FOUR}
    assert first == again


def test_a_site_restored_from_before_its_masks_begins_nothing_anew(tmp_path: Path) -> None:
    """The same session once more would have other masks on the same numbers; it is refused at hello."""
    table = Backups(tmp_path)
    table.back_up("new")
    table.until_masked()
    table.unmask_all()
    table.restore("new")
    for session in (b"s" * 32, b"t" * 32):
        table.begin(session)
        assert table.code("a", RoundStep.HELLO) is SiteCode.SECOND_SUM


@pytest.mark.parametrize(
    ("kept", "code"),
    [
        (("finished.json", "sums.head"), SiteCode.LEDGER),
        (("sums.head",), SiteCode.LEDGER),
        (("finished.json",), SiteCode.SECOND_SUM),
        ((), SiteCode.OK),  # nothing is left that could know
    ],
)
def test_a_new_machine_with_what_was_backed_up(tmp_path: Path, kept: tuple[str, ...], code: SiteCode) -> None:
    """The ledger is lost, and of the site's state there are these files: what the page says to back up is enough."""
    table = Backups(tmp_path)
    table.until_masked()
    table.unmask_all()
    shutil.rmtree(os.environ["FEDHIP_STATE"])
    for path in (table.trial.site_folder("a") / "state").iterdir():
        if path.is_file() and path.name not in kept:
            path.unlink()
    table.begin(b"t" * 32)
    assert table.code("a", RoundStep.HELLO) is code
