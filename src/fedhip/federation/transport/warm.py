"""Apps as forks of a process that has loaded what they need: no new interpreter for each message.

    SuperExec ── warm process ──┬── app, for one message
                                └── second warm process, with torch ── app, for one message

The warm process is forked before the SuperExec has threads, connections and its secret, and makes none itself: a fork
goes on with the calling thread alone, and a lock that another one held would stay held. Each app is still a process of
its own, which ends with its message. Torch takes more memory than all the rest, so a site that waits for a round does
not hold it: the first message starts a second warm process, which loads it meanwhile, and a minute without messages
ends that one.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module

#: How long a process with torch waits for the next message.
IDLE = 60.0
#: Of a command: a dozen words.
_LARGEST = 1 << 16
_READY = b"ready"

#: What a fork does with the words of a command.
Program = Callable[[Sequence[str]], None]


class WarmProcess:
    """A process that loads modules, and forks for each command; with `later`, modules that a second one loads.

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
        self.is_ready = False

    def start(self, words: Sequence[str]) -> bool:
        """Fork for a command; whether there is somebody to do so."""
        try:
            self.door.sendall(json.dumps(list(words)).encode())
        except OSError:
            return False
        return True

    def listen(self) -> bool:
        """Take its word that it is ready; whether it lives."""
        self.is_ready = _heard(self.door) == _READY
        return self.is_ready

    def end(self) -> None:
        """End it, and not the apps that it has forked."""
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
        self._door.sendall(_READY)
        while True:
            second = self._second
            doors = [self._door] if second is None else [self._door, second.door]
            called, _, _ = select.select(doors, [], [], 1.0)
            _bury()
            if second is not None and second.door in called and not second.listen():
                self._leave_second()
            if self._door in called:
                if not (command := _heard(self._door)):
                    return
                self._start(json.loads(command))
            elif self._second is not None and time.monotonic() - self._latest > self._idle:
                self._leave_second()

    def _start(self, words: list[str]) -> None:
        """Have the second process fork, if it has all loaded, and do it here if not."""
        self._latest = time.monotonic()
        second = self._second
        if second is None or not second.is_ready or not second.start(words):
            _fork(lambda: self._program(words), self._door, *([] if second is None else [second.door]))
        if second is None and self._later:
            self._second = WarmProcess(self._program, self._later, doors=[self._door])

    def _leave_second(self) -> None:
        assert self._second is not None  # noqa: S101  (who calls has seen it)
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


def _heard(door: socket.socket) -> bytes:
    """What was said at a door; nothing where there is nobody any more."""
    try:
        return door.recv(_LARGEST)
    except ConnectionResetError:  # gone before it has heard all that we said
        return b""


def _bury() -> None:
    """Wait for the forks that have ended, so that they are gone and their seconds counted."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
