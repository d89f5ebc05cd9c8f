"""What the page shows, as one dictionary: who is here, the step under way, refusals, rounds; nothing a site keeps.

It is put together from what the server has anyway: `progress.jsonl`, the proxy's log, the engine's list of nodes and
runs, and the result. No key, no secret and no number of a sum is in it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedhip.federation.agreement.credentials import valid_until
from fedhip.federation.errors import FederationError
from fedhip.federation.operations import round_control
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.operations.supervisor import since, size
from fedhip.federation.server.event_log import BEGUN
from fedhip.federation.status_codes import SiteCode

SCHEMA = 1
#: Bytes of the log of events that are read: a round of two hundred sites writes less.
_READ = 8 << 20
#: So many of the latest are shown.
_EVENTS, _DOOR, _RUNS = 40, 12, 20
#: Bytes of the proxy's log that are looked through.
_TAIL = 1 << 16
#: Seconds for which an answer is good, however often somebody asks.
_GOOD_FOR = 1.0
_ENDS = ("finished", "failed")

Shown = dict[str, Any]


class Look:
    """Looks at a server's folder and its engine, once a second at most."""

    def __init__(self, paths: ServerPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self.paths, self._clock = paths, clock
        self._lock = threading.Lock()
        self._kept: tuple[float, Shown] | None = None

    def __call__(self) -> Shown:
        """What is shown now."""
        with self._lock:
            if self._kept is None or self._clock() - self._kept[0] >= _GOOD_FOR:
                shown = shown_of(self.paths, datetime.now(UTC))
                self._kept = self._clock(), shown
            return self._kept[1]


def shown_of(paths: ServerPaths, now: datetime) -> Shown:
    """All of it, at a moment."""
    agreement = paths.agreement()
    try:
        status, engine = round_control.status(paths), ""
    except (FederationError, OSError) as error:  # the engine is being started again
        status, engine = round_control.status(paths, ask_engine=False), str(error)
    events = latest_round(events_of(paths.progress))
    runs = status["runs"][-_RUNS:][::-1]
    under_way = any(not run["state"].startswith("finished") for run in runs)
    current = _round_of(events, now, under_way=under_way or bool(engine))
    answers = {event["site"]: event for event in events if "site" in event and "code" in event}
    return {
        "schema": SCHEMA,
        "time": now.isoformat(timespec="seconds"),
        "federation": agreement.name,
        "address": status["address"],
        "serving": status["serving"] and not engine,
        "engine": engine,
        "quorum": agreement.quorum,
        "deadline": agreement.deadline,
        "certificates": {
            "server": valid_until(paths.certificate).isoformat(),
            "authority": valid_until(paths.authority).isoformat(),
        },
        "sites": [
            {"site": name, **state, **_answer_of(answers.get(name))} for name, state in sorted(status["sites"].items())
        ],
        "round": current,
        "steps": _steps_of(events, now, still=current["state"] == "under way"),
        "refusals": [
            _named(event, "time", "step", "site", "code", "text")
            for event in events
            if event.get("code", SiteCode.OK) != SiteCode.OK or event["step"] == "failed"
        ],
        "door": _refused_at_the_door(paths.state.log("proxy")),
        "runs": runs,
        "result": status["sum"],
        "events": [_named(event, "time", "step", "text") for event in events if "asked" not in event][-_EVENTS:],
    }


def events_of(path: Path) -> list[Shown]:
    """The events in a log; lines that are none are passed over."""
    found = []
    for line in since(path, max(0, size(path) - _READ), _READ).splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            entry = json.loads(line)
            datetime.fromisoformat(entry["time"])
            if all(isinstance(entry[name], str) for name in ("step", "text")):
                found.append(entry)
    return found


def latest_round(events: list[Shown]) -> list[Shown]:
    """Those of the round that began last."""
    begun = [place for place, event in enumerate(events) if event["step"] == BEGUN]
    return events[begun[-1] :] if begun else events


def _round_of(events: list[Shown], now: datetime, *, under_way: bool) -> Shown:
    """Whether a round is under way, in which step of which sum, and for how long."""
    if not events:
        return {"state": "none", "step": "", "sum": 0, "seconds": 0.0}
    ended = next((event for event in reversed(events) if event["step"] in _ENDS), None)
    state = ended["step"] if ended is not None else "under way" if under_way else "broken off"
    asked = [event for event in events if "asked" in event]
    latest = asked[-1] if asked else {"step": events[-1]["step"], "sum": 0}
    last = now if state == "under way" else _when(events[-1])
    return {
        "state": state,
        "step": latest["step"],
        "sum": latest["sum"],
        "begun": events[0]["time"],
        "seconds": _seconds(_when(events[0]), last),
    }


def _steps_of(events: list[Shown], now: datetime, *, still: bool) -> list[Shown]:
    """The steps of the round: who was asked, how many answered, and how long it took."""
    steps: list[Shown] = []
    for event in events:
        if steps:
            steps[-1]["seconds"] = _seconds(steps[-1]["from"], _when(event))
        if "asked" in event and event["step"] != BEGUN:
            begun = _when(event)
            number, asked = event.get("sum", 0), list(event["asked"])
            steps.append({"step": event["step"], "sum": number, "asked": asked, "answered": [], "from": begun})
            steps[-1]["seconds"] = 0.0
        elif steps and event.get("code") == SiteCode.OK and event["site"] not in steps[-1]["answered"]:
            steps[-1]["answered"].append(event["site"])
    if steps and still:
        steps[-1]["seconds"] = _seconds(steps[-1]["from"], now)
    return [{name: value for name, value in step.items() if name != "from"} for step in steps]


def _answer_of(event: Shown | None) -> Shown:
    """What a site said last in this round, or why it was left out."""
    if event is None:
        return {"step": "", "code": "", "text": "", "answered": ""}
    return {"step": event["step"], "code": event["code"], "text": event["text"], "answered": event["time"]}


def _refused_at_the_door(log: Path) -> list[Shown]:
    """What the proxy refused last: strangers, and sites that are not let in."""
    found = []
    for line in since(log, max(0, size(log) - _TAIL)).splitlines():
        when, text = line[:19], line[24:]
        with contextlib.suppress(ValueError, TypeError, KeyError):  # with --log-format json
            entry = json.loads(line)
            when, text = str(entry["time"])[:19].replace("T", " "), str(entry["text"])
        if text.startswith(("refused", "closed")):
            found.append({"time": when, "text": text[:300]})
    return found[-_DOOR:][::-1]


def _named(event: Shown, *names: str) -> Shown:
    return {name: event.get(name, "") for name in names}


def _when(event: Shown) -> datetime:
    return datetime.fromisoformat(event["time"])


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, round((end - begin).total_seconds(), 1))
