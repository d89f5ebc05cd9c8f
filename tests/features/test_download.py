"""Downloads against a server on the loopback that can be told to misbehave."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedhip.features.download import download
from fedhip.features.errors import DownloadError

CONTENT = bytes(range(256)) * 4000


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        server = self.server
        server.ranges.append(self.headers.get("Range"))
        if self.path == "/missing":
            self.send_error(404)
            return
        start = 0
        asked = self.headers.get("Range")
        if asked and self.headers.get("If-Range") == server.tag:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", server.tag)
        if self.path != "/sizeless":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path != "/sizeless":
            self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(ThreadingHTTPServer):
    content = CONTENT
    tag = '"one"'

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts: list[int] = []
        self.ranges: list[str | None] = []

    def url(self, path: str = "/file") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_whole_file_once(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = download(server.url(), tmp_path / "a" / "file", report=lambda *p: seen.append(p))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    download(server.url(), path)
    assert len(server.ranges) == 1
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_broken_connection_continues_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cuts = [300_000, 200_000]
    assert download(server.url(), tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_next_call_continues_too_and_nothing_half_is_in_place(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000]
    with pytest.raises(DownloadError, match="1000 of 1024000 bytes"):
        download(server.url(), tmp_path / "file", attempts=1)
    assert not (tmp_path / "file").exists()
    assert download(server.url(), tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=1000-"


def test_a_file_that_changed_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000]
    with pytest.raises(DownloadError):
        download(server.url(), tmp_path / "file", attempts=1)
    server.content, server.tag = CONTENT[::-1], '"two"'
    assert download(server.url(), tmp_path / "file").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize(("path", "named"), [("/missing", "404"), ("/sizeless", "size")])
def test_what_cannot_be_fetched(server: Server, tmp_path: Path, path: str, named: str) -> None:
    with pytest.raises(DownloadError, match=named):
        download(server.url(path), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_no_server_and_no_such_scheme(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="cannot fetch http"):
        download("http://127.0.0.1:9/", tmp_path / "file", attempts=1)
    with pytest.raises(DownloadError, match="only http"):
        download("file:///etc/hosts", tmp_path / "file")
