"""Calls for work that the engine's server holds until there is some, and questions that are handed out until answered.

A node asks for questions, the server app for answers, the SuperExec for apps to start. The engine says at once that
there is nothing, and they ask again after a pause: a round has dozens of such pauses, one after the other, and short
ones cost processor time on every machine. Here a call with nothing to answer waits, ten seconds at most, until somebody
brings something. Any client of the engine may be held: to it, the answer took its time.

The engine hands a question out once. Where the network breaks on its way, or the node dies, nobody would ever answer.
So a node that asks again before it has confirmed a question gets the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.federation.transport.bounds import of_engine

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: How long a call is held. The engine's clients wait 30 s for an answer.
LONGEST = 10.0
#: The call that is held while there is nothing to answer, and the one that brings something.
_HELD, _ASKED = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"
#: The same of apps. Its signature is good for once, so it is held before it is looked at, and not passed on again.
_APP_WANTED, _APP_STARTED = "/v1/runtime/acquire-task", "/v1/control/start-run"
#: Which questions were answered of late, for the server app: with the password, a path that the engine does not have.
ARRIVALS = "/v1/control/arrivals"
_ANSWERED = "/v1/fleet/push-messages"
#: So many questions are remembered; who has missed more looks at all.
_REMEMBERED = 10_000
_LARGEST = 1 << 12


class Bell:
    """Rings for all who wait."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait now."""
        rung, self._next = self._next, asyncio.Event()
        rung.set()

    @property
    def event(self) -> asyncio.Event:
        """Set at the next ring."""
        return self._next


class Arrivals:
    """The questions that were answered of late, numbered from the first on."""

    def __init__(self) -> None:
        self._latest: deque[str] = deque(maxlen=_REMEMBERED)
        self._count, self._lock = 0, threading.Lock()

    def add(self, question: str) -> None:
        """An answer to this question has come; or says it has."""
        with self._lock:
            self._latest.append(question)
            self._count += 1

    def since(self, mark: int) -> tuple[int, list[str] | None]:
        """How many there were, and those after the first `mark`; None where they are not remembered."""
        with self._lock:
            missed = self._count - mark
            if not 0 <= missed <= len(self._latest):
                return self._count, None
            return self._count, list(self._latest)[len(self._latest) - missed :]


class Hold:
    """In front of all that the engine serves: holds the calls that have nothing to answer."""

    def __init__(self, app: ASGIApp, arrivals: Arrivals, longest: float = LONGEST) -> None:
        self._app, self._arrivals, self._longest = app, arrivals, longest
        self._bells = {path: Bell() for path in (_ASKED, _ANSWERED)}
        self._started = asyncio.Event()  # whether an app may wait since the last call for one
        self._started.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, again until there is an answer if it is one that is held."""
        path = scope.get("path")
        if scope["type"] == "http" and path == ARRIVALS:
            await self._tell_arrivals(receive, send)
        elif scope["type"] == "http" and path == _HELD:
            await self._until_answered(self._bells[_ASKED], scope, receive, send)
        elif scope["type"] == "http" and path == _APP_WANTED:
            await self._until_started(scope, receive, send)
        else:
            await self._app(scope, receive, send)
            if path in self._bells:
                self._bells[path].ring()
            if path == _APP_STARTED:
                self._started.set()

    async def _until_answered(self, bell: Bell, scope: Scope, receive: Receive, send: Send) -> None:
        if (body := await _body(receive)) is None:
            return
        gone = asyncio.create_task(_hung_up(receive))
        try:
            end = time.monotonic() + self._longest
            while True:
                event = bell.event  # before we look, or a ring between would be missed
                answer = await self._try(scope, body)
                left = end - time.monotonic()
                if not _is_nothing(answer) or left <= 0:
                    break
                await _first(event.wait(), gone, left)
                if gone.done():
                    return
                if not event.is_set():  # nobody has brought anything, so that there is still nothing
                    break
            for message in answer:
                await send(message)
        finally:
            gone.cancel()

    async def _until_started(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (body := await _body(receive)) is None:
            return
        gone = asyncio.create_task(_hung_up(receive))
        try:
            await _first(self._started.wait(), gone, self._longest)
            if gone.done():  # an app that is given to nobody would be lost
                return
            self._started.clear()
            answer = await self._try(scope, body)
            if not _is_well(answer):  # a stranger, say: the app is still there
                self._started.set()
            for message in answer:
                await send(message)
        finally:
            gone.cancel()

    async def _try(self, scope: Scope, body: bytes) -> list[Message]:
        """What the engine answers, kept back."""
        kept: list[Message] = []
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if pending:
                return pending.pop()
            await asyncio.Event().wait()  # the caller stays as long as it is asked for
            raise AssertionError

        async def send(message: Message) -> None:
            kept.append(message)

        await self._app({**scope, "state": dict(scope.get("state") or {})}, receive, send)
        return kept

    async def _tell_arrivals(self, receive: Receive, send: Send) -> None:
        given = json.loads(await _body(receive) or b"{}")
        gone, end = asyncio.create_task(_hung_up(receive)), time.monotonic() + min(given["seconds"], self._longest)
        try:
            while True:
                event = self._bells[_ANSWERED].event
                count, questions = self._arrivals.since(given["mark"])
                left = end - time.monotonic()
                if questions != [] or left <= 0 or gone.done():
                    break
                await _first(event.wait(), gone, left)
        finally:
            gone.cancel()
        said = json.dumps({"mark": count, "questions": questions}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})


async def _first(waiting: Any, gone: asyncio.Task[None], seconds: float) -> None:
    """Until one of them is done, or so many seconds have passed."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()


async def _body(receive: Receive) -> bytes | None:
    """The body of a call that has a short one; None if the caller has gone."""
    body = b""
    while True:
        message: dict[str, Any] = dict(await receive())
        if message["type"] != "http.request" or len(body) > _LARGEST:
            return None
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_nothing(answer: list[Message]) -> bool:
    """Whether the engine says that there is nothing: a message without a field has no bytes."""
    return _is_well(answer) and not any(message.get("body") for message in answer)


def _is_well(answer: list[Message]) -> bool:
    return any(message.get("status") == http.client.OK for message in answer)


def hand_out_until_answered() -> None:
    """From here on, a server of the engine in this process gives a node its latest question until it confirms it."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.superlink.servicer.fleet import fleet_handlers

    pull, confirm = of_engine(fleet_handlers, "pull_messages"), of_engine(fleet_handlers, "confirm_message_received")
    given: dict[int, tuple[float, PullMessagesResponse]] = {}  # until when, and what; by node

    def pulled(request: Any, state: Any, store: Any) -> Any:
        until, latest = given.get(request.node.node_id, (0.0, PullMessagesResponse()))
        if time.time() < until:
            return latest
        response = pull(request=request, state=state, store=store)
        for message in response.messages_list:
            given[request.node.node_id] = (message.metadata.created_at + message.metadata.ttl, response)
        return response

    def confirmed(request: Any, state: Any, store: Any) -> Any:
        _, latest = given.get(request.node.node_id, (0.0, PullMessagesResponse()))
        if any(message.metadata.message_id == request.message_object_id for message in latest.messages_list):
            given.pop(request.node.node_id, None)
        return confirm(request=request, state=state, store=store)

    fleet_handlers.pull_messages, fleet_handlers.confirm_message_received = pulled, confirmed


class ArrivedQuestions:
    """For the server app: waits until sites have answered, by a call that the server holds; without one, a while."""

    def __init__(self, port: Callable[[], int], authority: Path, headers: Callable[[], dict[str, str]]) -> None:
        self._port, self._authority, self._headers = port, authority, headers
        self._connection: http.client.HTTPSConnection | None = None
        self._mark = -1

    def __call__(self, seconds: float) -> Collection[str] | None:
        """The questions answered since the last call, after so many seconds at most; None if it is not known."""
        try:
            return self._ask(seconds)
        except Exception:  # there is no such server, or it is being started again
            self.close()
            time.sleep(min(seconds, 0.3))
            return None

    def _ask(self, seconds: float) -> Collection[str] | None:
        if self._connection is None:
            context = ssl.create_default_context(cafile=str(self._authority))
            self._connection = http.client.HTTPSConnection("127.0.0.1", self._port(), timeout=30, context=context)
        body = json.dumps({"mark": self._mark, "seconds": seconds})
        self._connection.request("POST", ARRIVALS, body, self._headers())
        answer = self._connection.getresponse()
        said = json.loads(answer.read())
        self._mark = int(said["mark"])
        return None if said["questions"] is None else set(said["questions"])

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None
