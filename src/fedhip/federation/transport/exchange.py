"""Questions to the sites and their answers, over the engine's grid.

Answers are taken one at a time, as they come, and each question has one: the first. The deadline is our own, since
the engine says nothing of an answer that comes too late. Until then nobody counts as gone: the engine gives a node up
after a minute without a word, and loses an answer that was cut off, which may be the network's fault; so who is there
is asked the same again. An answer belongs to the question for which the engine hands it over, whatever it says of
itself: that was written by the site, while the engine knows who sent it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedhip.federation.errors import MessageError
from fedhip.federation.status_codes import ServerCode, SiteCode
from fedhip.federation.transport.bounds import TooLargeError
from fedhip.federation.transport.wire import Letter, ProtocolError, from_message, to_records

#: What the engine reports where no answer came through: a message or a reply that it has lost, a node that is gone.
_NOT_THROUGH = (3, 4, 5)
#: A site should not begin to work on a question that nobody waits for; clocks differ by less than this.
_SLACK = 60.0
#: Bytes of questions that are held at once, before they are sent: of arrays, which sites often have in common, and of
#: all else, which is to travel in one call.
_AT_ONCE, _IN_ONE_CALL = 16 << 20, 4 << 20
#: What the engine tells by itself, that a node is gone, nobody announces: seconds between two looks at all questions.
_LOOK = 2.0
#: What the engine and we raise over an answer that is no message: the engine looks at little more than its length.
_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(DecodeError, MessageError),
)


@dataclass(frozen=True)
class SiteQuestion:
    """A letter to the site at a node."""

    site: str
    node: int
    letter: Letter


@dataclass(frozen=True)
class SiteReply:
    """What came of a question: a letter, or the reason why there is none, and the site that it says is to blame."""

    site: str
    node: int
    letter: Letter | None
    code: SiteCode | ServerCode = SiteCode.OK
    accused: str | None = None


class Exchange:
    """Asks and collects."""

    def __init__(
        self,
        grid: Grid,
        deadline: float,
        *,
        pause: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        arrived: Callable[[float], Collection[str] | None] | None = None,
    ) -> None:
        """With `arrived`, which waits for so many seconds at most: looks only at those questions that it names."""
        self.grid, self.deadline = grid, deadline
        self._pause, self._clock, self._sleep, self._arrived = pause, clock, sleep, arrived

    def wait_for(self, nodes: Iterable[int]) -> set[int]:
        """Those of these nodes that are connected; waits for all of them until the deadline."""
        wanted, end = set(nodes), self._clock() + self.deadline
        while True:
            here = self.connected(wanted)
            if here == wanted or self._clock() >= end:
                return here
            self._sleep(self._pause)

    def connected(self, nodes: Iterable[int]) -> set[int]:
        """Those of these nodes that are connected now."""
        return set(nodes) & set(self.grid.get_node_ids())

    def ask(self, questions: Iterable[SiteQuestion]) -> Iterator[SiteReply]:
        """Send the questions, as many at once as memory allows; then the replies in the order in which they come.

        A node that is gone is asked again if it is back before the deadline.
        """
        waiting: dict[str, SiteQuestion] = {}
        away: list[SiteQuestion] = []
        for several in _batches(questions):
            self._push(several, self.deadline, waiting, away)
        end = self._clock() + self.deadline
        looked = self._clock()
        named: Collection[str] | None = None if self._arrived is None else ()
        while True:
            for number in list(waiting) if named is None else waiting.keys() & set(named):
                # One number at a time: the engine would hand over all answers at once, and hold them in memory.
                if (reply := self._pull(number, waiting[number])) is None:
                    continue
                question = waiting.pop(number)
                if reply.code is ServerCode.GONE:
                    away.append(question)
                else:
                    yield reply
            left = end - self._clock()
            if not (waiting or away) or (left <= 0 and named is None):
                break
            if left <= 0:  # a last look at all: an answer on its way may have kept us from the others
                named = None
                continue
            named = self._wait(min(left, _LOOK))
            if self._clock() - looked >= _LOOK:
                looked, named = self._clock(), None
            back = self.connected(question.node for question in away) if away else set()
            returned = [question for question in away if question.node in back]
            away = [question for question in away if question.node not in back]
            for several in _batches(returned):
                self._push(several, left, waiting, away)
        for question in waiting.values():
            yield SiteReply(question.site, question.node, None, ServerCode.LATE)
        for question in away:
            yield SiteReply(question.site, question.node, None, ServerCode.GONE)

    def _wait(self, seconds: float) -> Collection[str] | None:
        """Until something may have come; the questions that have an answer, if that is known."""
        if self._arrived is not None:
            return self._arrived(seconds)
        self._sleep(self._pause)
        return None

    def _push(
        self, questions: list[SiteQuestion], seconds: float, waiting: dict[str, SiteQuestion], away: list[SiteQuestion]
    ) -> None:
        """Send questions that are to be answered in so many seconds: each waits for its answer, or is away."""
        messages = []
        for question in questions:
            kind = question.letter.envelope.step.message_type
            messages.append(Message(to_records(question.letter), question.node, kind, ttl=seconds + _SLACK))
        sent = self.grid.push_messages(messages)
        for question, number in zip_longest(questions, sent):  # none were sent where the engine refuses them all
            if number:
                waiting[number] = question
            else:
                away.append(question)

    def _pull(self, number: str, question: SiteQuestion) -> SiteReply | None:
        """The answer to one question, if it has come."""
        try:
            message = next(iter(self.grid.pull_messages([number])), None)
            if message is None:
                return None
            if message.metadata.reply_to_message_id != number:
                return SiteReply(question.site, question.node, None, ServerCode.GARBAGE)
            return _read(question, message)
        except ProtocolError:
            return SiteReply(question.site, question.node, None, SiteCode.PROTOCOL)
        except TooLargeError:
            return SiteReply(question.site, question.node, None, ServerCode.TOO_LARGE)
        except _UNREADABLE:
            return SiteReply(question.site, question.node, None, ServerCode.GARBAGE)


def _batches(questions: Iterable[SiteQuestion]) -> Iterator[list[SiteQuestion]]:
    """Questions that are sent at once: all that are small, and of large ones so many as memory is to hold."""
    several: list[SiteQuestion] = []
    arrays = others = 0
    for question in questions:
        several.append(question)
        arrays += sum(array.nbytes for array in question.letter.arrays.values())
        others += question.letter.body_size
        if arrays > _AT_ONCE or others > _IN_ONE_CALL:
            yield several
            several, arrays, others = [], 0, 0
    if several:
        yield several


def _read(question: SiteQuestion, message: Message) -> SiteReply:
    """The answer, if it is one to this question."""

    def dropped(code: SiteCode | ServerCode) -> SiteReply:
        return SiteReply(question.site, question.node, None, code)

    if message.has_error():
        return dropped(ServerCode.GONE if message.error.code in _NOT_THROUGH else ServerCode.CRASHED)
    if message.metadata.src_node_id != question.node:
        return dropped(ServerCode.GARBAGE)
    letter = from_message(message)
    if letter.code is SiteCode.SHARES:
        return SiteReply(question.site, question.node, None, letter.code, letter.text("dealer"))
    if letter.code is not SiteCode.OK:
        return dropped(letter.code)
    if letter.envelope != question.letter.envelope:
        return dropped(ServerCode.GARBAGE)
    return SiteReply(question.site, question.node, letter)
