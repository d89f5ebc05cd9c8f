"""A site's node: it takes the server's questions, has each answered by a process of its own, and sends the answers.

It speaks the engine's language (`flwr.supernode.fleet_http_connection`) in the place of the engine's SuperNode, which
keeps messages in a database, offers them on a port of loopback, and starts a new interpreter for each. Here a message
goes to a fork of a warm process (`fedhip.federation.transport.warm`) and back.

One app answers: that of this installation. The engine would run what the server sends, and a server that turned bad
would send code that reads the site's rows. So what it says is its app is compared with the one here, and questions of
another are passed over.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from fedhip.federation import logs
from fedhip.federation.transport import messages
from fedhip.federation.transport.bounds import of_engine
from fedhip.federation.transport.engine import CONNECTED, OTHER_APP
from fedhip.federation.transport.messages import PackedMessage
from fedhip.federation.transport.parcels import Parcels, fitting
from fedhip.federation.transport.warm import WarmProcess

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.proto.message_pb2 import ObjectTree

#: What a bundle may be longer than ours; with this and the usual compression it cannot unpack to 100 MB.
_LONGER = 1 << 16
#: What answers compute with, and draw with. It is loaded before the first question, and let go after the last.
_COMPUTING = (
    *("torch", "matplotlib.backends.backend_svg"),
    *(f"fedhip.{name}" for name in ("simulation.personalization", "heads.auto", "runs.draft", "runs.report")),
)
#: Seconds between two looks, where the server does not hold a call until there is something.
_PAUSE = 1.0
#: A question whose answer breaks off so many times in a row is answered with an error.
_TRIES = 3
#: Whoever asks has the code alone: what happened is in the site's log.
_CRASHED = 2

_log = logging.getLogger("fedhip.node")


class AppEndedError(Exception):
    """The process that was to answer has ended before it did."""


def same_app(received: bytes, own: bytes) -> bool:
    """Whether two bundles hold the same files; compression may differ between machines, contents may not."""
    if len(received) > len(own) + _LONGER:
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(received)) as theirs, zipfile.ZipFile(io.BytesIO(own)) as ours:
            if _sizes(theirs) != _sizes(ours):  # before anything is unpacked, as it may be a bomb
                return False
            return all(theirs.read(name) == ours.read(name) for name in ours.namelist())
    except Exception:  # zipfile and what it unpacks with raise a dozen kinds, and any of them would end the node
        return False


def _sizes(bundle: zipfile.ZipFile) -> list[tuple[str, int]]:
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in bundle.infolist()):
        raise zipfile.BadZipFile("compressed as the engine never does")
    return sorted((entry.filename, entry.file_size) for entry in bundle.infolist())


# In a fork, for one question.


def answer_with(app: Callable[..., Message], config: dict[str, Any]) -> Callable[[socket.socket], None]:
    """What a fork does: read a question from a stream, and write the app's answer into it."""

    def answer(stream: socket.socket) -> None:
        from flwr.app import Context, Error, Message, RecordDict

        question = messages.receive(stream).message()
        about = question.metadata
        context = Context(about.run_id, about.dst_node_id, config, RecordDict(), {})
        try:
            reply = app(question, context)
        except Exception:  # whatever it says would travel
            logging.getLogger("fedhip.node").exception("a question of type %s was not answered", about.message_type)
            reply = Message(Error(_CRASHED), reply_to=question)
        messages.send(stream, PackedMessage.of(reply))

    return answer


def app_of(folder: Path) -> Callable[..., Message]:
    """The client app that a folder names; its code may lie there, or be installed."""
    content = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    name, _, attribute = content["tool"]["flwr"]["app"]["components"]["clientapp"].partition(":")
    sys.path.append(str(folder))
    app: Callable[..., Message] = getattr(import_module(name), attribute)
    return app


# In the node.


class Node:
    """Questions, one after the other; `connection` are the engine's calls to its server, `parcels` what is in them."""

    def __init__(
        self,
        connection: Sequence[Any],
        start: Callable[[], socket.socket | None],
        own: bytes,
        parcels: Parcels | None = None,
    ) -> None:
        self._node, self._receive, self._send, self._get_run, self._get_fab, self._pull, self._push, self._confirm = (
            connection
        )
        self._start, self._own, self._parcels = start, own, parcels or Parcels()
        self._runs: dict[int, bool] = {}  # whether a run's app is the one here
        self._latest, self._tries = "", 0

    def step(self) -> bool:
        """Take a question, if there is one, and answer it; whether all went well.

        The server is told that a question arrived when it is answered, and hands it out again until then.
        """
        if (received := self._receive()) is None:
            return False
        question, tree = received
        about = question.metadata
        self._tries = self._tries + 1 if about.message_id == self._latest else 1
        self._latest = about.message_id
        from flwr.app import Error, Message
        from flwr.supercore.run import RunNotRunningException

        is_known = False  # to the server, that the question arrived
        try:
            if self._tries > _TRIES:
                is_known = self._deliver(question, PackedMessage.of(Message(Error(_CRASHED), reply_to=question)), 0.0)
            elif self._is_ours(about.run_id):
                is_known = self._answer(question, tree)
        except RunNotRunningException:
            _log.info("run %s is over; its question %s is passed over", about.run_id, about.message_type)
        except Exception as error:
            _log.error("a question of type %s was not answered: %s", about.message_type, str(error) or repr(error))
            if self._tries <= _TRIES:
                return False
        try:
            if not is_known:
                self._confirm(about.run_id, about.message_id)
        except RunNotRunningException:
            pass
        except httpx.HTTPError as error:
            _log.error("question %s was not confirmed: %s", about.message_type, error)
            return False
        return True

    def _is_ours(self, run: int) -> bool:
        if run not in self._runs:
            bundle = self._get_fab(self._get_run(run).fab_hash, run)
            self._runs[run] = same_app(bundle.content, self._own)
            if not self._runs[run]:
                _log.error(OTHER_APP)
        return self._runs[run]

    def _answer(self, question: Message, tree: ObjectTree) -> bool:
        from flwr.common.serde import message_to_proto
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        begin, run = time.monotonic(), question.metadata.run_id
        names = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
        objects = {name: content for name, content in self._parcels.came.items() if name in names}
        self._parcels.came = {}
        names = [name for name in names if name not in objects]
        objects |= pull_objects(names, lambda name: self._pull(run, name), initial_backoff=0.05)
        reply = self._ask(
            PackedMessage(message_to_proto(question).SerializeToString(), tree.SerializeToString(), objects)
        )
        return self._deliver(question, reply, time.monotonic() - begin)

    def _deliver(self, question: Message, reply: PackedMessage, seconds: float) -> bool:
        """Send an answer; whether the server knows by it that the question arrived, as `take_objects` has it."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.message_pb2 import Message as MessageProto
        from flwr.proto.message_pb2 import ObjectTree as TreeProto
        from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable

        run, sent = question.metadata.run_id, message_from_proto(MessageProto.FromString(reply.about))
        self._parcels.going = fitting(reply.objects.values())
        wanted, session = self._send(sent, TreeProto.FromString(reply.tree), seconds)
        is_known, self._parcels.going = bool(self._parcels.going) and not wanted, []
        push_object_contents_from_iterable(
            [(name, reply.objects[name]) for name in reply.objects if name in wanted],
            lambda name, content: self._push(run, session, name, content),
        )
        _log.info("answered a question of type %s in %.1f s", question.metadata.message_type, seconds)
        return is_known

    def _ask(self, packed: PackedMessage) -> PackedMessage:
        """Have a fork answer."""
        stream = self._start()
        if stream is None:  # without it, no question is answered: `site` starts all of it again
            raise SystemExit("the process that answers are forked from has ended")
        with stream:
            try:
                messages.send(stream, packed)
                return messages.receive(stream)
            except (EOFError, ConnectionError):
                raise AppEndedError("the process that was to answer was killed, or broke off") from None


def is_broken(error: BaseException) -> bool:
    """Whether a call failed because nobody answered, or the line was cut: not by a certificate that is wrong."""
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in chain):
        return False
    return any(isinstance(each, httpx.TimeoutException | TimeoutError | ssl.SSLEOFError) for each in chain)


def be_missed_soon() -> None:
    """From here on, a server that does not hear of this process's node for 20 s knows it; with the engine, for 60.

    Until then it takes no other process of the site.
    """
    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection as connection

    for module in (heartbeat, connection):
        of_engine(module, "HEARTBEAT_DEFAULT_INTERVAL")
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT_MIN_INTERVAL


def outlive_a_broken_network() -> None:
    """From here on, this process's node tries again until the network is back.

    The engine takes every error that names TLS for a wrong certificate, and ends with the answer that it was to send;
    a handshake that takes too long is one.
    """
    from flwr.supernode import fleet_http_connection as connection

    inner = of_engine(connection, "make_simple_http_retry_invoker")

    def patient() -> Any:
        invoker = inner()
        usual = invoker.should_giveup
        invoker.should_giveup = lambda error: not is_broken(error) and (usual is None or usual(error))
        return invoker

    vars(connection)["make_simple_http_retry_invoker"] = patient


def end_with_its_threads() -> None:
    """From here on, this process ends where a thread of it fails, and `site` starts it again.

    The engine's node says in a thread that it is there. A call of it that the server refuses (of a clock that was set,
    say) ends the thread, and the node would go on: it takes questions, and counts as gone.
    """

    def failed(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None and not isinstance(failure.exc_value, SystemExit):
            _tell(failure.exc_value)
            os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = failed


def _tell(error: BaseException) -> None:
    """In the server's words, where it refused a call."""
    said = ""
    if isinstance(error, httpx.HTTPStatusError):
        with contextlib.suppress(ValueError, KeyError, TypeError, httpx.StreamError):
            said = str(error.response.json()["detail"])
    if said:
        _log.error("the server refuses this node: %s", said)
    else:
        _log.error("the node fails", exc_info=error)


def _leave(*_: object) -> None:
    sys.exit(0)


def main(words: Sequence[str]) -> int:
    """Run a node until it is told to end."""
    parser = argparse.ArgumentParser(prog="node", description="The node of a site.")
    parser.add_argument("--superlink", required=True)
    for name in ("app", "authority", "key", "config"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    args = parser.parse_args(words)
    logs.begin("node")
    handler = logging.StreamHandler()
    handler.setFormatter(logs.formatter("node", "%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    config = tomllib.loads(args.config.read_text(encoding="utf-8"))
    # Loaded here, so that all share its pages; forked before there are threads, connections and the key.
    warm = WarmProcess(answer_with(app_of(args.app), config), later=_COMPUTING)
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.build import build_fab_from_disk
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.fleet_http_connection import http_request_response

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    outlive_a_broken_network()
    be_missed_soon()
    end_with_its_threads()
    key: Any = load_ssh_private_key(args.key.read_bytes(), None)
    keys = key, key.public_key()
    parcels = Parcels()
    parcels.carry(FleetHttpClient)
    with http_request_response(args.superlink, False, str(args.authority), keys) as connection:
        _log.info(CONNECTED)
        node = Node(connection, warm.start, build_fab_from_disk(args.app), parcels)
        try:
            while True:
                begin = time.monotonic()
                if not node.step():
                    time.sleep(max(0.0, _PAUSE - (time.monotonic() - begin)))
        except httpx.HTTPStatusError as error:
            _tell(error)
    return 1  # the engine has said why, or the server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
