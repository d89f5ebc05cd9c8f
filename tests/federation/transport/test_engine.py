"""Command lines and surroundings of the engine."""

from __future__ import annotations

import importlib.metadata
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from flwr.supercore.cli.flower_superexec import _parse_args as parse_superexec
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

from fedhip.federation.errors import EngineError
from fedhip.federation.transport import engine

FILES = {"authority": Path("/x/ca.crt"), "secret": Path("/x/secret")}


def test_the_engine_understands_the_server_s_command() -> None:
    places = {"certificate": Path("/x/c"), "key": Path("/x/k"), "database": Path("/x/db")}
    command = engine.superlink(port=1234, objects=17, **places, **FILES)
    start = command.index("--host")
    assert command[:start][-3:] == ["fedhip.federation.transport.link", "/x/secret", "17"]
    args = _parse_args_run_superlink().parse_args(command[start:])
    assert (args.host, args.port, args.isolation) == ("127.0.0.1", 1234, "process")
    assert args.enable_supernode_auth
    assert not args.insecure
    assert not args.runtime_dependency_install
    assert args.database == "/x/db"
    assert Path(args.superexec_auth_secret_file) == FILES["secret"]


def test_the_engine_understands_the_superexec_s_command() -> None:
    command = engine.superexec(port=5, secret=Path("/x/s"), authority=Path("/x/ca.crt"))
    assert command[:4] == [sys.executable, "-P", "-m", "fedhip.federation.transport.executor"]
    args = parse_superexec().parse_args(command[4:])
    assert args.runtime_api_address == "127.0.0.1:5"
    assert args.root_certificates == "/x/ca.crt"
    assert not args.insecure
    assert not args.runtime_dependency_install


def test_the_surroundings_are_ours() -> None:
    around = {"FLWR_DATABASE": "x", "FLWR_TELEMETRY_ENABLED": "1", "PATH": "/usr/bin", "HOME": "/h", "NO_PROXY": "a.b"}
    found = engine.environment(Path("/state/flwr"), around)
    assert "FLWR_DATABASE" not in found
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_HOME"] == "/state/flwr"
    assert found["HOME"] == "/h"
    assert found["NO_PROXY"] == found["no_proxy"] == "a.b,127.0.0.1,localhost"
    assert found["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_without_the_engine_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine.require_engine()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.42.0")
    with pytest.raises(EngineError, match=r'1\.42\.0 is installed; install it: pip install "fedhip\[federation\]"'):
        engine.require_engine()

    def missing(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(EngineError, match="not installed"):
        engine.require_engine()


def test_a_free_port_is_free() -> None:
    """Those that somebody listens at are passed over: so many are asked for that a constant would be found out.

    Between the two another process may take a port; then it is taken all the same.
    """
    with ExitStack() as stack:
        taken = set()
        for _ in range(20):
            port = engine.free_port()
            assert port not in taken
            taken.add(port)
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_logs_lose_colours_and_blanks() -> None:
    assert engine.plain(["\x1b[92mINFO \x1b[0m:      hello", "", "  \x1b[91m\x1b[0m "]) == ["INFO :      hello"]
