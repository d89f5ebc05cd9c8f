"""Machines on which something is wrong: a clock, a version, a stranger, a site that stands still. Real processes."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedhip.federation.errors import EngineError
from fedhip.federation.monitor.look import events_of
from fedhip.federation.operations import process_registry, round_control
from fedhip.federation.operations.supervisor import tail
from fedhip.federation.site.folder import open_site
from fedhip.federation.transport import engine
from tests.federation.monitor.played import ask
from tests.federation.operations import machine
from tests.federation.operations.demo import Demo, own_surroundings
from tests.waiting import PATIENCE, until

#: The engine's libraries warn one another.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

#: Seconds: the engine gives up a node that is silent for this long, and a round for the other.
MISSED, DEADLINE = 6.0, 90.0
THREE = ("a", "b", "c")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which processes import what is wrong with their machine."""
    folder = tmp_path_factory.mktemp("odd")
    shutil.copy(machine.__file__, folder / "sitecustomize.py")
    return folder


@pytest.fixture(scope="module")
def demo(odd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A server with its page, and nobody there yet."""
    made = Demo(tmp_path_factory.mktemp("demo"), THREE, DEADLINE)
    with pytest.MonkeyPatch.context() as patch:
        own_surroundings(patch, odd)
        patch.setenv("FEDHIP_TEST_PATIENCE", str(MISSED / 2))
        made.serve(status_port=engine.free_port())
    yield made
    round_control.stop(made.folder)


@pytest.fixture(autouse=True)
def surrounded(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_surroundings(monkeypatch, odd)
    monkeypatch.setenv("FEDHIP_TEST_PATIENCE", str(MISSED / 2))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the processes that are started from here on."""
    file = tmp_path / "clock"
    monkeypatch.setenv("FEDHIP_TEST_CLOCK", str(file))
    return file


@pytest.fixture
def another_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started from here on has Flower 1.99.0, as far as it knows."""
    described = tmp_path / "flwr-1.99.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: flwr\nVersion: 1.99.0\n")
    own_surroundings(monkeypatch, tmp_path)


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_site_whose_clock_is_ten_minutes_off(demo: Demo, clock: Path, seconds: int) -> None:
    clock.write_text(str(seconds))
    with pytest.raises(EngineError, match=r"^the clocks of site a and the server are (599|60[0-9]) s apart; set them"):
        demo.come("a")
    assert "s apart; set them" in demo.place.state.log("proxy").read_text()


def test_a_site_of_another_engine_starts_nothing(demo: Demo, another_engine: None) -> None:
    with pytest.raises(EngineError, match=r"^a federation needs Flower 1\.41\.0, and 1\.99\.0 is installed; install"):
        demo.come("a")


def test_a_supernode_of_another_version_is_refused_at_the_door(
    demo: Demo, another_engine: None, tmp_path: Path
) -> None:
    """The engine's own, with a site's key."""
    site = open_site(demo.folder / "site-a")
    words = ["--superlink", site.address, "--root-certificates", str(site.ca)]
    words += ["--auth-supernode-private-key", str(site.key_path)]
    program, log, records = str(engine.programs() / "flower-supernode"), tmp_path / "log", tmp_path / "pids"
    environment = engine.environment(tmp_path / "home")
    node = process_registry.start("supernode", [program, *words], records=records, log=log, env=environment)
    try:
        assert node.wait(timeout=PATIENCE) != 0
    finally:
        process_registry.end(process_registry.recorded(records), records)  # what it has started stays
    line = "site a has Flower 1.99.0, and the server 1.41.0; install the same version of fedhip on both"
    assert line in log.read_text()
    assert line in demo.place.state.log("proxy").read_text()


def test_a_stranger_asks_for_the_page(demo: Demo) -> None:
    (line,) = [line for line in tail(demo.place.state.log("serve"), 20) if "the page:" in line]
    port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
    token = demo.place.state.token.read_text().strip()
    for path in ("/", "/status.json", "/metrics"):
        for shown in ("", "Bearer x", f"Bearer {token}x"):
            status, _, body = ask(port, path, Authorization=shown)
            assert status == 401
            assert "demo" not in body
        assert ask(port, path, Authorization=f"Bearer {token}", host="evil.example")[0] == 421
    status, _, body = ask(port, "/status.json", Authorization=f"Bearer {token}")
    assert (status, json.loads(body)["federation"]) == (200, "demo")
    with pytest.raises(ConnectionRefusedError):  # another address of the machine
        socket.create_connection(("127.0.0.2", port), timeout=20)
    assert token not in demo.place.state.log("serve").read_text()


def test_a_site_that_stands_still_and_one_whose_clock_is_set_in_a_round(
    demo: Demo, clock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the engine has given up the one and the door has refused the other: neither is left out."""
    clock.write_text("-240")  # which is near enough
    demo.come("a")
    monkeypatch.delenv("FEDHIP_TEST_CLOCK")
    demo.come("b", "c")
    gone: list[str] = []

    def disturb(line: str) -> None:
        if gone or not line.startswith("keys"):
            return
        refused, door = "the clocks of site a", demo.place.state.log("proxy")
        before = door.read_text().count(refused)
        clock.write_text("600")
        demo.signal_all("site-c", signal.SIGSTOP)
        try:
            until(lambda: door.read_text().count(refused) > before)
            clock.write_text("-240")
            until(lambda: round_control.status(demo.place)["sites"]["c"]["state"] == "gone", pause=0.3)
            gone.append(line)
        finally:
            demo.signal_all("site-c", signal.SIGCONT)

    result = demo.run(disturb)
    assert gone
    assert result.total() == demo.sum_of(THREE)
    assert result.results["without_model"] == []
    assert all((demo.folder / f"site-{name}" / "result" / "results.json").is_file() for name in THREE)
    assert {event.get("code", "ok") for event in events_of(demo.place.progress)} == {"ok"}
