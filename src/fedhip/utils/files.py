"""Files written whole and flushed, or not at all: for everybody, or for their owner alone.

Everything that tells of somebody's rows is private: statistics, models, features, keys, the state of a site, the pages
that show rows. It is readable by its owner alone from the moment it exists, whatever the umask. Windows knows no such
rights; there, folders protect what lies in them as the user's own folders are protected.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedhip.errors import FileError, OpenPlaceError

_FILE, _FOLDER = 0o600, 0o700
_OTHERS = 0o077
#: Windows has the last of these alone; without it lines would end in two characters there.
_HOW = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))
#: Whether the system knows owners and what they allow others.
RIGHTS = hasattr(os, "geteuid")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; the file takes its place, flushed, when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(8)}{path.suffix}")
    # Some writers (mkstemp, safetensors) make private files; the result has the permissions of any new file.
    temporary.touch(exist_ok=False)
    mode = temporary.stat().st_mode
    temporary.unlink()
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file that everybody can read, as UTF-8 with lines that end as everywhere."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def private_file(path: Path, *, new: bool = False) -> Iterator[BinaryIO]:
    """A file to write to; it takes its place, flushed, when the block succeeds, and leaves nothing when it does not.

    With `new` a file that is there already is not replaced: FileExistsError.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _HOW, _FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _close_to_others(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(temporary, path)
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_private(path: Path, data: bytes | memoryview, *, new: bool = False) -> None:
    """Write a file that its owner alone can read, in place of the one there; with `new`, only where there is none."""
    with private_file(path, new=new) as file:
        file.write(data)


def append_private(path: Path) -> BinaryIO:
    """A file to be added to, made for its owner alone; one that others can read is closed to them first."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _HOW, _FILE)
    _close_to_others(descriptor)
    return os.fdopen(descriptor, "ab")


def private_folder(path: Path) -> Path:
    """The folder, for its owner alone: made, and those above it that are missing; or refused, if it is another's."""
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            try:
                each.mkdir(mode=_FOLDER)
                each.chmod(_FOLDER)
            except FileExistsError:
                if not each.is_dir():  # else somebody was faster
                    raise
    require_own(path)
    return path


def require_own(path: Path) -> None:
    """Refuse a folder that belongs to somebody else, or into which others can look."""
    if not RIGHTS:
        return
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise OpenPlaceError(
            f"the folder {path} belongs to somebody else (user {found.st_uid}), who could read what is written there; "
            "choose a folder of your own"
        )
    if found.st_mode & _OTHERS:
        raise OpenPlaceError(
            f"others can look into the folder {path} (mode {stat.S_IMODE(found.st_mode):04o}), and secrets lie there; "
            f"run: chmod 700 {path}"
        )


def require_folder(folder: Path) -> None:
    """An error unless files can be written to the folder, which need not exist yet."""
    standing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not standing.is_dir():
        raise FileError(f"{standing} is a file, not a folder; choose another place for the output")
    if not os.access(standing, os.W_OK | os.X_OK):
        raise FileError(f"{standing} is a folder that cannot be written to; choose another place for the output")


def sync_folder(path: Path) -> None:
    """Else a loss of power could bring the file before back, after what it says was done."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def default_cache() -> Path:
    """$FEDHIP_CACHE, or the user's cache folder: where downloads and features are kept."""
    if chosen := os.environ.get("FEDHIP_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedhip"


def _close_to_others(descriptor: int) -> None:
    """A umask may have taken rights of the owner, and a file that was there may be open to others."""
    if RIGHTS:
        os.fchmod(descriptor, _FILE)
