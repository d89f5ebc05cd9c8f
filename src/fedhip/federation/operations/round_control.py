"""What `fedhip federation run`, `status` and `stop` do."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

from fedhip.errors import FedHiPError
from fedhip.federation.errors import EngineError, FederationError, RoundError
from fedhip.federation.operations import process_registry
from fedhip.federation.operations.paths import ServerPaths, StatePaths, command
from fedhip.federation.operations.serving import endpoint_of
from fedhip.federation.operations.supervisor import Say, since, size, tail, why
from fedhip.federation.site.folder import open_site, parse_address
from fedhip.federation.site.state import SiteState
from fedhip.federation.transport import engine
from fedhip.federation.transport.callers import public_pem
from fedhip.federation.transport.control import Control, EngineRun

#: Between two looks at what the round says of itself, and between two questions about it to the engine.
_POLL, _ASK = 0.1, 3.0
#: How long a server may be away, to be started again, before a run that was followed is given up.
_PATIENCE = 120.0
_STATES = {"registered": "never came", "online": "connected", "offline": "gone"}


def run(paths: ServerPaths, *, say: Say, app: Path = engine.APP, result: Path | None = None) -> Path:
    """Start a round and follow it; the result's folder. Raises RoundError where it did not succeed."""
    result = paths.state.path / "result" if result is None else result
    with Control(paths.control_port(), paths.authority, paths.state.secret) as control:
        earlier = control.runs()
        if under_way := [run for run in earlier if not run.is_over]:
            raise RoundError(f"run {under_way[0].number} is under way; see: {command('status', paths.path)}")
        mark = size(paths.progress)
        before = _changed(result)
        number = control.start(app, {"federation-folder": str(paths.path), "attempt": len(earlier) + 1})
        say(f"run {number} started")
        try:
            last = _follow(control, number, paths, mark, say)
        except KeyboardInterrupt:
            with contextlib.suppress(FederationError):
                control.stop(number)
            say(f"run {number} is stopped")
            raise
    if not last.succeeded:
        raise RoundError(_why_failed(last, paths))
    if _changed(result) in (None, before):
        raise RoundError(f"run {number} ended, and left no result in {result}; see {paths.state.log('superexec')}")
    return result


def _follow(control: Control, number: int, paths: ServerPaths, mark: int, say: Say) -> EngineRun:
    patience, ends = time.monotonic() + _PATIENCE, False
    while True:
        current = None
        try:
            (current,) = control.runs(number)
            patience = time.monotonic() + _PATIENCE
        except EngineError:  # the server is being started again
            if time.monotonic() > patience:
                raise
        again = time.monotonic() + _ASK
        while True:
            mark, said_so = _tell_progress(paths.progress, mark, say)
            ends = ends or said_so
            if current is not None and current.is_over:
                return current
            time.sleep(_POLL)
            if ends or time.monotonic() > again:
                break


def _tell_progress(path: Path, mark: int, say: Say) -> tuple[int, bool]:
    """Say the whole lines that were added since; where the next ones begin, and whether the round is about to end."""
    text, ends = since(path, mark), False
    whole = text[: text.rfind("\n") + 1]
    for line in whole.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            entry: dict[str, Any] = json.loads(line)
            ends = ends or entry.get("step") in ("finished", "failed")
            if entry.get("step") == "failed" or "asked" in entry:  # the first is this command's error, shown last
                continue
            say(f"{entry.get('step', ''):<12} {entry['text']}")
    return mark + len(whole.encode()), ends


def _changed(result: Path) -> float | None:
    """When the result was last written; None if there is none."""
    files = [path.stat().st_mtime_ns for path in result.glob("*") if path.is_file()] if result.is_dir() else []
    return max(files, default=None)


def _plain(details: str) -> str:
    """What the engine tells of a run's end, less its own words."""
    return details.removeprefix("ServerApp failed with exception: ").strip()


def _why_failed(last: EngineRun, paths: ServerPaths) -> str:
    reason = _plain(last.details)
    if not reason:
        reason = "the server app ended without a word" + why(paths.state.log("superexec"))
    if "heartbeat" in reason.lower():
        reason = f"the server app was killed ({reason}); go on from its checkpoint: {command('run', paths.path)}"
    ended = {"finished:stopped": "was stopped"}.get(last.state, "failed")
    return f"run {last.number} {ended}: {reason}"


def status(paths: ServerPaths, *, ask_engine: bool = True) -> dict[str, Any]:
    """Server, sites and runs, for people and machines; without the engine, what the folder tells."""
    state = paths.state
    alive = {record.name for record in process_registry.recorded(state.pids) if process_registry.is_alive(record)}
    roster = paths.roster()
    found: dict[str, Any] = {
        "federation": roster.federation,
        "serving": state.ready.is_file() and "superlink" in alive,
        "processes": sorted(alive),
        "address": endpoint_of(paths).address,
        "sites": {name: {"state": "unknown", "since": ""} for name in roster.names},
        "runs": [],
        "sum": _sum_of(paths),
    }
    if not (found["serving"] and ask_engine):
        return found
    owner = {public_pem(key): name for name, key in roster.keys.items()}
    with Control(paths.control_port(), paths.authority, paths.state.secret) as control:
        for node in control.nodes():
            if node.public in owner:
                shown = _STATES.get(node.state, node.state)
                found["sites"][owner[node.public]] = {"state": shown, "since": node.since}
        found["runs"] = [
            {
                "run": run.number,
                "state": run.state,
                "started": run.started,
                "finished": run.finished,
                "details": _plain(run.details),
                "bytes_to_sites": run.sent,
                "bytes_from_sites": run.received,
            }
            for run in control.runs()
        ]
    return found


def site_status(folder: Path) -> dict[str, Any]:
    """A site's own view."""
    site = open_site(folder)
    state = StatePaths(site.path / "state")
    alive = {record.name for record in process_registry.recorded(state.pids) if process_registry.is_alive(record)}
    answers = _answers(site.address)
    refused = any(engine.OTHER_APP in line for line in tail(state.log("node"), 50))
    return {
        "site": site.name,
        "connected": answers and state.ready.is_file() and "node" in alive,
        "answers": answers,
        "processes": sorted(alive),
        "address": site.address,
        "refused_app": refused,
        "sum": SiteState(site.path).sum(),
    }


def _sum_of(paths: ServerPaths) -> dict[str, Any] | None:
    """The digest of the sum of the statistics, and its sites, once there is a result."""
    from fedhip.runs import Run

    try:
        run = Run.open(paths.state.path / "result")
        entry = run.ledger.entries[0]
        return {"digest": entry["total"], "sites": sorted(entry["sites"])}
    except (FedHiPError, OSError, LookupError):
        return None


def _answers(address: str) -> bool:
    """Whether somebody listens there; a node goes on trying where its server has gone."""
    try:
        socket.create_connection(parse_address(address), timeout=3).close()
    except OSError:
        return False
    return True


def stop(folder: Path) -> list[str]:
    """End what was started from this folder on this machine, and from the sites' folders in it; what ran."""
    # The sites first, all at once: they say goodbye to the server.
    folders = [*sorted(folder.glob("site-*")), folder]
    found = {each: _running(each) for each in folders}
    for each in folders[:-1]:
        for record in found[each]:
            if record.name == "site":
                process_registry.ask_to_end(record)
    ended = []
    for each in folders:
        state = StatePaths(each / "state")
        # The watcher first: it ends its programs in order, and would start them again.
        order = sorted(found[each], key=lambda record: record.name not in {"serve", "site"})
        process_registry.end(order, state.pids, grace=3 * process_registry.GRACE)
        state.ready.unlink(missing_ok=True)
        shown = "the server" if (each / "server").is_dir() else each.name
        if order:
            ended.append(f"{shown} ({', '.join(record.name for record in order)})")
    return ended


def _running(folder: Path) -> list[process_registry.ProcessRecord]:
    return [
        record for record in process_registry.others(folder / "state" / "pids") if process_registry.has_members(record)
    ]
