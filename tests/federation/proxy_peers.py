"""A proxy in a thread, with a server behind it that remembers what came through."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedhip.federation.agreement.credentials import (
    make_authority,
    make_server_certificate,
    make_site_key,
    read_private_key,
)
from fedhip.federation.operations.supervisor import write_json
from fedhip.federation.transport.callers import Callers, public_pem
from fedhip.federation.transport.proxy import Limits, Proxy, inner_tls, listen, outer_tls
from tests.waiting import PATIENCE

#: Little, so that tests of large calls are quick.
SMALL = Limits(body=100_000, head=4096, connections=12, per_address=8)
#: For slow callers: what is tested is cut off at once, and nothing else is, on a busy machine either.
NO_TLS, IDLE = replace(SMALL, handshake=0.3), replace(SMALL, idle=0.3)
SLOW_HEAD, SLOW_BODY = replace(SMALL, to_head=0.3), replace(SMALL, stall=0.3)


def make_credentials(folder: Path) -> Path:
    """An authority, a server certificate, and the keys of the site `a` and of a stranger."""
    folder.mkdir(parents=True, exist_ok=True)
    make_authority(folder, "test")
    make_server_certificate(folder)
    public = make_site_key(folder / "a")
    make_site_key(folder / "stranger")
    write_json(folder / "callers.json", {"a": public_pem(public)})
    return folder


def signed(key: Path, when: datetime.datetime | None = None) -> dict[str, str]:
    """Headers by which a site shows who it is."""
    private = read_private_key(key)
    stamp = (when or datetime.datetime.now(datetime.UTC)).isoformat()
    return {
        "flwr-public-key": base64.b64encode(public_pem(Path(f"{key}.pub").read_bytes()).encode()).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
    }


@dataclass
class Behind:
    """What the server behind the proxy saw; `answer` is what it says."""

    answer: bytes = b"fine"
    status: int = 200
    early: bool = False  # answer before the body is read
    closes: bool = False  # the connection, after each answer
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """For the standard library's server."""
        behind = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = b"" if behind.early else self._body()
                behind.connections.add(self.client_address)
                behind.seen.append((self.command, self.path, dict(self.headers.items()), body))
                self.send_response(behind.status)
                self.send_header("Content-Length", str(len(behind.answer)))
                self.send_header("X-Own", "kept")
                if behind.early or behind.closes:
                    self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(behind.answer)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    length = int(self.headers.get("Content-Length", 0))
                    body = self.rfile.read(length)
                    if len(body) < length:
                        raise ConnectionError("half a body")
                    return body
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

        return Handler


@dataclass
class Answer:
    """What a caller gets."""

    status: int
    body: bytes
    headers: dict[str, str]


@dataclass
class Door:
    """A running proxy."""

    port: int
    behind: Behind
    credentials: Path

    def connect(self) -> ssl.SSLSocket:
        """A TLS connection to it."""
        context = ssl.create_default_context(cafile=str(self.credentials / "ca" / "ca.crt"))
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def raw(self, data: bytes) -> bytes:
        """Send bytes, read until the proxy closes."""
        with self.connect() as tls:
            tls.sendall(data)
            return read_all(tls)

    def post(self, path: str = "/v1/fleet/pull-messages", body: bytes = b"x", **more: str) -> Answer:
        """A site's call."""
        context = ssl.create_default_context(cafile=str(self.credentials / "ca" / "ca.crt"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=context)
        connection.request("POST", path, body, {**signed(self.credentials / "a"), **more})
        response = connection.getresponse()
        whole = response.read()
        connection.close()
        return Answer(response.status, whole, dict(response.headers))


def read_all(tls: ssl.SSLSocket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := tls.recv(65536):
            parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def open_door(credentials: Path, limits: Limits = SMALL, behind: Behind | None = None) -> Iterator[Door]:
    """A proxy and a server behind it, until the block ends."""
    behind = behind or Behind()
    server = ThreadingHTTPServer(("127.0.0.1", 0), behind.handler())
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # callers that hang up are what is tested
    context = outer_tls(credentials / "server" / "server.pem", credentials / "server" / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    proxy = Proxy(
        ("127.0.0.1", server.server_port),
        tls=context,
        inner_tls=inner_tls(credentials / "ca" / "ca.crt"),
        callers=Callers(credentials / "callers.json"),
        limits=limits,
    )
    listener = listen("127.0.0.1", 0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(proxy.serve(listener))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    proxying = threading.Thread(target=run)
    proxying.start()
    try:
        yield Door(listener.getsockname()[1], behind, credentials)
    finally:
        loop.call_soon_threadsafe(task.cancel)
        proxying.join()
        loop.close()
        listener.close()
        server.shutdown()
        serving.join()
        server.server_close()
