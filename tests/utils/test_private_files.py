"""Nobody else can read a file with secrets, not for a moment: whole runs are watched as they create files."""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.cli.main import main
from fedhip.data import load_dataset
from fedhip.errors import OpenPlaceError
from fedhip.utils.files import append_private, private_folder, write_private

#: What tells nothing of rows: an empty file to see if one can write, and who has which row, in a folder that is closed.
_NO_SECRETS = {"writable", "partition"}


class Watch:
    """Every file that is created, with the rights it had in that moment, under a umask that takes none away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: dict[Path, int] = {}
        self._open, self._os_open, self._mkdir = io.open, os.open, os.mkdir
        monkeypatch.setattr(builtins, "open", self.open)
        monkeypatch.setattr(io, "open", self.open)
        monkeypatch.setattr(os, "open", self.os_open)

    def open(self, file: Any, *args: Any, **options: Any) -> Any:
        new = not isinstance(file, int) and not os.path.lexists(file)
        opened = self._open(file, *args, **options)
        if new:
            self._look(file, opened.fileno())
        return opened

    def os_open(self, path: Any, *args: Any, **options: Any) -> int:
        new = not os.path.lexists(path)
        descriptor = self._os_open(path, *args, **options)
        if new:
            self._look(path, descriptor)
        return descriptor

    def _look(self, path: Any, descriptor: int) -> None:
        self.made[Path(os.fsdecode(path)).absolute()] = stat.S_IMODE(os.fstat(descriptor).st_mode)

    def require_private(self, *folders: Path, least: int) -> None:
        made = {path: mode for path, mode in self.made.items() if any(map(path.is_relative_to, folders))}
        told = {path: mode for path, mode in made.items() if path.name.lstrip(".").split("-")[0] not in _NO_SECRETS}
        assert len(told) >= least
        assert {path: oct(mode) for path, mode in told.items() if mode & 0o077} == {}
        for folder in folders:
            for path in folder.rglob("*"):
                if path.is_file() and path.stem not in _NO_SECRETS:
                    assert not path.stat().st_mode & 0o077, path


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Watch]:
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        yield Watch(monkeypatch)
    finally:
        os.umask(before)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    data = load_dataset("sketches")
    rows = np.concatenate([np.flatnonzero(data.labels == label)[:8] for label in range(3)])
    path = tmp_path / "images.npz"
    names = np.array(data.class_names)[data.labels[rows]]
    np.savez(path, images=np.asarray(data.images)[rows], labels=names, clients=np.tile(["north", "south"], 12))
    return path


def test_a_run_its_cache_and_what_follows(watch: Watch, images: Path, tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "pages" / "audit.html"
    assert main(["run", "--data", str(images), "--partition", "natural", "--head", "ridge", "--out", str(run)]) == 0
    assert run.stat().st_mode & 0o777 == 0o700
    (features,) = (tmp_path / "cache" / "features").iterdir()
    assert features.stat().st_mode & 0o777 == features.parent.stat().st_mode & 0o777 == 0o700
    assert main(["audit", "--data", str(images), "--client", "north", "--seconds", "1", str(page)]) == 0
    assert main(["report", str(run), "--html", str(tmp_path / "pages" / "report.html")]) == 0
    assert main(["forget", str(run), "--client", "south"]) == 0
    watch.require_private(run, page.parent, tmp_path / "cache", least=4)
    watch.require_private(*[p.parent for p in watch.made if p.parent.name.startswith(".run-")], least=5)


def test_a_whole_folder_is_closed_and_anothers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o700]
    folder.chmod(0o750)
    with pytest.raises(OpenPlaceError, match=r"mode 0750\), and secrets lie there; run: chmod 700"):
        private_folder(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(OpenPlaceError, match="belongs to somebody else"):
        private_folder(folder)


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_no_umask_changes_anything(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_private(tmp_path / "file", b"x")
        append_private(tmp_path / "log").close()
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "log")} == {0o600}


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    write_private(tmp_path / "file", b"secret")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "file").is_symlink()
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        append_private(tmp_path / "log")
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "victim", b"secret", new=True)
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "file", "log"}
