"""Real servers, nodes and apps on loopback. Each of these tests takes a minute on two quiet cores."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fedhip.federation.agreement.credentials import make_site_key
from fedhip.federation.errors import EngineError, RoundError
from fedhip.federation.operations import joining, process_registry, round_control, serving
from fedhip.federation.site.folder import open_site
from fedhip.privacy.attacks import Upload, recover_rows, single_rows
from fedhip.runs import Run
from tests import warm
from tests.federation.logged import holds, require_objects, secrets_of
from tests.federation.operations.demo import Demo, own_surroundings
from tests.federation.proxy_peers import signed
from tests.federation.samples import FOUR
from tests.waiting import PATIENCE

#: The engine's libraries warn one another.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLE = Path(__file__).parents[3] / "examples" / "four-sites.sh"
SITES = ("north", "east", "south", "west")
STEPS = {"hello", "keys", "share", "mask", "unmask", "personalize"}


@pytest.fixture(autouse=True)
def surrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    own_surroundings(monkeypatch)


def test_four_sites_as_in_the_example(tmp_path: Path) -> None:
    """The script that the newcomer's page names, with the embedded backbone, TLS, keys and masks."""
    environment = {**os.environ, "PATH": warm.path()}
    done = subprocess.run([EXAMPLE, tmp_path / "demo"], capture_output=True, text=True, env=environment)  # noqa: S603
    assert done.returncode == 0, done.stderr
    for text in ("the round is finished", "connected", "finished:completed", "all is well", "ended the server"):
        assert text in done.stdout
    for site in SITES:
        assert (tmp_path / "demo" / f"result-{site}" / "report.html").is_file()
    assert "drawing.png" in done.stdout
    places = [tmp_path / "demo" / name for name in ("fed", *(f"site-{site}" for site in SITES))]
    assert [process_registry.recorded(place / "state" / "pids") for place in places] == [[]] * 5
    assert not list(places[0].rglob("key"))  # each site made its own
    for site, place in zip(SITES, places[1:], strict=True):
        assert open_site(place).name == site
    total = Run.open(places[0] / "state" / "result").total()
    assert total.num_samples > total.num_features
    assert recover_rows(Upload.of(total)) is None  # the sum gives no row away
    assert len(single_rows(Upload.of(total))) == 0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    yield made
    round_control.stop(made.folder)


def test_strangers_stay_outside_and_a_round_outlives_its_killed_site_server_app_and_server(
    demo: Demo, tmp_path: Path
) -> None:
    """One federation for all of it: to start the processes takes as long as the rest."""
    demo.serve()
    demo.come(*FOUR)
    for name in ("site", "node"):  # before the round, without a word
        demo.kill(name, "site-d")
    require_that_strangers_stay_outside(demo, tmp_path / "stranger")
    require_that_a_twin_finds_its_place_taken(demo.folder / "site-a", tmp_path / "twin")
    said: list[str] = []
    killed: list[int] = []
    spoilt: set[str] = set()

    def kill_what_answers(line: str) -> None:
        """At site c, once in each step: it loses nothing."""
        step = line.split()[0]
        if step in STEPS - spoilt and demo.kill_forks("site-c", all_of_them=step == "mask"):
            spoilt.add(step)

    def kill_when_masked(line: str) -> None:
        said.append(line)
        kill_what_answers(line)
        after_census = any(earlier.startswith("census") for earlier in said)
        if after_census and line.startswith("unmask") and not killed:
            killed.extend(server_apps(demo.place.control_port()))
            for process in killed:
                os.kill(process, signal.SIGKILL)

    with pytest.raises(RoundError, match="failed"):
        demo.run(kill_when_masked)
    assert killed, said
    assert any("'d'" in line for line in said)
    demo.kill("superlink")  # and the engine's server, which `serve` starts again
    result = when_it_serves(lambda: demo.run(kill_what_answers))
    assert result.total() == demo.sum_of("abc")
    assert spoilt == STEPS
    assert all((demo.folder / f"site-{name}" / "result" / "results.json").is_file() for name in "abc")
    require_that_logs_are_objects_and_tell_nothing(demo.folder)


def require_that_strangers_stay_outside(demo: Demo, stranger: Path) -> None:
    port = serving.endpoint_of(demo.place).port
    url, authority = f"https://127.0.0.1:{port}", str(demo.place.authority)
    with httpx.Client(verify=ssl.create_default_context(cafile=authority), base_url=url) as outside:
        own = signed(demo.folder / "site-a" / "key")
        assert outside.post("/v1/control/list-runs", headers=own).status_code == 404  # a control call from outside
        assert outside.get("/health").status_code == 404
        make_site_key(stranger)
        assert outside.post("/v1/fleet/pull-messages", headers=signed(stranger)).status_code == 412
    assert "/v1/control/list-runs" in demo.place.state.log("proxy").read_text()


def require_that_a_twin_finds_its_place_taken(site: Path, twin: Path) -> None:
    """The same site a second time, from a copy of its folder."""
    shutil.copytree(site, twin, ignore=shutil.ignore_patterns("state"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "LAPSE", 1.0)
        with pytest.raises(EngineError, match="One key is for one site"):
            joining.join(twin, {"data": "x"}, say=lambda _: None, stop=threading.Event())


def require_that_logs_are_objects_and_tell_nothing(folder: Path) -> None:
    logs = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.log")}
    assert {Path(name).name for name in logs} >= {"superlink.log", "proxy.log", "serve.log", "node.log", "site.log"}
    require_objects(logs)
    assert holds(logs, secrets_of(folder)) == []


def when_it_serves(run: Callable[[], Run]) -> Run:
    """The round, as soon as the server that was killed is there again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return run()
        except EngineError:
            assert time.monotonic() < deadline
            time.sleep(1)


def server_apps(port: int) -> list[int]:
    """The processes of the app of the server with this port: forks of a fork of what starts them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # no process, or none any more
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"executor") for word in words) and f"127.0.0.1:{port}".encode() in words:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) in parents]
