"""Forks of a warm process: each a process of its own, with randomness of its own, whatever becomes of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

#: A maker of a warm process, and a program that writes down what it finds; `statistics` stands for torch.
_SCRIPT = """
import json, os, random, secrets, sys, threading, time
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fedhip.federation.transport.warm import WarmProcess

secrets.token_bytes(8), X25519PrivateKey.generate()  # so that both generators are there before the forks

def program(stream):
    _, what = json.loads(stream.recv(1 << 16))
    if what == "killed":
        os.kill(os.getpid(), 9)
    found = {
        "pid": os.getpid(), "parent": os.getppid(), "threads": threading.active_count(),
        "loaded": [name for name in ("statistics", "colorsys") if name in sys.modules],
        "random": [random.random(), secrets.token_hex(16), X25519PrivateKey.generate().private_bytes_raw().hex()],
        "doors": [fd for fd in os.listdir("/proc/self/fd") if "socket" in _target(fd) and int(fd) != stream.fileno()],
    }
    stream.sendall(json.dumps(found).encode() + b"\\n")
    if what == "raise":
        raise ValueError("of the app alone")
    if what == "exit":
        sys.exit("with a word")
    if what == "stay":
        time.sleep(60)

def _target(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""

warm = WarmProcess(program, ["colorsys"], ["statistics"], idle=IDLE)
print(json.dumps({"pid": warm.pid, "loaded": "colorsys" in sys.modules}), flush=True)
for line in sys.stdin:
    stream = warm.start()
    answer = ""
    if stream is not None:
        try:
            stream.sendall(line.encode())
            answer = stream.makefile().readline()
        except ConnectionError:
            pass  # killed before it took the stream
    print(answer.strip() or "null", flush=True)
    if stream is not None:
        stream.close()
"""


class Maker:
    """A process that has made a warm one."""

    def __init__(self, idle: float) -> None:
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _SCRIPT.replace("IDLE", str(idle))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.warm: int = self._said()["pid"]

    def _said(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, what: str = "") -> dict[str, Any] | None:
        """The answer; None if there is nobody to give one."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(["", what]) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] | None = self._said()
        return found

    def answer(self, what: str = "") -> dict[str, Any]:
        found = self.ask(what)
        assert found is not None
        return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def maker(request: pytest.FixtureRequest) -> Any:
    made = Maker(getattr(request, "param", 60.0))
    yield made
    made.process.kill()
    made.process.communicate()
    until(lambda: not lives(made.warm))


def test_each_app_is_a_process_of_its_own_with_its_own_randomness(maker: Maker) -> None:
    answers = [maker.answer() for _ in range(4)]
    assert len({answer["pid"] for answer in answers} | {maker.process.pid, maker.warm}) == 6
    assert {answer["threads"] for answer in answers} == {1}
    assert all("colorsys" in answer["loaded"] for answer in answers)
    for values in zip(*(answer["random"] for answer in answers), strict=True):
        assert len(set(values)) == 4
    assert all(answer["doors"] == [] for answer in answers)  # one left open would keep others from seeing an end


def test_what_is_large_is_loaded_at_once_by_a_second_process(maker: Maker) -> None:
    first, second = maker.answer(), maker.answer()
    assert first["parent"] == second["parent"] != maker.warm  # who came while it was loading has waited
    assert first["loaded"] == second["loaded"] == ["statistics", "colorsys"]
    os.kill(second["parent"], signal.SIGKILL)  # without it, the first does, and makes another
    until(lambda: not lives(second["parent"]))
    assert maker.answer()["pid"] > 0
    until(lambda: maker.answer()["loaded"] == ["statistics", "colorsys"])


@pytest.mark.parametrize("maker", [0.0], indirect=True)
def test_what_is_large_is_let_go_where_nothing_comes_until_something_does(maker: Maker) -> None:
    def children() -> list[str]:
        return Path(f"/proc/{maker.warm}/task/{maker.warm}/children").read_text().split()

    until(children)  # it is there for a second
    until(lambda: not children())
    answer = maker.answer()
    assert (answer["parent"], answer["loaded"]) == (maker.warm, ["colorsys"])
    until(lambda: maker.answer()["loaded"] == ["statistics", "colorsys"])


@pytest.mark.parametrize("what", ["raise", "exit"])
def test_an_app_that_fails_ends_alone(maker: Maker, what: str) -> None:
    broken = maker.answer(what)
    until(lambda: not lives(broken["pid"]))
    assert lives(broken["parent"])
    assert maker.answer()["pid"] != broken["pid"]


def test_one_whose_fork_is_killed_hears_that(maker: Maker) -> None:
    assert maker.ask("killed") is None
    assert maker.answer()["pid"] > 0


def test_a_warm_process_that_was_killed_is_known_to_be_gone(maker: Maker) -> None:
    staying = maker.answer("stay")
    maker.answer()  # the second warm process is there, too
    os.kill(maker.warm, signal.SIGKILL)
    until(lambda: maker.ask() is None)
    assert lives(staying["pid"])
    os.kill(staying["pid"], signal.SIGKILL)


def test_with_its_maker_killed_it_ends_and_its_apps_do_not(maker: Maker) -> None:
    staying = maker.answer("stay")
    maker.process.kill()
    until(lambda: not lives(maker.warm))
    assert lives(staying["pid"])  # it looks after its maker itself
    os.kill(staying["pid"], signal.SIGKILL)
