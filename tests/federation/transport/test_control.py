"""The control interface, against the engine's own server in this process."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn

from fedhip.federation.agreement.credentials import make_authority, make_server_certificate, make_site_key
from fedhip.federation.errors import EngineError
from fedhip.federation.transport import engine
from fedhip.federation.transport.callers import public_pem
from fedhip.federation.transport.control import Control
from fedhip.federation.transport.hold import Arrivals
from fedhip.federation.transport.link import _PREFIXES, HEADER, OnItsCalls, guard, password
from tests.federation.tiny import write_app
from tests.waiting import until

#: The engine's libraries warn one another.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("control")
    make_authority(folder, "test")
    make_server_certificate(folder)
    return folder


@pytest.fixture(scope="module")
def keys(place: Path) -> dict[str, bytes]:
    return {name: make_site_key(place / name) for name in ("a", "b", "c")}


@pytest.fixture(scope="module")
def control(place: Path) -> Iterator[Control]:
    from flwr.superlink import main as link

    flower_superlink: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")  # not its function

    port = engine.free_port()
    certificate, key = place / "server" / "server.pem", place / "server" / "server.key"
    (place / "secret").write_bytes(b"s")
    command = engine.superlink(
        port=port,
        authority=place / "ca" / "ca.crt",
        certificate=certificate,
        key=key,
        database=place / "db",
        secret=place / "secret",
        objects=17,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["flower-superlink", *command[command.index("--host") :]])
        config = flower_superlink._parse_superlink_lifespan_config()
        patch.setattr("flwr.superlink.main._get_middleware", link._get_middleware)  # restored at the end
        guard(password(place / "secret"), Arrivals())
        app = link.create_app(config, flower_superlink.SuperLinkLifespan)
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, ssl_certfile=certificate, ssl_keyfile=key, log_level="critical")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    with Control(port, place / "ca" / "ca.crt", place / "secret") as opened:
        yield opened
    server.should_exit = True
    thread.join()


def test_keys_are_registered_once_and_those_that_left_are_removed(control: Control, keys: dict[str, bytes]) -> None:
    two = {name: keys[name] for name in ("a", "b")}
    first = control.register(two)
    assert sorted(first.values()) == ["a", "b"]
    assert control.register(two) == first  # a server that was started again
    assert {node.public for node in control.nodes()} == {public_pem(key) for key in two.values()}
    assert {node.state for node in control.nodes()} == {"registered"}
    later = control.register({"b": keys["b"], "c": keys["c"]})
    assert sorted(later.values()) == ["b", "c"]
    assert {number for number, name in later.items() if name == "b"} < set(first)
    assert {node.number for node in control.nodes()} == set(later)


def test_a_run_is_started_listed_and_stopped(control: Control, tmp_path: Path) -> None:
    app = write_app(tmp_path / "tiny")
    number = control.start(app, {"federation-folder": "/x y", "attempt": 2})
    (run,) = control.runs(number)
    assert run.state == "pending"
    assert not run.is_over
    assert run in control.runs()
    control.stop(number)
    (run,) = control.runs(number)
    assert run.state == "finished:stopped"
    assert run.is_over
    assert not run.succeeded


def test_calls_that_pass_a_layer_by_are_answered_as_ever(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path of the engine, and some that are none; callers show nothing, something wrong, or the secret."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from flwr.superlink import main as link
    from starlette.testclient import TestClient

    of_engine = link._get_middleware()
    assert set(_PREFIXES) <= {getattr(layer.cls, "__name__", "") for layer in of_engine}
    expected = password(place / "secret")
    monkeypatch.setattr(link, "_get_middleware", lambda: of_engine)
    guard(expected, Arrivals())
    by_us = link._get_middleware()
    assert sum(1 for layer in by_us if cast(Any, layer.cls) is OnItsCalls) == len(_PREFIXES)
    clients = []
    for layers in ([*by_us[:2], *of_engine], by_us):
        monkeypatch.setattr(link, "_get_middleware", lambda layers=layers: layers)
        clients.append(TestClient(link.create_app(), raise_server_exceptions=False))
    paths = [path for _, path in PROTOBUF_REQUEST_TYPES] + ["/v1/fleet/none", "/v1/fleet", "//v1/fleet/get-run", "/"]
    held = {"/v1/fleet/pull-messages", "/v1/runtime/acquire-task"}  # until there is something
    wrong = {"flwr-public-key": "aaaa", "flwr-signature": "aaaa", "flwr-timestamp": "2026-11-18T10:00:00+00:00"}
    seen = set()
    for path in paths:
        for more in ({}, wrong, {"authorization": "Bearer x"}, {"host": "x/y?z"}, {HEADER: expected}):
            headers = {"content-type": "application/x-protobuf", **more}
            if path in held or (path.startswith("/v1/control/stream") and HEADER in more):
                continue
            one, other = (client.post(path, headers=headers, content=b"") for client in clients)
            assert (one.status_code, one.content) == (other.status_code, other.content), (path, more)
            seen.add(one.status_code)
    assert {401, 404} < seen


def test_dead_apps_are_looked_for_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    from fedhip.federation.transport import link

    looked: list[float] = []
    now = 100.0
    monkeypatch.setattr(SqlCoreState, "_cleanup_expired_task_tokens", lambda _: looked.append(now))
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: now))
    link.look_for_dead_apps_once_a_second()
    state: Any = None
    for now in (100.0, 100.5, 100.9, 101.0, 101.5, 103.0):  # noqa: B007 - read by the clock
        SqlCoreState._cleanup_expired_task_tokens(state)
    assert looked == [100.0, 101.0, 103.0]


def test_the_database_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from flwr.supercore import sql_mixin
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore
    from sqlalchemy import text

    from fedhip.federation.transport import link

    def settings_of(name: str) -> dict[str, str]:
        store = SqlObjectStore(str(tmp_path / name))
        store.initialize()
        with store.session() as session:
            return {pragma: str(session.scalar(text(f"PRAGMA {pragma}"))) for pragma, _ in usual}

    usual = vars(sql_mixin)["SQLITE_PRAGMAS"]
    monkeypatch.setitem(vars(sql_mixin), "SQLITE_PRAGMAS", usual)
    before = settings_of("before")
    assert before["busy_timeout"] == "5000"
    link.wait_for_the_database()
    assert settings_of("after") == before | {"busy_timeout": "25000"}


def test_what_the_server_refuses_is_an_error_of_ours(control: Control) -> None:
    with pytest.raises(EngineError, match="the server refused a call"):
        control.stop(12345)


def test_no_server_is_an_error_with_a_remedy(place: Path) -> None:
    with (
        Control(engine.free_port(), place / "ca" / "ca.crt", place / "secret") as nobody,
        pytest.raises(EngineError, match="fedhip federation serve"),
    ):
        nobody.nodes()
