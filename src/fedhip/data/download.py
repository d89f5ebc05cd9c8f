"""One file from the network, resumed where it broke off and used only if its checksum is as published."""

import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
from pathlib import Path

from fedhip.data.errors import ChecksumError, DownloadError

_log = logging.getLogger(__name__)
_BLOCK = 1 << 20


def fetch(address: str, md5: str, path: Path, timeout: float = 30.0) -> None:
    """Download to `path`. What arrives waits in `path` + '.part'; the next call goes on from there.

    A resumed file with the wrong checksum is fetched once more from the start, because its first part may be
    of another day; a whole one with the wrong checksum is thrown away and reported.
    """
    if not address.startswith(("http://", "https://")):
        raise DownloadError(f"{address} is not an http or https address")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    resumed = part.is_file() and part.stat().st_size > 0
    _receive(address, part, timeout)
    found = _md5(part)
    if found != md5 and resumed:
        part.unlink()
        _receive(address, part, timeout)
        found = _md5(part)
    if found != md5:
        size = part.stat().st_size
        part.unlink()
        raise ChecksumError(
            f"{address} gave {size:,} bytes with md5 {found}, but the published md5 is {md5}; it was "
            f"thrown away. Try again, or put the right file at {path} by hand"
        )
    part.replace(path)


def _receive(address: str, part: Path, timeout: float) -> None:
    """Append to `part` what is missing, or write it anew if the server cannot continue."""
    start = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(address)  # noqa: S310 (the scheme was checked)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        _log.info("downloading %s from byte %d", address, start)
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
            continued = response.status == 206 and _range_start(response) == start
            if response.status == 206 and not continued:
                raise DownloadError(f"{address} answered with another range than byte {start} onwards")
            length = response.headers.get("Content-Length")
            expected = (start if continued else 0) + int(length) if length else None
            with part.open("ab" if continued else "wb") as file:
                while block := response.read(_BLOCK):
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing after byte `start`: whole already, or of another file
            return
        raise DownloadError(f"{address} answered {error.code} {error.reason}; {_remedy(part)}") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, DownloadError):
            part.unlink()
            raise
        raise DownloadError(f"{address} could not be downloaded ({error}); {_remedy(part)}") from error
    size = part.stat().st_size
    if expected is not None and size < expected:
        raise DownloadError(f"{address} broke off after {size:,} of {expected:,} bytes; {_remedy(part)}")


def _range_start(response: http.client.HTTPResponse) -> int | None:
    """The first byte of a partial answer, from 'Content-Range: bytes START-END/TOTAL'."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    start = span.partition("-")[0]
    return int(start) if unit == "bytes" and start.isdigit() else None


def _remedy(part: Path) -> str:
    kept = f"{part} keeps what arrived and the next try continues it" if part.is_file() else "try again"
    return f"{kept}, or put the file at {part.with_suffix('')} by hand"


def _md5(path: Path) -> str:
    # md5 is what was published; it guards against damage, not against an attacker.
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
