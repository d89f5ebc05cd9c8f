"""A web server on this machine whose manners a test can choose."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What the server has, how it behaves, and what it was asked for."""

    content: bytes = b""
    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # its content by the last part of a path, where that differs
    only: str = ""  # paths that end otherwise are not found
    tag: str | None = None  # its ETag for the content
    ranges: bool = True  # does it continue a download
    lies: bool = False  # does it continue from the wrong byte
    sized: bool = True  # does it announce how much it will send
    most: int | None = None  # the most bytes it sends of a range, as an answer that is complete
    cuts: list[int] = field(default_factory=list)  # after how many bytes the next answers break off
    status: int | None = None  # answer with this error
    paths: list[str] = field(default_factory=list)  # the path of each request
    asked: list[str | None] = field(default_factory=list)  # the Range header of each request


@contextmanager
def serve() -> Iterator[Site]:
    """Run the server while the block lasts."""
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.paths.append(self.path)
            state.asked.append(asked)
            if state.status is not None or not self.path.endswith(state.only):
                self.send_error(state.status or 404)
                return
            content = state.files.get(self.path.rsplit("/", 1)[-1], state.content)
            start, size = 0, len(content)
            if asked and state.ranges and self.headers.get("If-Range") in (None, state.tag):
                start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start and start >= size:
                self.send_error(416)
                return
            start -= int(state.lies and start > 0)
            body = content[start:][: state.most if start else None]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{size}")
            if state.tag is not None:
                self.send_header("ETag", state.tag)
            if state.sized:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cuts.pop(0)] if state.cuts else body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        state.address = f"http://127.0.0.1:{server.server_port}/file"
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
