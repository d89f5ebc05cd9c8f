"""The coordinator's page: what it shows, who may see it, and that nothing is on it that the server may not know."""

from __future__ import annotations

import html.parser
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedhip.errors import FedHiPError
from fedhip.federation.agreement.credentials import valid_until
from fedhip.federation.errors import EngineError
from fedhip.federation.monitor.look import Look, events_of
from fedhip.federation.monitor.metrics import metrics
from fedhip.federation.monitor.web import page_of, page_served, token_of
from fedhip.federation.operations import background, serving
from fedhip.federation.operations.paths import ServerPaths, StatePaths
from fedhip.runs import Run
from tests.federation.monitor.played import TOKEN, PlayedEngine, ask, hostile, served_round
from tests.federation.samples import Trial
from tests.federation.test_secrecy import holds, traces
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("no_report", "no_models")
NOTHING = ("/nothing", "/../../server/server.key", "/page.html.j2", "/web.py", "/state/status.token")
PATHS = ("/", "/status.json", "/metrics", "/page.css", "/page.js", "/healthz")


@pytest.fixture(scope="module")
def no_models() -> Iterator[None]:
    """Sites make none: the page knows of none."""
    from types import SimpleNamespace

    from fedhip.federation.site import personalization

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(personalization, "personalize", lambda *_: SimpleNamespace(accuracy={}))
        yield


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, no_models: None
) -> Iterator[tuple[Trial, PlayedEngine, Look, list[float]]]:
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHIP_STATE", str(tmp_path_factory.mktemp("sums")))
        with served_round(tmp_path_factory.mktemp("served"), patch) as (trial, engine):
            yield trial, engine, Look(ServerPaths.open(trial.folder), lambda: now[0]), now


@pytest.fixture
def shown(made: tuple[Trial, PlayedEngine, Look, list[float]]) -> dict[str, Any]:
    made[3][0] += 1.0
    return made[2]()


@pytest.fixture(scope="module")
def port(made: tuple[Trial, PlayedEngine, Look, list[float]]) -> Iterator[int]:
    with page_served(0, ["page.example.org"], TOKEN, made[2]) as found:
        yield found


# What it shows.


def test_who_is_here_and_who_was_left_out(shown: dict[str, Any]) -> None:
    assert {site["site"]: site["state"] for site in shown["sites"]} == {
        "a": "connected",
        "b": "connected",
        "c": "gone",
        "d": "never came",
    }
    assert {site["site"]: site["code"] for site in shown["sites"]} == {"a": "ok", "b": "ok", "c": "gone", "d": "ok"}
    (refused,) = shown["refusals"]
    assert (refused["site"], refused["code"], refused["text"]) == ("c", "gone", "site 'c' is no longer connected")


def test_steps_are_those_that_were_asked(shown: dict[str, Any]) -> None:
    assert shown["round"]["state"] == "finished"
    steps = [(step["step"], len(step["asked"]), len(step["answered"])) for step in shown["steps"]]
    assert steps == [
        ("waiting", 4, 0),
        ("hello", 4, 4),
        ("share", 4, 3),
        ("mask", 3, 3),
        ("unmask", 3, 3),
        ("personalize", 3, 3),
    ]
    assert sum(step["seconds"] for step in shown["steps"]) <= shown["round"]["seconds"] + 0.1 * len(steps)


def test_the_digest_is_that_of_the_result(shown: dict[str, Any], made: tuple[Trial, Any, Any, Any]) -> None:
    run = Run.open(made[0].result)
    assert shown["result"] == {"digest": run.total().digest(), "sites": ["a", "b", "d"]}


def test_a_round_under_way_is_told_from_one_that_was_broken_off(
    made: tuple[Trial, PlayedEngine, Look, list[float]], tmp_path: Path
) -> None:
    _, engine, look, now = made
    log = look.paths.progress
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    masking = next(place for place, line in enumerate(lines) if b'"mask"' in line)
    try:
        log.write_bytes(whole + b"".join(lines[: masking + 2]) + b'{"half')
        engine.state, now[0] = "running", now[0] + 1.0
        found = look()
        assert (found["round"]["state"], found["round"]["step"]) == ("under way", "mask")
        assert found["steps"][-1]["answered"] == [json.loads(lines[masking + 1])["site"]], "who came first"
        assert found["steps"][-1]["seconds"] > 0
        assert len(found["refusals"]) == 1, "those of the round before are not of this one"
        assert found["result"] is not None
        engine.state, now[0] = "finished:failed", now[0] + 1.0
        assert look()["round"]["state"] == "broken off"
    finally:
        engine.state = "finished:completed"
        log.write_bytes(whole)
        now[0] += 1.0


def test_an_engine_that_is_started_again(made: tuple[Trial, PlayedEngine, Look, list[float]], port: int) -> None:
    _, engine, look, now = made
    try:
        engine.away, now[0] = True, now[0] + 1.0
        assert ask(port, "/healthz")[0] == 503
        status, _, page = ask(port)
        assert status == 200
        assert "The engine does not answer" in page
        assert {site["state"] for site in look()["sites"]} == {"unknown"}
        assert "fedhip_up 0.0" in ask(port, "/metrics")[2]
    finally:
        engine.away, now[0] = False, now[0] + 1.0
    assert ask(port, "/healthz")[::2] == (200, "ok\n")


def test_before_any_round(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path)
    serving.write_endpoint(trial.folder, "127.0.0.1:8443")
    found = Look(ServerPaths.open(trial.folder))()
    assert found["round"]["state"] == "none"
    assert "The server is not ready yet" in page_of(found)
    assert "fedhip_up 0.0" in metrics(found)


def test_who_was_refused_by_the_proxy(made: tuple[Trial, PlayedEngine, Look, list[float]]) -> None:
    _, _, look, now = made
    log = look.paths.state.log("proxy")
    said = "refused 401, from 192.0.2.7: the clocks of site d and the server are 600 s apart; set them (POST)"
    told = json.dumps({"time": "2026-11-18T10:00:01.000+00:00", "level": "INFO", "text": said})
    log.write_text(f"2026-11-18 10:00:00,123 listening on 0.0.0.0:8443\n2026-11-18 10:00:01,123 {said}\n{told}\n")
    now[0] += 1.0
    assert look()["door"] == [{"time": "2026-11-18 10:00:01", "text": said}] * 2


def test_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "progress.jsonl"
    right = {"time": "2026-11-18T10:00:00+00:00", "step": "keys", "text": "x"}
    lines = ["[]", "{}", "7", '"x"', "{", json.dumps(right | {"time": 7}), json.dumps(right | {"step": None})]
    log.write_text("\n".join([*lines, json.dumps(right)]) + "\n")
    assert events_of(log) == [right]


# As numbers.

SAMPLE = re.compile(r'(fedhip_[a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (-?[0-9.e+]+)')


def test_metrics_are_what_prometheus_reads(shown: dict[str, Any], made: tuple[Trial, Any, Look, Any]) -> None:
    found: dict[tuple[str, str], float] = {}
    told = set()
    for line in metrics(shown).splitlines():
        if line.startswith("# "):
            told.add(line.split()[2])
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert match[1] in told, "help and type come first"
        assert (match[1], match[2] or "") not in found, "a series is there once"
        found[match[1], match[2] or ""] = float(match[3])
    assert found["fedhip_site_connected", 'site="a"'] == 1
    assert found["fedhip_site_connected", 'site="d"'] == 0
    assert found["fedhip_site_left_out", 'site="c"'] == 1
    assert found["fedhip_round_refusals", 'code="gone"'] == 1
    assert found["fedhip_step_answers", 'step="share"'] == 3
    assert found["fedhip_run_bytes", 'run="7",direction="to"'] == 2_440_000
    until = valid_until(made[2].paths.certificate).timestamp()
    assert found["fedhip_certificate_not_after_seconds", 'certificate="server"'] == until


def test_labels_cannot_break_out() -> None:
    for line in metrics(hostile('x"} 1\nfedhip_up 7\\')).splitlines():
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line


# Who may see it.


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"])
def test_a_stranger_gets_nothing(port: int, shown: str) -> None:
    for path in (*PATHS[:-1], "//", *NOTHING):
        status, headers, body = ask(port, path, Authorization=shown)
        assert status == 401
        assert headers["WWW-Authenticate"] == "Bearer"
        assert "trial" not in body
        assert "connected" not in body


def test_there_is_nothing_else_for_who_may_see_it(port: int) -> None:
    for path in NOTHING:
        assert ask(port, path)[0] == 404


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("[::1", "127.0.0.2", "a@evil.example", "page.example.org.", "127.0.0.1@evil.example"),
    ],
)
def test_a_name_that_is_not_ours_is_refused(port: int, host: str | None) -> None:
    """Of a page of somebody else's whose name resolves to loopback (DNS rebinding), though it has the token."""
    assert {ask(port, path, host=host)[0] for path in PATHS} == {421}


def test_names_of_ours(port: int) -> None:
    for host in ("127.0.0.1", "localhost:9", "[::1]:8", "page.example.org", "PAGE.example.org:443"):
        assert ask(port, host=host)[0] == 200


def test_two_names_at_once_are_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 421 " in raw.recv(1 << 16).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "line", [b"GET http://evil.example/ HTTP/1.1", b"x", b"GET / HTTP/9.9", b"evil / HTTP/1.1", b"GET /" + b"x" * 70000]
)
def test_what_is_no_request_gets_nothing_of_it_back(port: int, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw:
        raw.sendall(line + b"\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(1 << 16), b""))
    assert b" 200 " not in answer
    assert b"evil" not in answer
    assert b"xxx" not in answer


def test_it_can_be_read_and_nothing_else(port: int) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
        status, headers, body = ask(port, f"/?token={TOKEN}", method)
        assert status == 405
        assert "trial" not in body
        assert "Set-Cookie" not in headers


def test_a_head_without_its_body(port: int) -> None:
    status, headers, body = ask(port, "/status.json", "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 500


def test_a_token_in_the_address_becomes_a_cookie(port: int) -> None:
    assert ask(port, "/?token=wrong", Accept="*")[0] == 401
    assert ask(port, f"/status.json?token={TOKEN}", Accept="*")[0] == 401, "it stays in no other address"
    status, headers, body = ask(port, f"/?token={TOKEN}", Accept="*")
    assert (status, headers["Location"], body) == (303, "./", "")
    cookie, *manners = headers["Set-Cookie"].split("; ")
    assert set(manners) == {"HttpOnly", "SameSite=Strict"}
    assert ask(port, Cookie=f"other=1; {cookie}")[0] == 200
    assert ask(port, Cookie=f"{cookie}x")[0] == 401
    assert ask(port, Cookie=f"fedhip={TOKEN}; {{{{")[0] == 401


def test_answers_are_kept_by_nobody_and_framed_by_nobody(port: int) -> None:
    for path in PATHS:
        headers = ask(port, path)[1]
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Python" not in headers["Server"]


def test_the_token_is_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    state = StatePaths(tmp_path / "state")
    token = token_of(state)
    assert token_of(state) == token
    assert len(token) >= 40
    assert state.token.stat().st_mode & 0o777 == 0o600
    state.token.unlink()
    assert token_of(state) != token


def test_a_page_that_cannot_be_made_says_nothing_of_why(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("/srv/fed/secret")

    with page_served(0, [], TOKEN, broken) as port:
        status, _, body = ask(port)
    assert status == 500
    assert "/srv" not in body


# What is on it.


def test_every_value_is_escaped() -> None:
    class Tags(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag != "img"
            assert not any(name.startswith("on") for name, _ in attrs)

    text = '"><img src=x onerror="alert(1)">'
    page = page_of(hostile(text))
    Tags().feed(page)
    assert "<img" not in page
    assert page.count("&lt;img") > 20, "it is shown, as text"


def test_nothing_of_a_site_is_on_it(made: tuple[Trial, PlayedEngine, Look, list[float]], port: int) -> None:
    """No row, statistic, accuracy, path or secret: of every answer the bytes are searched."""
    trial, _, look, _ = made
    answers = {path: ask(port, path)[2].encode() for path in PATHS}
    for site in trial.sites:
        assert holds(answers, traces(site, trial.agreement)) == []
    secrets = {
        str(path): content
        for path in (look.paths.state.secret, look.paths.key, *trial.folder.glob("site-*/key"))
        for content in (path.read_bytes()[40:80] or path.read_bytes(), path.read_bytes().hex().encode()[:60])
    }
    assert holds(answers, {**secrets, "token": TOKEN.encode()}) == []
    assert set(json.loads(answers["/status.json"])["sites"][0]) == {
        *("site", "state", "since", "step", "code", "text", "answered"),
    }


# From the command.


def test_serve_opens_it_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    trial = Trial.make(tmp_path)
    serving.write_endpoint(trial.folder, "127.0.0.1:8443")
    seen: list[int] = []

    def serve(*_: object, **__: object) -> None:
        address = re.search(r"http://127.0.0.1:(\d+)/", capsys.readouterr().err)
        assert address is not None
        seen.append(ask(int(address[1]), Authorization=f"Bearer {token_of(ServerPaths(trial.folder).state)}")[0])

    monkeypatch.setattr(serving, "serve", serve)
    background.serve(str(trial.folder), None, None, True, 0, [])
    assert seen == [200]


def test_a_taken_port_and_a_bad_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {number} .*--status-port"), page_served(number, [], "", dict):
            pass
    with pytest.raises(FedHiPError, match="host is"), page_served(0, ["http://x"], "", dict):
        pass
