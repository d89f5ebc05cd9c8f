"""Answers as a site that keeps to no rule may put them into the engine: each concerns that site alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedhip.federation.status_codes import ServerCode, SiteCode
from fedhip.federation.transport.exchange import Exchange, SiteQuestion, SiteReply
from fedhip.federation.transport.wire import Envelope, Letter, RoundStep, Value, to_records
from tests.federation.grid import Clock, LocalGrid

ENVELOPE = Envelope(b"s" * 32, "agreement", "roster", RoundStep.KEYS)
Answer = Callable[[Message], Message]


def honest(question: Message) -> Message:
    return Message(to_records(Letter(ENVELOPE, {"keys": question.metadata.message_id.encode()})), reply_to=question)


class Engine(LocalGrid):
    """Passes on what the sites' own functions make of a question, at the latest when it is pulled."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        super().__init__({})
        self.answers = answers
        self.questions: dict[str, Message] = {}

    def _deliver(self, message: Message) -> str:
        number = f"question {message.metadata.dst_node_id}"
        message.metadata.__dict__["_message_id"] = number
        self.questions[number] = message
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.answers[q.metadata.dst_node_id](q) for n in message_ids if (q := self.questions.pop(n, None))]


def ask(bad: Answer) -> dict[str, SiteReply]:
    """What comes of a question to the sites a and b, where a is bad."""
    clock = Clock()
    exchange = Exchange(Engine({11: bad, 12: honest}), 5.0, clock=clock, sleep=clock.sleep)
    replies = list(exchange.ask(SiteQuestion(site, node, Letter(ENVELOPE)) for site, node in (("a", 11), ("b", 12))))
    assert sorted(reply.site for reply in replies) == ["a", "b"]
    return {reply.site: reply for reply in replies}


@pytest.mark.parametrize(
    "error",
    [KeyError("CustomDataClass"), AttributeError("metadata"), ValueError("json"), TypeError(), DecodeError("wire"),
     RecursionError(), OverflowError()],
)  # fmt: skip
def test_an_answer_that_the_engine_cannot_read_is_garbage_of_one_site(error: Exception) -> None:
    def unreadable(_: Message) -> Message:
        raise error

    replies = ask(unreadable)
    assert replies["a"].code is ServerCode.GARBAGE
    assert replies["b"].code is SiteCode.OK


@pytest.mark.parametrize(
    ("body", "vector", "pushed"),
    [(b"", 0, [7]), (b"x" * (1 << 20), 0, [5, 2]), ([b"x" * (1 << 19)] * 3, 0, [3, 3, 1]), (b"", 1 << 20, [3, 3, 1])],
    ids=["small", "bodies", "lists", "arrays"],
)
def test_so_many_questions_go_at_once_as_one_call_and_memory_hold(body: Value, vector: int, pushed: list[int]) -> None:
    counts = []

    class Pushes(Engine):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            counts.append(len(messages))
            return super().push_messages(messages)

    clock, nodes = Clock(), range(11, 18)
    exchange = Exchange(Pushes(dict.fromkeys(nodes, honest)), 5.0, clock=clock, sleep=clock.sleep)
    arrays = {"x": np.zeros(vector, np.uint64)} if vector else {}
    letter = Letter(ENVELOPE, {"body": body}, arrays)
    replies = list(exchange.ask(SiteQuestion(f"site {node}", node, letter) for node in nodes))
    assert {reply.code for reply in replies} == {SiteCode.OK}
    assert counts == pushed


def test_a_server_that_cannot_be_reached_is_no_fault_of_a_site() -> None:
    def lost(_: Message) -> Message:
        raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError):
        ask(lost)


@pytest.mark.parametrize(
    "claims",
    [
        {"_reply_to_message_id": "question 12", "_src_node_id": 12},
        {"_reply_to_message_id": "question 12"},
        {"_src_node_id": 12},
    ],
)
def test_a_site_cannot_answer_for_another(claims: dict[str, Any]) -> None:
    """What a message says of itself was written by the one who sent it."""

    def posing(question: Message) -> Message:
        answer = honest(question)
        answer.metadata.__dict__ |= {"_src_node_id": 11} | claims
        return answer

    replies = ask(posing)
    assert replies["a"].code is ServerCode.GARBAGE
    assert replies["b"].letter is not None
    assert replies["b"].letter.data("keys") == b"question 12"


@pytest.mark.parametrize("shape", [(None,), ("4",), (2.5,), None, ((1,),)])
def test_an_array_of_an_odd_shape_is_garbage(shape: Any) -> None:
    def odd(question: Message) -> Message:
        array = Array(dtype="uint64", shape=(1,), stype="fedhip.little-endian", data=bytes(8))
        array.shape = shape
        return Message(
            RecordDict({**to_records(Letter(ENVELOPE)), "arrays": ArrayRecord({"vector": array})}), reply_to=question
        )

    assert ask(odd)["a"].code is ServerCode.GARBAGE


class Announced:
    """Tells which questions were answered, and lets time pass."""

    def __init__(self, clock: Clock, *said: list[str] | None, seconds: float = 0.5) -> None:
        self.clock, self.said, self.seconds = clock, list(said), seconds

    def __call__(self, seconds: float) -> list[str] | None:
        self.clock.sleep(min(seconds, self.seconds))
        return self.said.pop(0) if self.said else []


class Counting(Engine):
    """Remembers who was looked at; an answer is there from a given time on."""

    def __init__(self, clock: Clock, there: dict[int, float]) -> None:
        super().__init__(dict.fromkeys(there, honest))
        self.time, self.there, self.looks = clock, there, list[str]()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        numbers = list(message_ids)
        self.looks += numbers
        return super().pull_messages(
            number
            for number in numbers
            if (asked := self.questions.get(number)) is not None
            and self.there[asked.metadata.dst_node_id] <= self.time.now
        )


def announced(
    there: dict[int, float], *said: list[str] | None, seconds: float = 0.5
) -> tuple[list[SiteReply], Counting]:
    clock = Clock()
    grid = Counting(clock, there)
    exchange = Exchange(grid, 5.0, clock=clock, sleep=clock.sleep, arrived=Announced(clock, *said, seconds=seconds))
    questions = [SiteQuestion(f"site {node}", node, Letter(ENVELOPE)) for node in there]
    return list(exchange.ask(questions)), grid


def test_those_alone_are_looked_at_that_have_answered() -> None:
    replies, grid = announced({11: 0.4, 12: 0.9, 13: 0.9}, ["question 11"], ["question 12", "question 13"])
    assert sorted(reply.node for reply in replies) == [11, 12, 13]
    assert sorted(grid.looks) == ["question 11", "question 12", "question 13"]


def test_what_nobody_announces_is_found_after_a_while() -> None:
    replies, grid = announced({11: 1.0, 12: 1.0})
    assert {reply.code for reply in replies} == {SiteCode.OK}
    assert len(grid.looks) == 2
    replies, _ = announced({11: 0.4}, None)
    assert [reply.code for reply in replies] == [SiteCode.OK]


def test_at_the_deadline_there_is_a_last_look_at_all() -> None:
    """An answer whose parts are still on their way has kept the server from all others."""
    replies, _ = announced({11: 4.0, 12: 99.0}, seconds=1.9)
    assert {reply.node: reply.code for reply in replies} == {11: SiteCode.OK, 12: ServerCode.LATE}
