"""What `fedhip federation serve` does: the engine's server on loopback, and a door in front of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from fedhip.federation.errors import EngineError, FederationError
from fedhip.federation.operations import process_registry
from fedhip.federation.operations.paths import ServerPaths, command
from fedhip.federation.operations.supervisor import Program, Say, Supervisor, alone, why, write_json
from fedhip.federation.site.folder import parse_address
from fedhip.federation.transport import engine
from fedhip.federation.transport.bounds import Bounds
from fedhip.federation.transport.callers import public_pem
from fedhip.federation.transport.control import Control
from fedhip.federation.transport.proxy import listen

_START = 90.0  # seconds until a program must be ready; a busy machine takes 20


@dataclass(frozen=True)
class Endpoint:
    """Where the sites reach the server."""

    bind: str
    port: int
    address: str


def endpoint_of(place: ServerPaths, bind: str | None = None, port: int | None = None) -> Endpoint:
    """The door: as asked for, or as `init` wrote it down. It is open to other machines if they are to come."""
    try:
        kept = json.loads(place.door.read_text(encoding="utf-8"))
        host, usual = parse_address(kept["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise FederationError(f"{place.door} is missing or damaged; make the federation again") from None
    if bind is None:
        bind = engine.LOOPBACK if host in {"127.0.0.1", "localhost", "::1"} else "0.0.0.0"  # noqa: S104
    port = usual if port is None else port
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(bind, port, f"{shown}:{port}")


def write_endpoint(directory: Path, address: str) -> None:
    """Write down, at `init`, where the sites will look for the server."""
    write_json(ServerPaths(directory).door, {"address": address})


def serve(place: ServerPaths, door: Endpoint, *, say: Say, stop: threading.Event, with_proxy: bool = True) -> None:
    """Run the server until `stop`: the engine on loopback, its SuperExec, and the door in front."""
    engine.require_engine()
    roster = place.roster()
    state = place.state
    with alone(state.lock, f"a server of {place.path} runs already; see: {command('status', place.path)}"):
        process_registry.end(process_registry.others(state.pids), state.pids)  # left by a server that was killed
        state.ready.unlink(missing_ok=True)
        if with_proxy:
            _require_free(door)
        state.prepare()
        process_registry.record(state.pids, "serve", os.getpid())
        port = _kept_port(place)
        write_json(place.callers, {name: public_pem(key) for name, key in roster.keys.items()})
        supervisor = Supervisor(state.pids, engine.environment(state.home), say, stop)
        try:
            _start_server(place, door, port, supervisor, with_proxy=with_proxy)
            if stop.is_set():
                return
            with Control(port, place.authority, state.secret) as control:
                numbers = control.register(roster.keys)
            write_json(place.nodes, {str(number): name for number, name in numbers.items()})
            front = f"at {door.address}" if with_proxy else f"on loopback, port {port}, with no proxy of ours in front"
            said = f"ready: {roster.federation} {front}, {len(roster.names)} sites may come; Ctrl-C stops"
            write_json(state.ready, {"said": said, "control_port": port, "pid": os.getpid()})
            say(said)
            supervisor.watch()
        finally:
            state.ready.unlink(missing_ok=True)
            supervisor.end()
            (state.pids / "serve.json").unlink(missing_ok=True)


def _start_server(place: ServerPaths, door: Endpoint, port: int, supervisor: Supervisor, *, with_proxy: bool) -> None:
    state, bounds = place.state, Bounds.of(place.agreement())
    link = Program(
        "superlink",
        lambda: engine.superlink(
            port=port,
            authority=place.authority,
            certificate=place.certificate,
            key=place.key,
            database=place.database,
            secret=state.secret,
            objects=bounds.objects,
        ),
        state.log("superlink"),
    )
    supervisor.start(link)
    if not supervisor.wait_for(link, lambda: _is_healthy(port, place.authority), _START):
        if supervisor.stop.is_set():
            return
        raise EngineError(f"the server ended as it started{why(link.log)}")
    supervisor.start(
        Program(
            "superexec",
            lambda: engine.superexec(port=port, secret=state.secret, authority=place.authority),
            state.log("superexec"),
        )
    )
    if not with_proxy:
        return
    proxy = Program(
        "proxy",
        lambda: engine.module(
            "fedhip.federation.transport.proxy",
            *("--host", door.bind, "--port", str(door.port), "--upstream-port", str(port)),
            *("--certificate", str(place.certificate), "--key", str(place.key), "--authority", str(place.authority)),
            *("--keys", str(place.callers), "--log", str(state.log("proxy")), "--largest-call", str(bounds.call)),
        ),
        state.log("proxy-output"),
    )
    supervisor.start(proxy)
    if not supervisor.wait_for(proxy, lambda: _answers(door), _START) and not supervisor.stop.is_set():
        raise EngineError(f"the proxy ended as it started{why(state.log('proxy'))}")


def _kept_port(place: ServerPaths) -> int:
    """The engine's port: the one before if it is free, so that a configuration of nginx stays true."""
    kept = json.loads(place.door.read_text(encoding="utf-8")) if place.door.is_file() else {}
    port = kept.get("control_port")
    if isinstance(port, int):
        with contextlib.suppress(OSError), listen(engine.LOOPBACK, port):
            return port
    port = engine.free_port()
    write_json(place.door, kept | {"control_port": port})
    return port


def control_port(place: ServerPaths) -> int:
    """The port that the engine has, or will have."""
    return _kept_port(place) if not place.state.ready.is_file() else place.control_port()


def _require_free(door: Endpoint) -> None:
    try:
        listen(door.bind, door.port).close()
    except OSError as error:
        raise EngineError(
            f"port {door.port} of {door.bind} cannot be had ({error.strerror}); end what holds it, or choose another "
            "with --port and write it into each site's connection.toml"
        ) from error


def _is_healthy(port: int, authority: Path) -> bool:
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(engine.LOOPBACK, port, timeout=5, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _answers(door: Endpoint) -> bool:
    host = {"0.0.0.0": engine.LOOPBACK, "::": "::1"}.get(door.bind, door.bind)  # noqa: S104
    try:
        socket.create_connection((host, door.port), timeout=2).close()
    except OSError:
        return False
    return True
