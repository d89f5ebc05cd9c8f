"""Files that are whole or not there; private ones are in test_private_files.py."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedhip.errors import FedHiPError
from fedhip.utils.files import default_cache, require_folder, whole_file, write_text


def break_off(path: Path) -> None:
    with whole_file(path) as temporary:
        temporary.write_text("half")
        raise InterruptedError


def test_new_content_or_the_old(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "α\n")
    assert path.read_text(encoding="utf-8") == "α\n"
    with pytest.raises(InterruptedError):
        break_off(path)
    assert path.read_text(encoding="utf-8") == "α\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "file"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of this kind are POSIX's")
def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with whole_file(tmp_path / "a.safetensors") as temporary:
        save_file({"a": np.zeros(2)}, temporary)
        temporary.chmod(0o600)  # as some versions of the writer do
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_cache_folder_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDHIP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg" / "fedhip"
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "own"))
    assert default_cache() == tmp_path / "own"


def test_folders_that_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_folder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    np.save(tmp_path / "file.npy", 1)
    for folder in (tmp_path / "file.npy", tmp_path / "file.npy" / "deeper"):
        with pytest.raises(FedHiPError, match=r"file\.npy is a file, not a folder"):
            require_folder(folder)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(FedHiPError, match="cannot be written to"):
        require_folder(tmp_path / "a")
