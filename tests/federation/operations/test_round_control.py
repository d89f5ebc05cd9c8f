"""Supervision, and what `run`, `status` and `stop` make of what the engine says; the engine itself is played."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedhip.federation.agreement.init import init
from fedhip.federation.errors import EngineError, FederationError, RoundError
from fedhip.federation.operations import background, process_registry, round_control, serving, supervisor
from fedhip.federation.operations.paths import ServerPaths, StatePaths
from fedhip.federation.operations.supervisor import Program, Supervisor
from fedhip.federation.transport.control import EngineRun
from fedhip.federation.transport.proxy import listen
from tests.waiting import PATIENCE, until

PYTHON = [sys.executable, "-S", "-u", "-c"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes") / "fed"
    sites, hosts = ["a", "b", "c"], ["h.example.org"]
    made = init(folder, name="demo", sites=sites, classes=["x", "y"], width=4, hosts=hosts, make_keys=True)
    serving.write_endpoint(made.directory, "h.example.org:8443")
    return folder


@pytest.fixture
def place(made: Path) -> Iterator[ServerPaths]:
    found = ServerPaths.open(made)
    yield found
    for path in (found.progress, found.state.ready):
        path.unlink(missing_ok=True)


# Supervision.


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Supervisor, list[str], Path]]:
    said: list[str] = []
    found = Supervisor(tmp_path / "pids", os.environ, said.append, threading.Event())
    yield found, said, tmp_path
    found.stop.set()
    found.end()


def program(folder: Path, code: str, name: str = "program") -> Program:
    return Program(name, lambda: [*PYTHON, code], folder / f"{name}.log")


def in_thread(supervisor_: Supervisor) -> threading.Thread:
    thread = threading.Thread(target=supervisor_.watch)
    thread.start()
    return thread


def test_what_dies_is_started_again_with_its_last_words(watched: tuple[Supervisor, list[str], Path]) -> None:
    found, said, folder = watched
    kept = program(folder, "print('I run'); import time; time.sleep(600)")
    found.start(kept)
    assert kept.process is not None
    assert found.wait_for(kept, lambda: "I run" in supervisor.since(kept.log, 0), PATIENCE)
    first = kept.process.pid
    thread = in_thread(found)
    kept.process.kill()
    until(lambda: kept.process is not None and kept.process.pid != first and kept.is_running)
    found.stop.set()
    thread.join()
    assert "program ended (it said: I run; more in" in said[0]
    found.end()
    assert not kept.is_running
    assert process_registry.recorded(folder / "pids") == []


def test_what_dies_again_and_again_is_given_up(
    watched: tuple[Supervisor, list[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _, folder = watched
    monkeypatch.setattr(supervisor, "_TRIES", 2)
    found.start(program(folder, "raise SystemExit('no disk')"))
    with pytest.raises(EngineError, match=r"program ended 2 times in a row .*no disk"):
        found.watch()


def test_programs_end_in_the_reverse_order(watched: tuple[Supervisor, list[str], Path]) -> None:
    found, _, folder = watched
    code = (
        "import os,signal,sys,time\ndef bye(*_):\n open('order','a').write(NAME); os._exit(0)\nsignal.signal(15,bye)\n"
    )
    for name in "ab":
        one = program(folder, f"NAME={name!r}\n{code}os.chdir({str(folder)!r})\nprint(1)\ntime.sleep(600)", name)
        found.start(one)
        assert found.wait_for(one, lambda log=one.log: supervisor.size(log) > 0, PATIENCE)  # type: ignore[misc]
    found.end()
    assert (folder / "order").read_text() == "ba"


def test_one_that_ends_before_it_is_ready(watched: tuple[Supervisor, list[str], Path]) -> None:
    found, _, folder = watched
    short = program(folder, "print('bad setting')")
    found.start(short)
    assert not found.wait_for(short, lambda: False, PATIENCE)
    deaf = program(folder, "import time; time.sleep(600)", "deaf")
    found.start(deaf)
    with pytest.raises(EngineError, match="deaf is not ready after 0 s"):
        found.wait_for(deaf, lambda: False, 0.1)


def test_a_long_log_is_kept_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LARGEST_LOG", 10)
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as file:
        file.write(b"a" * 20)
        supervisor._shorten(log)
        file.write(b"b")
    assert log.read_bytes() == b"b"
    assert (tmp_path / "x.log.1").read_bytes() == b"a" * 20


def test_a_command_started_apart_says_when_it_is_ready(tmp_path: Path) -> None:
    state = StatePaths(tmp_path / "state")
    state.prepare()
    ready = "import json,os,sys,time; json.dump({'said': 'here', 'pid': os.getpid()}, open(sys.argv[1], 'w')); "
    command = [*PYTHON, ready + "time.sleep(600)", str(state.ready)]
    assert supervisor.detach("x", command, state=state, log=state.log("x"), seconds=PATIENCE) == "here"
    with pytest.raises(EngineError, match="runs already"):
        supervisor.detach("x", command, state=state, log=state.log("x"), seconds=PATIENCE)
    assert process_registry.end(process_registry.recorded(state.pids), state.pids) == ["x"]
    failing = [*PYTHON, "raise SystemExit('fedhip: no such key; make one')"]
    with pytest.raises(EngineError, match=r"^no such key; make one$"):
        supervisor.detach("x", failing, state=state, log=state.log("x"), seconds=PATIENCE)
    deaf = [*PYTHON, "import time; time.sleep(600)"]
    with pytest.raises(EngineError, match="not ready"):
        supervisor.detach("deaf", deaf, state=state, log=state.log("deaf"), seconds=0.3)
    assert process_registry.find(state.pids, "deaf") is None


def test_the_program_apart_tells_its_reason_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"folder": str(tmp_path), "bind": None, "port": None, "proxy": True}
    assert background.main("serve", json.dumps(settings)) == 3
    assert "is no folder of a federation; make one" in capsys.readouterr().err


# The server's door.


def test_the_door_is_open_to_other_machines_only_if_they_are_to_come(place: ServerPaths) -> None:
    assert serving.endpoint_of(place) == serving.Endpoint("0.0.0.0", 8443, "h.example.org:8443")  # noqa: S104
    assert serving.endpoint_of(place, "10.0.0.1", 9).address == "h.example.org:9"
    serving.write_endpoint(place.path, "127.0.0.1:8443")
    assert serving.endpoint_of(place).bind == "127.0.0.1"
    serving.write_endpoint(place.path, "h.example.org:8443")


def test_a_taken_port_is_named_before_anything_starts(place: ServerPaths) -> None:
    with listen("127.0.0.1", 0) as taken:
        door = serving.Endpoint("127.0.0.1", taken.getsockname()[1], "x")
        with pytest.raises(EngineError, match=f"port {door.port} .*--port"):
            serving.serve(place, door, say=print, stop=threading.Event())
    assert not place.state.ready.exists()


def test_a_folder_is_served_once_on_a_machine(place: ServerPaths) -> None:
    with supervisor.alone(place.state.lock, "first"), pytest.raises(EngineError, match=r"a server of .* runs already"):
        serving.serve(place, serving.endpoint_of(place), say=print, stop=threading.Event())


def test_the_port_behind_stays_the_same(place: ServerPaths) -> None:
    port = serving.control_port(place)
    assert serving.control_port(place) == port
    assert serving.endpoint_of(place).address == "h.example.org:8443"
    with listen("127.0.0.1", port):
        assert serving.control_port(place) != port


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="fedhip federation init"):
        ServerPaths.open(tmp_path)


# A round.


class Played:
    """A control interface that plays states."""

    def __init__(self, states: list[Any], place: ServerPaths, leave: bool) -> None:
        self.states, self.place, self.leave = states, place, leave
        self.stopped: list[int] = []
        self.config: dict[str, Any] = {}

    def __call__(self, *_: object) -> Played:
        return self

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, app: Path, config: dict[str, Any]) -> int:
        self.config = config
        return 7

    def stop(self, number: int) -> None:
        self.stopped.append(number)

    def runs(self, number: int | None = None) -> list[EngineRun]:
        if number is None:
            return [EngineRun(1, "finished:failed", "", "", "")]
        state = self.states.pop(0)
        if isinstance(state, BaseException):
            raise state
        with self.place.progress.open("a") as file:
            file.write(json.dumps({"time": "", "step": "keys", "text": f"while {state}"}) + "\n{half")
        if state == "finished:completed" and self.leave:
            result = self.place.state.path / "result"
            result.mkdir(exist_ok=True)
            (result / "results.json").write_text("{}")
        return [EngineRun(7, state, "ServerApp failed with exception: too few sites", "", "")]


@pytest.fixture
def play(place: ServerPaths, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    for name in ("_POLL", "_ASK"):
        monkeypatch.setattr(round_control, name, 0.0)
    place.state.prepare()
    supervisor.write_json(place.state.ready, {"control_port": 1, "said": "", "pid": 0})

    def make(*states: Any, leave: bool = True) -> Played:
        played = Played(list(states), place, leave)
        monkeypatch.setattr(round_control, "Control", played)
        return played

    return make


def test_a_round_is_followed_to_its_result(place: ServerPaths, play: Callable[..., Played]) -> None:
    played = play("pending", "running", EngineError("away"), "finished:completed")
    said: list[str] = []
    assert round_control.run(place, say=said.append) == place.state.path / "result"
    assert played.config == {"federation-folder": str(place.path), "attempt": 2}
    assert said[:2] == ["run 7 started", "keys         while pending"]


def test_a_round_that_failed_says_why(place: ServerPaths, play: Callable[..., Played]) -> None:
    play("running", "finished:failed")
    with pytest.raises(RoundError, match="run 7 failed: too few sites"):
        round_control.run(place, say=lambda _: None)
    play("finished:stopped")
    with pytest.raises(RoundError, match="run 7 was stopped"):
        round_control.run(place, say=lambda _: None)


def test_a_round_that_left_nothing_did_not_succeed(place: ServerPaths, play: Callable[..., Played]) -> None:
    play("finished:completed", leave=False)
    with pytest.raises(RoundError, match="left no result"):
        round_control.run(place, say=lambda _: None)


def test_ctrl_c_stops_the_round(place: ServerPaths, play: Callable[..., Played]) -> None:
    played = play("running", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        round_control.run(place, say=lambda _: None)
    assert played.stopped == [7]


def test_a_second_round_at_once_is_refused(
    place: ServerPaths, play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play()
    monkeypatch.setattr(played, "runs", lambda number=None: [EngineRun(3, "running", "", "", "")])
    with pytest.raises(RoundError, match="run 3 is under way"):
        round_control.run(place, say=lambda _: None)


def test_without_a_server_there_is_no_round(place: ServerPaths) -> None:
    with pytest.raises(EngineError, match="fedhip federation serve"):
        round_control.run(place, say=print)


# Status and end.


def test_status_without_a_server(place: ServerPaths) -> None:
    found = round_control.status(place)
    assert not found["serving"]
    assert list(found["sites"]) == ["a", "b", "c"]


def test_stop_ends_sites_and_server_and_nothing_else(made: Path) -> None:
    sleep = [*PYTHON, "import time; time.sleep(600)"]
    other = process_registry.start(
        "serve", sleep, records=made.parent / "pids", log=made.parent / "log", env=os.environ
    )
    running = {}
    for folder, name in ((made, "serve"), (made / "site-a", "site"), (made / "site-a", "node")):
        state = StatePaths(folder / "state")
        running[folder.name, name] = process_registry.start(
            name, sleep, records=state.pids, log=state.log(name), env=os.environ
        )
    assert round_control.stop(made) == ["site-a (site, node)", "the server (serve)"]
    assert all(process.wait(PATIENCE) == -15 for process in running.values())
    assert round_control.stop(made) == []
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_killed_server_app_is_told_with_the_way_on(tmp_path: Path) -> None:
    from fedhip.federation.operations.round_control import _why_failed
    from fedhip.federation.transport.control import EngineRun

    last = EngineRun(7, "finished:failed", "No heartbeat received from the task", "", "")
    said = _why_failed(last, ServerPaths(tmp_path))
    assert said.endswith(f"go on from its checkpoint: fedhip federation run {tmp_path}")
    assert "run 7 failed: the server app was killed" in said
