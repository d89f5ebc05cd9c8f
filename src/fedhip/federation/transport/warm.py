"""Programs as forks of a process that has loaded what they need: no new interpreter for each message of a round.

    node ── warm process ──┬── program, for one message
                           └── second warm process, with torch ── program, for one message

The warm process is forked before the one that makes it has threads, connections and secrets, and makes none itself: a
fork goes on with the calling thread alone, and a lock that another one held would stay held. Each program is a process
of its own, which ends with its work. Torch takes more memory than all the rest, so a site that waits for a round does
not hold it for long. A second warm process loads it as soon as there is a first one, for a round that begins at once,
and takes all messages; a minute without messages ends that one. The first message of a later round (who is there) does
not need it, and starts another, which takes all that follow.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module

#: How long a process with torch waits for the next message.
IDLE = 60.0
_START = b"start"

#: What a fork does, over a stream to whoever started it.
Program = Callable[[socket.socket], None]


class WarmProcess:
    """A process that loads modules, and forks when it is asked to; with `later`, modules that a second one loads.

    It ends with the one that made it, and may be killed at any time: then `start` says so.
    """

    def __init__(
        self,
        program: Program,
        load: Sequence[str] = (),
        later: Sequence[str] = (),
        *,
        idle: float = IDLE,
        doors: Sequence[socket.socket] = (),  # of who makes it, which are not for it
    ) -> None:
        self.door, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with inside:
            self.pid = _fork(lambda: _Inside(program, inside, later, idle).serve(load), self.door, *doors)

    def start(self) -> socket.socket | None:
        """A stream to a new fork; None if there is nobody to make one."""
        ours, theirs = socket.socketpair()
        with theirs:
            if self.hand_on(theirs):
                return ours
        ours.close()
        return None

    def hand_on(self, stream: socket.socket) -> bool:
        """Have a fork made at the other end of a stream; whether there is somebody to do so."""
        try:
            socket.send_fds(self.door, [_START], [stream.fileno()])
        except OSError:
            return False
        return True

    def end(self) -> None:
        """End it, and not the programs that it has forked."""
        self.door.close()


class _Inside:
    """The warm process itself."""

    def __init__(self, program: Program, door: socket.socket, later: Sequence[str], idle: float) -> None:
        self._program, self._door, self._later, self._idle = program, door, later, idle
        self._second: WarmProcess | None = None
        self._latest = 0.0

    def serve(self, load: Sequence[str]) -> None:
        """Until the door is closed from outside."""
        for name in load:
            import_module(name)
        if self._later:
            self._load_later()
        while True:
            second = self._second
            called, _, _ = select.select(self._doors(), [], [], 1.0)
            _bury()
            if second is not None and second.door in called:  # it never says anything: it has ended
                self._leave_second()
            if self._door in called:
                if (stream := _handed(self._door)) is None:
                    return
                with stream:
                    self._start(stream)
            elif self._second is not None and time.monotonic() - self._latest > self._idle:
                self._leave_second()

    def _start(self, stream: socket.socket) -> None:
        """Have the second process fork, and do it here where there is none yet, or no longer."""
        self._latest = time.monotonic()
        if self._second is None or not self._second.hand_on(stream):
            _fork(lambda: self._program(stream), *self._doors())
        if self._second is None and self._later:
            self._load_later(stream)

    def _load_later(self, *streams: socket.socket) -> None:
        """Start the second process, without these streams."""
        self._latest = time.monotonic()
        self._second = WarmProcess(self._program, self._later, doors=[*self._doors(), *streams])

    def _doors(self) -> list[socket.socket]:
        return [self._door] if self._second is None else [self._door, self._second.door]

    def _leave_second(self) -> None:
        assert self._second is not None  # noqa: S101 - who calls has seen it
        self._second.end()
        self._second = None


def _fork(do: Callable[[], None], *doors: socket.socket) -> int:
    """Do something in a process of its own, without these doors; its number."""
    gc.freeze()  # what is loaded stays where it is, on pages that both share
    if pid := os.fork():
        return pid
    status = 1
    try:
        for door in doors:
            door.close()
        do()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _handed(door: socket.socket) -> socket.socket | None:
    """The stream that was handed over at a door; None where there is nobody any more."""
    try:
        _, (number,), _, _ = socket.recv_fds(door, len(_START), 1)
    except (OSError, ValueError):
        return None
    return socket.socket(fileno=number)


def _bury() -> None:
    """Wait for the forks that have ended, so that they are gone and their seconds counted."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
