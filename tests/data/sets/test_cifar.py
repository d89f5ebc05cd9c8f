import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.data import load_dataset
from fedhip.data.sets import cifar
from fedhip.errors import DataMissingError, FileError, InputError
from tests.http_server import Site

ROWS = {"train": 400, "test": 200}
RANDOM = np.random.default_rng(0)
PIXELS = {part: RANDOM.integers(0, 256, (rows, 3, 32, 32), dtype=np.uint8) for part, rows in ROWS.items()}
LABELS = {part: (np.arange(rows) % 100).tolist() for part, rows in ROWS.items()}
NAMES = [f"class {i:02}" for i in range(100)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "ROWS", ROWS)


def write_official(folder: Path, key: Any = str.encode, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    for part in ROWS:
        content = {
            key("data"): PIXELS[part].reshape(-1, 3072),
            key("fine_labels"): LABELS[part],
            key("filenames"): [b"a.png"] * ROWS[part],
        }
        if part in changes:
            content[key(changes[part][0])] = changes[part][1]
        (folder / part).write_bytes(pickle.dumps(content, 2))
    names = changes.get("meta", [key(name) for name in NAMES])
    (folder / "meta").write_bytes(pickle.dumps({key("fine_label_names"): names}, 2))
    return folder


def nested(value: Any, depth: int) -> Any:
    """A list that holds the one below it twice: 2^depth leaves, if walked as a tree."""
    for _ in range(depth):
        value = [value, value]
    return value


def archive_of(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, "cifar-100-python")
    return buffer.getvalue()


@pytest.mark.parametrize("key", [str.encode, str])
def test_pooled_in_memory_as_uint8(tmp_path: Path, key: Any) -> None:
    write_official(tmp_path / "cifar-100-python", key)
    data = load_dataset("cifar100", tmp_path)
    assert isinstance(data.images, np.ndarray)
    assert data.images.shape == (600, 32, 32, 3)
    assert data.images.dtype == np.uint8
    for row, (part, source) in {0: ("train", 0), 399: ("train", 399), 400: ("test", 0)}.items():
        np.testing.assert_array_equal(data.images[row, :, :, 1], PIXELS[part][source, 1])
    assert data.labels.tolist() == LABELS["train"] + LABELS["test"]
    assert data.class_names == tuple(NAMES)
    assert data.split is None


def test_official_split_on_request(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "cifar-100-python")
    data = load_dataset("cifar100", folder, official_split=True)  # the folder itself is a data folder too
    assert data.split is not None
    assert data.split.tolist() == [0] * 400 + [1] * 200


def test_other_sets_have_no_official_split() -> None:
    with pytest.raises(InputError, match=r"sketches has no official split; .*--official-split"):
        load_dataset("sketches", official_split=True)


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_missing_file_is_named_with_its_source(tmp_path: Path, name: str) -> None:
    folder = write_official(tmp_path / "cifar-100-python")
    (folder / name).unlink()
    with pytest.raises(DataMissingError, match=rf"cifar-100-python/{name} is not there; download https://www\.cs"):
        load_dataset("cifar100", tmp_path)


def test_half_copied_file_is_named(tmp_path: Path) -> None:
    path = write_official(tmp_path / "cifar-100-python") / "test"
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(FileError, match="test is truncated"):
        load_dataset("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": ("data", PIXELS["train"][:7].reshape(7, 3072))},
            r"train holds uint8 data of shape \(7, 3072\)",
        ),
        ({"train": ("data", PIXELS["train"].reshape(-1, 3072) / 255)}, "train holds float64"),
        ({"test": ("fine_labels", [0])}, "test holds .* and 1 labels"),
        ({"test": ("fine_labels", [100] * 200)}, "labels from 0 to 100"),
        ({"test": ("fine_labels", [[0], [1, 2]] * 100)}, "test: 'fine_labels' are not whole numbers"),
        ({"test": ("fine_labels", ["cat"] * 200)}, "test: 'fine_labels' are not whole numbers"),
        ({"test": ("fine_labels", [0.5] * 200)}, "test: 'fine_labels' are not whole numbers"),
        ({"test": ("fine_labels", [2**80] * 200)}, "test: 'fine_labels' are not whole numbers"),
        ({"test": ("fine_labels", nested([], 60))}, "test: 'fine_labels' are not whole numbers"),
        ({"test": ("fine_labels", 7)}, "test: 'fine_labels' are not whole numbers"),
        ({"test": ("fine_labels", np.zeros((200, 2), int))}, "and 400 labels"),
        ({"train": ("data", nested([], 60))}, "train holds no array as 'data'"),
        ({"meta": [b"only one"]}, "names 1 classes"),
        ({"meta": [b"caf\xe9"] * 100}, "meta: 'fine_label_names' are not UTF-8"),
        ({"meta": list(range(100))}, "meta: 'fine_label_names' are not a list of strings"),
        ({"meta": 100}, "meta: 'fine_label_names' are not a list of strings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_content_that_is_not_cifar100(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_official(tmp_path / "cifar-100-python", **changes)
    with pytest.raises(FileError, match=message):
        load_dataset("cifar100", tmp_path)


def test_field_that_is_not_there(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "cifar-100-python")
    (folder / "train").write_bytes(pickle.dumps({b"data": 1}))
    with pytest.raises(FileError, match=r"train holds|no field 'fine_labels'"):
        load_dataset("cifar100", tmp_path)


def test_pickle_with_code_is_refused(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "cifar-100-python")
    (folder / "meta").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(FileError, match=r"meta was not read: it asks for os\.system"):
        load_dataset("cifar100", tmp_path)


@pytest.fixture
def published(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    site.content = archive_of(write_official(tmp_path / "source"))
    monkeypatch.setattr(cifar, "ADDRESS", site.address)
    monkeypatch.setattr(cifar, "MD5", hashlib.md5(site.content).hexdigest())  # noqa: S324
    return site


def test_downloaded_once_and_kept(tmp_path: Path, published: Site) -> None:
    first = load_dataset("cifar100", cache_dir=tmp_path / "cache")
    second = load_dataset("cifar100", cache_dir=tmp_path / "cache")
    assert first.fingerprint == second.fingerprint == load_dataset("cifar100", tmp_path / "source").fingerprint
    assert len(published.asked) == 1
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["cifar-100-python"]


def test_half_download_continues_next_time(tmp_path: Path, published: Site) -> None:
    published.cuts = [10_000] * 3
    with pytest.raises(OSError, match="broke off after 30,000"):
        load_dataset("cifar100", cache_dir=tmp_path / "cache")
    assert len(load_dataset("cifar100", cache_dir=tmp_path / "cache")) == 600
    assert published.asked == [None, "bytes=10000-", "bytes=20000-", "bytes=30000-"]


def test_wrong_checksum_is_not_unpacked(tmp_path: Path, published: Site) -> None:
    published.content += b"!"
    with pytest.raises(FileError, match="the known md5 is"):
        load_dataset("cifar100", cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_folder_from_the_environment(tmp_path: Path, published: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "mine"))
    load_dataset("cifar100")
    assert (tmp_path / "mine" / "cifar-100-python" / "meta").is_file()


def test_unpacking_writes_three_files_and_nothing_else(tmp_path: Path) -> None:
    source = write_official(tmp_path / "source")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(source, "cifar-100-python")
        tar.add(source / "meta", "../escaped")
        tar.add(source / "meta", "/tmp/fedhip-escaped")  # noqa: S108
    cifar.unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["meta", "test", "train"]
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/fedhip-escaped").exists()  # noqa: S108


def test_link_in_the_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name in ("train", "test", "meta"):
            link = tarfile.TarInfo(f"cifar-100-python/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tar.addfile(link)
    with pytest.raises(FileError, match="'cifar-100-python/train' is a link"):
        cifar.unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"not an archive", None])
def test_archive_that_cannot_be_unpacked(tmp_path: Path, content: bytes | None) -> None:
    whole = archive_of(write_official(tmp_path / "source"))
    (tmp_path / "a.tar.gz").write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(FileError, match=r"a\.tar\.gz cannot be unpacked"):
        cifar.unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "source"]
