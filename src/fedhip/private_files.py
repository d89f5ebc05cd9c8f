"""Files with secrets: readable by their owner alone from the moment they exist, whole or not at all.

Everything that tells of somebody's rows is written here: statistics, models, features, keys, the state of a site, the
pages that show rows. Nothing depends on the umask.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedhip.core.errors import FedHiPError

_FILE, _FOLDER = 0o600, 0o700
_OTHERS = 0o077


class OpenPlaceError(FedHiPError):
    """A place for secrets belongs to somebody else, or others can look into it."""


@contextmanager
def private_file(path: Path, *, new: bool = False) -> Iterator[BinaryIO]:
    """A file to write to; it takes its place, flushed, when the block succeeds, and leaves nothing when it does not.

    With `new` a file that is there already is not replaced: FileExistsError.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), _FILE)  # a umask may have taken rights of the owner
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
    # Else a loss of power could bring the file before back, after what it says was done.
    _sync_folder(path.parent)


def write_private(path: Path, data: bytes | memoryview, *, new: bool = False) -> None:
    """Write a file that its owner alone can read, in place of the one there; with `new`, only where there is none."""
    with private_file(path, new=new) as file:
        file.write(data)


def append_private(path: Path) -> BinaryIO:
    """A file to be added to, made for its owner alone; one that others can read is closed to them first."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)
    os.fchmod(descriptor, _FILE)
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


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
