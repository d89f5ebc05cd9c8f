"""The cache of features: a folder for each data set and backbone, for its owner alone, with a note of what it is of.

    features/KEY/entry.json            what the features are of, and which runs used them
    features/KEY/000000000-….npy       rows of them

Features are to be guarded like the data. In a federation they lie in the site's own state.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedhip.errors import OpenPlaceError
from fedhip.utils.files import RIGHTS, default_cache, private_folder, write_private

_NOTE = "entry.json"
_DAY = 86_400.0


@dataclass(frozen=True)
class CacheEntry:
    """Features of one data set by one backbone; `runs` are the folders of runs by the hash of their first entry."""

    path: Path
    source: str
    backbone: str
    rows: int | None
    runs: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.stat().st_size for file in self.path.iterdir())

    @property
    def age(self) -> float:
        """Days since features were written to it."""
        return (time.time() - max(file.stat().st_mtime for file in (self.path, *self.path.iterdir()))) / _DAY

    def remove(self) -> None:
        """Take it away."""
        shutil.rmtree(self.path)


def require_own_cache(root: Path) -> None:
    """Refuse a cache that belongs to somebody else, who could read features, or put others in their place."""
    if RIGHTS and root.is_dir() and (owner := root.stat().st_uid) not in (os.geteuid(), 0):
        raise OpenPlaceError(
            f"the cache {root} belongs to somebody else (user {owner}), who could read the features of your images; "
            "set FEDHIP_CACHE to a folder of your own"
        )


def features_folder(root: Path) -> Path:
    """The folder of all entries, for its owner alone; one that an earlier version left open is closed."""
    require_own_cache(root)
    folder = root / "features"
    if RIGHTS and folder.is_dir():
        found = folder.stat()
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o055 and not found.st_mode & 0o022:
            folder.chmod(0o700)
            for path in folder.rglob("*"):
                path.chmod(0o700 if path.is_dir() else 0o600)
    else:
        root.mkdir(parents=True, exist_ok=True)
    return private_folder(folder)


def begin(root: Path, key: str, source: str, backbone: str, rows: int) -> Path:
    """The folder of an entry, with its note."""
    path = private_folder(features_folder(root) / key)
    if not (path / _NOTE).is_file():
        _write_note(CacheEntry(path, source, backbone, rows, {}))
    return path


def note_run(kept: Iterable[Path], run: str, folder: Path) -> None:
    """Write down that a run used these entries."""
    for path in kept:
        if path.is_dir():
            entry = _read(path)
            entry.runs[run] = str(folder.absolute())
            _write_note(entry)


def entries(root: Path | None = None, *, run: str | None = None, older_than: float | None = None) -> list[CacheEntry]:
    """What the cache holds: all, those that a run used, those older than so many days."""
    root = default_cache() if root is None else root
    require_own_cache(root)
    folder = root / "features"
    found = [_read(path) for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    return [
        entry
        for entry in found
        if (run is None or run in entry.runs) and (older_than is None or entry.age > older_than)
    ]


def _read(path: Path) -> CacheEntry:
    """An entry; of one without a readable note, which an earlier version made, nobody knows what it is of."""
    try:
        note = json.loads((path / _NOTE).read_text(encoding="utf-8"))
        runs = {str(run): str(folder) for run, folder in note["runs"].items()}
        return CacheEntry(path, str(note["source"]), str(note["backbone"]), int(note["rows"]), runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return CacheEntry(path, "unknown", "unknown", None, {})


def _write_note(entry: CacheEntry) -> None:
    note = {"source": entry.source, "backbone": entry.backbone, "rows": entry.rows, "runs": entry.runs}
    write_private(entry.path / _NOTE, json.dumps(note, indent=1).encode())
