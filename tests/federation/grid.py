"""The engine in one process: the public `Grid`, whose nodes call the client app itself.

With `carry`, every message goes through the engine's own bytes, there and back, and all bytes are kept for whoever
wants to read them. A `Fault` says what goes wrong at which site in which step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedhip.federation.client_app import app

#: The engine answers for a node that is gone, under this number.
ENGINE = 1


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `kind` at `node` in `step`.

    silent: the message never arrives; lost: the site answers and dies; both are gone for good afterwards.
    late: the answer is there after the deadline. gone: the engine says that the node is gone.
    away: the same, and it is back after `seconds`. unheard: so it is, and it has answered, and that was lost. Once.
    raises: the app breaks off. twice, at-once: the message arrives twice, in turn or together.
    changed: the answer is what `change` makes of it. asked: the question is.
    With `round`, in that sum alone.
    """

    kind: str
    node: int
    step: str
    change: Callable[[RecordDict], RecordDict] | None = None
    round: int | None = None
    seconds: float = 40.0


@dataclass
class LocalGrid(Grid):
    """Nodes by number, each with its context."""

    nodes: dict[int, Context]
    clock: Clock = field(default_factory=Clock)
    faults: list[Fault] = field(default_factory=list)
    stop_at: tuple[str, int] | None = None  # the server is killed once so many sites have got this question
    carry: bool = False
    keys_apart: bool = False  # the server asks for the keys of the first sum after hello; of itself, to spoil that step

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, ENGINE, 1
        self.replies: dict[str, tuple[float, Message]] = {}
        self.dead: set[int] = set()
        self.away: dict[int, float] = {}  # until when
        self.wire: list[tuple[int, str, bytes]] = []  # node, step, bytes
        self.doubled: list[tuple[Message, Message]] = []  # both answers to messages that came twice
        self.asked: list[tuple[int, str]] = []

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        now = self.clock.now
        return [node for node in self.nodes if node not in self.dead and self.away.get(node, now) <= now]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [number for number in message_ids if number in self.replies]
        return [self.replies.pop(number)[1] for number in found if self.replies[number][0] <= self.clock.now]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def _deliver(self, message: Message) -> str:
        node, step = message.metadata.dst_node_id, message.metadata.message_type.partition(".")[2]
        number = f"{len(self.asked)}"
        self.asked.append((node, step))
        message.metadata.__dict__["_message_id"] = number
        if step == "hello" and self._keys_are_apart:
            cast(ConfigRecord, message.content["body"])["keys"] = False
        number_of_sum = cast(ConfigRecord, message.content["fedhip"])["round"]
        fault = next(
            (f for f in self.faults if (f.node, f.step) == (node, step) and f.round in (None, number_of_sum)), None
        )
        kind = None if fault is None else fault.kind
        if fault is not None and kind == "asked":
            message.content = cast(Callable[[RecordDict], RecordDict], fault.change)(message.content)
        if node in self.dead or kind == "silent":
            self.dead.add(node)
            return number
        if kind == "gone":
            self.dead.add(node)
            self._keep(number, _error(message, 5, ENGINE))
            return number
        if fault is not None and kind in ("away", "unheard"):
            self.faults.remove(fault)
            self.away[node] = self.clock.now + fault.seconds
            if kind == "unheard":
                self._answer(_copy(message))
            self._keep(number, _error(message, 5 if kind == "away" else 3, ENGINE))
            return number
        if kind == "raises":
            self._keep(number, _error(message, 2, node))
            return number
        arrived = [self._carry(node, step, message)]
        if kind in ("twice", "at-once"):
            arrived.append(_copy(message))
        answers = self._at_once(arrived) if kind == "at-once" else [self._answer(one) for one in arrived]
        reply, *more = [self._carry(node, step, answer) for answer in answers]
        self.doubled += [(_copy(reply), second) for second in more]
        if fault is not None and kind == "changed":
            reply.content = cast(Callable[[RecordDict], RecordDict], fault.change)(reply.content)
        if kind == "lost":
            self.dead.add(node)
        elif kind == "late":
            self._keep(number, reply, at=self.clock.now + 1e9)
        else:
            self._keep(number, reply)
        if self.stop_at == (step, [s for _, s in self.asked].count(step)):
            raise ServerKilled(step)
        return number

    @property
    def _keys_are_apart(self) -> bool:
        spoilt = any(fault.step == "keys" and (fault.round or 0) <= 1 for fault in self.faults)
        return self.keys_apart or spoilt or (self.stop_at is not None and self.stop_at[0] == "keys")

    def _answer(self, message: Message) -> Message:
        return app(message, self.nodes[message.metadata.dst_node_id])

    def _at_once(self, messages: list[Message]) -> list[Message]:
        answers: list[Message] = []
        threads = [threading.Thread(target=lambda m=m: answers.append(self._answer(m))) for m in messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Which of them was first is theirs to say; the server gets the one that was answered.
        return sorted(answers, key=lambda answer: str(cast(ConfigRecord, answer.content["fedhip"])["code"]) != "ok")

    def _carry(self, node: int, step: str, message: Message) -> Message:
        """As the engine does: into objects of bytes, and back."""
        if not self.carry:
            return message
        objects = get_all_nested_objects(message)
        contents = {number: thing.deflate() for number, thing in objects.items()}
        self.wire += [(node, step, content) for content in contents.values()]
        arrived = cast(Message, inflate_object_from_contents(message.object_id, contents))
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        return arrived

    def _keep(self, number: str, reply: Message, at: float = 0.0) -> None:
        self.replies[number] = (at, reply)


class ServerKilled(BaseException):
    """The server's process is no more: nobody catches this."""


def _copy(message: Message) -> Message:
    """The same message once more: reading one takes its arrays out."""
    objects = get_all_nested_objects(message)
    copy = inflate_object_from_contents(message.object_id, {n: thing.deflate() for n, thing in objects.items()})
    copy.__dict__["_metadata"] = message.metadata
    return cast(Message, copy)


def _error(message: Message, code: int, source: int) -> Message:
    reply = Message(Error(code, "<class 'ValueError'>:<'row 3 of patient 7'>"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = source
    return reply


def array_record(**arrays: Any) -> ArrayRecord:
    """Arrays in the engine's own format, which is not ours."""
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})
