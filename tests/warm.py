"""`python` and `fedhip` for the scripts that tests run, as forks of one process that has imported what takes seconds.

A script that types ten commands would import torch ten times. Here each command is still a process of its own, with its
own arguments, environment, folder and streams, and imports fedhip anew; what is imported before is not ours: torch,
numpy, scikit-learn. `python` with options other than -c and -m is the real one.

The pictures of reports are empty, for they take longer than most commands; FEDHIP_TEST_PICTURES has them drawn.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

#: What commands import that is not ours.
IMPORTED = (
    *("torch", "numpy", "scipy.stats", "sklearn.datasets", "PIL.Image", "safetensors.torch", "rich.table", "jinja2"),
    *("matplotlib.figure", "matplotlib.backends.backend_svg"),
)

_LENGTH = struct.Struct("!I")

#: The program behind both names: it hands its surroundings over, and ends as the fork does.
_CLIENT = """#!{python} -IS
import json, os, socket, struct, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "python" and words and words[0].startswith("-") and words[0] not in ("-", "-c", "-m"):
    os.execv({python!r}, [{python!r}, *words])
given = json.dumps({{"name": name, "words": words, "folder": os.getcwd(), "environment": dict(os.environ)}}).encode()
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({place!r})
    socket.send_fds(warm, [struct.pack("!I", len(given))], [0, 1, 2])
    warm.sendall(given)
    status = warm.recv(1)
sys.exit(status[0] if status else "it was killed")
"""


@functools.cache
def programs() -> Path:
    """A folder for the front of PATH, with `python` and `fedhip`; what serves them ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    atexit.register(folder.cleanup)
    place = Path(folder.name)
    for name in ("python", "fedhip"):
        program = place / name
        program.write_text(_CLIENT.format(python=sys.executable, place=str(place / "socket")), encoding="utf-8")
        program.chmod(0o755)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # a process with threads is none to fork
    server = subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", __file__, str(place / "socket")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    atexit.register(server.wait)
    atexit.register(server.stdin.close)  # first: what is registered last is called first
    assert server.stdout.readline() == b"ready\n"
    return place


def path() -> str:
    """PATH with these programs in front, then those of this interpreter."""
    return os.pathsep.join([str(programs()), str(Path(sys.executable).parent), os.environ["PATH"]])


def serve(place: str) -> None:
    """Fork for whoever calls, until the pipe from the tests' process is closed."""
    for name in IMPORTED:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: they tell how they ended
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([door.fileno(), 0], [], [])
            if 0 in ready:
                return
            caller, _ = door.accept()
            with caller:
                if os.fork() == 0:
                    door.close()
                    _become(caller)


def _become(caller: socket.socket) -> None:
    """Be the program that was called; does not return."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        given = _take(caller)
        try:
            _run(given["name"], given["words"])
            status = 0
        except SystemExit as end:
            status = _status(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        caller.send(bytes([status & 255]))
        os._exit(status & 255)


def _take(caller: socket.socket) -> dict[str, Any]:
    head, streams, _, _ = socket.recv_fds(caller, _LENGTH.size, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    left = _LENGTH.unpack(head)[0]
    parts = []
    while left:
        parts.append(caller.recv(min(left, 1 << 16)))
        left -= len(parts[-1])
    given: dict[str, Any] = json.loads(b"".join(parts))
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    if "COVERAGE_PROCESS_CONFIG" in os.environ:  # it is begun where an interpreter starts
        import coverage

        coverage.process_startup()
    return given


def _run(name: str, words: list[str]) -> None:
    """What the interpreter does with these words."""
    if "FEDHIP_TEST_PICTURES" not in os.environ:
        _draw_nothing()
    more = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [entry for entry in more if entry not in sys.path]
    if name == "fedhip":
        sys.argv = ["fedhip", *words]
        from fedhip.cli.main import main

        sys.exit(main())
    what = words[0] if words else "-"
    if what == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif what in ("-", "-c"):
        code = words[1] if what == "-c" else sys.stdin.read()
        sys.argv = [what, *words[2 if what == "-c" else 1 :]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main_module = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main_module.__dict__)  # noqa: S102
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(what).resolve().parent))
        runpy.run_path(what, run_name="__main__")


def _draw_nothing() -> None:
    from matplotlib.figure import Figure

    save = Figure.savefig

    def savefig(self: Figure, file: Any, **options: Any) -> None:
        if isinstance(file, io.StringIO):
            file.write('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>')
        else:
            save(self, file, **options)

    setattr(Figure, "savefig", savefig)  # noqa: B010


def _status(end: SystemExit) -> int:
    """What the interpreter makes of an exit."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    serve(sys.argv[1])
