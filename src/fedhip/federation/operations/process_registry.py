"""Processes that we started: recorded, found again, and ended; never somebody else's.

A process is known by its number and the moment it process, since numbers are used again. Each is the head of a session
of its own, so that what it started in turn can be ended with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedhip.federation.errors import EngineError
from fedhip.utils.files import append_private, private_folder, write_private

_PROC = Path("/proc")
#: How long a process may take to end by itself. The engine's own programs wait 5 s for theirs.
GRACE = 12.0


@dataclass(frozen=True)
class ProcessRecord:
    """A process that we started."""

    name: str
    pid: int
    start: int  # clock ticks after the machine started
    boot: str  # which start of the machine


@dataclass(frozen=True)
class _Seen:
    """What the kernel says of a process."""

    state: str
    session: int
    start: int
    owner: int


def start(
    name: str, command: Sequence[str], *, records: Path, log: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a program apart from this terminal, its output in `log`, and record it."""
    private_folder(log.parent)
    with append_private(log) as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - commands are our own
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,
                umask=0o077,  # what the engine writes is for its owner, too
            )
        except OSError as error:
            raise EngineError(f"{command[0]} cannot be started ({error.strerror}); is it installed?") from error
    record(records, name, process.pid)
    return process


def record(records: Path, name: str, pid: int) -> ProcessRecord:
    """Write down which process has this name now."""
    seen = _look(pid)
    if seen is None:
        raise EngineError(f"{name} ended as it started, or this system has no {_PROC}; a federation needs Linux")
    process = ProcessRecord(name, pid, seen.start, _boot())
    private_folder(records)
    place = records / f"{name}.json"
    write_private(place, json.dumps(asdict(process)).encode())
    return process


def recorded(records: Path) -> list[ProcessRecord]:
    """All processes written down, alive or not; a damaged record is none."""
    found = []
    for path in sorted(records.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(ProcessRecord(**json.loads(path.read_text(encoding="utf-8"))))
    return found


def find(records: Path, name: str) -> ProcessRecord | None:
    """The process of this name, if it lives."""
    return next((s for s in recorded(records) if s.name == name and is_alive(s)), None)


def others(records: Path) -> list[ProcessRecord]:
    """Recorded processes that are not this one."""
    return [record for record in recorded(records) if record.pid != os.getpid()]


def is_alive(process: ProcessRecord) -> bool:
    """Whether it still runs: the same process, not one that got its number later."""
    seen = _look(process.pid)
    return seen is not None and seen.state not in "ZX" and seen.start == process.start and process.boot == _boot()


def end(processes: Iterable[ProcessRecord], records: Path, grace: float = GRACE) -> list[str]:
    """End processes one after the other with what they started, gently, then by force; the names of those that ran."""
    ended = []
    for process in processes:
        if members := _members(process):
            ended.append(process.name)
            _signal(members, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(map(_runs, members)):
                time.sleep(0.1)
            _signal(_members(process), signal.SIGKILL)
        (records / f"{process.name}.json").unlink(missing_ok=True)
    return ended


def has_members(process: ProcessRecord) -> bool:
    """Whether it, or something that it started, still runs."""
    return bool(_members(process))


def ask_to_end(process: ProcessRecord | None) -> None:
    """Ask a process to end, and do not wait."""
    if process is not None and is_alive(process):
        _signal([process.pid], signal.SIGTERM)


def _members(process: ProcessRecord) -> list[int]:
    """The process and everything of its session that is ours; empty if the number belongs to somebody else now."""
    if process.boot != _boot():
        return []
    head = _look(process.pid)
    if head is not None and head.start != process.start:
        return []
    members = []
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (seen := _look(int(entry.name))) is not None:
            own = seen.owner == os.getuid() and seen.state not in "ZX"
            if own and seen.start >= process.start and process.pid in {seen.session, int(entry.name)}:
                members.append(int(entry.name))
    return members


def _runs(pid: int) -> bool:
    seen = _look(pid)
    return seen is not None and seen.state not in "ZX"


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _look(pid: int) -> _Seen | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        owner = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a program's name may hold blanks and brackets
    uid = next(line.split()[1] for line in owner.splitlines() if line.startswith("Uid:"))
    return _Seen(state=fields[0], session=int(fields[3]), start=int(fields[19]), owner=int(uid))


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
