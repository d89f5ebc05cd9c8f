"""A file from the network: resumed where it broke off, and put in place only when it is known to be whole."""

import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from fedhip.errors import DownloadError, FileError
from fedhip.utils.files import sync_folder
from fedhip.utils.progress import ReportProgress

_log = logging.getLogger(__name__)
_BLOCK = 1 << 20
_FINAL = frozenset({401, 403, 404, 410})  # answers that asking again does not change


def download(
    address: str,
    path: Path,
    *,
    md5: str | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
    report: ReportProgress | None = None,
    remedy: str | None = None,
) -> Path:
    """Fetch `address` to `path` unless a file is there; a broken connection continues where it stopped.

    What arrives waits in `path` + '.part', and the next call goes on from there. A beginning is continued only
    if the server's tag proves that it is of the same file, or if `md5` will judge the whole. A file in pieces
    with the wrong checksum is fetched once more from the start, because its beginning may be of another day;
    one from a single answer is thrown away and reported. `report` gets bytes, where the server announces
    a size. `remedy` is what the user can do instead; by default, put the file in place by hand.
    """
    if path.exists():
        return path
    remedy = remedy or f"put the file at {path} by hand"
    if not address.startswith(("http://", "https://")):
        raise DownloadError(f"{address} is not an http or https address, and only those are downloaded; {remedy}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    transfer = _Transfer(address, part, md5 is not None, timeout, report)
    in_pieces = transfer.complete(attempts, remedy)
    if md5 is not None:
        found = _md5(part)
        if found != md5 and in_pieces:
            transfer.discard()
            transfer.complete(attempts, remedy)
            found = _md5(part)
        if found != md5:
            size = part.stat().st_size
            transfer.discard()
            raise FileError(
                f"{address} gave {size:,} bytes with md5 {found}, but the known md5 is {md5}; "
                f"it was thrown away. Try again, or {remedy}"
            )
    part.replace(path)
    sync_folder(path.parent)
    transfer.tag.unlink(missing_ok=True)
    return path


@dataclass(frozen=True)
class _Transfer:
    """One address and what has arrived from it; `judged` if a checksum will be taken of the whole."""

    address: str
    part: Path
    judged: bool
    timeout: float
    report: ReportProgress | None

    @property
    def tag(self) -> Path:
        """Where the server's tag of what has arrived is kept."""
        return self.part.with_name(self.part.name + ".etag")

    def discard(self) -> None:
        """Forget what has arrived."""
        self.tag.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)

    def complete(self, attempts: int, remedy: str) -> bool:
        """Ask until everything is there; whether the last answer continued an earlier one."""
        problem, status = "no attempt was made", None
        for _ in range(attempts):
            try:
                return self.receive()
            except urllib.error.HTTPError as error:
                error.close()
                problem, status = f"the server answered {error.code} {error.reason}", error.code
                if error.code == 416 and self.part.exists():  # nothing follows: whole already, or of another file
                    if self.judged:
                        return True
                    self.discard()
                if error.code in _FINAL:
                    break
            except (OSError, http.client.HTTPException) as error:
                problem, status = str(error) or type(error).__name__, None
        kept = self.part.is_file() and (self.judged or self.tag.is_file())
        again = f"{self.part} keeps what arrived and the next try continues it" if kept else "try again"
        failure = DownloadError(f"{self.address} could not be downloaded: {problem}; {again}, or {remedy}")
        failure.status = status
        raise failure

    def receive(self) -> bool:
        """Append what is missing, or write everything anew if the server does not continue; whether it did."""
        have = self.part.stat().st_size if self.part.is_file() else 0
        tag = self.tag.read_text(encoding="utf-8") if self.tag.is_file() else ""
        start = have if tag or self.judged else 0
        request = urllib.request.Request(self.address)  # noqa: S310 (the scheme was checked)
        if start:
            request.add_header("Range", f"bytes={start}-")
            if tag:
                request.add_header("If-Range", tag)
        _log.info("downloading %s from byte %d", self.address, start)
        with urllib.request.urlopen(request, timeout=self.timeout) as response:  # noqa: S310
            continued: bool = response.status == 206
            done, total = start if continued else 0, _number(response.headers.get("Content-Length"))
            if continued:
                first, whole = _content_range(response)
                if not start or first != start:
                    self.discard()
                    raise ConnectionError(f"the server sent another range than byte {start} onwards")
                total = whole or (None if total is None else start + total)
            if total is None and not self.judged:
                raise ConnectionError("the server does not announce the file's size")
            with self.part.open("ab" if continued else "wb") as file:
                if not continued:  # only now, so that the tag is never of another beginning
                    self.keep_tag(response.headers.get("ETag", ""))
                while block := response.read(_BLOCK):
                    file.write(block)
                    done += len(block)
                    if self.report is not None and total is not None:
                        self.report(f"download {self.address}", done, total)
                file.flush()
                os.fsync(file.fileno())
        if total is not None and done != total:
            raise ConnectionError(f"it broke off after {done:,} of {total:,} bytes")
        return continued

    def keep_tag(self, tag: str) -> None:
        """Remember a tag that stands for exact bytes; a weak one does not."""
        if tag.startswith('"'):
            self.tag.write_text(tag, encoding="utf-8")
        else:
            self.tag.unlink(missing_ok=True)


def _content_range(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """First byte and size of the whole, from 'Content-Range: bytes START-END/TOTAL'."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    if unit != "bytes":
        return None, None
    return _number(span.partition("-")[0]), _number(span.partition("/")[2])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _md5(path: Path) -> str:
    # md5 is what was published; it guards against damage, not against an attacker.
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
