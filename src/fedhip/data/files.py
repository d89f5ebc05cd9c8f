"""Files that are either complete or not there at all, and where downloads and features are kept."""

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
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


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def readable(name: str) -> str:
    r"""A file's name as text that can be written anywhere: a byte that is not UTF-8 is shown as \xNN.

    Python holds such bytes as lone surrogates, which no encoding, font or JSON reader accepts.
    """
    return re.sub("[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", name)


def json_text(value: Any, indent: int | None = None) -> str:
    r"""JSON that people can read and UTF-8 can hold: bytes of a name that are not UTF-8 stay \udcNN."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def default_cache() -> Path:
    """$FEDHIP_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("FEDHIP_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedhip"
