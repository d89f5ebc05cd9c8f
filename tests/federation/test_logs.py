"""Logs: objects where that is asked for, and in either format no row, feature, statistic or key of a round."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedhip.federation import logs
from fedhip.federation.operations import background
from fedhip.federation.operations.supervisor import tail
from fedhip.federation.site.state import SiteState
from fedhip.federation.transport import engine
from tests.federation.logged import holds, require_objects, secrets_of
from tests.federation.samples import FOUR, Trial, rows_of


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, logs.JSON)


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_no_log_of_a_round_tells_what_it_was_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    """With a site that is left out, one that dies, and a round that is run again."""
    monkeypatch.setenv(logs.VARIABLE, log_format)
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    trial.fault("gone", "c", "keys")
    trial.fault("lost", "d", "personalize")
    trial.run()
    trial.again()
    trial.run()
    found = {str(path): path.read_bytes() for path in trial.folder.rglob("*.log")}
    assert len(found) == len(FOUR)
    if log_format == logs.JSON:
        require_objects(found)
    found["progress"] = (trial.folder / "state" / "progress.jsonl").read_bytes()
    secrets = secrets_of(trial.folder)
    assert len(secrets) > 1000
    assert holds(found, secrets) == []
    told = json.dumps({"text": f"row 0 is {rows_of('a')[0][0]}"}).encode()
    assert holds({"told": told + repr(float(rows_of("a")[0][1, 2])).encode()}, secrets), "a value would be found"


def test_an_error_is_one_object(tmp_path: Path, objects: None) -> None:
    trial = Trial.make(tmp_path)
    state = SiteState(trial.site_folder("a"))
    with state.lock():
        try:
            raise ValueError("first\nsecond")
        except ValueError as error:
            state.write_log(logging.ERROR, "went\nwrong", error)
    (line,) = trial.log("a").splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["part"], entry["text"]) == ("ERROR", "site", "went\\nwrong")
    assert entry["error"].startswith("Traceback")
    assert entry["error"].endswith("ValueError: first\nsecond")


def test_what_the_engine_prints_becomes_objects() -> None:
    stream = io.StringIO()
    lines = logs._Lines(stream, "superlink", "INFO")
    own = logs.line_of("node", "ours")
    for piece in ("\x1b[92mINFO \x1b[0m:      half", " a line\n\n", f"{own}\n", "the rest\nnot whole"):
        lines.write(piece)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(entry["part"], entry["text"]) for entry in entries] == [
        ("superlink", "INFO :      half a line"),
        ("node", "ours"),
        ("superlink", "the rest"),
    ]


def test_reasons_are_read_from_either_format(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(f"plain\n{logs.line_of('node', engine.CONNECTED)}\n" + '{"time": 7}\n')
    assert tail(log) == ["plain", engine.CONNECTED, '{"time": 7}']


def test_a_failure_is_an_object_too(objects: None, tmp_path: Path, capsys: Any) -> None:
    settings = {"folder": str(tmp_path), "bind": None, "port": None, "proxy": True, "log_format": "json"}
    assert background.in_front("serve", settings) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "is no folder of a federation" in json.loads(line)["text"]


def test_a_program_of_ours_prints_objects() -> None:
    """What an interpreter says as it ends, too."""
    code = "from fedhip.federation import logs; logs.begin('x'); print('here'); raise SystemExit('ended')"
    environment = {**os.environ, logs.VARIABLE: logs.JSON}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert json.loads(done.stdout)["text"] == "here"
    assert json.loads(done.stderr)["text"] == "ended"
