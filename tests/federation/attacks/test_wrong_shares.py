"""A site deals wrong shares, or reveals wrong ones, so that the masks do not come off and the agreement is used up.

It is left out, and the round begins again without it. That is another sum of nearly the same sites, so a server may
want it without a cheater, or with fewer sites: it gets none without a proof, and none but of exactly the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedhip.federation.errors import RoundError
from fedhip.federation.secure_sum import Collector, Member, SecureSumError
from fedhip.federation.secure_sum import member as member_module
from fedhip.federation.secure_sum.shamir import SHARE_BYTES, split
from fedhip.federation.server.round import Round
from fedhip.federation.status_codes import ServerCode, SiteCode
from fedhip.federation.transport.wire import RoundStep, by_site
from tests.federation.grid import ServerKilled
from tests.federation.samples import EIGHT, FOUR, ONE_SUM, Trial, sum_of, vector_of
from tests.federation.table import LaterTable, Table, model

pytestmark = pytest.mark.usefixtures("sums_only")

THREE = ("a", "b", "d")
CENSUS: dict[str, Any] = {"few_rows": False}
LOGISTIC: dict[str, Any] = {"head": "logistic", "columns": "plain"}


def deals_wrong(monkeypatch: pytest.MonkeyPatch, number: int, liar: str = "c", kind: str = "seed") -> None:
    """In this sum the liar deals shares of something else than it announced, and signs them as all do."""
    honest = Member.share

    def share(member: Member, keys: dict[str, bytes]) -> dict[str, bytes]:
        of_sum = int(member._terms.context.split(b"\n")[3])
        if (member._site, of_sum) != (liar, number):
            return honest(member, keys)
        dealt = iter(("seed", "key"))
        with monkeypatch.context() as patch:
            patch.setattr(
                member_module, "split", lambda secret, *rest: split(bytes(32) if next(dealt) == kind else secret, *rest)
            )
            return honest(member, keys)

    monkeypatch.setattr(Member, "share", share)


def spoils(receivers: str) -> Callable[[RecordDict], RecordDict]:
    """What is dealt to these does not open."""

    def change(records: RecordDict) -> RecordDict:
        fields = cast(ConfigRecord, records["body"])
        names, shares = cast(list[str], fields["shares-of"]), cast(list[bytes], fields["shares"])
        fields["shares"] = [
            share[:-1] + bytes([share[-1] ^ 1]) if name in receivers else share
            for name, share in zip(names, shares, strict=True)
        ]
        return records

    return change


# One site against all others.


@pytest.mark.parametrize(
    ("number", "settings"),
    [(1, ONE_SUM), (1, {}), (2, {}), (0, CENSUS), (1, CENSUS), (2, CENSUS), (1, CENSUS | ONE_SUM)],
)
@pytest.mark.sampled(3)
def test_a_dealer_of_wrong_shares_is_left_out_and_the_round_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, settings: dict[str, Any]
) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **settings)
    deals_wrong(monkeypatch, number)
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.CHEATED}
    for site in THREE:
        assert "c dealt wrong shares, which is proven" in trial.log(site)


@pytest.mark.parametrize(
    ("number", "settings"),
    [(3, {}), (3, CENSUS), (2, {**LOGISTIC, "gradient_rounds": 2}), (3, {**LOGISTIC, "gradient_rounds": 2})],
)
@pytest.mark.sampled(3)
def test_in_a_sum_after_the_statistics_that_sum_alone_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, settings: dict[str, Any]
) -> None:
    """The liar's rows stay in the sum of the statistics: two of these would give them away."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **settings)
    deals_wrong(monkeypatch, number)
    found = trial.run()
    assert found.total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {"c": ServerCode.CHEATED}
    hellos = [step for _, step in trial.grid.asked if step == "hello"]
    assert len(hellos) == len(FOUR)
    for site in THREE:
        assert "c dealt wrong shares, which is proven" in trial.log(site)
        assert (trial.site_folder(site) / "result").exists()


@pytest.mark.parametrize("stop_at", [("keys", 14), ("share", 14), ("mask", 14), ("unmask", 12), ("unmask", 14)])
@pytest.mark.sampled(3)
def test_a_server_that_is_killed_over_such_a_sum_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: tuple[str, int]
) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    deals_wrong(monkeypatch, 3)
    trial.grid.stop_at = stop_at
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {"c": ServerCode.CHEATED}


def test_a_dealer_that_is_gone_when_its_shares_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    deals_wrong(monkeypatch, 1, kind="key")
    trial.fault("silent", "c", "mask")
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.CHEATED}


@pytest.mark.parametrize(
    "stop_at", [("hello", 5), ("hello", 7), ("keys", 6), ("mask", 7), ("unmask", 4), ("unmask", 6)]
)
@pytest.mark.sampled(3)
def test_a_server_that_is_killed_over_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: tuple[str, int]
) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    deals_wrong(monkeypatch, 1)
    trial.grid.stop_at = stop_at
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(THREE, trial.agreement)


def test_two_of_seven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in the first session, the other in the second."""
    trial = Trial.make(tmp_path, EIGHT[:7], quorum=5, threshold=5, **ONE_SUM)
    deals_wrong(monkeypatch, 1, "b")
    deals_wrong(monkeypatch, 1, "c")
    assert trial.run().total() == sum_of(("a", "d", "e", "f", "g"), trial.agreement)
    assert trial.codes() == {"b": ServerCode.CHEATED, "c": ServerCode.CHEATED}


@pytest.mark.parametrize(("settings", "first"), [(ONE_SUM, 1), ({}, 1), (CENSUS, 0)])
def test_a_dealer_whose_seals_do_not_open_is_left_out(tmp_path: Path, settings: dict[str, Any], first: int) -> None:
    """Nothing is masked yet. Two sites name it, so that it is not the word of one against another's."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **settings)
    trial.fault("changed", "c", "share", spoils("ab"), round=first)
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.ACCUSED}
    assert "site 'c': the sealed shares do not open" in trial.log("a")


def test_after_the_census_it_stops_the_round(tmp_path: Path) -> None:
    """It is accused, and not proven to cheat: without it the sums would tell of its rows."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **CENSUS)
    trial.fault("changed", "c", "share", spoils("ab"), round=1)
    with pytest.raises(RoundError, match="c: accused"):
        trial.run()
    assert "c was in the sum before and is not in this one" in trial.log("a")


def test_where_one_site_alone_says_so_it_stays_out_itself(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("changed", "c", "share", spoils("b"))
    assert trial.run().total() == sum_of(("a", "c", "d"), trial.agreement)
    assert trial.codes() == {"b": SiteCode.SHARES}
    assert any("site 'b' says that 'c' dealt them" in line["text"] for line in trial.events())


@pytest.mark.parametrize("position", [0, 2, 3])
def test_who_reveals_a_wrong_share_is_left_out(tmp_path: Path, position: int) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)

    def change(records: RecordDict) -> RecordDict:
        fields = cast(ConfigRecord, records["body"])
        answer = bytearray(cast(bytes, fields["shares"]))
        answer[len(answer) - SHARE_BYTES * (len(FOUR) - position)] ^= 1
        fields["shares"] = bytes(answer)
        return records

    trial.fault("changed", "c", "unmask", change)
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {"c": ServerCode.GARBAGE}
    assert any("a share it revealed is not the one it was dealt" in line["text"] for line in trial.events())


# A server against the sites, with the help of one of them or without.


class Unmasked(Table):
    """Four sites that have unmasked a sum, and a server that wants another."""

    def __init__(self, tmp_path: Path, session: bytes = b"s") -> None:
        super().__init__(tmp_path, quorum=3, threshold=3, **ONE_SUM)
        self.begin(session * 32)
        self.reveal(FOUR)

    def reveal(self, sites: tuple[str, ...]) -> None:
        self.until(RoundStep.MASK)
        self.collector.survivors()
        for site in sites:
            self.collector.unmask(site, self._ok(site, RoundStep.UNMASK, self.unmask(*sites)).data("shares"))

    def again(self, session: bytes, site: str = "a", **proofs: bytes) -> SiteCode:
        """What a site says to another session."""
        self.begin(session * 32)
        return self.code(site, RoundStep.HELLO, by_site("proofs", proofs) if proofs else {})


def proof_of(collector: Collector) -> bytes:
    with pytest.raises(SecureSumError):
        collector.result()
    return collector.proof("c")


def test_an_honest_site_is_not_framed(tmp_path: Path) -> None:
    table = Unmasked(tmp_path)
    table.collector.result()
    made_up = table.collector.proof("c")
    assert table.again(b"t") is SiteCode.SECOND_SUM
    assert table.again(b"t", c=made_up) is SiteCode.SECURE_SUM
    assert "nothing proves that it dealt wrong shares" in table.trial.log("a")
    assert table.again(b"t", c=b"") is SiteCode.SECURE_SUM
    assert table.again(b"t") is SiteCode.SECOND_SUM


def test_a_proof_of_another_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another_user: Callable[[], None]
) -> None:
    """The same keys and the same question: the cheater is one, but not in this sum."""
    with monkeypatch.context() as patch:
        deals_wrong(patch, 1)
        proof = proof_of(Unmasked(tmp_path / "one", b"r").collector)
    another_user()
    table = Unmasked(tmp_path / "two")
    assert table.again(b"t", c=proof) is SiteCode.SECURE_SUM
    assert "belongs to another question, session, agreement" in table.trial.log("a")


def test_a_proof_is_good_for_one_more_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        deals_wrong(patch, 1)
        table = Unmasked(tmp_path)
    proof = proof_of(table.collector)
    assert table.again(b"t") is SiteCode.SECOND_SUM
    for site in THREE:
        assert table.again(b"t", site, c=proof) is SiteCode.OK
    keys = {site: table._ok(site, RoundStep.KEYS).data("keys") for site in THREE}
    for site in THREE:
        table.collector.keys(site, keys[site])
    cohort = by_site("keys", table.collector.cohort())
    for site in THREE:
        table.collector.shares(site, table._ok(site, RoundStep.SHARE, cohort).mapping("shares"))
    for site in THREE:
        answer = table._ok(site, RoundStep.MASK, table.dealt(site))
        table.collector.add(site, answer.array("vector"), answer.data("signature"))
    table.collector.survivors()
    for site in THREE:
        table.collector.unmask(site, table._ok(site, RoundStep.UNMASK, table.unmask(*THREE)).data("shares"))
    table.collector.result()
    assert table.again(b"u", c=proof) is SiteCode.SECOND_SUM
    assert table.again(b"u", c=proof, b=proof) is SiteCode.SECURE_SUM


def test_there_is_no_second_session_once_a_total_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a site answers to a total that is made up tells something of its rows; so it answers to one."""
    with monkeypatch.context() as patch:
        deals_wrong(patch, 1)
        table = Unmasked(tmp_path)
    proof = proof_of(table.collector)
    total = vector_of("b", table.trial.agreement)
    question = {"sites": list(FOUR), "beta": 1.0}
    assert table.code("a", RoundStep.PERSONALIZE, question, {"total": total}) is SiteCode.TOTAL
    assert table.again(b"t", c=proof) is SiteCode.SECOND_SUM
    assert table.again(b"t", "b", c=proof) is SiteCode.OK


def test_the_cheater_is_not_in_the_sum_that_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        deals_wrong(patch, 1)
        table = Unmasked(tmp_path)
    proof = proof_of(table.collector)
    for site in FOUR:
        assert table.again(b"t", site, c=proof) is SiteCode.OK
    table._keys()
    assert table.code("a", RoundStep.SHARE, by_site("keys", table.collector.cohort())) is SiteCode.COHORT
    assert "c dealt wrong shares under this agreement before" in table.trial.log("a")


@pytest.mark.parametrize("least", [3, 1])
@pytest.mark.sampled(2)
def test_one_honest_site_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """The server has the first sum from the cheater; without d in the second, it would have d's statistics."""
    trial = Trial.make(tmp_path, EIGHT[:7], quorum=5, threshold=5, **ONE_SUM)
    for site in trial.sites:
        trial.policy(site, f"minimum_difference = {least}")
    deals_wrong(monkeypatch, 1)
    begin_again = Round._begin_again

    def without_d(own: Round, error: Any) -> None:
        begin_again(own, error)
        trial.fault("silent", "d", "hello")

    with monkeypatch.context() as patch:
        patch.setattr(Round, "_begin_again", without_d)
        with pytest.raises(RoundError, match=r"a: difference, b: difference, c: cheated, d: late, e: difference"):
            trial.run()
    assert "differs from it only by d" in trial.log("a")
    trial.again()
    others = tuple(site for site in trial.sites if site != "c")
    assert trial.run().total() == sum_of(others, trial.agreement)


class Gradients(LaterTable):
    """Four sites that have unmasked a sum of gradients, which c has spoilt."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(tmp_path)
        self.statistics()
        self.sum(2, *self.question("temperature"))
        with monkeypatch.context() as patch:
            deals_wrong(patch, 3)
            collector = cast(Collector, self.sum(3, *self.question("gradient", model()), until=RoundStep.MASK))
        collector.survivors()
        for site in FOUR:
            answer = self.ask(site, RoundStep.UNMASK, self.unmask(*FOUR), round=3, attempt=self.attempt)
            collector.unmask(site, answer.data("shares"))
        self.proof = proof_of(collector)

    def again(self, scale: float = 1.0, **proofs: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        body, arrays = self.question("gradient", model(scale))
        return {**body, **by_site("proofs", proofs)}, arrays


def test_a_sum_of_gradients_is_made_again_once_and_about_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other weights would be one gradient more than agreed, for each site that the server has lie for it."""
    table = Gradients(tmp_path, monkeypatch)
    proof = table.proof
    assert table.keys("a", 3, *table.question("gradient", model())) is SiteCode.ANSWERED
    assert table.keys("a", 3, *table.again(b=proof)) is SiteCode.SECURE_SUM
    assert table.keys("a", 3, *table.again(2.0, c=proof)) is SiteCode.WEIGHTS
    assert table.keys("a", 4, *table.again(2.0, c=proof)) is SiteCode.ORDER
    table.sum(
        3, *table.again(c=proof), sites=THREE, until=RoundStep.MASK
    )  # and asked for again, where that is broken off
    assert table.keys("a", 3, *table.again(2.0)) is SiteCode.WEIGHTS
    assert table.keys("a", 3, *table.again(2.0, c=proof)) is SiteCode.WEIGHTS
    table.sum(3, *table.again(c=proof), sites=THREE)
    assert table.keys("a", 3, *table.again(c=proof)) is SiteCode.ANSWERED
    table.sum(4, *table.question("gradient", model(2.0)), sites=THREE)
    assert "c dealt wrong shares" in table.trial.log("a")


def test_a_sum_of_gradients_is_made_again_without_the_cheater(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Gradients(tmp_path, monkeypatch)
    question = table.again(c=table.proof)
    of_sum: Any = {"round": 3, "attempt": 9}
    keys = {site: table.ask(site, RoundStep.KEYS, *question, **of_sum).data("keys") for site in FOUR}
    assert table.code("a", RoundStep.SHARE, by_site("keys", keys), **of_sum) is SiteCode.COHORT
    assert table.code("a", RoundStep.SHARE, by_site("keys", {s: keys[s] for s in "ab"}), **of_sum) is not SiteCode.OK


def test_a_new_federation_without_the_cheater(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was left out before, the difference is its own part, which it has given up."""
    with monkeypatch.context() as patch:
        deals_wrong(patch, 1)
        trial = Trial.make(tmp_path / "one", quorum=3, threshold=3, **ONE_SUM)
        trial.run()
    again = Trial.make(tmp_path / "two", THREE, **ONE_SUM)
    assert again.run().total() == sum_of(THREE, again.agreement)
