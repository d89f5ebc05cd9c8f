"""What a site remembers, and what it takes at last: each step once, one total, and nothing left for others to read."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fedhip.federation.secure_sum import Member
from fedhip.federation.site.state import Session, SiteState
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.transport.wire import Letter, RoundStep, by_site
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, WIDTH, sum_of
from tests.federation.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path, **ONE_SUM)


def test_two_questions_at_once_get_one_vector(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.until(RoundStep.SHARE)
    mask = Member.mask

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.2)  # so that the others would come between the work and its record
        return mask(*arguments)

    monkeypatch.setattr(Member, "mask", slowly)
    answers: list[Letter] = []
    ask = [
        threading.Thread(target=lambda: answers.append(table.ask("a", RoundStep.MASK, table.dealt("a")))) for _ in "123"
    ]
    for thread in ask:
        thread.start()
    for thread in ask:
        thread.join()
    assert [answer.code for answer in answers] == [SiteCode.OK] * 3
    assert len({(answer.data("signature"), answer.array("vector").tobytes()) for answer in answers}) == 1


def test_a_new_session_forgets_the_last(table: Table) -> None:
    table.until(RoundStep.SHARE)
    dealt = table.dealt("a")
    before = table.envelope
    table.begin(b"t" * 32)
    table.until(RoundStep.KEYS)
    assert table.code("a", RoundStep.MASK, dealt) is SiteCode.ORDER
    table.envelope = before
    assert table.code("a", RoundStep.MASK, dealt) is SiteCode.SESSION


@pytest.mark.parametrize(
    ("body", "change", "code"),
    [
        ({}, lambda total: total[:-1], SiteCode.MALFORMED),
        ({}, lambda total: total * 0, SiteCode.TOTAL),
        ({"sites": ["b", "c", "d"]}, lambda total: total, SiteCode.TOTAL),
        ({"sites": [*FOUR, "<b>e"]}, lambda total: total, SiteCode.TOTAL),
        ({"beta": -1.0}, lambda total: total, SiteCode.TOTAL),
        ({"beta": float("nan")}, lambda total: total, SiteCode.MALFORMED),
    ],
)
def test_a_sum_that_is_none(table: Table, body: Any, change: Any, code: SiteCode) -> None:
    from fedhip.federation.sums.vector import to_vector

    table.until(RoundStep.MASK)
    total = to_vector(sum_of(FOUR, table.trial.agreement))
    question = {"beta": 1.0, "sites": list(FOUR), **body}
    assert table.code("a", RoundStep.PERSONALIZE, question, {"total": change(total)}) is code
    assert not (table.trial.site_folder("a") / "result").exists()
    # One that was weighed against the rows was the only one; the others were no questions at all.
    after = SiteCode.OK if body or code is SiteCode.MALFORMED else SiteCode.ANSWERED
    assert table.code("a", RoundStep.PERSONALIZE, {"beta": 1.0, "sites": list(FOUR)}, {"total": total}) is after


def test_a_site_is_no_oracle_for_totals_that_the_server_makes_up(table: Table) -> None:
    """Whether a total holds the site's rows is a bit about them: many totals would tell its counts, and more."""
    from fedhip.federation.sums.vector import Layout, to_vector

    table.until(RoundStep.MASK)
    total = to_vector(sum_of(FOUR, table.trial.agreement))
    question = {"beta": 1.0, "sites": list(FOUR)}
    guess = total.copy()
    Layout(WIDTH, len(CLASSES)).counts(guess)[:] = 1  # "has it more than one row of a class?"
    assert table.code("a", RoundStep.PERSONALIZE, question, {"total": total[:-1]}) is SiteCode.MALFORMED
    assert table.code("a", RoundStep.PERSONALIZE, question, {"total": guess}) is SiteCode.TOTAL
    assert table.code("a", RoundStep.PERSONALIZE, question, {"total": guess + 1}) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.PERSONALIZE, question, {"total": total}) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.PERSONALIZE, question, {"total": guess}) is SiteCode.TOTAL  # nothing new
    table.begin(b"t" * 32)  # nor does a new session help, although no sum was ever unmasked
    assert table.code("a", RoundStep.HELLO) is SiteCode.SECOND_SUM


def test_one_accuracy_for_an_agreement(table: Table) -> None:
    from fedhip.federation.sums.vector import to_vector

    table.trial.policy("a", "tell_accuracy = true")
    table.until(RoundStep.MASK)
    arrays = {"total": to_vector(sum_of(FOUR, table.trial.agreement))}
    question = {"beta": 1.0, "sites": list(FOUR)}
    first = table.ask("a", RoundStep.PERSONALIZE, question, dict(arrays))
    assert first.flag("told")
    assert stat.S_IMODE((table.trial.site_folder("a") / "result").stat().st_mode) == 0o700
    assert table.code("a", RoundStep.PERSONALIZE, {**question, "beta": 2.0}, dict(arrays)) is SiteCode.ANSWERED
    assert table.ask("a", RoundStep.PERSONALIZE, question, dict(arrays), attempt=2).body == first.body
    table.begin(b"t" * 32)
    assert table.code("a", RoundStep.HELLO) is SiteCode.SECOND_SUM


def test_a_beta_other_than_agreed(tmp_path: Path) -> None:
    from fedhip.federation.sums.vector import to_vector

    table = Table(tmp_path, columns="plain", beta=2.0)
    table.until(RoundStep.MASK)
    arrays = {"total": to_vector(sum_of(FOUR, table.trial.agreement))}
    assert table.code("a", RoundStep.PERSONALIZE, {"beta": 1.0, "sites": list(FOUR)}, arrays) is SiteCode.TOTAL


def test_a_place_for_results_that_is_taken(table: Table) -> None:
    from fedhip.federation.sums.vector import to_vector

    table.until(RoundStep.MASK)
    out = table.trial.site_folder("a") / "result"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    arrays = {"total": to_vector(sum_of(FOUR, table.trial.agreement))}
    assert table.code("a", RoundStep.PERSONALIZE, {"beta": 1.0, "sites": list(FOUR)}, arrays) is SiteCode.OUTPUT
    assert (out / "thesis.txt").read_text() == "mine"
    (out / "thesis.txt").rename(out.parent / "thesis.txt")
    arrays = {"total": to_vector(sum_of(FOUR, table.trial.agreement))}
    assert table.code("a", RoundStep.PERSONALIZE, {"beta": 1.0, "sites": list(FOUR)}, arrays) is SiteCode.OK


def test_the_server_writes_no_lines_and_no_colours_into_the_log(table: Table) -> None:
    assert table.code("a", RoundStep.HELLO, agreement="\n\x1b[2J\rINFO") is SiteCode.AGREEMENT
    assert table.trial.log("a").count("\n") == 1
    assert table.trial.log("a").rstrip("\n").isprintable()


def test_what_lies_on_the_sites_disk_is_for_its_owner(table: Table) -> None:
    state = table.trial.site_folder("a") / "state"
    table.until(RoundStep.SHARE)
    assert {path.name for path in state.iterdir()} == {"lock", "session.bin", "site.log", "vector.bin"}
    for path in (state, *state.iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_state_folder_that_others_can_look_into_is_closed(table: Table) -> None:
    state = table.trial.site_folder("a") / "state"
    state.mkdir()
    state.chmod(0o755)  # as a copy of a site's folder may leave it
    table.until(RoundStep.HELLO)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_what_is_kept_is_on_disk_before_an_answer_leaves(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of power, a session or a finished sum that is forgotten could be done again."""
    synced = set()
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name.split("-")[0])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    table.until(RoundStep.HELLO)
    assert {".session.bin", "state"} <= synced  # the file, and the folder that says which file it is
    assert {"sums.jsonl", ".sums.head"} <= synced


@pytest.mark.parametrize("step", list(RoundStep)[:1] + list(RoundStep)[2:])
def test_where_the_state_cannot_be_kept_nothing_leaves(
    table: Table, monkeypatch: pytest.MonkeyPatch, step: RoundStep
) -> None:
    """Killed, or out of room, between the work and its record: the server has nothing, and may ask again."""
    from fedhip.federation.sums.vector import to_vector

    before = {RoundStep.KEYS: RoundStep.HELLO, RoundStep.SHARE: RoundStep.KEYS, RoundStep.MASK: RoundStep.SHARE}.get(
        step, RoundStep.MASK
    )
    if step is not RoundStep.HELLO:
        table.until(before)
    total = to_vector(sum_of(FOUR, table.trial.agreement))
    questions: dict[RoundStep, Any] = {
        RoundStep.SHARE: lambda: (by_site("keys", table.collector.cohort()),),
        RoundStep.MASK: lambda: (table.dealt("a"),),
        RoundStep.AGREE: lambda: ({"survivors": ["a", "b", "c"]},),
        RoundStep.UNMASK: lambda: (table.unmask(*FOUR),),
        RoundStep.PERSONALIZE: lambda: ({"beta": 1.0, "sites": list(FOUR)}, {"total": total}),
    }
    with monkeypatch.context() as full:
        full.setattr(SiteState, "keep", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        answer = table.ask("a", step, *questions.get(step, tuple)())
    assert answer.code is not SiteCode.OK
    assert (answer.body, answer.arrays) == ({}, {})


def test_nothing_of_a_session_that_was_killed_stays(table: Table) -> None:
    state = table.trial.site_folder("a") / "state"
    table.until(RoundStep.KEYS)
    for name in (".vector.bin-0123456789ab", ".session.bin-0123456789ab"):  # killed while it wrote
        (state / name).write_bytes((state / "vector.bin").read_bytes())
    table.begin(b"t" * 32)
    table.until(RoundStep.HELLO)
    assert {path.name for path in state.iterdir()} == {"lock", "session.bin", "site.log"}


def test_secrets_and_statistics_are_gone_when_they_are_not_needed(table: Table) -> None:
    state = table.sites["a"].state
    table.until(RoundStep.MASK)
    assert state.vector() is None
    table.ask("a", RoundStep.UNMASK, table.unmask(*FOUR))
    session = state.session()
    assert session is not None
    assert session.member is not None  # which sum it was, for a proof that somebody has cheated in it, and no more
    member = Member.from_bytes(session.member, lambda data: data)
    assert (member._secrets, member._shares, member._cohort) == (None, {}, {})


def test_a_damaged_state(table: Table) -> None:
    table.until(RoundStep.HELLO)
    state = table.trial.site_folder("a") / "state"
    for damage in (b"", b"{}", b'{"schema": 1}', b"\xff\xfe"):
        (state / "session.bin").write_bytes(damage)
        assert table.code("a", RoundStep.KEYS) is SiteCode.FOLDER
    (state / "session.bin").unlink()
    (state / "finished.json").write_text("damaged")
    assert table.code("a", RoundStep.HELLO) is SiteCode.FOLDER  # it may have taken part in a sum: nobody knows


def test_a_session_of_before_is_read_and_written_as_it_was() -> None:
    """As the version before there was a table of sums wrote it."""
    old = {
        **{"schema": 1, "session": "00", "agreement": "a", "roster": "r", "member": None, "answers": {}, "round": 3},
        **{"attempt": 4, "ask": "gradient", "done": ["moments", "statistics"], "cohort": ["x"], "total": "t"},
        **{"weights": {"w": 3}, "head": None, "moments": "m", "data": "d", "unmasked": None},
    }
    session = Session.from_bytes(json.dumps(old).encode())
    assert (session.received, session.ask, session.round) == ({"moments": "m", "total": "t"}, "gradient", 3)
    assert json.loads(session.to_bytes()) == old
