"""`fedhip cache`, and what `forget` leaves of a client's features."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedhip.cli.main import main
from tests.utils.test_private_files import images  # noqa: F401


@pytest.fixture
def run(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    arguments = ["run", "--data", str(images), "--partition", "natural", "--head", "ridge"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def kept(tmp_path: Path) -> int:
    return sum(1 for _ in (tmp_path / "cache" / "features").iterdir())


def test_forgetting_a_client_forgets_its_features(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kept(tmp_path) == 1
    run = run.rename(tmp_path / "moved")  # a run is known by its ledger, not by its place
    capsys.readouterr()
    assert main(["forget", str(run), "--client", "south"]) == 0
    said = capsys.readouterr().out
    assert "1 sets of features that the run used were removed from the cache" in said
    assert f"left: the rows themselves ({tmp_path / 'images.npz'})" in said
    assert kept(tmp_path) == 0


def test_list_and_clear(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["cache", "list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["features"]
    assert (entry["rows"], entry["backbone"], entry["runs"]) == (24, "fedhip-vit", [str(run)])
    assert entry["bytes"] > 24 * 1280 * 4
    assert main(["cache", "list"]) == 0
    assert "1 sets of features" in capsys.readouterr().out
    assert main(["cache", "clear", "--older-than", "1"]) == 0
    assert kept(tmp_path) == 1
    other = tmp_path / "cache" / "features" / "of-an-older-version"
    other.mkdir(mode=0o700)
    assert main(["cache", "clear", "--run", str(run)]) == 0
    assert [path.name for path in other.parent.iterdir()] == [other.name]
    assert main(["cache", "list"]) == 0
    assert main(["cache", "clear"]) == 0
    assert kept(tmp_path) == 0


def test_a_cache_of_somebody_else_is_refused(
    run: Path,
    images: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    owner = (tmp_path / "cache").stat().st_uid
    if owner == 0:  # what the superuser owns is nobody's trap
        os.chown(tmp_path / "cache", 54321, 54321)
    for words in (["cache", "list"], ["run", "--data", str(images), "--partition", "natural"]):
        assert main([*words]) == 3
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "cache" in line]
        assert "belongs to somebody else" in line
        assert "set FEDHIP_CACHE" in line


def test_a_cache_that_an_older_version_left_open_is_closed(run: Path, images: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "cache" / "features"
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    out = str(tmp_path / "again")
    assert main(["run", "--data", str(images), "--partition", "natural", "--head", "ridge", "--out", out]) == 0
    assert not any(path.stat().st_mode & 0o077 for path in (folder, *folder.rglob("*")))
