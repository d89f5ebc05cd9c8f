"""A site runs the app that it has itself, whatever the server sends."""

from __future__ import annotations

import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id, iterate_object_tree
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fedhip.federation.transport.engine import OTHER_APP
from fedhip.federation.transport.messages import PackedMessage
from fedhip.federation.transport.node import (
    Node,
    answer_with,
    app_of,
    be_missed_soon,
    end_with_its_threads,
    outlive_a_broken_network,
    same_app,
)
from fedhip.federation.transport.parcels import Parcels
from tests.federation.tiny import write_app

#: The engine's libraries warn one another.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def own(tmp_path: Path) -> bytes:
    return build_fab_from_disk(write_app(tmp_path / "tiny"))


def packed(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return buffer.getvalue()


def files_of(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_the_same_files_are_the_same_app_however_packed(own: bytes) -> None:
    assert same_app(own, own)
    assert same_app(packed(files_of(own)), own)
    assert same_app(packed(dict(reversed(files_of(own).items())), zipfile.ZIP_DEFLATED), own)


def test_another_app_is_another(own: bytes) -> None:
    files = files_of(own)
    assert "tiny_code.py" in files
    assert not same_app(packed(files | {"tiny_code.py": files["tiny_code.py"].replace(b"hello", b"hallo")}), own)
    assert not same_app(packed(files | {"sitecustomize.py": b"evil"}), own)
    assert not same_app(packed({name: files[name] for name in files if name != "tiny_code.py"}), own)
    assert not same_app(own[:-30], own)
    assert not same_app(b"", own)
    twice = io.BytesIO(packed(files))
    with zipfile.ZipFile(twice, "a") as bundle, pytest.warns(UserWarning, match="Duplicate"):
        bundle.writestr("tiny_code.py", b"evil")
    assert not same_app(twice.getvalue(), own)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_bundle_is_another_app_and_no_error_that_ends_the_node(own: bytes, compression: int) -> None:
    files = {name: content + bytes(200) for name, content in files_of(own).items()}
    good, whole = packed(files), packed(files, compression)
    assert same_app(whole, good) is (compression == zipfile.ZIP_DEFLATED)  # the engine's way
    for position in range(30, len(whole), 3):
        damaged = whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :]
        same_app(damaged, good)  # whatever it says, it says it


def test_a_bomb_is_not_unpacked(own: bytes) -> None:
    """A size that is stated is no size that is kept: the engine's unzipper goes by the bytes."""
    files = files_of(own)
    large = {name: content + bytes(1 << 27) for name, content in files.items()}
    bomb = bytearray(packed(large, zipfile.ZIP_DEFLATED))
    for name, content in files.items():
        at = bomb.rindex(name.encode())  # in the directory at the end, the size stands 22 bytes before the name
        bomb[at - 22 : at - 18] = len(content).to_bytes(4, "little")
    tracemalloc.start()
    assert not same_app(bytes(bomb), own)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


class Server:
    """The engine's server, as far as a node calls it: hands a question out until it is confirmed."""

    def __init__(self, app: bytes, *questions: Message) -> None:
        self.app, self.questions = app, [(question, PackedMessage.of(question)) for question in questions]
        self.replies: list[Message] = []
        self.confirmed: list[str] = []
        self.is_over = False
        self._parts: dict[str, bytes] = {}
        self._sent: tuple[Message, ObjectTree] | None = None

    @property
    def connection(self) -> tuple[Any, ...]:
        run = SimpleNamespace(fab_hash="f")
        return (11, self.receive, self.send, lambda _: run, self.get_fab, self.pull, self.push, self.confirm)

    def receive(self) -> tuple[Message, ObjectTree] | None:
        for question, packed in self.questions:
            if question.metadata.message_id not in self.confirmed:
                return message_from_proto(MessageProto.FromString(packed.about)), ObjectTree.FromString(packed.tree)
        return None

    def get_fab(self, name: str, run: int) -> SimpleNamespace:
        if self.is_over:
            raise RunNotRunningException
        return SimpleNamespace(content=self.app)

    def pull(self, run: int, name: str) -> bytes:
        return next(packed.objects[name] for _, packed in self.questions if name in packed.objects)

    def send(self, reply: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        self._sent = reply, tree
        self._parts = {}
        return {each.object_id for each in iterate_object_tree(tree)}, "session"

    def push(self, run: int, session: str, name: str, content: bytes) -> None:
        self._parts[name] = content
        assert self._sent is not None
        reply, tree = self._sent
        if set(self._parts) == {each.object_id for each in iterate_object_tree(tree)}:
            about = message_to_proto(reply).SerializeToString()
            whole = PackedMessage(about, tree.SerializeToString(), dict(self._parts)).message()
            assert whole.metadata.reply_to_message_id == reply.metadata.reply_to_message_id
            self.replies.append(whole)

    def confirm(self, run: int, name: str) -> None:
        assert self.replies or self.app != OWN or self.is_over or name in self.confirmed
        self.confirmed.append(name)


OWN = b"the bundle"


def question(text: str = "hello") -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
    vector = ArrayRecord({"x": Array(np.arange(1000, dtype=np.uint64))})
    records = RecordDict({"c": ConfigRecord({"text": text}), "a": vector})
    return Message(records, dst_node_id=11, message_type="query.hello")


class Forks:
    """Starts what answers; the first so many are killed when they have the question."""

    def __init__(self, app: Callable[[Message, Context], Message], killed: int = 0) -> None:
        self.app, self.killed, self.count = app, killed, 0

    def __call__(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.count += 1
        dies = self.count <= self.killed

        def serve() -> None:
            with theirs:
                if dies:
                    theirs.recv(10)
                else:
                    answer_with(self.app, {"site-folder": "/x"})(theirs)

        threading.Thread(target=serve, daemon=True).start()
        return ours


def echo(message: Message, context: Context) -> Message:
    assert context.node_config == {"site-folder": "/x"}
    assert (context.run_id, context.node_id) == (7, 11)
    return Message(RecordDict(dict(message.content)), reply_to=message)


@pytest.fixture(autouse=True)
def bundles(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "Server" in str(request.node.function.__code__.co_names):
        monkeypatch.setattr("fedhip.federation.transport.node.same_app", lambda received, own: received == own)


def test_a_question_is_answered_to_the_bit_and_confirmed_after_that() -> None:
    server = Server(OWN, question("one"), question("two"))
    node = Node(server.connection, Forks(echo), OWN)
    assert [node.step(), node.step(), node.step()] == [True, True, False]
    assert [reply.content["c"]["text"] for reply in server.replies] == ["one", "two"]
    for (asked, _), reply in zip(server.questions, server.replies, strict=True):
        assert reply.metadata.reply_to_message_id == asked.metadata.message_id
        assert reply.metadata.src_node_id == 11
        np.testing.assert_array_equal(reply.content["a"]["x"].numpy(), np.arange(1000))  # type: ignore[union-attr]


def test_what_came_with_the_question_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server, parcels, asked = Server(OWN, question("one"), question("two")), Parcels(), list[str]()
    receive, send, pull = server.receive, server.send, server.pull
    lacking = next(iter(server.questions[0][1].objects))

    def came() -> Any:
        for asked_for, packed in server.questions:
            if asked_for.metadata.message_id not in server.confirmed:
                parcels.came = {name: content for name, content in packed.objects.items() if name != lacking}
                break
        return receive()

    def taken(reply: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        wanted, session = send(reply, tree, seconds)
        for content in parcels.going:
            server.push(7, session, get_object_id(content), content)
        assert not wanted - {get_object_id(content) for content in parcels.going}
        server.confirm(7, reply.metadata.reply_to_message_id)  # as it does who has an answer whole
        return set(), session

    def fetched(run: int, name: str) -> bytes:
        asked.append(name)
        return pull(run, name)

    monkeypatch.setattr(server, "receive", came)
    monkeypatch.setattr(server, "send", taken)
    monkeypatch.setattr(server, "pull", fetched)
    node = Node(server.connection, Forks(echo), OWN, parcels)
    assert [node.step(), node.step(), node.step()] == [True, True, False]
    assert asked == [lacking] * asked.count(lacking) != []
    assert [reply.content["c"]["text"] for reply in server.replies] == ["one", "two"]
    assert (parcels.came, parcels.going) == ({}, [])
    assert server.confirmed == [asked_for.metadata.message_id for asked_for, _ in server.questions]  # each once


def test_one_whose_process_is_killed_is_answered_by_the_next() -> None:
    server = Server(OWN, question())
    forks = Forks(echo, killed=2)
    node = Node(server.connection, forks, OWN)
    assert [node.step(), node.step(), node.step()] == [False, False, True]
    assert (forks.count, len(server.replies), len(server.confirmed)) == (3, 1, 1)


def test_one_that_breaks_off_every_process_is_answered_with_an_error() -> None:
    server = Server(OWN, question(), question("two"))
    node = Node(server.connection, Forks(echo, killed=3), OWN)
    assert [node.step() for _ in range(6)] == [False, False, False, True, True, False]
    first, second = server.replies
    assert (first.error.code, first.error.reason) == (2, None)
    assert second.content["c"]["text"] == "two"


def test_what_an_app_raises_stays_here() -> None:
    def raises(message: Message, context: Context) -> Message:
        raise ValueError("row 3 of patient 7")

    server = Server(OWN, question())
    assert Node(server.connection, Forks(raises), OWN).step()
    (reply,) = server.replies
    assert (reply.error.code, reply.error.reason) == (2, None)


def test_without_a_process_to_fork_from_the_node_ends() -> None:
    with pytest.raises(SystemExit, match="has ended"):
        Node(Server(OWN, question()).connection, lambda: None, OWN).step()


def test_the_node_passes_over_another_app(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(b"another bundle", question())
    forks = Forks(echo)
    node = Node(server.connection, forks, OWN)
    assert [node.step(), node.step()] == [True, False]
    assert (forks.count, server.replies) == (0, [])
    assert OTHER_APP in caplog.text
    assert OTHER_APP.startswith("the server sent another app")


def test_a_run_that_is_over_is_passed_over() -> None:
    server = Server(OWN, question())
    server.is_over = True
    node = Node(server.connection, Forks(echo), OWN)
    assert [node.step(), node.step()] == [True, False]
    assert server.replies == []


def test_a_node_is_missed_after_twenty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT, HEARTBEAT_PATIENCE
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection as connection

    for module in (heartbeat, connection):
        monkeypatch.setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", vars(module)["HEARTBEAT_DEFAULT_INTERVAL"])
    be_missed_soon()
    assert connection.HEARTBEAT_DEFAULT_INTERVAL * HEARTBEAT_PATIENCE == 20  # type: ignore[attr-defined]
    assert vars(heartbeat)["HEARTBEAT_DEFAULT_INTERVAL"] > HEARTBEAT_CALL_TIMEOUT  # or it would never rest


@pytest.mark.parametrize("said", ['{"detail": "the clocks of site a and the server are 600 s apart"}', "no", "[]"])
def test_a_node_whose_heartbeat_is_refused_ends(
    said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread is the engine's, which leaves it at that: the node would take questions, and count as gone."""
    from flwr.supercore.heartbeat import HeartbeatSender

    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr("os.kill", lambda *words: ended.append(words))
    end_with_its_threads()

    def refused() -> bool:
        httpx.Response(412, text=said, request=httpx.Request("POST", "https://127.0.0.1")).raise_for_status()
        raise AssertionError

    sender = HeartbeatSender(refused)
    sender.start()
    sender._thread.join()
    assert ended == [(os.getpid(), signal.SIGTERM)]
    wanted = "the server refuses this node: the clocks of site a" if "clocks" in said else "Client error '412"
    assert wanted in caplog.text


def test_the_app_of_a_folder_is_the_one_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhip.federation.client_app import app
    from fedhip.federation.transport.engine import APP

    monkeypatch.setattr("sys.path", [*sys.path])
    assert app_of(APP) is app
    write_app(tmp_path / "tiny")
    assert app_of(tmp_path / "tiny").__class__ is app.__class__


def test_a_node_that_waits_has_loaded_neither_torch_nor_a_database() -> None:
    code = """if True:
        import sys
        from fedhip.federation.transport import node
        node.WarmProcess = lambda *_, **__: sys.exit(
            int(bool({"sqlalchemy", "alembic", "torch", "matplotlib"} & set(sys.modules)))
        )
        open(sys.argv[1], "w").close()
        node.main(["--superlink", "x", "--app", str(node.__file__)[:-17] + "app", *sys.argv[2:]])
    """
    with tempfile.NamedTemporaryFile() as config:
        words = [config.name, "--config", config.name, "--authority", "x", "--key", "x"]
        subprocess.run([sys.executable, "-W", "ignore", "-c", code, *words], check=True)  # noqa: S603


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine's module in which a node's calls are tried again."""
    from flwr.supernode import fleet_http_connection as connection

    monkeypatch.setitem(vars(connection), "make_simple_http_retry_invoker", make_simple_http_retry_invoker)
    return connection


def test_a_node_outlives_a_network_that_breaks(engine: Any) -> None:
    """Somebody listens and never answers the handshake: the engine alone takes that for a wrong certificate."""
    engine_gives_up = engine.make_simple_http_retry_invoker().should_giveup
    outlive_a_broken_network()
    gives_up = engine.make_simple_http_retry_invoker().should_giveup
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(httpx.TransportError) as timed_out:
        httpx.get(f"https://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
    assert engine_gives_up(timed_out.value)  # or else there is nothing to mend any more
    assert not gives_up(timed_out.value)
    cut_off = httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol")
    cut_off.__context__ = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    assert not gives_up(cut_off)
    assert not gives_up(httpx.ReadError("connection reset"))


def test_a_node_gives_up_on_a_certificate_that_is_wrong(engine: Any) -> None:
    outlive_a_broken_network()
    gives_up = engine.make_simple_http_retry_invoker().should_giveup
    wrong = httpx.ConnectError("certificate verify failed")
    wrong.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
    wrong.__cause__.__context__ = TimeoutError()
    assert gives_up(wrong)
    refused = httpx.Response(412, request=httpx.Request("POST", "https://127.0.0.1"))
    assert gives_up(httpx.HTTPStatusError("no", request=refused.request, response=refused))
