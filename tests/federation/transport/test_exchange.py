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
from fedhip.federation.transport.wire import Envelope, Letter, RoundStep, to_records
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


def test_questions_go_out_at_once_and_large_ones_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[int]] = []

    class Watched(Engine):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            held = list(messages)
            sent.append([message.metadata.dst_node_id for message in held])
            return super().push_messages(held)

    def asked(size: int) -> list[list[int]]:
        sent.clear()
        clock = Clock()
        grid = Watched(dict.fromkeys(range(11, 16), honest))
        letter = Letter(ENVELOPE, {}, {"vector": np.zeros(size, dtype=np.uint64)})
        exchange = Exchange(grid, 5.0, clock=clock, sleep=clock.sleep)
        replies = list(exchange.ask(SiteQuestion(f"s{node}", node, letter) for node in grid.answers))
        assert sorted(reply.node for reply in replies) == list(grid.answers)
        return list(sent)

    assert asked(1) == [[11, 12, 13, 14, 15]]
    monkeypatch.setattr("fedhip.federation.transport.exchange._AT_ONCE", 8000)
    assert asked(600) == [[11, 12], [13, 14], [15]]
    assert asked(2000) == [[11], [12], [13], [14], [15]]


@pytest.mark.parametrize("refused", [[], ["question 11", None]])
def test_questions_that_the_engine_does_not_take_are_asked_again(refused: list[str | None]) -> None:
    """It takes none of a call that is too large, and leaves a gap for a message that it finds malformed."""

    class Refusing(Engine):
        pushes = 0

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            self.pushes += 1
            held = list(messages)
            if self.pushes == 1:
                self._deliver(held[0])
                return refused  # type: ignore[return-value]
            return super().push_messages(held)

        def get_node_ids(self) -> Iterable[int]:
            return [11, 12]

    clock = Clock()
    exchange = Exchange(Refusing({11: honest, 12: honest}), 5.0, clock=clock, sleep=clock.sleep)
    replies = list(exchange.ask(SiteQuestion(site, node, Letter(ENVELOPE)) for site, node in (("a", 11), ("b", 12))))
    assert sorted(reply.site for reply in replies) == ["a", "b"]
    assert {reply.code for reply in replies} == {SiteCode.OK}
