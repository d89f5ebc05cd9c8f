"""The ledger of sums: what is refused, what a person can allow, and what becomes of a ledger that was altered."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.cli.main import main
from fedhip.federation.errors import PolicyError, RoundError
from fedhip.federation.operations import background
from fedhip.federation.site.ledger import Allowance, Fingerprint, SumLedger, SumRequest, default_state
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.transport.wire import RoundStep
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, Trial, rows_of, write_rows
from tests.federation.table import Table

pytestmark = pytest.mark.usefixtures("sums_only")

KEYS = {name: f"key of {name}".encode() for name in "abcdefgh"}


def asked(agreement: str = "first", session: bytes = b"1", **more: Any) -> SumRequest:
    return SumRequest(more.pop("site", "a"), {**KEYS, **more.pop("keys", {})}, agreement, "roster", session, **more)


def rows(*numbers: int, digest: str | None = None, kind: str = "6 features") -> Fingerprint:
    return Fingerprint(kind, digest or str(numbers), len(numbers), np.array(numbers, np.uint64))


def took_part(members: str = "abcd", data: Fingerprint | None = None, event: str = "unmasked") -> None:
    data = data or rows(1, 2, 3)
    with SumLedger.open() as sums:
        sums.keep_data(data)
        sums.took_part(asked(), event, members, data)


def refused(members: str, data: Fingerprint | None = None, least: int = 3, **question: Any) -> bool:
    try:
        with SumLedger.open() as sums:
            sums.require_difference(asked("second", b"2", **question), members, data or rows(1, 2, 3), least)
    except SiteRefusalError as error:
        return error.code is SiteCode.DIFFERENCE and len(str(error).splitlines()) == 1
    return False


@pytest.mark.parametrize(
    ("members", "data", "expected"),
    [
        ("abcd", rows(1, 2, 3), False),  # no difference at all
        ("abc", rows(1, 2, 3), True),
        ("abce", rows(1, 2, 3), True),
        ("abef", rows(1, 2, 3), False),  # four sites make the difference
        ("abcd", rows(1, 2, 3, 4), True),  # the site itself makes it
        ("abc", rows(7, 8), False),  # other rows
        ("abc", rows(1, 2, 3, kind="image files", digest="x"), True),  # nobody can tell that these are others
    ],
)
@pytest.mark.parametrize("event", ["unmasked", "masked", "plain"])
def test_which_sums_are_too_near(members: str, data: Fingerprint, expected: bool, event: str) -> None:
    took_part(event=event)
    assert refused(members, data) is expected


def test_a_site_is_the_same_by_name_or_by_key() -> None:
    took_part()
    assert refused("abcd", keys={"d": b"a new key"}) is False
    assert refused("abc", keys={"b": b"another", "c": b"new"})
    renamed = {"g": KEYS["b"], "h": KEYS["c"]}
    assert refused("agh", keys=renamed)


def test_sites_of_one_user_are_told_apart_by_their_rows() -> None:
    took_part()
    assert not refused("abc", rows(5, 6), site="b")


def test_what_a_person_allows_is_written_down_and_good_for_one_session() -> None:
    took_part()
    allow = Allowance.given(" d has\nwithdrawn ")
    with SumLedger.open() as sums:
        for _ in range(2):
            sums.require_difference(asked("second", b"2"), "abc", rows(1, 2, 3), 3, allow)
    with SumLedger.open() as sums:
        (line,) = [line for line in sums.lines if line["event"] == "allowed"]
        assert line["reason"] == "d has withdrawn"
        with pytest.raises(SiteRefusalError, match="differs from it only by d"):
            sums.require_difference(asked("third", b"3"), "abc", rows(1, 2, 3), 3, allow)
    with pytest.raises(PolicyError, match="--allow wants a reason"):
        Allowance.given(" ")


def test_a_reason_on_the_command_line_reaches_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fedhip federation site`, but for the engine's node: what it is started with is what the sites here answer by."""
    Trial.make(tmp_path / "first", **ONE_SUM).run()
    trial = Trial.make(tmp_path / "second", ("a", "b", "c"), **ONE_SUM)
    started: dict[str, dict[str, str]] = {}
    monkeypatch.setitem(background._DO, "site", lambda folder, settings, **_: started.update({folder: settings}))
    for site in trial.sites:
        words = ["federation", "site", str(trial.site_folder(site)), "--features", str(trial.data(site))]
        assert main(words) == 3
        assert "differs from it only by d" in capsys.readouterr().err
        assert main([*words, "--allow", "d has  withdrawn"]) == 0
        trial.grid.nodes[trial.node(site)].node_config.update(started[str(trial.site_folder(site))])
    trial.run()
    with SumLedger.open() as sums:
        allowed = [line for line in sums.lines if line["event"] == "allowed"]
    assert {line["site"] for line in allowed} == {"a", "b", "c"}
    assert {line["reason"] for line in allowed} == {"d has withdrawn"}
    assert len({line["token"] for line in allowed}) == 3


def test_a_sum_is_unmasked_once_whatever_a_folder_says() -> None:
    took_part()
    with SumLedger.open() as sums:
        sums.require_one_unmasking(asked(), "abcd")
        for question, members in ((asked(), "abc"), (asked(attempt=2), "abcd")):
            with pytest.raises(SiteRefusalError, match="was unmasked before, by line 2"):
                sums.require_one_unmasking(question, members)
        with pytest.raises(SiteRefusalError, match="was in this session before"):
            sums.require_new_session(asked())


def test_a_sum_that_was_spoilt_is_unmasked_again_for_exactly_the_others() -> None:
    took_part()
    with SumLedger.open() as sums:
        with pytest.raises(SiteRefusalError, match="was unmasked before"):
            sums.require_one_unmasking(asked(attempt=2), "abd")
        sums.cheated(asked(), "c")
        sums.require_one_unmasking(asked(attempt=2), "abd")
        sums.took_part(asked(attempt=2), "unmasked", "abd", rows(1, 2, 3))
        for question, members in ((2, "ab"), (3, "abd"), (3, "ab"), (2, "abcd"), (3, "abcd")):
            with pytest.raises(SiteRefusalError, match="was unmasked before"):
                sums.require_one_unmasking(asked(attempt=question), members)
        with pytest.raises(SiteRefusalError, match="c dealt wrong shares under this agreement before"):
            sums.require_no_cheater(asked(session=b"2"), "abcd")
        sums.require_no_cheater(asked("second"), "abcd")


def test_a_session_that_was_spoilt_is_made_again_by_exactly_the_others() -> None:
    took_part("abcdefgh")
    with SumLedger.open() as sums:
        assert sums.finished(asked(session=b"2")) is not None
        sums.cheated(asked(), "c")
        assert sums.finished(asked(session=b"2")) is None
        assert sums.finished(asked(session=b"2", site="b")) is None
        sums.require_difference(asked(session=b"2"), "abdefgh", rows(1, 2, 3), 3)
        for members, data in (("abdefg", rows(1, 2, 3)), ("abde", rows(1, 2, 3)), ("abdefgh", rows(1, 2, 3, 4))):
            with pytest.raises(SiteRefusalError, match="differs from it only by"):
                sums.require_difference(asked(session=b"2"), members, data, 1, Allowance.given("why not"))
        sums.took_part(asked(session=b"2"), "unmasked", "abdefgh", rows(1, 2, 3))
        assert sums.finished(asked(session=b"3")) == b"2".hex()


def test_a_cheater_makes_no_difference_and_hides_nobody() -> None:
    took_part()
    assert refused("abc", least=2)
    assert not refused("abce", least=2)
    with SumLedger.open() as sums:
        sums.cheated(asked(), "d")
    assert not refused("abc", least=2)
    assert refused("abce", least=2)  # of e alone


def cut_off(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"site": "a"', b'"site": "b"'))


def without_a_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def removed(path: Path) -> None:
    path.unlink()


def other_key(path: Path) -> None:
    path.with_name("sums.key").write_bytes(bytes(32))


def no_key(path: Path) -> None:
    path.with_name("sums.key").unlink()


def damaged_head(path: Path) -> None:
    path.with_name("sums.head").write_bytes(b"{}")


@pytest.mark.parametrize("alter", [cut_off, edited, without_a_line, removed, other_key, no_key, damaged_head])
def test_a_ledger_that_was_altered(tmp_path: Path, alter: Any) -> None:
    table = Table(tmp_path, **ONE_SUM)
    took_part("fgh")
    alter(default_state() / "sums.jsonl")
    assert table.code("a", RoundStep.HELLO) is SiteCode.LEDGER
    last = table.trial.log("a").splitlines()[-1]
    assert "so nobody can say in which sums these rows were; restore it" in last
    with SumLedger.open(allow=Allowance.given("the disk was lost")) as sums:
        assert [line["event"] for line in sums.lines] == ["begun-anew"]
        assert sums.lines[0]["reason"] == "the disk was lost"
    assert [*default_state().glob("*.until-*")]  # nothing is thrown away
    assert table.code("a", RoundStep.HELLO) is SiteCode.OK


def test_a_ledger_that_is_gone_with_all_its_files_is_missed_by_the_site(tmp_path: Path) -> None:
    table = Table(tmp_path, **ONE_SUM)
    table.until(RoundStep.MASK)
    for path in default_state().iterdir():
        path.unlink()
    table.begin(b"t" * 32)
    assert table.code("a", RoundStep.HELLO) is SiteCode.LEDGER


def test_a_line_that_was_cut_short_by_a_crash_is_no_line() -> None:
    took_part()
    with (default_state() / "sums.jsonl").open("ab") as file:
        file.write(b'{"schema": 1, "li')
    with SumLedger.open() as sums:
        assert len(sums.lines) == 2
    assert refused("abc")


def test_writers_at_once() -> None:
    def write(number: int) -> None:
        with SumLedger.open() as sums:
            sums.keep_data(rows(number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with SumLedger.open() as sums:
        assert len(sums.lines) == 8


def test_a_folder_that_others_can_look_into_and_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path, **ONE_SUM)
    default_state().chmod(0o755)
    assert table.code("a", RoundStep.HELLO) is SiteCode.LEDGER
    assert "run: chmod 700" in table.trial.log("a")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert table.code("a", RoundStep.HELLO) is SiteCode.LEDGER
    assert "belongs to somebody else" in table.trial.log("a")
    monkeypatch.undo()
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FEDHIP_STATE", str(tmp_path / "file" / "state"))
    assert table.code("a", RoundStep.HELLO) is SiteCode.LEDGER
    assert "cannot be read or written (File exists)" in table.trial.log("a")


def test_rows_are_known_again_and_not_given_away(tmp_path: Path) -> None:
    """Some rows more, in another order and precision: found; and in the ledger there is nothing of them."""
    first = Trial.make(tmp_path / "first", **ONE_SUM)
    first.run()
    again = Trial.make(tmp_path / "again", **{**ONE_SUM, "name": "again"})
    features, labels = rows_of("a")
    order = np.random.default_rng(0).permutation(len(labels))
    write_rows(again.data("a"), "a", features=features[order].astype(np.float32), labels=labels[order])
    with pytest.raises(RoundError):
        again.run()
    assert "this site, whose rows have changed" in again.log("a")
    assert "hello: answered" in again.log("b")  # the same rows of the same sites
    ledger = (default_state() / "sums.jsonl").read_text()
    digests = {np.float32(value).tobytes().hex() for value in features.ravel()}
    assert not any(value in ledger for value in digests)
    assert CLASSES[0] not in ledger


def test_a_dropout_is_judged_by_who_is_left(tmp_path: Path) -> None:
    """The same four sites agree anew, and the server leaves one out: the sites do not go on."""
    Trial.make(tmp_path / "first", **ONE_SUM).run()
    again = Trial.make(tmp_path / "again", **{**ONE_SUM, "name": "again"})
    again.fault("silent", "d", "keys")
    with pytest.raises(RoundError):
        again.run()
    assert "share: refused (difference)" in again.log("a")


def test_every_sum_of_a_round_is_in_the_ledger(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path)
    trial.run()
    with SumLedger.open() as sums:
        own = [line for line in sums.lines if line["event"] == "unmasked" and line["site"] == "a"]
    assert [(line["number"], line["ask"]) for line in own] == [(1, "moments"), (2, "statistics"), (3, "beta")]
    assert {*own[0]["members"]} == {*FOUR}
    assert json.dumps(own).count(trial.agreement.digest()) == 3
