"""The door: what passes, what does not, and what one caller can take up."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedhip.federation.agreement.credentials import read_private_key
from fedhip.federation.operations.supervisor import write_json
from fedhip.federation.transport import proxy as proxy_module
from fedhip.federation.transport.callers import Callers, NotPassedError, public_pem
from fedhip.federation.transport.proxy import Limits, Proxy, inner_tls, listen, outer_tls
from tests.federation.proxy_peers import (
    IDLE,
    NO_TLS,
    SLOW_BODY,
    SLOW_HEAD,
    SMALL,
    Behind,
    Door,
    make_credentials,
    open_door,
    read_all,
    signed,
)
from tests.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_credentials(tmp_path_factory.mktemp("credentials"))


def test_all_sites_of_a_large_federation_may_share_an_address() -> None:
    """A site has a call held at the server, its heartbeat, and others now and then."""
    few, many = Limits.of(4, 1000), Limits.of(300, 1000)
    assert (few.connections, few.per_address, few.body) == (Limits().connections, Limits().per_address, 1000)
    assert many.per_address >= 3 * 300
    assert many.connections >= many.per_address


@pytest.fixture
def door(credentials: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Door]:
    caplog.set_level(logging.INFO, "fedhip.proxy")
    with open_door(credentials) as opened:
        yield opened


def head(credentials: Path, path: str = "/v1/fleet/get-run", method: str = "POST", **more: str) -> bytes:
    headers = {"host": "127.0.0.1", **signed(credentials / "a"), **more}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_site_s_call_passes_untouched(door: Door) -> None:
    body = os.urandom(90_000)
    response = door.post(body=body, **{"Content-Type": "application/protobuf", "X-Odd": "a  b"})
    assert (response.status, response.body) == (200, b"fine")
    assert response.headers["x-own"] == "kept"
    ((method, path, headers, received),) = door.behind.seen
    assert (method, path, received) == ("POST", "/v1/fleet/pull-messages", body)
    assert headers["content-type"] == "application/protobuf"
    assert headers["x-odd"] == "a  b"
    assert headers["flwr-signature"]


def test_chunks_pass(door: Door, credentials: Path) -> None:
    chunks = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    answer = door.raw(head(credentials, **{"transfer-encoding": "chunked", "connection": "close"}) + chunks)
    assert answer.startswith(b"HTTP/1.1 200")
    assert door.behind.seen[0][3] == b"hello world"


def test_a_connection_serves_one_call_after_the_other(door: Door, credentials: Path) -> None:
    one = head(credentials, **{"content-length": "1"}) + b"1"
    two = head(credentials, **{"content-length": "1", "connection": "close"}) + b"2"
    answer = door.raw(one + two)  # both at once: the second waits for its turn
    assert answer.count(b"HTTP/1.1 200") == 2
    assert [seen[3] for seen in door.behind.seen] == [b"1", b"2"]
    assert len(door.behind.connections) == 1
    door.raw(two)
    assert len(door.behind.connections) == 2  # another caller's are its own


def test_a_connection_to_the_server_is_not_used_when_it_may_be_closed(
    door: Door, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = head(credentials, **{"content-length": "1"}) + b"1"
    two = head(credentials, **{"content-length": "1", "connection": "close"}) + b"2"
    door.behind.closes = True
    assert door.raw(one + two).count(b"HTTP/1.1 200") == 2
    assert len(door.behind.connections) == 2
    door.behind.closes = False
    monkeypatch.setattr(proxy_module, "_KEPT", 0.0)  # it was kept for too long
    assert door.raw(one + two).count(b"HTTP/1.1 200") == 2
    assert len(door.behind.connections) == 4


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("GET", "/v1/fleet/get-run"),
        ("GET", "/health"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet/..%2fcontrol%2fstart-run"),
        ("POST", "/v1/fleet//control/start-run"),
        ("POST", "/v1/fleet/get-run?x=/v1/control/start-run"),
        ("POST", "/v1/fleet/get-run#x"),
        ("POST", "//v1/fleet/get-run"),
        ("POST", "/v1/fleet/"),
        ("POST", "/V1/FLEET/get-run"),
        ("POST", "https://127.0.0.1/v1/fleet/get-run"),
        ("CONNECT", "127.0.0.1:1"),
        ("POST", "/v1/fleet/get-run;x"),
        ("POST", "/v1/fleet/get\\run"),
    ],
)
def test_nothing_else_passes(
    door: Door, credentials: Path, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = door.raw(head(credentials, path, method, **{"content-length": "0"}))
    assert answer.startswith(b"HTTP/1.1 404")
    assert door.behind.seen == []
    assert "refused 404, from 127.0.0.1" in caplog.text


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: 4 4\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0\r\n bad: fold\x00\r\n",
    ],
)
def test_a_doubtful_length_is_refused(door: Door, credentials: Path, framing: str) -> None:
    hidden = b"0\r\n\r\nPOST /v1/control/start-run HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = door.raw(head(credentials)[:-2] + framing.encode() + b"\r\n" + hidden)
    assert answer.split(b" ")[1] in {b"400", b"501"}
    assert answer.count(b"\r\n\r\n") == 1
    assert door.behind.seen == []


def test_a_hidden_second_request_is_judged_by_itself(door: Door, credentials: Path) -> None:
    second = head(credentials, "/v1/control/start-run", **{"content-length": "0"})
    answer = door.raw(head(credentials, **{"content-length": "0"}) + second)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 404" in answer
    assert [seen[1] for seen in door.behind.seen] == ["/v1/fleet/get-run"]


def test_nothing_is_read_after_a_refusal(door: Door, credentials: Path) -> None:
    good = head(credentials, **{"content-length": "0"})
    answer = door.raw(head(credentials, "/v1/control/start-run", **{"content-length": "0"}) + good)
    assert answer.count(b"HTTP/1.1") == 1
    assert door.behind.seen == []


@pytest.mark.parametrize("chunks", [b" 5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n\r\n", b"-1\r\n\r\n0\r\n\r\n"])
def test_chunks_that_are_none_are_the_callers_fault(
    door: Door, credentials: Path, chunks: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = door.raw(head(credentials, **{"transfer-encoding": "chunked"}) + chunks)
    assert answer.startswith(b"HTTP/1.1 400")
    assert "refused 400, from 127.0.0.1: not HTTP/1.1" in caplog.text
    assert door.behind.seen == []


def test_connection_headers_and_addresses_are_ours_to_say(door: Door) -> None:
    door.post(
        body=b"x", **{"Connection": "close, flwr-odd, content-length", "flwr-odd": "1", "X-Forwarded-For": "10.9.9.9"}
    )
    headers = door.behind.seen[0][2]
    assert "flwr-odd" not in headers
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["content-length"] == "1"


def test_a_large_body_is_refused_by_its_length(door: Door, credentials: Path) -> None:
    answer = door.raw(head(credentials, **{"content-length": str(SMALL.body + 1)}))
    assert answer.startswith(b"HTTP/1.1 413")
    assert door.behind.seen == []


def test_a_large_body_is_refused_while_it_comes(
    door: Door, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with door.connect() as tls:
        tls.sendall(head(credentials, **{"transfer-encoding": "chunked"}))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            for _ in range(20):
                tls.sendall(b"2710\r\n" + bytes(10_000) + b"\r\n")
        read_all(tls)
    until(lambda: "refused 413" in caplog.text)
    assert door.behind.seen == []


def test_a_large_head_is_refused(door: Door, credentials: Path) -> None:
    answer = door.raw(head(credentials, **{"x-long": "y" * (2 * SMALL.head)}))
    assert answer.startswith(b"HTTP/1.1 431")
    assert door.behind.seen == []


def test_slow_heads_and_bodies_are_cut_off(credentials: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedhip.proxy")
    with open_door(credentials, SLOW_HEAD) as door:
        with door.connect() as tls:  # slowloris: a byte now and then, never an end
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                for byte in b"POST /v1/fleet/get-run HTTP/1.1\r\n":
                    tls.sendall(bytes([byte]))
                    time.sleep(0.05)
            read_all(tls)
        assert "the head of the request came too slowly" in caplog.text
        assert door.behind.seen == []
    with open_door(credentials, SLOW_BODY) as door:
        answer = door.raw(head(credentials, **{"content-length": "100"}) + b"half")
        assert answer.startswith(b"HTTP/1.1 408")
        assert door.behind.seen == []


def test_one_that_never_speaks_is_cut_off(credentials: Path) -> None:
    with open_door(credentials, IDLE) as door:
        assert door.raw(b"") == b""
    with (
        open_door(credentials, NO_TLS) as door,
        socket.create_connection(("127.0.0.1", door.port), timeout=PATIENCE) as plain,
    ):
        assert plain.recv(1) == b""  # no TLS either


def test_too_many_connections_are_turned_away(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(SMALL.per_address):
            stack.enter_context(door.connect())
        with pytest.raises((ConnectionError, ssl.SSLError)):
            door.connect()
    assert "too many connections" in caplog.text
    until(lambda: _passes(door))


def test_an_answer_streams_and_one_who_does_not_read_is_cut_off(
    credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fedhip.proxy")
    behind = Behind(answer=os.urandom(24 << 20))
    with open_door(credentials, behind=behind) as door:
        assert door.post().body == behind.answer
    with open_door(credentials, SLOW_BODY, behind=behind) as door, door.connect() as tls:
        tls.sendall(head(credentials, **{"content-length": "0"}))
        until(lambda: "the answer was read too slowly" in caplog.text)
        assert len(read_all(tls)) < len(behind.answer)


def test_an_early_answer_arrives(credentials: Path) -> None:
    behind = Behind(early=True, status=412, answer=b"no")
    with open_door(credentials, behind=behind) as door, door.connect() as tls:
        tls.sendall(head(credentials, **{"content-length": "50000"}) + bytes(10))
        assert read_all(tls).startswith(b"HTTP/1.1 412")


def test_without_a_server_the_caller_is_told_to_come_again(credentials: Path) -> None:
    async def ask() -> bytes:
        with listen("127.0.0.1", 0) as taken:  # bound, and never answering
            dead = taken.getsockname()[1]
        listener = listen("127.0.0.1", 0)
        proxy = Proxy(
            ("127.0.0.1", dead),
            tls=outer_tls(credentials / "server" / "server.pem", credentials / "server" / "server.key"),
            inner_tls=inner_tls(credentials / "ca" / "ca.crt"),
            callers=Callers(credentials / "callers.json"),
            limits=SMALL,
        )
        task = asyncio.create_task(proxy.serve(listener))
        door = Door(listener.getsockname()[1], Behind(), credentials)
        answer = await asyncio.to_thread(door.raw, head(credentials, **{"content-length": "0"}))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()
        return answer

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 503")


# Who calls.


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _headers(found: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in found.items()]


def test_the_engine_s_own_signature_is_taken(credentials: Path) -> None:
    private = read_private_key(credentials / "a")
    request = httpx.Request("POST", "https://x/v1/fleet/get-run")
    context = ProtobufRequestContext(rpc_method="", message=None, request=request)
    NodeAuthHttpInterceptor(private, private.public_key()).intercept(context, lambda _: httpx.Response(200))
    assert Callers(credentials / "callers.json").check(_headers(dict(request.headers)), _now()) == "a"


def test_strangers_are_refused_at_the_head(door: Door, credentials: Path, caplog: pytest.LogCaptureFixture) -> None:
    stranger = {"host": "x", **signed(credentials / "stranger"), "content-length": "100000"}
    lines = ["POST /v1/fleet/push-object HTTP/1.1", *(f"{n}: {v}" for n, v in stranger.items())]
    answer = door.raw(("\r\n".join(lines) + "\r\n\r\n").encode())
    assert answer.startswith(b"HTTP/1.1 412")
    assert b"this key is not in the roster" in answer
    assert "this key is not in the roster" in caplog.text
    unsigned = door.raw(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    assert b"not signed" in unsigned
    assert door.behind.seen == []


@pytest.mark.parametrize("seconds", [-400, 60])
def test_an_old_or_future_signature_is_refused(credentials: Path, seconds: float) -> None:
    when = _now() + datetime.timedelta(seconds=seconds)
    with pytest.raises(NotPassedError, match=r"clocks of site a .* apart"):
        Callers(credentials / "callers.json").check(_headers(signed(credentials / "a", when)), _now())


@pytest.mark.parametrize("version", ["1.40.0", "1.42.0", "", "x\xff\n" * 99])
def test_a_node_of_another_engine_is_refused(credentials: Path, version: str) -> None:
    headers = [*_headers(signed(credentials / "a")), (b"flwr-package-version", version.encode("latin-1"))]
    with pytest.raises(
        NotPassedError, match=r"^site a has Flower .{0,20}, and the server 1\.41\.0; install"
    ) as refused:
        Callers(credentials / "callers.json").check(headers, _now())
    assert refused.value.reason.isascii()


def test_a_signature_of_another_key_is_refused(credentials: Path) -> None:
    mixed = signed(credentials / "a") | {"flwr-signature": signed(credentials / "stranger")["flwr-signature"]}
    with pytest.raises(NotPassedError, match="not that of site a"):
        Callers(credentials / "callers.json").check(_headers(mixed), _now())


@pytest.mark.parametrize("name", ["flwr-public-key", "flwr-signature", "flwr-timestamp"])
def test_a_header_that_comes_twice_is_refused(credentials: Path, name: str) -> None:
    """We might look at the one, and the engine at the other."""
    own = _headers(signed(credentials / "a"))
    again = [(name.encode(), value.encode()) for value in [signed(credentials / "stranger")[name]]]
    for headers in (again + own, own + again, own + [pair for pair in own if pair[0] == name.encode()]):
        with pytest.raises(NotPassedError, match="not signed"):
            Callers(credentials / "callers.json").check(headers, _now())


def test_a_key_registered_later_is_known_without_a_restart(credentials: Path, tmp_path: Path) -> None:
    known = tmp_path / "callers.json"
    write_json(known, {})
    callers = Callers(known)
    with pytest.raises(NotPassedError):
        callers.check(_headers(signed(credentials / "a")), _now())
    write_json(known, {"late": public_pem((credentials / "a.pub").read_bytes())})
    assert callers.check(_headers(signed(credentials / "a")), _now()) == "late"
    known.write_text("damaged")
    assert callers.check(_headers(signed(credentials / "a")), _now()) == "late"


def _passes(door: Door) -> bool:
    try:
        return door.post().status == 200
    except OSError:
        return False
