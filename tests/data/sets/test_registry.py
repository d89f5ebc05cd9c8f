from pathlib import Path

import numpy as np
import pytest

from fedhip.data import list_datasets, load_dataset
from fedhip.data.sets import registry
from fedhip.errors import DataMissingError, FileError, InputError

IMAGES = np.zeros((4, 3, 3), dtype=np.uint8)


def test_sketches_come_with_the_package() -> None:
    data = load_dataset("sketches")
    assert isinstance(data.images, np.ndarray)
    assert data.images.shape == (10_000, 28, 28, 1)
    assert np.bincount(data.labels).tolist() == [100] * 100
    assert len(set(data.class_names)) == 100
    assert list(data.class_names) == sorted(data.class_names, key=str.casefold)
    assert len({image.tobytes() for image in data.images}) == 10_000


def test_sketches_are_centred() -> None:
    images = np.load(registry.SKETCHES)["images"]
    for axis in (1, 2):
        ink = images.any(axis=axis)
        before, after = ink.argmax(axis=1), ink[:, ::-1].argmax(axis=1)
        assert np.abs(before - after).max() <= 1


def test_sketches_are_small_and_attributed() -> None:
    assert registry.SKETCHES.stat().st_size <= 3_000_000
    attribution = (registry.SKETCHES.parent / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for owed in ("Quick, Draw!", "Google", "Creative Commons Attribution 4.0"):
        assert owed in attribution


def test_names_are_listed() -> None:
    assert [info.name for info in list_datasets()] == [
        "sketches",
        "cifar100",
        "imagenet-r",
        "heart",
        "wrist",
        "schools",
        "districts",
    ]


def test_a_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sketches").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(load_dataset("sketches")) == 10_000
    with pytest.raises(ValueError, match="no image"):
        load_dataset("./sketches")


def test_unknown_name_suggests_the_near_one() -> None:
    with pytest.raises(InputError, match=r"'cifar-100' is neither .*did you mean 'cifar100'\?"):
        load_dataset("cifar-100")
    with pytest.raises(InputError, match=r"'zzz' is neither a data set \(sketches, cifar100, imagenet-r, heart, "):
        load_dataset("zzz")


def test_npz_of_images(tmp_path: Path) -> None:
    labels = np.array(["b", "a", "b", "a"])
    np.savez(tmp_path / "mine.npz", images=IMAGES, labels=labels, clients=[1, 1, 2, 2], split=[0, 0, 0, 1])
    data = load_dataset(tmp_path / "mine.npz")
    assert (data.name, data.class_names, data.labels.tolist()) == ("mine", ("a", "b"), [1, 0, 1, 0])
    assert data.clients is not None
    assert data.clients.tolist() == ["1", "1", "2", "2"]
    assert data.split is not None
    assert data.split.tolist() == [0, 0, 0, 1]


def test_class_that_never_occurs_is_kept(tmp_path: Path) -> None:
    """As in a feature file."""
    names = ["x", "never", "y"]
    np.savez(tmp_path / "mine.npz", images=IMAGES, labels=[0, 2, 0, 2], class_names=names)
    assert load_dataset(tmp_path / "mine.npz").class_names == ("x", "never", "y")
    np.savez(tmp_path / "mine.npz", images=IMAGES, labels=[0, 0, 0, 2], class_names=names)
    with pytest.raises(InputError, match=r"class 'y' of mine has 1 image; .*allow_single=True \(--allow-single"):
        load_dataset(tmp_path / "mine.npz")
    assert load_dataset(tmp_path / "mine.npz", allow_single=True).num_classes == 3


def test_name_given_as_a_path_is_told_apart() -> None:
    with pytest.raises(InputError, match=r"no folder or file 'cifar100'; .*--dataset cifar100"):
        load_dataset(Path("cifar100"))


def test_npz_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with pytest.raises(DataMissingError, match=r"mine\.npz is not there"):
        load_dataset(path)
    np.savez(path, features=IMAGES[0], labels=[0])
    with pytest.raises(InputError, match=r"mine\.npz has no array 'images'.*it holds features"):
        load_dataset(path)
    np.savez(path, images=IMAGES, labels=[0.5] * 4)
    with pytest.raises(InputError, match=r"mine\.npz: labels are float64"):
        load_dataset(path)
    np.savez(path, images=IMAGES / 1, labels=[0] * 4)
    with pytest.raises(InputError, match="float64"):
        load_dataset(path)
    path.write_bytes(b"PK half a file")
    with pytest.raises(FileError, match=r"mine\.npz cannot be read"):
        load_dataset(path)
