import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedhip.data.download import fetch
from fedhip.data.errors import ChecksumError, DownloadError

from .conftest import Site

CONTENT = np.random.default_rng(0).bytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()  # noqa: S324


@pytest.fixture
def path(tmp_path: Path, site: Site) -> Path:
    site.content = CONTENT
    return tmp_path / "cache" / "file.tar.gz"


def part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def test_whole_file(site: Site, path: Path) -> None:
    fetch(site.address, MD5, path)
    assert path.read_bytes() == CONTENT
    assert not part(path).exists()


def test_half_download_is_resumed(site: Site, path: Path) -> None:
    site.send = 1_000_000
    with pytest.raises(DownloadError, match=r"broke off after 1,000,000 of 3,000,000 bytes; .*part keeps what"):
        fetch(site.address, MD5, path)
    assert not path.exists()
    site.send = None
    fetch(site.address, MD5, path)
    assert site.asked == [None, "bytes=1000000-"]
    assert path.read_bytes() == CONTENT


def test_server_that_cannot_continue_starts_anew(site: Site, path: Path) -> None:
    path.parent.mkdir()
    part(path).write_bytes(CONTENT[:1000])
    site.ranges = False
    fetch(site.address, MD5, path)
    assert path.read_bytes() == CONTENT
    assert len(site.asked) == 1


def test_server_that_continues_elsewhere_is_not_believed(site: Site, path: Path) -> None:
    path.parent.mkdir()
    part(path).write_bytes(CONTENT[:1000])
    site.lies = True
    with pytest.raises(DownloadError, match="another range than byte 1000"):
        fetch(site.address, MD5, path)
    fetch(site.address, MD5, path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("stale", [b"another day's first bytes", CONTENT + b"longer", CONTENT[::-1]])
def test_stale_part_is_replaced(site: Site, path: Path, stale: bytes) -> None:
    path.parent.mkdir()
    part(path).write_bytes(stale)
    fetch(site.address, MD5, path)
    assert path.read_bytes() == CONTENT


def test_whole_part_needs_no_bytes(site: Site, path: Path) -> None:
    path.parent.mkdir()
    part(path).write_bytes(CONTENT)
    fetch(site.address, MD5, path)
    assert path.read_bytes() == CONTENT
    assert len(site.asked) == 1


def test_wrong_checksum_leaves_nothing_behind(site: Site, path: Path) -> None:
    site.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(ChecksumError, match=rf"3,000,000 bytes with md5 .*published md5 is {MD5}"):
        fetch(site.address, MD5, path)
    assert list(path.parent.iterdir()) == []


def test_error_of_the_server(site: Site, path: Path) -> None:
    site.status = 404
    with pytest.raises(DownloadError, match=r"answered 404 .* by hand"):
        fetch(site.address, MD5, path)


def test_no_network(path: Path) -> None:
    with pytest.raises(DownloadError, match=r"could not be downloaded .* put the file at .*file\.tar\.gz by hand"):
        fetch("http://127.0.0.1:9/file", MD5, path, timeout=2)


def test_only_http(path: Path) -> None:
    with pytest.raises(DownloadError, match="not an http or https address"):
        fetch("file:///etc/hostname", MD5, path)
