"""Fetch a file once: resumable, checked against the announced size, moved into place when whole."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fedhip.features.errors import DownloadError

BLOCK = 1 << 20


def download(
    url: str,
    path: Path,
    *,
    attempts: int = 3,
    timeout: float = 30.0,
    report: Callable[[int, int], None] | None = None,
) -> Path:
    """Fetch `url` to `path` unless it is there; a broken connection continues where it stopped.

    What has arrived stays in `<name>.part`, so that the next call continues too. `report` gets (done, total).
    """
    if path.exists():
        return path
    if not url.startswith(("https://", "http://")):
        raise DownloadError(f"cannot fetch {url!r}: only http and https addresses are supported")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    problem = ""
    for _ in range(attempts):
        try:
            fetch(url, part, timeout, report)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # what we have is not a beginning of what they have
                part.unlink(missing_ok=True)
            problem = f"the server answered {error.code} {error.reason}"
            if error.code in (401, 403, 404, 410):
                break
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
        else:
            part.replace(path)
            tag_of(part).unlink(missing_ok=True)
            return path
    raise DownloadError(f"cannot fetch {url}: {problem}; fetch it by other means and give its path as weights")


def fetch(url: str, part: Path, timeout: float, report: Callable[[int, int], None] | None) -> None:
    """One attempt: append to `part`, or start again if the file has changed on the server."""
    have = part.stat().st_size if part.exists() else 0
    tag = tag_of(part).read_text() if have and tag_of(part).exists() else ""
    # without the server's tag nobody can say that the rest belongs to our beginning
    headers = {"Range": f"bytes={have}-", "If-Range": tag} if tag else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  (the scheme was checked)
    with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
        done = have if answer.status == 206 else 0
        announced = answer.headers.get("Content-Length")
        if announced is None:
            raise DownloadError(f"{url} does not announce its size")
        total = done + int(announced)
        tag_of(part).write_text(answer.headers.get("ETag", ""))
        with part.open("ab" if done else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                if report is not None:
                    report(done, total)
            file.flush()
            os.fsync(file.fileno())
    if done != total:
        raise ConnectionError(f"{done} of {total} bytes arrived")


def tag_of(part: Path) -> Path:
    """Where the server's tag of a partial file is kept."""
    return part.with_name(part.name + ".etag")
