"""The proxy in front of a federation's server, over TLS: it lets the sites' own calls through, and nothing else.

The engine's control interface (start a run, register a key; see `link`) shares a port with the interface of the sites.
That port is bound to loopback; this proxy stands in front and passes `POST /v1/fleet/…` on, from callers who sign with
a registered key. Heads are parsed and written again by h11, so that nobody can hide a second request in a first one;
bodies stream through in pieces.

It runs as a process of its own: python -m fedhip.federation.transport.proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import logging
import logging.handlers
import re
import signal
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h11

from fedhip.federation import logs
from fedhip.federation.transport.callers import Callers, NotPassedError

#: The sites' calls are one word each; a dot, a percent sign, a second slash or a query is none of theirs.
ALLOWED = re.compile(rb"/v1/fleet/[a-z]+(?:-[a-z]+)*")

#: Headers that concern one connection only (RFC 9110, 7.6.1), and those by which a caller could name another address.
_OWN = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"expect"})
_ADDRESS = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto"})

_PIECE = 1 << 16
#: For so many seconds a connection to the server is kept for the caller's next call. The server itself keeps it for 5.
_KEPT = 2.0
_log = logging.getLogger("fedhip.proxy")


@dataclass(frozen=True)
class Limits:
    """What one caller can take up. Times in seconds, sizes in bytes."""

    body: int = 32 << 20  # of a call; `serve` takes what the agreement asks for
    head: int = 16 << 10
    connections: int = 512
    per_address: int = 128  # sites of one hospital may share an address
    per_site: int = 16  # calls at once; a site has about four
    handshake: float = 10
    idle: float = 30  # between two requests
    to_head: float = 10  # for the head, from its first byte
    stall: float = 30  # between two pieces of a body, either way
    request: float = 300  # for one request and its answer

    @classmethod
    def of(cls, sites: int, body: int) -> Limits:
        """For a federation of so many sites, which may all share an address: each has a call held, and others."""
        return cls(body=body, connections=max(cls.connections, 8 * sites), per_address=max(cls.per_address, 4 * sites))


def check_head(request: h11.Request, limits: Limits) -> None:
    """Refuse what is no call of a site: another method or path, a doubtful length, a body too large."""
    if request.method != b"POST" or not ALLOWED.fullmatch(request.target):
        raise NotPassedError(404, "there is nothing here")
    lengths = [value for name, value in request.headers if name == b"content-length"]
    coded = any(name == b"transfer-encoding" for name, _ in request.headers)
    if coded and lengths:
        raise NotPassedError(400, "a length and a transfer coding at once")
    if request.http_version != b"1.1":
        raise NotPassedError(400, "HTTP/1.1 is needed")
    if lengths and int(lengths[0]) > limits.body:
        raise NotPassedError(413, f"a body of {int(lengths[0]):,} bytes; at most {limits.body:,} are taken")


def _passed_on(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    listed = list(headers)
    named = {word.strip().lower() for name, value in listed if name == b"connection" for word in value.split(b",")}
    # A caller that lists `host` or a length under Connection would have us drop it.
    named -= {b"host", b"content-length", b"transfer-encoding"}
    return [(name, value) for name, value in listed if name not in without | named]


@dataclass(frozen=True)
class _Upstream:
    """A connection to the server, and when it was last used."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    used: float

    @property
    def is_usable(self) -> bool:
        """Whether another call may go over it."""
        return not self.reader.at_eof() and asyncio.get_running_loop().time() - self.used < _KEPT

    @property
    def is_done(self) -> bool:
        """Whether a call and its answer have gone over it whole."""
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE


class _EndedError(Exception):
    """The caller has gone, or has been too slow; there is nothing more to say to it."""


class _Conversation:
    """One connection of a caller: requests one after the other, over a connection to the server of its own.

    A handshake for each call would take most of the time that a small one needs.
    """

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self._proxy, self._limits = proxy, proxy.limits
        self._reader, self._writer, self._peer = reader, writer, peer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=proxy.limits.head)
        self._what = ""
        self._kept: _Upstream | None = None

    async def run(self) -> None:
        """Serve until the caller goes, errs, or is too slow."""
        try:
            while await self._one():
                self._http.start_next_cycle()
        except (_EndedError, ConnectionError, ssl.SSLError, TimeoutError) as error:
            if str(error) and self._what:
                _log.info("closed, from %s: %s (%s)", self._peer, error, self._what)
        finally:
            if self._kept is not None:
                self._kept.writer.transport.abort()

    async def _one(self) -> bool:
        """One request; whether another may follow."""
        try:
            request = await self._head()
            if request is None:
                return False
            self._what = ascii((request.method + b" " + request.target[:120]).decode("latin-1"))
            check_head(request, self._limits)
            site = self._proxy.callers.check(request.headers, datetime.datetime.now(datetime.UTC))
            self._what += f" of site {site}"
            try:
                with self._proxy.call_of(site):
                    async with asyncio.timeout(self._limits.request):
                        await self._relay(request)
            except TimeoutError:
                raise _EndedError(f"not done in {self._limits.request:g} s") from None
        except h11.RemoteProtocolError as error:
            await self._refuse(NotPassedError(error.error_status_hint, f"not HTTP/1.1: {error}"))
        except NotPassedError as error:
            await self._refuse(error)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _head(self) -> h11.Request | None:
        """The next request's head, refused where it grows to twice the limit; None if the caller is done."""
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.idle):
                    self._http.receive_data(await self._reader.read(self._limits.head))
                event = self._http.next_event()
        try:
            async with asyncio.timeout(self._limits.to_head):
                while event is h11.NEED_DATA and self._http.trailing_data[0]:
                    self._http.receive_data(await self._reader.read(self._limits.head))
                    event = self._http.next_event()
        except TimeoutError:
            raise NotPassedError(408, "the head of the request came too slowly") from None
        return event if isinstance(event, h11.Request) else None

    async def _connected(self) -> _Upstream:
        """A connection to the server: the one of the call before, if it is still good."""
        kept, self._kept = self._kept, None
        if kept is not None and kept.is_usable:
            kept.http.start_next_cycle()
            return kept
        if kept is not None:
            kept.writer.transport.abort()
        host, port = self._proxy.upstream
        try:
            async with asyncio.timeout(self._limits.handshake):
                reader, writer = await asyncio.open_connection(host, port, ssl=self._proxy.inner_tls, limit=_PIECE)
        except (OSError, TimeoutError):
            raise NotPassedError(503, "the server is not there at the moment; try again") from None
        return _Upstream(reader, writer, h11.Connection(h11.CLIENT), 0.0)

    async def _relay(self, request: h11.Request) -> None:
        upstream = await self._connected()
        reader, writer, inner = upstream.reader, upstream.writer, upstream.http
        headers = _passed_on(request.headers, _OWN | _ADDRESS)
        headers.append((b"x-forwarded-for", self._peer.encode()))
        uploading = asyncio.create_task(self._upload(inner, writer))
        try:
            writer.write(inner.send(h11.Request(method=request.method, target=request.target, headers=headers)) or b"")
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            answering = asyncio.create_task(_next_event(inner, reader))
            try:
                await asyncio.wait({uploading, answering}, return_when=asyncio.FIRST_COMPLETED)
                if uploading.done():
                    uploading.result()  # raises what the caller did wrong
                event = await answering
                while isinstance(event, h11.InformationalResponse):
                    event = await _next_event(inner, reader)
            finally:
                await _settle(answering)
            if not isinstance(event, h11.Response):
                raise NotPassedError(502, "the server closed the connection")
            await self._answer(event, inner, reader)
        except (ConnectionError, h11.RemoteProtocolError) as error:
            if self._http.their_state is h11.ERROR:  # it was the caller
                raise
            if self._http.our_state is h11.SEND_BODY:
                raise _EndedError("the server stopped in the middle of an answer") from error
            raise NotPassedError(502, "the server closed the connection") from None
        finally:
            try:
                await _settle(uploading)
            finally:
                if upstream.is_done:
                    self._kept = replace(upstream, used=asyncio.get_running_loop().time())
                else:
                    writer.transport.abort()

    async def _answer(self, head: h11.Response, inner: h11.Connection, reader: asyncio.StreamReader) -> None:
        await self._send(
            h11.Response(status_code=head.status_code, headers=_passed_on(head.headers, _OWN), reason=head.reason)
        )
        while True:
            event = await _next_event(inner, reader)
            if isinstance(event, h11.Data):
                await self._send(h11.Data(data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._send(h11.EndOfMessage())
                return
            else:
                raise _EndedError("the server stopped in the middle of an answer")

    async def _upload(self, inner: h11.Connection, writer: asyncio.StreamWriter) -> None:
        """The caller's body, piece by piece; the server may answer and hang up before the end of it."""
        size = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                try:
                    async with asyncio.timeout(self._limits.stall):
                        self._http.receive_data(await self._reader.read(_PIECE))
                except TimeoutError:
                    raise NotPassedError(408, "the body of the request came too slowly") from None
                continue
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > self._limits.body:
                    raise NotPassedError(413, f"a body of more than {self._limits.body:,} bytes")
                outgoing: h11.Event = h11.Data(data=bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                outgoing = h11.EndOfMessage()
            else:
                raise _EndedError("the caller hung up in the middle of a body")
            with contextlib.suppress(ConnectionError):
                writer.write(inner.send(outgoing) or b"")
                await writer.drain()
            if isinstance(event, h11.EndOfMessage):
                return

    async def _send(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")
        try:
            async with asyncio.timeout(self._limits.stall):
                await self._writer.drain()
        except TimeoutError:
            raise _EndedError("the answer was read too slowly") from None

    async def _refuse(self, refused: NotPassedError) -> None:
        said = self._what or "no head yet"
        _log.info("refused %d, from %s: %s (%s)", refused.status, self._peer, refused.reason, said)
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            raise _EndedError
        body = json.dumps({"detail": refused.reason} | ({"code": refused.code} if refused.code else {})).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        with contextlib.suppress(ConnectionError, h11.LocalProtocolError):
            await self._send(h11.Response(status_code=refused.status, headers=headers))
            await self._send(h11.Data(data=body))
            await self._send(h11.EndOfMessage())
        raise _EndedError


async def _next_event(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Event | type[h11.PAUSED]:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(_PIECE))
    assert not isinstance(event, type) or event is h11.PAUSED  # noqa: S101 - NEED_DATA was waited for
    return event


async def _settle(task: asyncio.Task[object]) -> None:
    """End a task that may still be under way; what it would say comes too late."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Proxy:
    """Accepts connections, counts them, and hands each to a conversation."""

    def __init__(
        self,
        upstream: tuple[str, int],
        *,
        tls: ssl.SSLContext,
        inner_tls: ssl.SSLContext,
        callers: Callers,
        limits: Limits | None = None,
    ) -> None:
        self.upstream, self.inner_tls, self.callers = upstream, inner_tls, callers
        self.limits = limits or Limits()
        self._tls = tls
        self._open: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def call_of(self, site: str) -> Iterator[None]:
        """Count a call of a site: the engine holds the bodies of all calls at once."""
        if self._calls[site] >= self.limits.per_site:
            raise NotPassedError(429, f"{self.limits.per_site} calls of site {site} are under way")
        self._calls[site] += 1
        try:
            yield
        finally:
            self._calls[site] -= 1

    async def serve(self, listener: socket.socket) -> None:
        """Accept until cancelled."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:  # out of file descriptors: those who are here go on
                    _log.warning("no connection can be accepted (%s)", error)
                    await asyncio.sleep(0.5)
                    continue
                peer = str(address[0])
                if self._open.total() >= self.limits.connections or self._open[peer] >= self.limits.per_address:
                    _log.info("refused, from %s: too many connections (%d)", peer, self._open.total())
                    connection.close()
                    continue
                self._open[peer] += 1
                task = asyncio.create_task(self._converse(connection, peer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # what was aborted is closed in the loop's next turn

    async def _converse(self, connection: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_PIECE, loop=loop)
        transport: asyncio.Transport | None = None
        try:
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, loop=loop),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self.limits.handshake,
                ssl_shutdown_timeout=self.limits.handshake,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            await _Conversation(self, reader, writer, peer).run()
            if not transport.is_closing():
                writer.close()
                async with asyncio.timeout(self.limits.handshake):
                    await writer.wait_closed()
        except (OSError, TimeoutError) as error:  # a caller that speaks no TLS, or trusts another authority
            _log.info("closed, from %s: %s", peer, getattr(error, "reason", None) or str(error) or "no TLS in time")
        finally:
            if transport is not None:
                transport.abort()
            else:
                connection.close()
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]


def outer_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS towards the sites."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def inner_tls(authority: Path) -> ssl.SSLContext:
    """TLS towards the engine, which shows a certificate of the federation's own authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    return context


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


async def _run(proxy: Proxy, listener: socket.socket) -> None:
    task = asyncio.create_task(proxy.serve(listener))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(words: Sequence[str]) -> int:
    """Run the proxy until it is told to end."""
    parser = argparse.ArgumentParser(prog="proxy", description="The TLS proxy in front of a federation's server.")
    for name in ("host", "certificate", "key", "authority", "keys", "log"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--port", type=int, required=True)
    for name in ("upstream-port", "largest-call", "sites"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args(words)
    logs.begin("proxy")
    # An intruder can fill a log; it cannot fill the disk.
    handler = logging.handlers.RotatingFileHandler(args.log, maxBytes=4 << 20, backupCount=2, encoding="utf-8")
    handler.setFormatter(logs.formatter("proxy", "%(asctime)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    proxy = Proxy(
        ("127.0.0.1", args.upstream_port),
        tls=outer_tls(Path(args.certificate), Path(args.key)),
        inner_tls=inner_tls(Path(args.authority)),
        callers=Callers(Path(args.keys)),
        limits=Limits.of(args.sites, args.largest_call),
    )
    try:
        listener = listen(args.host, args.port)
    except OSError as error:
        _log.error("%s:%d cannot be listened on (%s)", args.host, args.port, error.strerror)
        return 1
    _log.info("listening on %s:%d", args.host, args.port)
    with listener:
        asyncio.run(_run(proxy, listener))
    _log.info("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
