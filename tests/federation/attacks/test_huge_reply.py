"""One site sends the server more than it can hold: an answer of many pieces, or of one piece a million times."""

from __future__ import annotations

import contextlib
import ssl
import time
import tracemalloc
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import HTTPException
from flwr.app import Message
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore import sql_mixin
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.status_codes import ServerCode, SiteCode, meaning
from fedhip.federation.sums.table import TABLE
from fedhip.federation.transport import link
from fedhip.federation.transport.bounds import PIECE, Bounds, bound_pulls
from fedhip.federation.transport.exchange import Exchange, SiteQuestion, SiteReply
from fedhip.federation.transport.wire import Envelope, Letter, RoundStep, to_records
from tests.federation.grid import ENGINE, Clock
from tests.federation.proxy_peers import SMALL, make_credentials, open_door, read_all, signed
from tests.federation.samples import CLASSES, FOUR, WIDTH
from tests.waiting import until

ENVELOPE = Envelope(b"s" * 32, "agreement", "roster", RoundStep.MASK)
NODES = {"a": 11, "b": 12}
#: More than this is not held in memory for an answer of a few kilobytes.
LITTLE = 32 << 20
MEGABYTE = 1 << 20


def agreement_of(**settings: Any) -> Agreement:
    given: dict[str, Any] = {
        "name": "study",
        "sites": FOUR,
        "classes": CLASSES,
        "width": WIDTH,
        "quorum": 3,
        "threshold": 3,
    }
    return Agreement(**(given | {"fraction_bits": 24, "max_rows": 1000} | settings))


AGREEMENT = agreement_of()


@dataclass
class Sent:
    """An answer as the engine's server hands it over: its objects by name, made when they are asked for."""

    message: Message
    tree: ObjectTree
    contents: dict[str, bytes]

    @classmethod
    def of(cls, message: Message) -> Sent:
        contents = {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}
        message.metadata.__dict__["_message_id"] = message.object_id
        return cls(message, get_object_tree(message), contents)

    def object(self, name: str) -> bytes:
        if name in self.contents:
            return self.contents[name]
        return b"ArrayChunk  %d\0" % MEGABYTE + name.encode().ljust(MEGABYTE)


@dataclass
class Engine:
    """The engine's server, as far as the server app calls it; `a` is the site that sends too much."""

    make: Any
    questions: dict[str, Message] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    handed: int = 0

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:  # noqa: N802
        asked = {f"question {proto.metadata.dst_node_id}": proto for proto in request.messages_list}
        self.questions |= asked
        return PushAppMessagesResponse(message_ids=list(asked))

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        found = [number for number in request.message_ids if number in self.questions]
        sent = [self._answer(number) for number in found]
        protos = [message_to_proto(one.message) for one in sent]
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=[one.tree for one in sent])

    def _answer(self, number: str) -> Sent:
        node = self.questions.pop(number).metadata.dst_node_id
        question = Message(to_records(Letter(ENVELOPE)), node, "train.mask")
        question.metadata.__dict__ |= {"_message_id": number, "_src_node_id": ENGINE}
        sent = (self.make if node == NODES["a"] else honest)(question)
        self.sent |= dict.fromkeys((tree.object_id for tree in iterate_object_tree(sent.tree)), sent)
        return sent

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content = self.sent[request.object_id].object(request.object_id)
        self.handed += len(content)
        assert self.handed < 20 * LITTLE, "the server takes all that comes"
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def PushObject(self, _: Any) -> None:  # noqa: N802
        raise AssertionError("nothing of a question is missing here")

    def ConfirmMessageReceived(self, _: Any) -> ConfirmMessageReceivedResponse:  # noqa: N802
        return ConfirmMessageReceivedResponse()


def reply(question: Message, numbers: int) -> Message:
    letter = Letter(ENVELOPE, {"signature": b"s"}, {"vector": np.arange(numbers, dtype=np.uint64)})
    answer = Message(to_records(letter), reply_to=question)
    answer.metadata.__dict__["_src_node_id"] = question.metadata.dst_node_id
    return answer


def honest(question: Message) -> Sent:
    return Sent.of(reply(question, AGREEMENT.layout.size))


def of_many_pieces(question: Message) -> Sent:
    """Ten gigabytes, behind one more child of the message."""
    sent = honest(question)
    pieces = [ObjectTree(object_id=f"piece {i}") for i in range(10_000)]
    sent.tree.children.append(ObjectTree(object_id="piece of pieces", children=pieces))
    return sent


def of_few_large_pieces(question: Message) -> Sent:
    sent = honest(question)
    sent.tree.children.extend(ObjectTree(object_id=f"piece {i}") for i in range(8))
    return sent


def of_one_piece_often(question: Message) -> Sent:
    """An array whose one piece is listed 500 times: half a gigabyte, in half a megabyte."""
    sent = Sent.of(reply(question, MEGABYTE // 16))
    (name, array) = next((name, one) for name, one in sent.contents.items() if one.startswith(b"Array "))
    head, _, body = array.partition(b"\0")
    longer = body.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b", ".join([b"0"] * 1000) + b"]")
    assert longer != body
    sent.contents[name] = head.rpartition(b" ")[0] + b" %d\0" % len(longer) + longer
    return sent


def ask(make: Any) -> tuple[dict[str, SiteReply], Engine, int]:
    """What the server app has of the sites a and b, where a sends what `make` makes; and the memory it took."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, ENGINE, 1
    clock, engine = Clock(), Engine(make)
    grid = http_grid.HttpGrid(token="t")  # noqa: S106
    grid._client, grid._run = engine, SimpleNamespace(run_id=7)  # type: ignore[assignment]
    exchange = Exchange(grid, 5.0, clock=clock, sleep=clock.sleep)
    tracemalloc.start()
    try:
        replies = list(exchange.ask(SiteQuestion(site, node, Letter(ENVELOPE)) for site, node in NODES.items()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return {reply.site: reply for reply in replies}, engine, peak


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Bounds:
    """As the server app does it first of all."""
    monkeypatch.setattr(http_grid, "pull_objects", pull_objects)  # as it is, and restored at the end
    bounds = Bounds.of(AGREEMENT)
    bound_pulls(bounds, 5.0)
    return bounds


@pytest.mark.parametrize("make", [of_many_pieces, of_few_large_pieces, of_one_piece_often])
def test_the_server_does_not_hold_it_and_goes_on_without_the_site(bounded: Bounds, make: Any) -> None:
    replies, engine, peak = ask(make)
    assert replies["a"].letter is None
    assert replies["a"].code is ServerCode.TOO_LARGE
    assert "by the agreement" in meaning(ServerCode.TOO_LARGE)
    assert replies["b"].code is SiteCode.OK
    assert engine.handed < LITTLE
    assert peak < LITTLE


def test_an_honest_answer_passes(bounded: Bounds) -> None:
    replies, _, _ = ask(honest)
    assert {reply.code for reply in replies.values()} == {SiteCode.OK}
    assert replies["a"].letter is not None
    assert replies["a"].letter.array("vector").shape == (AGREEMENT.layout.size,)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"head": "logistic"},
        {"head": "lda", "prior": "client"},
        {"prior": "client"},
        {"head": "logistic", "prior": "client"},
        {"columns": "plain", "beta": 0.1},
        {"columns": "plain", "lift": "nystroem", "lift_width": 5, "lift_seed": 1, "lift_bandwidth": 1.0},
    ],
)
def test_no_sum_of_an_agreement_is_larger(settings: dict[str, Any]) -> None:
    agreed = agreement_of(**settings)
    bounds = Bounds.of(agreed)
    lengths = [kind.length(agreed) for kind in TABLE if kind.count(agreed)]
    assert agreed.layout.size in lengths
    assert max(lengths) <= bounds.numbers
    assert PIECE == FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE


class Untouched:
    """The state of the engine's server, which nobody may come near."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the engine's server stores it ({name})")


def push(node: int = 11, source: int = 11, to: str = "question", root: str = "answer", pieces: int = 0) -> Any:
    """A call of node 11 with an answer."""
    tree = ObjectTree(object_id=root, children=[ObjectTree(object_id=f"{i:064x}") for i in range(pieces)])
    about = ProtoMetadata(
        run_id=7,
        message_id="answer",
        src_node_id=source,
        dst_node_id=ENGINE,
        reply_to_message_id=to,
        message_type="train.mask",
        created_at=time.time(),
        ttl=60,
    )
    return PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[ProtoMessage(metadata=about, content=RecordDict())],
        message_object_trees=[tree],
    )


@pytest.fixture
def bounded_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's server as `serve` starts it."""
    from flwr.superlink import cli
    from flwr.superlink import main as superlink

    for name in ("push_messages", "pull_messages", "confirm_message_received"):
        monkeypatch.setattr(fleet_handlers, name, getattr(fleet_handlers, name))
    monkeypatch.setattr(superlink, "_get_middleware", superlink._get_middleware)
    monkeypatch.setattr(cli, "flower_superlink", lambda: None)
    monkeypatch.setitem(vars(sql_mixin), "SQLITE_PRAGMAS", vars(sql_mixin)["SQLITE_PRAGMAS"])
    for name in ("push_messages", "pull_messages"):
        monkeypatch.setattr(runtime_handlers, name, getattr(runtime_handlers, name))
    monkeypatch.setattr("sys.argv", [])


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (push(pieces=17), 413),
        (push(source=12), 403),  # for another site
        (push(source=ENGINE, to=""), 403),  # a question, as if from the server
        (push(root="other"), 403),  # objects that belong to no answer
        (PushMessagesRequest(node=Node(node_id=11)), 413),
    ],
)
def test_the_engine_s_server_stores_nothing_of_it(bounded_link: None, tmp_path: Path, call: Any, status: int) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    link.main([str(tmp_path / "secret"), "17"])
    with pytest.raises(HTTPException) as error:
        fleet_handlers.push_messages(request=call, state=Untouched())  # type: ignore[arg-type]
    assert error.value.status_code == status
    with pytest.raises(AssertionError, match="stores it"):
        fleet_handlers.push_messages(request=push(pieces=16), state=Untouched())  # type: ignore[arg-type]


def test_one_site_has_few_calls_at_once(tmp_path: Path) -> None:
    """The engine holds the body of each call until it is whole."""
    credentials = make_credentials(tmp_path)
    limits = replace(SMALL, per_site=2)
    with open_door(credentials, limits) as door, contextlib.ExitStack() as stack:

        def begin() -> ssl.SSLSocket:
            headers = {"host": "127.0.0.1", **signed(credentials / "a"), "content-length": "10"}
            lines = ["POST /v1/fleet/push-object HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            tls = stack.enter_context(door.connect())
            tls.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + b"12345")
            return tls

        held = [begin(), begin()]
        assert read_all(begin()).startswith(b"HTTP/1.1 429")
        held[0].sendall(b"67890")
        assert held[0].recv(1000).startswith(b"HTTP/1.1 200")

        def answered() -> bool:  # the proxy has a place again soon after the caller has its answer
            again = begin()
            again.sendall(b"67890")
            return again.recv(1000).startswith(b"HTTP/1.1 200")

        until(answered)
