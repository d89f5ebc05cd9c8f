"""Programs under watch: started in order, started again when they die, ended in the reverse order."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhip.federation.errors import EngineError
from fedhip.federation.operations import process_registry
from fedhip.federation.operations.paths import StatePaths
from fedhip.federation.transport.engine import plain
from fedhip.utils.files import append_private, private_file, write_private

Say = Callable[[str], None]

_TAIL = 1 << 14
#: One that dies so many times in a row has a reason that starting again does not cure. The pauses between, doubled each
#: time, add up to more than the minute for which a server counts on a node that was killed.
_TRIES, _LONGEST_PAUSE = 8, 30.0
#: One that ran so long has started well.
_WELL = 60.0
_LARGEST_LOG = 16 << 20


@dataclass
class Program:
    """A program to keep running; `command` is asked for again at every start."""

    name: str
    command: Callable[[], Sequence[str]]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    since: float = 0.0  # when it was started, or found dead

    @property
    def is_running(self) -> bool:
        """Whether it runs now."""
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Keeps programs running until it is told to stop. What it says is for the terminal."""

    def __init__(self, records: Path, env: Mapping[str, str], say: Say, stop: threading.Event) -> None:
        self.stop = stop
        self._records, self._env, self._say = records, env, say
        self._programs: list[Program] = []

    def start(self, program: Program) -> None:
        """Start a program, now and whenever it dies."""
        if program not in self._programs:
            self._programs.append(program)
        program.since = time.monotonic()
        program.process = process_registry.start(
            program.name, program.command(), records=self._records, log=program.log, env=self._env
        )

    def wait_for(self, program: Program, ready: Callable[[], bool], seconds: float) -> bool:
        """Whether it became ready; False if it ended before, or if we are to stop."""
        deadline = time.monotonic() + seconds
        while program.is_running and not self.stop.is_set():
            if ready():
                return True
            if time.monotonic() > deadline:
                raise EngineError(f"{program.name} is not ready after {seconds:.0f} s{why(program.log)}")
            self.stop.wait(0.1)
        return False

    def watch(self) -> None:
        """Until told to stop: start again what dies, after a pause that grows."""
        due: dict[str, float] = {}
        while not self.stop.wait(0.5):
            for program in self._programs:
                now = time.monotonic()
                _shorten(program.log)
                if program.is_running:
                    if now - program.since > _WELL:
                        program.failures = 0
                elif program.name not in due:
                    program.failures += 1
                    if program.failures == _TRIES:
                        raise EngineError(f"{program.name} ended {_TRIES} times in a row{why(program.log)}")
                    pause = min(2.0 ** (program.failures - 1), _LONGEST_PAUSE)
                    self._say(f"{program.name} ended{why(program.log)}; starting it again in {pause:.0f} s")
                    due[program.name] = now + pause
                elif now >= due[program.name]:
                    del due[program.name]
                    self.start(program)

    def end(self) -> None:
        """End all, the last started first."""
        own = {program.name for program in self._programs}
        running = [record for record in process_registry.recorded(self._records) if record.name in own]
        order = [program.name for program in reversed(self._programs)]
        process_registry.end(sorted(running, key=lambda record: order.index(record.name)), self._records)
        for program in self._programs:
            if program.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.process.wait(timeout=1)


def _shorten(log: Path) -> None:
    """Keep a log and the one before it; the program goes on writing to the same file, at its end."""
    if size(log) > _LARGEST_LOG:
        with log.open("rb") as whole, private_file(log.with_suffix(".log.1")) as copy:
            shutil.copyfileobj(whole, copy)
        os.truncate(log, 0)


def size(log: Path) -> int:
    """How long a file is; 0 if there is none."""
    return log.stat().st_size if log.is_file() else 0


def since(log: Path, mark: int, most: int = 1 << 20) -> str:
    """What was added to a file after `mark`, so many bytes of it at most."""
    try:
        with log.open("rb") as file:
            file.seek(mark)
            return file.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""


def tail(log: Path, lines: int = 3) -> list[str]:
    """The last lines of a log that say something."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return plain(text.splitlines())[-lines:]


def why(log: Path) -> str:
    """` (its last words; the whole is in LOG)`, to be put behind what happened."""
    last = " / ".join(line[:200] for line in tail(log))
    return f" (it said: {last}; more in {log})" if last else f" (it said nothing; see {log})"


@contextlib.contextmanager
def alone(path: Path, message: str) -> Iterator[None]:
    """Hold a lock as long as the block lasts; refuse where another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with append_private(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EngineError(message) from None
        yield


def write_json(path: Path, content: object) -> None:
    """Write a file whole; readers see the old one or the new one."""
    write_private(path, json.dumps(content, indent=1).encode())


def detach(name: str, command: Sequence[str], *, state: StatePaths, log: Path, seconds: float) -> str:
    """Start a command of ours that outlives this one; what it says when it is ready, or its reason as an error."""
    if (running := process_registry.find(state.pids, name)) is not None:
        raise EngineError(f"it runs already, as process {running.pid}; end it first: fedhip federation stop")
    process = process_registry.start(name, command, records=state.pids, log=log, env=os.environ)
    deadline = time.monotonic() + seconds
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError, ValueError, KeyError):
                ready = json.loads(state.ready.read_text(encoding="utf-8"))
                if ready["pid"] == process.pid:
                    process.returncode = 0  # it outlives us: nobody here will wait for it
                    return str(ready["said"])
            if time.monotonic() > deadline:
                raise EngineError(f"{name} is not ready after {seconds:.0f} s{why(log)}")
            time.sleep(0.1)
    except BaseException:
        process_registry.end(
            [record for record in process_registry.recorded(state.pids) if record.name == name], state.pids
        )
        process.wait()
        raise
    last = tail(log, 1)
    raise EngineError(last[0].removeprefix("fedhip: ") if last else f"{name} ended without a word; see {log}")
