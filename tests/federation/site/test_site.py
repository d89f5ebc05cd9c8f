"""A site refuses what it must: each time a code for the server, a reason in its own log, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.exact.columns import Survey
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.federation.secure_sum import Collector, Member
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.table import first_number
from fedhip.federation.sums.vector import to_vector
from fedhip.federation.transport.wire import Letter, RoundStep, by_site, context_of
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import RowEncoding
from tests.federation.samples import (
    CLASSES,
    FOUR,
    ONE_SUM,
    WIDTH,
    Trial,
    clients,
    rows_of,
    sum_of,
    survey_of,
    vector_of,
)
from tests.federation.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path, **ONE_SUM)


@pytest.mark.parametrize("settings", [ONE_SUM, {}], ids=["statistics", "survey"])
def test_the_steps_in_order_give_the_sum(tmp_path: Path, settings: dict[str, Any]) -> None:
    table = Table(tmp_path, **settings)
    table.until(RoundStep.MASK)
    assert table.collector.survivors() == list(FOUR)
    for site in FOUR:
        table.collector.unmask(site, table.ask(site, RoundStep.UNMASK, table.unmask(*FOUR)).data("shares"))
    expected = to_vector(sum_of(FOUR, table.trial.agreement)) if settings else survey_of(FOUR)
    np.testing.assert_array_equal(table.collector.result(), expected)


def test_an_unmasked_request(table: Table) -> None:
    table.until(RoundStep.SHARE)
    assert table.code("a", RoundStep.MASK, {"secure": False}) is SiteCode.UNMASKED
    assert "without a mask" in table.trial.log("a")
    assert table.code("a", RoundStep.MASK, table.dealt("a")) is SiteCode.OK  # a refusal changes nothing


def test_an_agreement_without_masks_against_the_policy(tmp_path: Path) -> None:
    table = Table(tmp_path, secure_sum=False, **ONE_SUM)
    assert table.code("a", RoundStep.HELLO) is SiteCode.POLICY
    table.trial.policy("a", "require_secure_sum = false")
    assert table.code("a", RoundStep.HELLO) is SiteCode.OK
    answer = table.ask("a", RoundStep.MASK, {"secure": False})
    np.testing.assert_array_equal(answer.array("vector"), vector_of("a", table.trial.agreement))


def test_a_cohort_below_the_sites_minimum(table: Table) -> None:
    table.trial.policy("a", "minimum_cohort = 4")
    table.until(RoundStep.KEYS)
    keys = table.collector.cohort()
    three = by_site("keys", {site: keys[site] for site in "abc"})
    assert table.code("a", RoundStep.SHARE, three) is SiteCode.COHORT
    assert table.code("b", RoundStep.SHARE, three) is SiteCode.OK


def test_fewer_dealers_than_the_sites_minimum(table: Table) -> None:
    table.trial.policy("a", "minimum_cohort = 4")
    table.until(RoundStep.SHARE)
    dealt = table.collector.dealt_to("a")
    del dealt["d"]
    assert table.code("a", RoundStep.MASK, {"secure": True, **by_site("shares", dealt)}) is SiteCode.COHORT


def test_a_second_unmasking(table: Table) -> None:
    table.until(RoundStep.MASK)
    first = table.ask("a", RoundStep.UNMASK, table.unmask(*FOUR))
    assert first.code is SiteCode.OK
    assert table.code("a", RoundStep.UNMASK, table.unmask("a", "b", "c")) is SiteCode.ANSWERED
    # A server that was started again may ask the very same, and learns nothing new.
    assert table.ask("a", RoundStep.UNMASK, table.unmask(*FOUR), attempt=2).body == first.body


def test_both_share_kinds_of_one_site(table: Table) -> None:
    """The seed of d's mask and the key of its pair masks together are its statistics."""
    table.until(RoundStep.MASK)
    signatures = {s: table.ask(s, RoundStep.AGREE, {"survivors": ["a", "b", "c"]}).data("signature") for s in "abc"}
    assert table.code("a", RoundStep.AGREE, {"survivors": list(FOUR)}) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.UNMASK, table.unmask(*FOUR)) is SiteCode.SECURE_SUM
    assert table.code("a", RoundStep.UNMASK, table.unmask("a", "b", "c")) is SiteCode.SECURE_SUM
    assert table.code("a", RoundStep.UNMASK, table.unmask("a", "b", "c", signatures=signatures)) is SiteCode.OK
    assert table.code("a", RoundStep.UNMASK, table.unmask(*FOUR)) is SiteCode.ANSWERED


def test_a_second_sum_of_the_same_agreement(table: Table) -> None:
    table.until(RoundStep.MASK)
    table.begin(b"t" * 32)
    assert table.code("b", RoundStep.HELLO) is SiteCode.OK  # the first was never unmasked here
    table.begin()
    table.ask("a", RoundStep.UNMASK, table.unmask(*FOUR))
    table.begin(b"t" * 32)
    assert table.code("a", RoundStep.HELLO) is SiteCode.SECOND_SUM
    table.trial.policy("a", "allow_other_sums = true")
    assert table.code("a", RoundStep.HELLO) is SiteCode.OK


def test_another_roster_and_another_agreement(table: Table) -> None:
    assert table.code("a", RoundStep.HELLO, roster="0" * 64) is SiteCode.ROSTER
    assert table.code("a", RoundStep.HELLO, agreement="0" * 64) is SiteCode.AGREEMENT
    table.until(RoundStep.HELLO)
    assert table.code("a", RoundStep.KEYS, roster="0" * 64) is SiteCode.ROSTER
    assert table.code("a", RoundStep.KEYS, agreement="0" * 64) is SiteCode.AGREEMENT


def test_a_key_that_is_not_in_the_roster(table: Table) -> None:
    """The server shows a cohort with a site of its own invention."""
    from fedhip.federation.agreement.credentials import make_site_key, read_private_key, sign

    table.until(RoundStep.KEYS)
    keys = table.collector.cohort()
    make_site_key(table.trial.folder / "forged")
    forged = read_private_key(table.trial.folder / "forged")
    public = (table.trial.folder / "forged.pub").read_bytes().strip()
    member = Member.begin(
        site="d", roster={**table.roster.keys, "d": public}, sign=lambda data: sign(forged, data),
        session=table.envelope.session, minimum=3, threshold=3,
        context=context_of(Letter(replace(table.envelope, step=RoundStep.KEYS)), None, None),
    )  # fmt: skip
    assert table.code("a", RoundStep.SHARE, by_site("keys", {**keys, "d": member.keys()})) is SiteCode.SECURE_SUM
    assert table.code("a", RoundStep.SHARE, by_site("keys", {**keys, "nobody": keys["d"]})) is SiteCode.SECURE_SUM


def test_another_session_another_order_and_again(table: Table) -> None:
    assert table.code("a", RoundStep.KEYS) is SiteCode.SESSION
    table.until(RoundStep.HELLO)
    assert table.ask("a", RoundStep.HELLO).body == table.ask("a", RoundStep.HELLO).body != {}
    assert table.code("a", RoundStep.HELLO, attempt=2) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.HELLO, {"more": 1}) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.KEYS, session=b"x" * 32) is SiteCode.SESSION
    for step in (RoundStep.SHARE, RoundStep.MASK, RoundStep.AGREE, RoundStep.UNMASK, RoundStep.PERSONALIZE):
        assert table.code("a", step) is SiteCode.ORDER
    assert table.code("a", RoundStep.ENCODER) is SiteCode.ORDER
    assert table.ask("a", RoundStep.KEYS).body == table.ask("a", RoundStep.KEYS).body != {}
    assert table.code("a", RoundStep.KEYS, {"more": 1}) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.HELLO) is SiteCode.ANSWERED  # the latest step alone is answered again
    assert table.code("a", RoundStep.SHARE, {"keys": b"garbage"}) is SiteCode.MALFORMED


@pytest.mark.parametrize("few_rows", [True, False], ids=["statistics", "census"])
def test_keys_that_come_with_hello_are_those_of_the_first_question(tmp_path: Path, few_rows: bool) -> None:
    """One exchange less: they are bound to the very question that an older server asks afterwards."""
    table = Table(tmp_path, few_rows=few_rows, **ONE_SUM)
    table.envelope = replace(table.envelope, round=first_number(table.trial.agreement))
    context = context_of(Letter(replace(table.envelope, step=RoundStep.KEYS)), None, None)
    threshold = table.trial.agreement.threshold
    table.collector = Collector(table.roster.keys, table.envelope.sum_session, context, threshold)
    hello: Any = (RoundStep.HELLO, {"keys": True})
    for site in FOUR:
        answer = table.ask(site, *hello)
        table.collector.keys(site, answer.data("keys"))
        assert table.ask(site, *hello).body == answer.body  # an answer that was lost
        assert table.ask(site, RoundStep.KEYS).body == {"keys": answer.data("keys")}
        assert table.code(site, RoundStep.KEYS, {"more": "words"}) is SiteCode.ANSWERED
        assert table.code(site, RoundStep.HELLO) is SiteCode.ANSWERED
        assert table.code(site, RoundStep.HELLO, {"keys": False}) is SiteCode.ANSWERED
    table._share()
    table._mask()
    assert table.code("a", *hello) is SiteCode.ANSWERED
    for site in table.collector.survivors():
        table.collector.unmask(site, table.ask(site, RoundStep.UNMASK, table.unmask(*FOUR)).data("shares"))
    if few_rows:
        np.testing.assert_array_equal(table.collector.result(), to_vector(sum_of(FOUR, table.trial.agreement)))
    else:
        assert table.collector.result().sum() == sum(len(client.train[1]) for client in clients(FOUR))


def test_a_hello_whose_keys_cannot_be_made_says_why_each_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the question for keys would; and nothing more comes of it."""
    with monkeypatch.context() as patch:
        patch.setattr(RowEncoding, "statistics", broken("gram", 2**61))
        for _ in range(2):
            assert table.code("a", RoundStep.HELLO, {"keys": True}) is SiteCode.OVERFLOW
    assert not (table.trial.site_folder("a") / "state" / "vector.bin").exists()
    assert table.code("a", RoundStep.SHARE) is SiteCode.ORDER
    assert table.code("a", RoundStep.HELLO, {"keys": b"yes"}) is SiteCode.ANSWERED
    assert "keys" in table.ask("a", RoundStep.HELLO, {"keys": True}).body


def test_other_shares_after_the_vector_was_masked(table: Table) -> None:
    """The difference of two masked vectors, one with a site's pair mask and one without, is that mask."""
    table.until(RoundStep.SHARE)
    dealt = table.collector.dealt_to("a")
    first = table.ask("a", RoundStep.MASK, {"secure": True, **by_site("shares", dealt)})
    again = table.ask("a", RoundStep.MASK, {"secure": True, **by_site("shares", dealt)})
    assert first.body == again.body
    assert (first.array("vector") == again.array("vector")).all()
    del dealt["d"]
    assert table.code("a", RoundStep.MASK, {"secure": True, **by_site("shares", dealt)}) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.SHARE, by_site("keys", table.collector.cohort())) is SiteCode.ANSWERED
    assert table.code("a", RoundStep.UNMASK, table.unmask("a", "b", "c")) is SiteCode.SECURE_SUM


def test_what_was_sent_is_kept_until_the_server_goes_on(table: Table) -> None:
    sent = table.trial.site_folder("a") / "state" / "sent.bin"
    table.until(RoundStep.SHARE)
    assert not sent.exists()
    vector = table.ask("a", RoundStep.MASK, table.dealt("a")).array("vector")
    assert sent.read_bytes() == vector.astype("<u8").tobytes()
    assert sent.stat().st_mode & 0o777 == 0o600
    for site in "bcd":
        answer = table.ask(site, RoundStep.MASK, table.dealt(site))
        table.collector.add(site, answer.array("vector"), answer.data("signature"))
    assert table.code("a", RoundStep.UNMASK, table.unmask(*FOUR)) is SiteCode.OK
    assert not sent.exists()


def save(trial: Trial, **more: Any) -> None:
    features, labels = rows_of("a")
    np.savez(trial.data("a"), **{"features": features, "labels": labels, "class_names": np.array(CLASSES), **more})


WRITTEN = np.array(["ape", "bee", "catt", "dog"])
NAN = np.where(np.arange(15)[:, None] == 3, np.nan, rows_of("a")[0])


@pytest.mark.parametrize(
    ("rows", "code", "reason"),
    [
        ({"features": NAN}, SiteCode.DATA, "row 3 hold NaN"),
        ({"features": rows_of("a")[0][:, :5]}, SiteCode.WIDTH, "are 5 wide, and the agreement says 6"),
        ({"class_names": WRITTEN}, SiteCode.CLASSES, "'catt' is none of the 4 agreed ones; did you mean 'cat'"),
        ({"split": np.ones(15, np.int8)}, SiteCode.NO_ROWS, "no row to train on"),
        ({"clients": np.array(["x", "y", "z"] * 5)}, SiteCode.NO_ROWS, "none of 'a'"),
        ({"labels": np.zeros(3, int)}, SiteCode.DATA, "there are 15 rows"),
        ({"weights": np.linspace(0.5, 2.0, 15)}, SiteCode.DATA, "has weights, and rows of a federation weigh alike"),
        ({"labels": np.linspace(0.5, 2.0, 15)}, SiteCode.DATA, "labels are float64"),
        ({"labels": np.zeros((15, 2), int)}, SiteCode.DATA, "labels are int64 of shape (15, 2)"),
        ({"features": np.zeros((0, WIDTH)), "labels": np.zeros(0, int)}, SiteCode.DATA, "shape"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit(table: Table, rows: dict[str, Any], code: SiteCode, reason: str) -> None:
    save(table.trial, **rows)
    assert table.code("a", RoundStep.HELLO) is code
    assert reason in table.trial.log("a")


def test_no_data_at_all(table: Table) -> None:
    table.trial.data("a").unlink()
    assert table.code("a", RoundStep.HELLO) is SiteCode.DATA
    table.trial.data("b").write_bytes(b"not a zip file")
    assert table.code("b", RoundStep.HELLO) is SiteCode.DATA


def test_more_rows_than_agreed(tmp_path: Path) -> None:
    table = Table(tmp_path, max_rows=11)
    assert table.code("a", RoundStep.HELLO) is SiteCode.ROWS


def test_a_feature_larger_than_agreed(table: Table) -> None:
    features = rows_of("a")[0]
    features[3, 2] = -160.0
    save(table.trial, features=features)
    assert table.code("a", RoundStep.HELLO) is SiteCode.OVERFLOW
    assert "a feature of column 2 is as large as 160 here, and the agreement allows 16" in table.trial.log("a")


def test_a_feature_of_an_image_larger_than_agreed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.until(RoundStep.HELLO)  # images are not looked at before their features are needed
    rows, labels = rows_of("a")
    large = Client("a", (100.0 * rows, labels), (rows, labels))
    monkeypatch.setattr("fedhip.federation.site.rows.SiteRows.client", lambda *_, **__: large)
    assert table.code("a", RoundStep.KEYS) is SiteCode.OVERFLOW
    assert "the agreement allows 16" in table.trial.log("a")


def broken(part: str, value: int) -> Any:
    def statistics(self: RowEncoding, client: Client, d: int, *_: Any) -> GridStatistics:
        rows, bits = torch.as_tensor(client.train[0]), self.fraction_bits
        own = GridStatistics.from_data(rows, client.train[1], d, fraction_bits=bits)
        getattr(own, part)[0] = value
        return own

    return statistics


@pytest.mark.parametrize(
    ("part", "value", "code"),
    [("gram", -1, SiteCode.IMPOSSIBLE), ("cross", 2**50, SiteCode.IMPOSSIBLE), ("gram", 2**61, SiteCode.OVERFLOW)],
)
def test_statistics_that_no_rows_have(
    table: Table, monkeypatch: pytest.MonkeyPatch, part: str, value: int, code: SiteCode
) -> None:
    table.until(RoundStep.HELLO)
    monkeypatch.setattr(RowEncoding, "statistics", broken(part, value))
    assert table.code("a", RoundStep.KEYS) is code
    assert not (table.trial.site_folder("a") / "state" / "vector.bin").exists()


@pytest.mark.parametrize(
    ("place", "value", "code"),
    [
        ((5, 0, 0), 13, SiteCode.IMPOSSIBLE),  # of twelve rows
        ((5, 2, 0), -1, SiteCode.IMPOSSIBLE),
        ((5, 1, 0), 2**40, SiteCode.IMPOSSIBLE),
        ((5, 3, 0), 2**61, SiteCode.OVERFLOW),
    ],
)
def test_a_survey_that_no_rows_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[int, ...], value: int, code: SiteCode
) -> None:
    table, survey = Table(tmp_path), Client.survey
    table.until(RoundStep.HELLO)

    def spoilt(client: Client) -> Survey:
        found = survey(client)
        found.table[place] = value
        return found

    monkeypatch.setattr(Client, "survey", spoilt)
    assert table.code("a", RoundStep.KEYS) is code
    assert not (table.trial.site_folder("a") / "state" / "vector.bin").exists()


def test_a_feature_beyond_any_units(tmp_path: Path) -> None:
    table = Table(tmp_path)
    features = rows_of("a")[0]
    features[:, 4] = -1e20
    save(table.trial, features=features)
    assert table.code("a", RoundStep.HELLO) is SiteCode.OVERFLOW
    assert "a feature of column 4 is as large as 1e+20 here, and no grid holds more than 2e+19" in table.trial.log("a")


def test_classes_by_the_sites_own_names(table: Table) -> None:
    save(table.trial, class_names=np.array(["Affe", "bee", "cat", "Einhorn"]))
    assert table.code("a", RoundStep.HELLO) is SiteCode.CLASSES
    table.trial.policy("a", '[class_names]\nAffe = "ape"\n')  # of an Einhorn there is no row, so it needs no name
    table.until(RoundStep.HELLO)
    table.ask("a", RoundStep.KEYS)
    np.testing.assert_array_equal(table.sites["a"].state.vector(), vector_of("a", table.trial.agreement))


def test_an_error_that_nobody_expected_is_a_code_outside_and_a_line_inside(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("patient 7 has gout")

    monkeypatch.setattr("fedhip.federation.site.inputs.SiteRows.read", fail)
    answer = table.ask("a", RoundStep.HELLO)
    assert (answer.code, answer.body, answer.arrays) == (SiteCode.INTERNAL, {}, {})
    assert "patient 7 has gout" in table.trial.log("a")


def test_a_folder_that_is_not_whole(table: Table) -> None:
    (table.trial.site_folder("a") / "roster.json").unlink()
    assert table.code("a", RoundStep.HELLO) is SiteCode.FOLDER
    table.trial.site_folder("b").rename(table.trial.folder / "elsewhere")
    assert table.code("b", RoundStep.HELLO) is SiteCode.FOLDER
