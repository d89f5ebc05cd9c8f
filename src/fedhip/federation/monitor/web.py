"""The page's web server: on loopback alone, read-only, and for whoever shows the token in `state/status.token`.

    /              the page, made anew for each look at it; `?token=…` once, then a cookie
    /status.json   the same as JSON
    /metrics       the same for Prometheus
    /healthz       whether the engine answers; the only one that takes no token, and tells no more than that

Other accounts of the machine reach its loopback, so the token is asked for there too. A page of somebody else's could
have a browser call this one by a name of its own that resolves to loopback; so a Host that is not ours is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.cookies
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from fedhip.federation.agreement.credentials import require_host
from fedhip.federation.errors import EngineError
from fedhip.federation.monitor.metrics import metrics
from fedhip.federation.operations.paths import StatePaths
from fedhip.federation.transport.engine import LOOPBACK
from fedhip.utils import words
from fedhip.utils.files import private_folder, write_private

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
_OURS = ("127.0.0.1", "localhost", "::1")
#: Calls at once; more wait. Seconds that a caller may take to ask.
_AT_ONCE, _PATIENCE = 16, 10
#: Seconds until it notices that it is to end.
_POLL = 0.1
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FILES = {"/page.css": "text/css; charset=utf-8", "/page.js": "text/javascript; charset=utf-8"}

Look = Callable[[], dict[str, Any]]


def token_of(state: StatePaths) -> str:
    """The token, made when it is first asked for. Whoever removes the file has another."""
    try:
        return state.token.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        private_folder(state.path)
        write_private(state.token, secrets.token_urlsafe(32).encode())
        return token_of(state)


@contextlib.contextmanager
def page_served(port: int, hosts: Sequence[str], token: str, look: Look) -> Iterator[int]:
    """Serve the page on loopback while the block lasts; its port. `hosts` are other names that it is called by."""
    known = frozenset((*_OURS, *map(require_host, hosts)))
    try:
        server = _Server((LOOPBACK, port), token, known, look)
    except OSError as error:
        raise EngineError(
            f"port {port} of {LOOPBACK} cannot be had for the page ({error.strerror}); choose another with "
            "--status-port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(_POLL,), name="page", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def page_of(shown: dict[str, Any]) -> str:
    """The page; every value in it is escaped."""
    return _templates().get_template("page.html.j2").render(shown=shown)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], token: str, hosts: frozenset[str], look: Look) -> None:
        self.token, self.hosts, self.look = token, hosts, look
        # Cookies do not know ports: two federations on a machine have each their own.
        self.cookie = f"fedhip-{hashlib.sha256(token.encode()).hexdigest()[:12]}"
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(address, _Handler)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._places:
            super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a caller that breaks off is nothing that the server's people need to know."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE
    server_version, sys_version = "fedhip", ""

    def do_GET(self) -> None:
        """Answer, if the caller may know."""
        try:
            self._answer()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception:  # what went wrong may hold paths, and strangers cannot be told from others here
            with contextlib.suppress(OSError):
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "the page cannot be made; see the log of serve\n")
            raise

    def do_HEAD(self) -> None:
        """The same without its body."""
        self.do_GET()

    def parse_request(self) -> bool:
        """Read the head; whatever is to do more than read is refused."""
        if not super().parse_request():
            return False
        if self.command not in ("GET", "HEAD"):
            said = "this page can be read, and nothing else\n"
            self._send(HTTPStatus.METHOD_NOT_ALLOWED, said, more={"Allow": "GET, HEAD"})
            return False
        return True

    def _answer(self) -> None:
        url = urlsplit(self.path)
        if not self.path.startswith("/") or not self._is_for_us():
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "this page has another name; see --status-host\n")
        elif url.path == "/healthz":
            well = self.server.look()["serving"]
            self._send(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, "ok\n" if well else "not serving\n")
        elif (given := parse_qs(url.query).get("token")) is not None and url.path == "/" and self._is_token(given[-1]):
            cookie = f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Strict"
            self._send(HTTPStatus.SEE_OTHER, "", more={"Location": "./", "Set-Cookie": cookie})
        elif not self._is_known():
            said = "this page takes the token in state/status.token: open it once with ?token=…\n"
            self._send(HTTPStatus.UNAUTHORIZED, said, more={"WWW-Authenticate": "Bearer"})
        elif url.path in _FILES:
            self._send(HTTPStatus.OK, (_HERE / url.path[1:]).read_text(encoding="utf-8"), _FILES[url.path])
        elif url.path == "/":
            self._send(HTTPStatus.OK, page_of(self.server.look()), "text/html; charset=utf-8")
        elif url.path == "/status.json":
            self._send(HTTPStatus.OK, json.dumps(self.server.look(), indent=1) + "\n", "application/json")
        elif url.path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
            self._send(HTTPStatus.OK, metrics(self.server.look()), kind)
        else:
            self._send(HTTPStatus.NOT_FOUND, "there is nothing here\n")

    def _is_for_us(self) -> bool:
        """Whether the one Host header has a name of ours; its port may be that of a tunnel."""
        given = self.headers.get_all("Host") or []
        if len(given) != 1:
            return False
        try:
            return (urlsplit(f"//{given[0]}").hostname or "") in self.server.hosts
        except ValueError:
            return False

    def _is_known(self) -> bool:
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(value.strip()):
            return True
        try:
            cookie = http.cookies.SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except http.cookies.CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode())

    def _send(
        self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8", more: dict[str, str] | None = None
    ) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Without what the caller sent."""
        self.command = getattr(self, "command", None) or "GET"
        self.request_version = getattr(self, "request_version", "") or "HTTP/1.0"
        self._send(HTTPStatus(code), "this is no request that is understood here\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: a token may be in the line."""


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        word.__name__: word for word in (words.size, words.duration, words.count, words.listed, moment)
    }
    return environment


def moment(iso: str) -> str:
    """A time to the second, in UTC; a dash where there is none."""
    return iso[:19].replace("T", " ") or words.NOTHING
