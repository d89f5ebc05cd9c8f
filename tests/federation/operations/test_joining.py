"""A site looks at the server before it starts anything: each fault of a certificate is said in words."""

from __future__ import annotations

import contextlib
import datetime
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedhip.federation.agreement import credentials as credentials_module
from fedhip.federation.agreement.credentials import make_authority, make_server_certificate
from fedhip.federation.agreement.init import init
from fedhip.federation.errors import EngineError, SetupError
from fedhip.federation.logs import line_of
from fedhip.federation.operations import joining
from fedhip.federation.operations.paths import StatePaths
from fedhip.federation.operations.supervisor import alone
from fedhip.federation.site.folder import SiteFolder, open_site, write_connection
from fedhip.federation.transport import engine
from fedhip.federation.transport.proxy import outer_tls


@contextlib.contextmanager
def listening(folder: Path, *, tls: bool = True) -> Iterator[int]:
    """A server that shows a certificate, and no more."""
    server = socket.create_server(("127.0.0.1", 0))
    context = outer_tls(folder / "server" / "server.pem", folder / "server" / "server.key")

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    if tls:
                        context.wrap_socket(connection, server_side=True).close()
                    else:
                        connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joining") / "fed"
    init(folder, name="demo", sites=["a", "b", "c"], classes=["x", "y"], width=4)
    return folder


def site_at(federation: Path, port: int, host: str = "127.0.0.1") -> SiteFolder:
    (federation / "site-a" / "connection.toml").write_text(write_connection("a", host, port))
    return open_site(federation / "site-a")


def test_the_right_server_is_greeted_in_silence(federation: Path) -> None:
    said: list[str] = []
    with listening(federation) as port:
        joining.greet(site_at(federation, port), said.append)
        joining.greet(site_at(federation, port, "localhost"), said.append)
    assert said == []


def test_another_authority_is_refused(federation: Path, tmp_path: Path) -> None:
    make_authority(tmp_path, "demo")
    make_server_certificate(tmp_path)
    with listening(tmp_path) as port, pytest.raises(SetupError, match="not trusted"):
        joining.greet(site_at(federation, port), print)


def test_an_expired_certificate_is_refused(federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = datetime.datetime.now(datetime.UTC).replace(microsecond=0) - datetime.timedelta(days=30)
    monkeypatch.setattr(credentials_module, "_now", lambda: past)
    make_authority(tmp_path, "demo")
    make_server_certificate(tmp_path, days=1)
    monkeypatch.undo()
    site = site_at(federation, 1)
    with listening(tmp_path) as port:
        late = type(site)(**{**vars(site), "ca": tmp_path / "ca" / "ca.crt", "address": f"127.0.0.1:{port}"})
        with pytest.raises(SetupError, match="certificate has expired"):
            joining.greet(late, print)


def test_another_host_name_is_refused(federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: real(("127.0.0.1", address[1]), timeout))
    with listening(federation) as port, pytest.raises(SetupError, match="not trusted: Hostname mismatch"):
        joining.greet(site_at(federation, port, "other.example.org"), print)


def test_a_server_without_tls_is_refused(federation: Path) -> None:
    with listening(federation, tls=False) as port, pytest.raises(SetupError, match="no server of a federation"):
        joining.greet(site_at(federation, port), print)


def test_a_server_that_is_not_there_yet_is_waited_for(federation: Path) -> None:
    said: list[str] = []
    joining.greet(site_at(federation, engine.free_port()), said.append)
    assert "does not answer yet" in said[0]


def test_one_site_runs_once_on_a_machine(federation: Path) -> None:
    site = site_at(federation, 1)
    state = StatePaths(site.path / "state")
    state.prepare()
    with (
        alone(state.lock, "runs already"),
        pytest.raises(EngineError, match="site 'a' runs already on this machine"),
    ):
        joining.join(site.path, {}, say=print, stop=threading.Event())


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("[code: 2004] this key is not in the roster of the federation", "does not know the key of site 'a'"),
        ("[code: 2004] the clocks of site a and the server are 900 s apart; set them", "900 s apart"),
        (line_of("node", "[code: 2004] the clocks of site a and the server are 600 s apart; set them"), "600 s apart"),
        ("something else", "could not connect"),
    ],
)
def test_the_engine_s_words_become_a_reason(federation: Path, tmp_path: Path, log: str, reason: str) -> None:
    site = site_at(federation, 1)
    assert reason in joining._why_not_connected(log, site, tmp_path / "node.log")
