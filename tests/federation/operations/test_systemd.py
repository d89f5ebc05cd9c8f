"""A unit of systemd: systemd itself finds nothing wrong with it, and it runs the command that printed it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedhip.cli.main import parse
from fedhip.federation.errors import SetupError
from fedhip.federation.operations.systemd import unit
from tests.cli.samples import done

SITES = ("--site", "a", "--site", "b", "--site", "c")
analyze = shutil.which("systemd-analyze")


@pytest.fixture
def fed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    done("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, "--classes", "x,y", "--width", "4")
    capsys.readouterr()
    return tmp_path / "fed"


def service(text: str) -> dict[str, list[str]]:
    """Every key of [Service] and its values: systemd takes several of one key."""
    found: dict[str, list[str]] = {}
    for line in text.partition("[Service]\n")[2].partition("\n\n")[0].splitlines():
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value)
    return found


def words_of(text: str) -> list[str]:
    """The command after python -m fedhip."""
    (start,) = service(text)["ExecStart"]
    words = [word[:-1] for word in start.split(' "')]
    assert words[1:3] == ["-m", "fedhip"]
    return words[3:]


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    done("federation", *words, "--print-systemd")
    return capsys.readouterr().out


def test_the_server_is_started_by_the_words_that_were_typed(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ("--status-port", "9090", "--status-host", "page.example.org", "--log-format", "json")
    text = printed(capsys, "serve", fed, "--bind", "::", "--port", "9443", "--no-proxy", *page)
    args = parse(words_of(text))
    assert args.log_format == "json"
    assert (args.status_port, args.status_host) == (9090, ["page.example.org"])
    assert (args.directory, args.bind, args.port, args.proxy) == (fed, "::", 9443, False)
    assert not args.print_systemd
    assert f'"{fed}"' in service(text)["ReadWritePaths"][0].split()
    assert service(text)["User"] == [fed.owner()]


def test_a_site_is_started_by_the_words_that_were_typed(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = fed / "rows.csv", fed / "own results"
    text = printed(capsys, "site", fed / "site-a", "--data", rows, "--out", out, "--device", "cuda")
    args = parse(words_of(text))
    assert (args.folder, args.data, args.out, args.name, args.device) == (fed / "site-a", rows, out, "a", "cuda")
    assert f'"{out}"' in service(text)["ReadWritePaths"][0], "systemd starts nothing whose folder is not there"
    assert out.is_dir()
    assert service(text)["PrivateDevices"] == ["no"]
    text = printed(capsys, "site", fed / "site-a", "--data", rows, "--device", "cpu")
    assert service(text)["PrivateDevices"] == ["yes"]


@pytest.mark.skipif(analyze is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong(fed: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed(capsys, "serve", fed)
    path = tmp_path / "fedhip-server.service"
    path.write_text(text, encoding="utf-8")
    assert analyze is not None
    done_by = subprocess.run([analyze, "verify", str(path)], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done_by.returncode, done_by.stderr) == (0, "")


def test_paths_that_mean_something_to_systemd() -> None:
    """% is a specifier in every setting, $ a variable in commands, and quotes end words."""
    folder = Path('/srv/50% "own" $HOME')
    text = unit("t 50%", ["serve", str(folder)], owner="me", writes=[folder], state=Path("/srv/state"))
    assert r'"serve" "/srv/50%% \"own\" $$HOME"' in text
    assert r'ReadWritePaths="/srv/50%% \"own\" $HOME" "/srv/state"' in text
    assert "Description=t 50%%" in text
    with pytest.raises(SetupError, match="line breaks"):
        unit("t", ["serve", "/srv/a\nExecStartPre=/bin/true"], owner="me", writes=[], state=Path("/srv/state"))


@pytest.mark.parametrize(("folder", "private"), [("/srv/fed", "yes"), ("/tmp/a", "no"), ("/var/tmp/a", "no")])  # noqa: S108
def test_a_folder_in_tmp_is_seen(folder: str, private: str) -> None:
    text = unit("t", ["serve", folder], owner="me", writes=[Path(folder)], state=Path("/srv/state"))
    assert service(text)["PrivateTmp"] == [private]
