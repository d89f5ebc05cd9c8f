"""Letters: there and back through the engine's bytes, and read strictly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedhip.federation.errors import MessageError
from fedhip.federation.status_codes import ServerCode, SiteCode, meaning
from fedhip.federation.transport.wire import (
    LARGEST_BODY,
    Arrays,
    Body,
    Envelope,
    Letter,
    ProtocolError,
    RoundStep,
    by_site,
    context_of,
    from_records,
    hello_statement,
    to_records,
    which_to_upgrade,
)
from tests.federation.grid import array_record

ENVELOPE = Envelope(bytes(range(32)), "a" * 64, "b" * 64, RoundStep.MASK, 2)
LETTER = Letter(
    ENVELOPE,
    {
        "secure": True,
        "number": 3,
        "real": 0.5,
        "text": "north",
        "data": b"\0\1",
        **by_site("shares", {"a": b"1", "b": b""}),
    },
    {"vector": np.array([0, 1, 2**64 - 1], np.uint64), "piece": np.arange(5, dtype=np.uint8)},
)


def carried(records: RecordDict) -> RecordDict:
    objects = get_all_nested_objects(records)
    contents = {number: thing.deflate() for number, thing in objects.items()}
    return cast(RecordDict, inflate_object_from_contents(records.object_id, contents))


def test_there_and_back() -> None:
    found = from_records(carried(to_records(LETTER)))
    assert (found.envelope, found.body, found.code) == (LETTER.envelope, LETTER.body, LETTER.code)
    assert found.mapping("shares") == {"a": b"1", "b": b""}
    assert (found.flag("secure"), found.number("number"), found.real("real")) == (True, 3, 0.5)
    assert (found.text("text"), found.data("data"), found.names("shares-of")) == ("north", b"\0\1", ["a", "b"])
    for name, values in LETTER.arrays.items():
        np.testing.assert_array_equal(found.array(name), values)
        assert found.array(name).dtype == values.dtype


def test_the_records_let_go_of_the_arrays() -> None:
    records = to_records(LETTER)
    from_records(records)
    assert len(cast(ArrayRecord, records["arrays"])) == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda letter: letter.text("number"),
        lambda letter: letter.text("absent"),
        lambda letter: letter.data("text"),
        lambda letter: letter.number("secure"),
        lambda letter: letter.number("number", 4),
        lambda letter: letter.real("number"),
        lambda letter: letter.flag("number"),
        lambda letter: letter.names("text"),
        lambda letter: letter.mapping("absent"),
        lambda letter: letter.array("absent"),
    ],
)
def test_a_field_of_another_kind_is_refused(read: Callable[[Letter], object]) -> None:
    with pytest.raises(MessageError):
        read(LETTER)


@pytest.mark.parametrize(
    "body",
    [
        {"shares-of": ["a", "a"], "shares": [b"1", b"2"]},
        {"shares-of": ["a", "b"], "shares": [b"1"]},
        {"shares-of": ["a"], "shares": ["1"]},
        {"shares-of": ["a" * 300], "shares": [b"1"]},
    ],
)
def test_a_mapping_that_is_none(body: dict[str, list[str] | list[bytes]]) -> None:
    with pytest.raises(MessageError):
        Letter(ENVELOPE, dict(body)).mapping("shares")


def test_no_number_that_is_not_finite() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(MessageError):
            Letter(ENVELOPE, {"real": value}).real("real")


def header(records: RecordDict, **fields: object) -> RecordDict:
    cast(ConfigRecord, records["fedhip"]).update(fields)  # type: ignore[arg-type]
    return records


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session", b"short"),
        ("session", "text"),
        ("agreement", 3),
        ("roster", "x" * 1000),
        ("step", "dance"),
        ("attempt", 0),
        ("attempt", "1"),
        ("round", -1),
        ("round", True),
        ("code", "Traceback: patient 7"),
        ("code", 5),
    ],
)
def test_an_envelope_that_is_none(name: str, value: object) -> None:
    with pytest.raises(MessageError):
        from_records(header(to_records(LETTER), **{name: value}))


@pytest.mark.parametrize(("version", "older"), [(1, "whoever sent it"), (3, "this machine")])
def test_another_protocol(version: int, older: str) -> None:
    with pytest.raises(ProtocolError, match=f"protocol {version}, and this fedhip 2; upgrade {older}"):
        from_records(to_records(LETTER, version))


@pytest.mark.parametrize("version", ["2", 2.0, None])
def test_a_protocol_that_is_none(version: object) -> None:
    records = to_records(LETTER)
    del cast(ConfigRecord, records["fedhip"])["protocol"]
    with pytest.raises(MessageError):
        from_records(records if version is None else header(records, protocol=version))


def test_who_is_to_upgrade() -> None:
    assert which_to_upgrade("0.2.0", "0.2.0") is None
    for server, site, older in (("0.9.0", "0.10.0", "server"), ("1.0", "0.10.0", "site"), ("0.2.0", "0.2", "site")):
        line = which_to_upgrade(server, site)
        assert line == f"the server has fedhip {server} and the site {site}: upgrade the {older}"


def test_records_that_are_none() -> None:
    for records in (RecordDict(), RecordDict({"fedhip": ConfigRecord()}), RecordDict({"more": ConfigRecord()})):
        with pytest.raises(MessageError):
            from_records(records)
    swapped = to_records(LETTER)
    swapped["arrays"] = ConfigRecord()
    with pytest.raises(MessageError):
        from_records(swapped)


@pytest.mark.parametrize(
    "array",
    [
        Array("uint64", (2,), "fedhip.little-endian", bytes(24)),
        Array("uint64", (4,), "fedhip.little-endian", bytes(24)),
        Array("uint64", (3,), "fedhip.little-endian", bytes(23)),
        Array("uint64", (3, 1), "fedhip.little-endian", bytes(24)),
        Array("float64", (3,), "fedhip.little-endian", bytes(24)),
        Array("object", (3,), "fedhip.little-endian", bytes(24)),
        Array("uint64", (-3,), "fedhip.little-endian", bytes(24)),
    ],
)
def test_an_array_that_is_truncated_or_of_another_kind(array: Array) -> None:
    records = to_records(replace(LETTER, arrays={}))
    records["arrays"] = ArrayRecord({"vector": array})
    with pytest.raises(MessageError):
        from_records(records)


def test_the_engines_own_arrays_are_not_loaded() -> None:
    records = to_records(replace(LETTER, arrays={}))
    records["arrays"] = array_record(vector=np.zeros(3, np.uint64))
    with pytest.raises(MessageError):
        from_records(records)


def test_too_large_or_too_many() -> None:
    with pytest.raises(MessageError, match="too much"):
        from_records(to_records(Letter(ENVELOPE, {"data": bytes(LARGEST_BODY + 1)})))
    with pytest.raises(MessageError, match="too much"):
        from_records(to_records(Letter(ENVELOPE, {f"field-{i}": 0 for i in range(40)})))
    with pytest.raises(MessageError, match="too many"):
        from_records(to_records(Letter(ENVELOPE, {}, {str(i): np.zeros(1, np.uint8) for i in range(5)})))


def test_the_digest_tells_questions_apart_and_not_attempts() -> None:
    variants = [
        LETTER,
        replace(LETTER, body={**LETTER.body, "number": 4}),
        replace(LETTER, body={**LETTER.body, "number": "3"}),
        replace(LETTER, body={**LETTER.body, **by_site("shares", {"a": b"", "b": b"1"})}),
        replace(LETTER, arrays={"vector": np.array([0, 1, 3], np.uint64)}),
        replace(LETTER, envelope=replace(ENVELOPE, session=bytes(32))),
        replace(LETTER, envelope=replace(ENVELOPE, step=RoundStep.AGREE)),
    ]
    assert len({letter.digest() for letter in variants}) == len(variants)
    assert replace(LETTER, envelope=replace(ENVELOPE, attempt=9)).digest() == LETTER.digest()
    assert replace(LETTER, envelope=replace(ENVELOPE, round=2)).digest() != LETTER.digest()


def test_a_message_that_names_no_sum_is_of_the_first() -> None:
    records = to_records(LETTER)
    del cast(ConfigRecord, records["fedhip"])["round"]
    assert from_records(records).envelope == ENVELOPE


def test_what_a_secure_sum_is_bound_to() -> None:
    """To the session, the number and attempt of the sum, the whole question, and the sums of before."""
    assert replace(ENVELOPE, attempt=1).sum_session == ENVELOPE.session
    later = [replace(ENVELOPE, round=number, attempt=attempt) for number in (1, 2, 12) for attempt in (1, 2, 3, 12)]
    assert len({envelope.sum_session for envelope in later}) == 3 * 4
    assert replace(later[-1], session=b"t" * 32).sum_session != later[-1].sum_session
    questions = [
        LETTER,
        *(replace(LETTER, envelope=envelope) for envelope in (
            replace(ENVELOPE, agreement="other"), replace(ENVELOPE, roster="other"), replace(ENVELOPE, round=2),
            replace(ENVELOPE, session=b"t" * 32),
        )),
        replace(LETTER, body={**LETTER.body, "beta": 1.0}),
        replace(LETTER, body={**LETTER.body, "beta": 1.0000000000000002}),
        *(replace(LETTER, arrays={**LETTER.arrays, "models": np.array([0, last], np.int32)}) for last in (1, 2)),
    ]  # fmt: skip
    sums = [(None, None), ("m", None), (None, "m"), ("m", "t"), ("t", "m")]
    contexts = {context_of(question, *about) for question in questions for about in sums}
    assert len(contexts) == len(questions) * len(sums)


def test_no_two_questions_have_one_digest() -> None:
    """Else the second would get the answer, or take the turn, of the first."""
    bodies: list[Body] = [
        {}, {"a": []}, {"a": ""}, {"a": "x"}, {"a": ["x"]}, {"a": b"x"}, {"a": ["x", "y"]}, {"a": ["xy"]}, {"b": "x"},
        {"a": "x", "b": "y"}, {"a": True}, {"a": 1}, {"a": 1.0}, {"a": "True"}, {"a str 1:x\0b": "y"},
    ]  # fmt: skip
    arrays: list[Arrays] = [
        {}, {"v": np.zeros(1, np.uint64)}, {"v": np.zeros(8, np.uint8)}, {"w": np.zeros(1, np.uint64)},
        {"v": np.zeros(2, np.uint64)}, {"v": np.zeros(0, np.uint64)},
    ]  # fmt: skip
    digests = {Letter(ENVELOPE, body, array).digest() for body in bodies for array in arrays}
    assert len(digests) == len(bodies) * len(arrays)


def test_a_hello_is_bound_to_its_node_and_session() -> None:
    statements = {
        hello_statement(ENVELOPE, "a", 1),
        hello_statement(ENVELOPE, "a", 2),
        hello_statement(ENVELOPE, "b", 1),
        hello_statement(replace(ENVELOPE, session=bytes(32)), "a", 1),
        hello_statement(replace(ENVELOPE, agreement="c"), "a", 1),
    }
    assert len(statements) == 5


def test_every_code_has_words() -> None:
    assert all(meaning(code) for code in (*SiteCode, *ServerCode))
