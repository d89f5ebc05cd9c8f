"""A server's folder after a round, and an engine that is played."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedhip.federation.errors import EngineError
from fedhip.federation.operations import process_registry, round_control, serving
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.operations.supervisor import write_json
from fedhip.federation.transport.callers import public_pem
from fedhip.federation.transport.control import EngineRun, Node
from tests.federation.samples import ONE_SUM, Trial
from tests.waiting import PATIENCE

TOKEN = "the-token-of-this-test"  # noqa: S105


class PlayedEngine:
    """What the engine would say of the sites and runs; `away` while it is started again."""

    def __init__(self, paths: ServerPaths) -> None:
        self.paths, self.away, self.state = paths, False, "finished:completed"
        self.details = ""

    def __call__(self, *_: object) -> PlayedEngine:
        if self.away:
            raise EngineError("the server of this federation cannot be reached here (refused); start it")
        return self

    def __enter__(self) -> PlayedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nodes(self) -> list[Node]:
        states = ("online", "online", "offline", "registered")
        keys = sorted(self.paths.roster().keys.items())
        return [
            Node(number, public_pem(key), state, "" if state == "registered" else "2026-11-18T10:00:00.5+00:00")
            for number, ((_, key), state) in enumerate(zip(keys, states, strict=True))
        ]

    def runs(self) -> list[EngineRun]:
        ended = "2026-11-18T10:02:00+00:00" if self.state.startswith("finished") else ""
        return [EngineRun(7, self.state, self.details, "2026-11-18T10:01:00+00:00", ended, 2_440_000, 2_430_000)]


@contextmanager
def served_round(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Trial, PlayedEngine]]:
    """A round of four sites, of which c is gone after its keys, on a server that counts as serving."""
    trial = Trial.make(folder, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("gone", "c", "share")
    trial.run()
    serving.write_endpoint(trial.folder, "127.0.0.1:8443")
    paths = ServerPaths.open(trial.folder)
    paths.state.prepare()
    write_json(paths.state.ready, {"control_port": 1, "said": "", "pid": 0})
    process_registry.record(paths.state.pids, "superlink", os.getpid())
    engine = PlayedEngine(paths)
    patch.setattr(round_control, "Control", engine)
    yield trial, engine


def ask(
    port: int, path: str = "/", method: str = "GET", host: str | None = "127.0.0.1:1", **headers: str
) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of an answer of a page on loopback; by default of one who knows the token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        for name, value in (headers or {"Authorization": f"Bearer {TOKEN}"}).items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def hostile(text: str = '<img src=x onerror="document.title=1">') -> dict[str, Any]:
    """What is shown, with such text wherever somebody else may put text."""
    event = {"time": "2026-11-18T10:00:00.000+00:00", "step": text, "text": text, "site": text, "code": text}
    return {
        "schema": 1,
        "time": "2026-11-18T10:00:01+00:00",
        "federation": text,
        "address": text,
        "serving": True,
        "engine": text,
        "quorum": 2,
        "deadline": 600.0,
        "certificates": {"server": "2027-01-01T00:00:00+00:00", "authority": "2036-01-01T00:00:00+00:00"},
        "sites": [{"site": text, "state": text, "since": text, "step": text, "code": text, "text": text}],
        "round": {"state": "under way", "step": text, "sum": 1, "begun": text, "seconds": 1.5},
        "steps": [{"step": text, "sum": 1, "asked": [text], "answered": [], "seconds": 1.5}],
        "refusals": [event],
        "door": [{"time": text, "text": text}],
        "runs": [
            {"run": 1, "state": text, "started": text, "finished": text, "details": text}
            | {"bytes_to_sites": 1, "bytes_from_sites": 2}
        ],
        "result": {"digest": text, "sites": [text]},
        "events": [event],
    }
