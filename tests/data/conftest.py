import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Site:
    """A web server on this machine whose manners a test can choose."""

    content: bytes = b""
    address: str = ""
    ranges: bool = True  # does it continue a download
    lies: bool = False  # does it continue from the wrong byte
    send: int | None = None  # break off after so many bytes
    status: int | None = None  # answer with this error
    asked: list[str | None] = field(default_factory=list)  # the Range header of each request


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append(asked)
            if state.status is not None:
                self.send_error(state.status)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.ranges else 0
            if start and start >= len(state.content):
                self.send_error(416)
                return
            start -= int(state.lies and start > 0)
            body = state.content[start:]
            self.send_response(206 if start else 200)
            if start:
                end = len(state.content)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.send])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}/file"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
