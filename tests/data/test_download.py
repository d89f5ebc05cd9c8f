"""Downloads from a server on this machine that can be told to misbehave."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedhip.data.download import download
from fedhip.errors import DownloadError, FileError
from tests.http_server import Site

CONTENT = np.random.default_rng(0).bytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()  # noqa: S324
TAG = '"one"'
# How a beginning is known to be of the same file: by the checksum of the whole, by the server's tag, or by both.
PROOFS = [(MD5, None), (None, TAG), (MD5, TAG)]
JUDGES = [MD5, None]


@pytest.fixture
def path(tmp_path: Path, site: Site) -> Path:
    site.content = CONTENT
    return tmp_path / "cache" / "file.tar.gz"


def part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def begin(path: Path, content: bytes) -> None:
    """Leave the beginning of an earlier download."""
    path.parent.mkdir()
    part(path).write_bytes(content)


@pytest.mark.parametrize("md5", JUDGES)
def test_whole_file_once(site: Site, path: Path, md5: str | None) -> None:
    site.tag = TAG
    seen: list[tuple[str, int, int]] = []
    assert download(site.address, path, md5=md5, report=lambda *p: seen.append(p)) == path
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (f"download {site.address}", len(CONTENT), len(CONTENT))
    assert list(path.parent.iterdir()) == [path]
    download(site.address, path, md5=md5)
    assert len(site.asked) == 1


@pytest.mark.parametrize(("md5", "tag"), PROOFS)
def test_broken_connection_continues_where_it_stopped(site: Site, path: Path, md5: str | None, tag: str | None) -> None:
    site.tag, site.cuts = tag, [300_000, 200_000]
    assert download(site.address, path, md5=md5).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=300000-", "bytes=500000-"]


@pytest.mark.parametrize(("md5", "tag"), PROOFS)
def test_next_call_continues_too_and_nothing_half_is_in_place(
    site: Site, path: Path, md5: str | None, tag: str | None
) -> None:
    site.tag, site.cuts = tag, [1_000_000]
    with pytest.raises(DownloadError, match=r"broke off after 1,000,000 of 3,000,000 bytes; .*part keeps what"):
        download(site.address, path, md5=md5, attempts=1)
    assert not path.exists()
    seen: list[tuple[str, int, int]] = []
    download(site.address, path, md5=md5, report=lambda *p: seen.append(p))
    assert site.asked == [None, "bytes=1000000-"]
    assert path.read_bytes() == CONTENT
    assert seen[0][1] > 1_000_000
    assert seen[-1] == (f"download {site.address}", len(CONTENT), len(CONTENT))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_beginning_that_nothing_proves_is_not_continued(site: Site, path: Path, tag: str | None) -> None:
    site.tag, site.cuts = tag, [1000]
    with pytest.raises(DownloadError, match=r"1,000 of 3,000,000 bytes; try again"):
        download(site.address, path, attempts=1)
    assert download(site.address, path).read_bytes() == CONTENT
    assert site.asked == [None, None]


def test_weak_tag_does_not_keep_a_checksum_from_judging(site: Site, path: Path) -> None:
    site.tag, site.cuts = 'W/"weak"', [1000]
    assert download(site.address, path, md5=MD5).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=1000-"]


def test_file_that_changed_is_fetched_anew(site: Site, path: Path) -> None:
    site.tag, site.cuts = TAG, [1000]
    with pytest.raises(DownloadError):
        download(site.address, path, attempts=1)
    site.content, site.tag = CONTENT[::-1], '"two"'
    assert download(site.address, path).read_bytes() == CONTENT[::-1]
    assert site.asked == [None, "bytes=1000-"]


def test_server_that_cannot_continue_starts_anew(site: Site, path: Path) -> None:
    begin(path, CONTENT[:1000])
    site.ranges = False
    download(site.address, path, md5=MD5)
    assert path.read_bytes() == CONTENT
    assert len(site.asked) == 1


def test_server_that_continues_elsewhere_is_not_believed(site: Site, path: Path) -> None:
    begin(path, CONTENT[:1000])
    site.lies = True
    with pytest.raises(DownloadError, match="another range than byte 1000"):
        download(site.address, path, md5=MD5, attempts=1)
    assert list(path.parent.iterdir()) == []
    part(path).write_bytes(CONTENT[:1000])
    assert download(site.address, path, md5=MD5).read_bytes() == CONTENT


def test_server_that_continues_by_pieces(site: Site, path: Path) -> None:
    site.tag, site.cuts, site.most = TAG, [1_000_000], 1_000_000
    assert download(site.address, path).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=1000000-", "bytes=2000000-"]


@pytest.mark.parametrize("stale", [b"another day's first bytes", CONTENT + b"longer", CONTENT[::-1]])
@pytest.mark.parametrize("md5", JUDGES)
def test_stale_beginning_is_replaced(site: Site, path: Path, stale: bytes, md5: str | None) -> None:
    begin(path, stale)
    assert download(site.address, path, md5=md5).read_bytes() == CONTENT


def test_beginning_in_pieces_is_fetched_once_more_and_no_more(site: Site, path: Path) -> None:
    begin(path, b"another day's first bytes")
    site.content = CONTENT[::-1]
    with pytest.raises(FileError, match="the known md5 is"):
        download(site.address, path, md5=MD5)
    assert site.asked == ["bytes=25-", None]
    assert list(path.parent.iterdir()) == []


def test_whole_beginning_needs_no_bytes(site: Site, path: Path) -> None:
    begin(path, CONTENT)
    assert download(site.address, path, md5=MD5).read_bytes() == CONTENT
    assert len(site.asked) == 1


def test_nothing_after_the_beginning_and_no_checksum_starts_anew(site: Site, path: Path) -> None:
    begin(path, CONTENT + b"longer")
    part(path).with_name(part(path).name + ".etag").write_text(TAG)
    site.tag = TAG
    assert download(site.address, path).read_bytes() == CONTENT
    assert site.asked == ["bytes=3000006-", None]


def test_wrong_checksum_leaves_nothing_behind(site: Site, path: Path) -> None:
    site.tag, site.content = TAG, CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(FileError, match=rf"3,000,000 bytes with md5 .*known md5 is {MD5}.* by hand"):
        download(site.address, path, md5=MD5)
    assert list(path.parent.iterdir()) == []
    assert len(site.asked) == 1


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, 3)])
@pytest.mark.parametrize("md5", JUDGES)
def test_error_of_the_server(site: Site, path: Path, status: int, requests: int, md5: str | None) -> None:
    site.status = status
    with pytest.raises(DownloadError, match=rf"file could not be .* answered {status} .* by hand") as caught:
        download(site.address, path, md5=md5)
    assert caught.value.status == status
    assert len(site.asked) == requests
    assert not path.exists()


def test_file_without_a_size_needs_a_checksum(site: Site, path: Path) -> None:
    site.sized = False
    with pytest.raises(DownloadError, match="does not announce the file's size"):
        download(site.address, path)
    assert not path.exists()
    assert download(site.address, path, md5=MD5).read_bytes() == CONTENT


def test_no_network(path: Path) -> None:
    with pytest.raises(DownloadError, match=r"could not be downloaded: .* put the file at .*file\.tar\.gz by hand"):
        download("http://127.0.0.1:9/file", path, md5=MD5, timeout=2)


def test_remedy_of_the_caller(path: Path) -> None:
    with pytest.raises(DownloadError, match=r"http://127\.0\.0\.1:9/ .*; try again, or ask the neighbours$") as caught:
        download("http://127.0.0.1:9/", path, attempts=1, remedy="ask the neighbours")
    assert caught.value.status is None


def test_only_http(path: Path) -> None:
    with pytest.raises(DownloadError, match="not an http or https address"):
        download("file:///etc/hostname", path, md5=MD5)
