"""What `fedhip federation serve` does: the engine's server on loopback, and a TLS proxy in front of it."""

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
from fedhip.federation.operations.revocation import announce, keys_let_in
from fedhip.federation.operations.supervisor import Program, Say, Supervisor, alone, why, write_json
from fedhip.federation.site.folder import parse_address, require_port
from fedhip.federation.transport import engine
from fedhip.federation.transport.bounds import Bounds
from fedhip.federation.transport.callers import public_pem
from fedhip.federation.transport.proxy import listen

_START = 90.0  # seconds until a program must be ready; a busy machine takes 20


@dataclass(frozen=True)
class Endpoint:
    """Where the sites reach the server."""

    bind: str
    port: int
    address: str


def endpoint_of(paths: ServerPaths, bind: str | None = None, port: int | None = None) -> Endpoint:
    """The endpoint: as asked for, or as `init` wrote it down. It is open to other machines if they are to come."""
    try:
        kept = json.loads(paths.endpoint.read_text(encoding="utf-8"))
        host, usual = parse_address(kept["address"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the last: an address that is no text
        raise FederationError(f"{paths.endpoint} is missing or damaged; make the federation again") from None
    if bind is None:
        bind = engine.LOOPBACK if host in {"127.0.0.1", "localhost", "::1"} else "0.0.0.0"  # noqa: S104
    port = usual if port is None else require_port(port)
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(bind, port, f"{shown}:{port}")


def write_endpoint(directory: Path, address: str) -> None:
    """Write down, at `init`, where the sites will look for the server."""
    write_json(ServerPaths(directory).endpoint, {"address": address})


def serve(paths: ServerPaths, endpoint: Endpoint, *, say: Say, stop: threading.Event, with_proxy: bool = True) -> None:
    """Run the server until `stop`: the engine on loopback, its SuperExec, and the proxy in front."""
    engine.require_engine()
    roster = paths.roster()
    state = paths.state
    with alone(state.lock, f"a server of {paths.path} runs already; see: {command('status', paths.path)}"):
        process_registry.end(process_registry.others(state.pids), state.pids)  # left by a server that was killed
        state.ready.unlink(missing_ok=True)
        if with_proxy:
            _require_free(endpoint)
        state.prepare()
        process_registry.record(state.pids, "serve", os.getpid())
        port = _kept_port(paths)
        let_in = keys_let_in(paths)
        write_json(paths.callers, {name: public_pem(key) for name, key in let_in.items()})
        supervisor = Supervisor(state.pids, engine.environment(state.home), say, stop)
        try:
            _start_server(paths, endpoint, port, supervisor, with_proxy=with_proxy)
            if stop.is_set():
                return
            announce(paths, let_in, port)
            front = f"at {endpoint.address}" if with_proxy else f"on loopback, port {port}, without fedhip's proxy"
            said = f"ready: {roster.federation} {front}, waiting for {len(let_in)} sites; stop with Ctrl-C"
            write_json(state.ready, {"said": said, "control_port": port, "pid": os.getpid()})
            say(said)
            supervisor.watch()
        finally:
            state.ready.unlink(missing_ok=True)
            supervisor.end()
            (state.pids / "serve.json").unlink(missing_ok=True)


def _start_server(
    paths: ServerPaths, endpoint: Endpoint, port: int, supervisor: Supervisor, *, with_proxy: bool
) -> None:
    state, bounds = paths.state, Bounds.of(paths.agreement())
    link = Program(
        "superlink",
        lambda: engine.superlink(
            port=port,
            authority=paths.authority,
            certificate=paths.certificate,
            key=paths.key,
            database=paths.database,
            secret=state.secret,
            objects=bounds.objects,
        ),
        state.log("superlink"),
    )
    supervisor.start(link)
    if not supervisor.wait_for(link, lambda: _is_healthy(port, paths.authority), _START):
        if supervisor.stop.is_set():
            return
        raise EngineError(f"the server ended as it started{why(link.log)}")
    supervisor.start(
        Program(
            "superexec",
            lambda: engine.superexec(port=port, secret=state.secret, authority=paths.authority),
            state.log("superexec"),
        )
    )
    if not with_proxy:
        return
    proxy = Program(
        "proxy",
        lambda: engine.module(
            "fedhip.federation.transport.proxy",
            *("--host", endpoint.bind, "--port", str(endpoint.port), "--upstream-port", str(port)),
            *("--certificate", str(paths.certificate), "--key", str(paths.key), "--authority", str(paths.authority)),
            *("--keys", str(paths.callers), "--log", str(state.log("proxy"))),
            *("--largest-call", str(bounds.call), "--sites", str(bounds.sites)),
        ),
        state.log("proxy-output"),
    )
    supervisor.start(proxy)
    if not supervisor.wait_for(proxy, lambda: _answers(endpoint), _START) and not supervisor.stop.is_set():
        raise EngineError(f"the proxy ended as it started{why(state.log('proxy'))}")


def _kept_port(paths: ServerPaths) -> int:
    """The engine's port: the one before if it is free, so that a configuration of nginx stays true."""
    kept = json.loads(paths.endpoint.read_text(encoding="utf-8")) if paths.endpoint.is_file() else {}
    port = kept.get("control_port")
    if isinstance(port, int):
        with contextlib.suppress(OSError), listen(engine.LOOPBACK, port):
            return port
    port = engine.free_port()
    write_json(paths.endpoint, kept | {"control_port": port})
    return port


def control_port(paths: ServerPaths) -> int:
    """The port that the engine has, or will have."""
    return _kept_port(paths) if not paths.state.ready.is_file() else paths.control_port()


def _require_free(endpoint: Endpoint) -> None:
    try:
        listen(endpoint.bind, endpoint.port).close()
    except socket.gaierror as error:
        raise EngineError(
            f"--bind {endpoint.bind} is no address of this machine; give one, such as 0.0.0.0 for all of them"
        ) from error
    except OSError as error:
        raise EngineError(
            f"port {endpoint.port} of {endpoint.bind} cannot be had ({error.strerror}); end what holds it, or choose "
            "another with --port and write it into each site's connection.toml"
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


def _answers(endpoint: Endpoint) -> bool:
    host = {"0.0.0.0": engine.LOOPBACK, "::": "::1"}.get(endpoint.bind, endpoint.bind)  # noqa: S104
    try:
        socket.create_connection((host, endpoint.port), timeout=2).close()
    except OSError:
        return False
    return True
