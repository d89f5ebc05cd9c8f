import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedhip.data import ImagePaths, image_files, is_image_name, load_dataset, make_partition
from fedhip.data.sets import folders
from fedhip.errors import CorruptImageError, DataMissingError, FedHiPWarning, InputError
from tests.waiting import PATIENCE


def draw(root: Path, *names: str, size: tuple[int, int] = (6, 5)) -> Path:
    for shade, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (shade, 0, 0)).save(root / name)
    return root


def test_class_folders_of_one_size_are_kept_in_memory(tmp_path: Path) -> None:
    draw(tmp_path / "pets", "dog/1.png", "cat/2.png", "dog/0.png", "cat/1.PNG")
    data = load_dataset(tmp_path / "pets")
    assert isinstance(data.images, np.ndarray)
    assert data.images[:, 0, 0, 0].tolist() == [3, 1, 2, 0]  # in the order of their paths
    assert data.images.shape == (4, 5, 6, 3)
    assert (data.name, data.class_names, data.labels.tolist()) == ("pets", ("cat", "dog"), [0, 0, 1, 1])
    assert data.clients is None


def test_client_folders(tmp_path: Path) -> None:
    draw(tmp_path, "siteB/x/0.png", "siteA/y/0.png", "siteA/x/0.png", "siteB/y/0.png")
    data = load_dataset(str(tmp_path))
    assert data.class_names == ("x", "y")
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.clients is not None
    assert data.clients.tolist() == ["siteA", "siteA", "siteB", "siteB"]


def test_images_of_many_sizes_stay_on_disk(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "a/1.jpg")
    draw(tmp_path, "b/0.png", "b/1.bmp", size=(9, 9))
    data = load_dataset(tmp_path)
    assert isinstance(data.images, ImagePaths)
    assert data.images.names == ("a/0.png", "a/1.jpg", "b/0.png", "b/1.bmp")
    assert data.read([0, 3], 4).shape == (2, 4, 4, 3)


def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path, "a/0.png", "a/1.png")
    monkeypatch.setattr(folders, "IN_MEMORY", 2 * 6 * 5 * 3 - 1)
    assert isinstance(load_dataset(tmp_path).images, ImagePaths)


def test_hidden_and_other_files_are_passed_over(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "a/1.png", "a/.hidden.png", ".cache/x/0.png", "__MACOSX/a/0.png", "a/__MACOSX/0.png")
    (tmp_path / "README.txt").touch()
    (tmp_path / "a" / "labels.csv").touch()
    assert len(load_dataset(tmp_path)) == 2


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    """In a process of its own, as it would wait forever."""
    draw(tmp_path, "a/0.png", "a/1.png")
    os.mkfifo(tmp_path / "a" / "z.png")
    code = "import sys; from fedhip.data import load_dataset; sys.exit(len(load_dataset(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=PATIENCE)  # noqa: S603
    assert done.returncode == 2


def test_links_to_folders_are_followed_and_end(tmp_path: Path) -> None:
    draw(tmp_path / "elsewhere", "0.png", "1.png")
    draw(tmp_path / "root", "a/0.png", "a/1.png")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "up").symlink_to(tmp_path / "root")
    (tmp_path / "root" / "self").symlink_to(".")
    data = load_dataset(tmp_path / "root")
    assert (data.class_names, len(data)) == (("a", "linked"), 4)


def test_links_between_folders_end(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "b/0.png")
    (tmp_path / "a" / "b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "a").symlink_to(tmp_path / "a")
    assert image_files(tmp_path) == ["a/0.png", "a/b/0.png", "b/0.png", "b/a/0.png"]


def test_link_that_leads_nowhere_is_not_lost_silently(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "a/1.png")
    (tmp_path / "a" / "2.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(CorruptImageError, match=r"a/2\.png cannot be decoded"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.png", True),
        ("x/y/a.JPEG", True),
        ("x/.a.png", False),
        (".x/a.png", False),
        ("__MACOSX/x/._a.png", False),
        ("x/__MACOSX/a.png", False),
        ("x/a.txt", False),
        ("x/", False),
        ("", False),
    ],
)
def test_names_of_images(name: str, expected: bool) -> None:
    assert is_image_name(name) is expected


def test_folder_names_that_are_not_utf_8(tmp_path: Path) -> None:
    for client, label in ((b"north", b"caf\xe9"), (b"s\xfcd", b"caf\xe9"), (b"s\xfcd", b"tea")):
        folder = tmp_path / os.fsdecode(client) / os.fsdecode(label)
        try:
            folder.mkdir(parents=True)
        except OSError:
            pytest.skip("this file system wants UTF-8")
        draw(folder, "0.png", "1.png", size=(len(label), 4))
    data = load_dataset(tmp_path)
    assert data.class_names == ("caf\\xe9", "tea")
    partition = make_partition(data.labels, "natural", clients=data.clients)
    assert partition.clients == ("north", "s\\xfcd")
    assert len(data.fingerprint) == len(partition.sha256) == 64
    assert data.read(range(6), 3).shape == (6, 3, 3, 3)


def test_corrupt_image_is_an_error_that_names_it(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "a/1.png", "a/2.png", "a/3.png")
    (tmp_path / "a" / "1.png").write_bytes(b"not an image")
    with pytest.raises(CorruptImageError, match=r"a/1\.png cannot be decoded"):
        load_dataset(tmp_path)
    (tmp_path / "a" / "2.png").write_bytes(b"")
    with pytest.raises(CorruptImageError, match=r"a/1\.png .*1 more files are corrupt too"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("last", [(6, 5), (7, 7)])
def test_corrupt_images_are_skipped_only_if_asked(tmp_path: Path, last: tuple[int, int]) -> None:
    draw(tmp_path, "a/0.png", "a/1.png", "b/2.png")
    draw(tmp_path, "b/3.png", size=last)
    for name in ("a/bad.png", "a/0bad.jpg", "b/bad.png"):
        (tmp_path / name).write_bytes(b"not an image")
    with pytest.warns(FedHiPWarning, match=r"left out 3 corrupt of 7 images .*a/0bad\.jpg"):
        data = load_dataset(tmp_path, skip_corrupt=True)
    assert data.skipped == ("a/0bad.jpg", "a/bad.png", "b/bad.png")
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert data.read([0, 1, 2], 5)[:, 2, 2, 0].tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::fedhip.errors.FedHiPWarning")
def test_class_that_loses_all_its_images(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "a/1.png", "b/0.png")
    (tmp_path / "b" / "0.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"class 'b' of .* has no image that can be decoded"):
        load_dataset(tmp_path, skip_corrupt=True, allow_single=True)
    for name in ("0.png", "1.png"):
        (tmp_path / "a" / name).write_bytes(b"")
    with pytest.raises(InputError, match="all 3 images are corrupt"):
        load_dataset(tmp_path, skip_corrupt=True)


def test_class_with_one_image_is_an_error_unless_allowed(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "a/1.png", "rare/0.png")
    with pytest.raises(InputError, match=r"class 'rare' of .* has 1 image; add .*allow_single=True"):
        load_dataset(tmp_path)
    assert len(load_dataset(tmp_path, allow_single=True)) == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "no image lies in any class folder"),
        (("0.png", "a/0.png"), r"0\.png lies outside any class folder"),
        (("a/0.png", "s/a/0.png"), r"a/0\.png and s/a/0\.png lie at depths \[1, 2\]"),
        (("s/t/a/0.png",), r"s/t/a/0\.png lie at depths \[3\]"),
    ],
)
def test_folders_of_another_layout(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_dataset(draw(tmp_path, *names))


def test_class_folder_without_images_is_named(tmp_path: Path) -> None:
    draw(tmp_path, "a/0.png", "a/1.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no image"):
        load_dataset(tmp_path)


def test_imagenet_r(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "IMAGENET_R_CLASSES", 2)
    monkeypatch.setattr(folders, "IMAGENET_R_IMAGES", 4)
    draw(tmp_path, *(f"imagenet-r/{wnid}/{i}.jpg" for wnid in ("n01443537", "n01484850") for i in range(2)))
    (tmp_path / "imagenet-r" / "README.txt").touch()
    for folder in (tmp_path, tmp_path / "imagenet-r"):
        data = load_dataset("imagenet-r", folder)
        assert (data.name, data.class_names) == ("imagenet-r", ("n01443537", "n01484850"))
    (tmp_path / "imagenet-r" / "n01443537" / "1.jpg").unlink()
    with pytest.raises(DataMissingError, match=r"3 images in 2 classes, not 4 in 2: .*download https"):
        load_dataset("imagenet-r", tmp_path)


def test_imagenet_r_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match=r"has no folders like n01443537; download"):
        load_dataset("imagenet-r", tmp_path)
    with pytest.raises(DataMissingError, match="has no folders"):
        load_dataset("imagenet-r", tmp_path / "nowhere")
    with pytest.raises(DataMissingError, match="needs the folder it lies in"):
        load_dataset("imagenet-r")
