"""`revoke` and `export-log`: who is let in no more, and a log whose every changed byte is noticed."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedhip.cli.main import main
from fedhip.federation.agreement.credentials import make_server_certificate
from fedhip.federation.errors import RoundError, SetupError
from fedhip.federation.operations import revocation, serving
from fedhip.federation.operations.event_export import export_log, verify_log
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.operations.supervisor import write_json
from fedhip.federation.server.event_log import EventLog
from fedhip.federation.status_codes import ServerCode
from fedhip.federation.transport.callers import Callers, NotPassedError
from tests.federation.proxy_peers import signed
from tests.federation.samples import ONE_SUM, Trial, sum_of

pytestmark = pytest.mark.usefixtures("sums_only")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    made = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    serving.write_endpoint(made.folder, "127.0.0.1:8443")
    return made


@pytest.fixture
def paths(trial: Trial) -> ServerPaths:
    return ServerPaths.open(trial.folder)


# Revoked.


class PlayedControl:
    """The engine: it numbers the keys that it is given."""

    def __init__(self) -> None:
        self.registered: list[str] = []

    def __call__(self, *_: object) -> PlayedControl:
        return self

    def __enter__(self) -> PlayedControl:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def register(self, keys: dict[str, bytes]) -> dict[int, str]:
        self.registered = list(keys)
        return {101 + "abcd".index(site): site for site in keys}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, paths: ServerPaths) -> Iterator[PlayedControl]:
    played = PlayedControl()
    monkeypatch.setattr(revocation, "Control", played)
    write_json(paths.state.ready, {"control_port": 1, "said": "", "pid": 0})
    yield played
    paths.state.ready.unlink()


def is_let_in(paths: ServerPaths, site: str) -> bool:
    head = [(name.lower().encode(), value.encode()) for name, value in signed(paths.path / f"site-{site}/key").items()]
    try:
        return Callers(paths.callers).check(head, datetime.datetime.now(datetime.UTC)) == site
    except NotPassedError as refused:
        return "not in the roster" not in refused.reason


def test_a_revoked_site_is_let_in_no_more_and_asked_nothing(
    trial: Trial, paths: ServerPaths, engine: PlayedControl
) -> None:
    revocation.announce(paths, revocation.keys_let_in(paths), 1)
    assert is_let_in(paths, "c")
    assert revocation.revoke(paths, "c") == ["a", "b", "d"]
    assert engine.registered == ["a", "b", "d"]
    assert [is_let_in(paths, site) for site in "abcd"] == [True, True, False, True]
    assert trial.run().total() == sum_of("abd", trial.agreement)
    assert trial.codes() == {"c": ServerCode.REVOKED}
    assert not any(node == trial.node("c") for node, _ in trial.grid.asked)
    assert any("revoked its key" in event["text"] for event in trial.events())


def test_a_site_is_revoked_once_and_by_its_name(paths: ServerPaths, engine: PlayedControl) -> None:
    revocation.revoke(paths, "c")
    assert revocation.revoke(paths, "c") == ["a", "b", "d"], "twice is once"
    with pytest.raises(SetupError, match="there is no site 'C' in the roster"):
        revocation.revoke(paths, "C")


def test_a_server_that_is_started_later_knows_it(trial: Trial, paths: ServerPaths) -> None:
    revocation.revoke(paths, "c")
    assert list(revocation.keys_let_in(paths)) == ["a", "b", "d"]
    (paths.path / "revoked.json").write_text("{")
    with pytest.raises(SetupError, match="nobody can say who is let in"):
        revocation.keys_let_in(paths)


def test_fewer_than_a_quorum_are_told(
    trial: Trial, paths: ServerPaths, engine: PlayedControl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "revoke", str(trial.folder), "c"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["federation", "revoke", str(trial.folder), "d"]) == 0
    assert "a round needs 3 sites" in capsys.readouterr().err
    with pytest.raises(RoundError, match=r"c: revoked, d: revoked"):
        trial.run()


# Exported.


@pytest.fixture
def log(paths: ServerPaths, tmp_path: Path) -> Path:
    events = EventLog(paths.progress)
    for place, site in enumerate("abc"):
        events.write("keys", f"site {site!r} answered, ünd {place}", site, "ok")
    with paths.progress.open("ab") as file:
        file.write(b'{"half')
    out = tmp_path / "log.jsonl"
    export_log(paths, out)
    return out


def test_a_log_is_verified_at_a_site(log: Path, trial: Trial, paths: ServerPaths) -> None:
    for folder in (trial.site_folder("a"), paths.path):
        assert verify_log(log, folder).lines == 3
    lines = log.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines[:-1]] == ["keys"] * 3
    with pytest.raises(SetupError, match="exists; give another file"):
        export_log(paths, log)
    make_server_certificate(paths.path)  # renewed: the log has the old certificate
    assert verify_log(log, trial.site_folder("a")).federation == "trial"


def test_every_changed_byte_is_noticed(log: Path, trial: Trial) -> None:
    whole = log.read_bytes()
    head = whole.rindex(b"\n", 0, -1) + 1
    places = [*range(0, head, 11), *range(head, whole.index(b'"certificate"'), 7), len(whole) - 20]
    for place in places:
        log.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SetupError, match=r"altered|no signed head|not signed|another federation"):
            verify_log(log, trial.site_folder("a"))


def test_lines_cannot_be_left_out_or_put_in(log: Path, trial: Trial) -> None:
    *lines, head = log.read_bytes().splitlines(keepends=True)
    for changed in (lines[1:], lines[:-1], [*lines, lines[0]], lines[::-1], []):
        log.write_bytes(b"".join([*changed, head]))
        with pytest.raises(SetupError, match="was altered"):
            verify_log(log, trial.site_folder("a"))
    log.write_bytes(b"".join(lines))
    with pytest.raises(SetupError, match="no signed head"):
        verify_log(log, trial.site_folder("a"))


def test_a_server_of_another_authority_signs_nothing_for_us(log: Path, trial: Trial, tmp_path: Path) -> None:
    """The same agreement, signed by somebody who has an authority of his own."""
    other = tmp_path / "other"
    shutil.copytree(trial.folder, other)
    for part in ("ca", "server"):
        shutil.rmtree(other / part)
    from fedhip.federation.agreement.credentials import make_authority

    make_authority(other, "trial")
    make_server_certificate(other)
    forged = tmp_path / "forged.jsonl"
    export_log(ServerPaths.open(other), forged)
    with pytest.raises(SetupError, match="not signed by the server"):
        verify_log(forged, trial.site_folder("a"))


def test_a_site_cannot_sign_for_the_server(log: Path, trial: Trial, paths: ServerPaths, tmp_path: Path) -> None:
    """A certificate of the server's with a signature of another key."""
    make_server_certificate(paths.path)
    later = tmp_path / "later.jsonl"
    export_log(paths, later)
    *lines, head = log.read_bytes().splitlines()
    swapped = json.loads(head) | {"signature": json.loads(later.read_bytes().splitlines()[-1])["signature"]}
    log.write_bytes(b"\n".join([*lines, json.dumps(swapped).encode()]) + b"\n")
    with pytest.raises(SetupError, match="not signed by the server"):
        verify_log(log, trial.site_folder("a"))


def test_from_the_command_line(log: Path, trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["federation", "export-log", str(trial.folder), str(out), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert main(["federation", "verify-log", str(out), str(trial.site_folder("b")), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["lines"], found["digest"]) == (3, written["digest"])
