"""A site runs the app that it has itself, whatever the server sends."""

from __future__ import annotations

import io
import socket
import ssl
import time
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedhip.federation.transport.node import OTHER_APP, guard, outlive_a_broken_network, same_app
from fedhip.federation.transport.pace import SHORTEST, Pace
from tests.federation.grid import Clock
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


def test_the_node_passes_over_another_app(
    own: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = {"content": own}

    def get_fab(self: object, request: object) -> SimpleNamespace:
        return SimpleNamespace(fab=SimpleNamespace(content=sent["content"]))

    monkeypatch.setattr(FleetHttpClient, "GetFab", get_fab)
    monkeypatch.setattr("logging.Logger.propagate", True, raising=False)
    guard(own)
    client = object.__new__(FleetHttpClient)
    assert client.GetFab(SimpleNamespace()).fab.content == own  # type: ignore[arg-type]
    sent["content"] = packed(files_of(own) | {"fedhip/federation/client_app.py": b"evil"})
    with pytest.raises(RunNotRunningException):
        client.GetFab(SimpleNamespace())  # type: ignore[arg-type]
    assert OTHER_APP.startswith("the server sent another app")


def test_a_reply_of_a_stopped_run_does_not_take_the_place_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode import start_client_internal as loop

    from fedhip.federation.transport.node import drop_stale_replies

    def reply(run: int) -> SimpleNamespace:
        return SimpleNamespace(metadata=SimpleNamespace(run_id=run))

    sent: list[int] = []
    waiting = [[reply(1)], [reply(2)]]  # what a look into the state finds, one look after the other
    state = SimpleNamespace(get_messages_legacy=lambda is_reply: waiting.pop(0) if waiting else [])

    def push(state: Any) -> None:  # the engine's own way
        while not (found := state.get_messages_legacy(is_reply=True)):
            assert waiting
        sent.extend(message.metadata.run_id for message in found)

    monkeypatch.setattr(loop, "_pull_and_store_message", lambda state: 2)
    monkeypatch.setattr(loop, "_push_messages", push)
    monkeypatch.setattr(loop, "time", time)  # restored at the end
    clock = Clock()
    pace = Pace(clock=clock, sleep=clock.sleep)
    clock.sleep(100.0)
    drop_stale_replies(pace)
    loop._pull_and_store_message(state=state)  # type: ignore[call-arg, arg-type]
    loop._push_messages(state=state)  # type: ignore[call-arg, arg-type]
    assert sent == [2]
    assert not waiting
    begin = clock.now
    vars(loop)["time"].sleep(3)
    assert clock.now - begin == pytest.approx(SHORTEST)  # since a message has come


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
