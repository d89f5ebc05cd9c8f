"""Calls are held until there is something to answer, and a question is handed out until it is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.superlink.servicer.fleet import fleet_handlers

from fedhip.federation.transport.hold import ARRIVALS, Arrivals, ArrivedQuestions, Hold, hand_out_until_answered
from tests.federation.transport.test_control import control, place  # noqa: F401
from tests.waiting import PATIENCE

#: The engine's libraries warn one another.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PULL, PUSH, ANSWERED = "/v1/fleet/pull-messages", "/v1/runtime/push-messages", "/v1/fleet/push-messages"
WANTED, STARTED = "/v1/runtime/acquire-task", "/v1/control/start-run"


class Engine:
    """What is behind: a queue of questions."""

    def __init__(self) -> None:
        self.questions: list[bytes] = []
        self.bodies: list[bytes] = []
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        body = b""
        if scope["path"] == PUSH:
            self.questions.append(message["body"])
        elif scope["path"] == PULL:
            self.bodies.append(message["body"])
            assert "seen" not in scope["state"]  # what one try leaves there is not for the next
            scope["state"]["seen"] = True
            body = self.questions.pop(0) if self.questions else b""
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": body})


async def call(hold: Hold, path: str, body: bytes = b"", *, gone: asyncio.Event | None = None) -> tuple[int, bytes]:
    """A call, in two pieces; the caller hangs up when `gone` is set."""
    pieces = [(body[:1], True), (body[1:], False)]
    sent: list[Any] = []

    async def receive() -> Any:
        if pieces:
            piece, more = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": more}
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def whole() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "path": path, "state": {}}
    await hold(scope, receive if path in (PULL, ARRIVALS, WANTED) else whole, send)
    return (sent[0]["status"], sent[1]["body"]) if sent else (0, b"")


async def settle() -> None:
    """As long as anything can go on by itself: nothing here waits for a clock or a network."""
    for _ in range(100):
        await asyncio.sleep(0)


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE / 2):  # half of what one is held who was forgotten
            await test()

    asyncio.run(limited())


def test_a_call_waits_until_there_is_a_question() -> None:
    async def test() -> None:
        hold = Hold(engine := Engine(), Arrivals(), longest=PATIENCE)
        waiting = [asyncio.create_task(call(hold, PULL, b"who")) for _ in range(2)]
        await settle()
        assert not any(task.done() for task in waiting)
        await call(hold, PUSH, b"first")
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [(200, b"first")]
        assert len(left) == 1  # there was one question, for one of them
        await call(hold, PUSH, b"second")
        assert await left.pop() == (200, b"second")
        assert set(engine.bodies) == {b"who"}
        assert len(engine.bodies) == 5  # a look each, one more each at a ring
        await call(hold, PUSH, b"third")
        assert await call(hold, PULL, b"who") == (200, b"third")  # at once

    in_loop(test)


def test_a_question_that_comes_while_one_looks_is_not_missed() -> None:
    async def test() -> None:
        hold = Hold(engine := Engine(), Arrivals(), longest=PATIENCE)

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == PULL and not engine.bodies:
                await engine(scope, receive, send)
                await call(hold, PUSH, b"meanwhile")  # after it was looked for, before anybody waits
            else:
                await engine(scope, receive, send)

        hold._app = slow
        assert await call(hold, PULL) == (200, b"meanwhile")

    in_loop(test)


def test_nobody_is_held_for_long_and_a_refusal_not_at_all() -> None:
    async def test() -> None:
        hold = Hold(engine := Engine(), Arrivals(), longest=0.1)
        assert await call(hold, PULL) == (200, b"")
        assert len(engine.bodies) == 1  # nobody has brought anything: there is nothing to look for again
        engine.status = 401
        hold = Hold(engine, Arrivals(), longest=60)
        assert await call(hold, PULL) == (401, b"")

    in_loop(test)


def test_one_who_hangs_up_takes_no_question_with_him() -> None:
    async def test() -> None:
        hold, gone = Hold(engine := Engine(), Arrivals(), longest=60), asyncio.Event()
        waiting = asyncio.create_task(call(hold, PULL, gone=gone))
        await settle()
        gone.set()
        assert await waiting == (0, b"")
        await call(hold, PUSH, b"question")
        assert engine.questions == [b"question"]

    in_loop(test)


def test_a_call_for_apps_waits_until_one_is_started_and_is_passed_on_once() -> None:
    async def test() -> None:
        hold = Hold(engine := Engine(), Arrivals(), longest=PATIENCE)
        looks = 0

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            nonlocal looks
            looks += scope["path"] == WANTED
            await engine(scope, receive, send)

        hold._app = counted
        assert await call(hold, WANTED, b"signed") == (200, b"")  # what waits from before is found at once
        gone = asyncio.Event()
        dead = asyncio.create_task(call(hold, WANTED, b"signed", gone=gone))
        held = asyncio.create_task(call(hold, WANTED, b"signed"))
        await settle()
        assert looks == 1
        assert not held.done()
        gone.set()
        assert await dead == (0, b"")
        await call(hold, STARTED)
        assert await held == (200, b"")
        assert looks == 2  # who has hung up was given nothing
        await call(hold, STARTED)
        engine.status = 401
        assert await call(hold, WANTED, b"stranger") == (401, b"")
        engine.status = 200
        assert await call(hold, WANTED, b"signed") == (200, b"")  # he has not delayed it
        hold._longest = 0.1
        assert await call(hold, WANTED, b"signed") == (200, b"")
        assert looks == 5

    in_loop(test)


def test_the_server_app_is_told_what_was_answered() -> None:
    async def test() -> None:
        arrivals = Arrivals()
        hold = Hold(Engine(), arrivals, longest=PATIENCE)

        async def ask(mark: int, seconds: float = 60) -> Any:
            status, body = await call(hold, ARRIVALS, json.dumps({"mark": mark, "seconds": seconds}).encode())
            assert status == 200
            return json.loads(body)

        assert await ask(-1) == {"mark": 0, "questions": None}  # whoever is new looks at all
        assert await ask(0, 0.1) == {"mark": 0, "questions": []}
        waiting = asyncio.create_task(ask(0))
        await settle()
        arrivals.add("q1")
        await call(hold, ANSWERED)
        assert await waiting == {"mark": 1, "questions": ["q1"]}
        assert await ask(7) == {"mark": 1, "questions": None}  # of a server before this one
        for number in range(20_000):
            arrivals.add(str(number))
        assert await ask(1) == {"mark": 20_001, "questions": None}
        assert (await ask(20_000))["questions"] == ["19999"]

    in_loop(test)


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engine's own, which hand out each question once; what was confirmed."""
    confirmed: list[str] = []
    questions = ["first", "second"]

    def pull(request: Any, state: Any, store: Any) -> PullMessagesResponse:
        if not questions or request.node.node_id != 11:
            return PullMessagesResponse()
        about = Metadata(message_id=questions.pop(0), created_at=state.now, ttl=60)
        return PullMessagesResponse(messages_list=[Message(metadata=about)])

    def confirm(request: Any, state: Any, store: Any) -> None:
        confirmed.append(request.message_object_id)

    monkeypatch.setattr(fleet_handlers, "pull_messages", pull)
    monkeypatch.setattr(fleet_handlers, "confirm_message_received", confirm)
    hand_out_until_answered()
    return confirmed


def pulled(node: int = 11, now: float | None = None) -> list[str]:
    state: Any = SimpleNamespace(now=time.time() if now is None else now)
    response = fleet_handlers.pull_messages(
        request=PullMessagesRequest(node=Node(node_id=node)), state=state, store=state
    )
    return [message.metadata.message_id for message in response.messages_list]


def confirm(name: str) -> None:
    request = ConfirmMessageReceivedRequest(node=Node(node_id=11), message_object_id=name)
    state: Any = None
    fleet_handlers.confirm_message_received(request=request, state=state, store=state)


def test_a_question_that_was_lost_on_its_way_is_handed_out_again(handlers: list[str]) -> None:
    assert [pulled(), pulled(), pulled(12)] == [["first"], ["first"], []]
    confirm("another")
    assert pulled() == ["first"]
    confirm("first")
    assert [pulled(), pulled()] == [["second"], ["second"]]
    confirm("second")
    assert pulled() == []
    assert handlers == ["another", "first", "second"]


def test_a_question_that_nobody_waits_for_any_more_is_not(handlers: list[str]) -> None:
    assert pulled(now=time.time() - 100) == ["first"]
    assert pulled() == ["second"]


def test_without_a_server_that_tells_the_server_app_waits_a_little(tmp_path: Path) -> None:
    def no_port() -> int:
        raise OSError("no server")

    begin = time.monotonic()
    assert ArrivedQuestions(no_port, tmp_path / "ca.crt", dict)(0.05) is None
    assert 0.04 < time.monotonic() - begin < PATIENCE


def test_the_engine_s_server_tells_those_alone_who_know_the_password(control: Any, place: Path) -> None:  # noqa: F811
    from fedhip.federation.transport.link import HEADER, password

    port = int(control.address.rpartition(":")[2])
    shown = {HEADER: password(place / "secret")}
    arrived = ArrivedQuestions(lambda: port, place / "ca" / "ca.crt", lambda: shown)
    assert arrived(5) is None  # new: it looks at all
    assert arrived(0.05) == set()
    arrived.close()
    stranger = ArrivedQuestions(lambda: port, place / "ca" / "ca.crt", lambda: {HEADER: "x"})
    with pytest.raises(KeyError):
        stranger._ask(0.05)
    stranger.close()
