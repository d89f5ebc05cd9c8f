from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedhip.data import Dataset, ImagePaths
from fedhip.errors import InputError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])
NAMES = ("a", "b", "c")


def test_rows_keep_their_pixels() -> None:
    data = Dataset("d", IMAGES, LABELS, NAMES)
    np.testing.assert_array_equal(data.read([4, 0], 12), IMAGES[[4, 0]])
    assert len(data) == 6
    assert data.num_classes == 3
    assert data.labels.dtype == np.int64


def test_grey_becomes_three_equal_channels() -> None:
    data = Dataset("d", IMAGES[..., 0], LABELS, NAMES)
    assert isinstance(data.images, np.ndarray)
    assert data.images.shape == (6, 12, 12, 1)
    for size in (12, 7):
        read = data.read(np.arange(6), size)
        assert read.shape == (6, size, size, 3)
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read[..., 0], read[..., 2])


def test_memory_and_disk_read_the_same(tmp_path: Path) -> None:
    for i, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    on_disk = Dataset("d", ImagePaths(tmp_path, tuple(f"{i}.png" for i in range(6))), LABELS, NAMES)
    in_memory = Dataset("d", IMAGES, LABELS, NAMES)
    for size in (12, 5, 31):
        np.testing.assert_array_equal(on_disk.read([5, 2], size), in_memory.read([5, 2], size))
    assert on_disk.read([], 5).shape == in_memory.read([], 5).shape == (0, 5, 5, 3)


def test_resizing_agrees_with_pillow() -> None:
    expected = Image.fromarray(IMAGES[3]).resize((6, 6), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(Dataset("d", IMAGES, LABELS, NAMES).read([3], 6)[0], expected)


def test_arrays_are_read_only_and_the_callers_are_not() -> None:
    images = IMAGES.copy()
    data = Dataset("d", images, LABELS, NAMES)
    assert isinstance(data.images, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        data.images[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        data.labels[0] = 0
    images[0] = 0


def test_fingerprint_depends_on_everything_but_the_name(tmp_path: Path) -> None:
    def fingerprint(name: str = "d", **changes: object) -> str:
        fields: dict[str, object] = {"images": IMAGES, "labels": LABELS, "class_names": NAMES, **changes}
        return Dataset(name, **fields).fingerprint  # type: ignore[arg-type]

    other = IMAGES.copy()
    other[5, 11, 11, 2] ^= 1
    prints = [
        fingerprint(),
        fingerprint(images=other),
        fingerprint(images=IMAGES.reshape(6, 24, 6, 3)),
        fingerprint(labels=LABELS[::-1]),
        fingerprint(class_names=("a", "b", "d")),
        fingerprint(clients=np.array(list("xxyyzz"))),
        fingerprint(split=np.array([0, 0, 0, 0, 0, 1])),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint("other name") == prints[0]
    assert fingerprint(images=np.asfortranarray(IMAGES)) == prints[0]


def test_fingerprint_of_pixels_depends_on_nothing_else(tmp_path: Path) -> None:
    plain = Dataset("d", IMAGES, LABELS, NAMES)
    clients = np.array(list("xxyyzz"))
    other = Dataset("e", IMAGES, LABELS[::-1], ("p", "q", "r"), clients=clients, split=np.array([0, 0, 0, 0, 0, 1]))
    assert plain.pixels_fingerprint == other.pixels_fingerprint
    assert plain.fingerprint != other.fingerprint
    assert plain.pixels_fingerprint != Dataset("d", IMAGES[::-1], LABELS, NAMES).pixels_fingerprint
    for i, image in enumerate(IMAGES[:2]):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    prints = {
        Dataset("d", ImagePaths(tmp_path, names), labels, ("x", "y")).pixels_fingerprint
        for names in (("0.png", "1.png"), ("1.png", "0.png"))
        for labels in (np.array([0, 1]), np.array([1, 1]))
    }
    assert len(prints) == 2


def test_fingerprint_of_files_depends_on_their_content(tmp_path: Path) -> None:
    prints = []
    for shade in (1, 2):
        Image.new("L", (3, 3), shade).save(tmp_path / "a.png")
        prints.append(Dataset("d", ImagePaths(tmp_path, ("a.png",)), np.array([0]), ("x",)).fingerprint)
    assert prints[0] != prints[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": IMAGES.astype(np.float32)}, "float32"),
        ({"images": IMAGES[..., :2]}, r"\(6, 12, 12, 2\)"),
        ({"images": IMAGES[:, 0, 0]}, r"shape \(6, 3\)"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "no side may be 0"),
        ({"labels": LABELS[:5]}, r"labels have shape \(5,\), but there are 6 rows"),
        ({"labels": LABELS + 1}, "labels run from 1 to 3, but there are 3 class names"),
        ({"labels": LABELS - 1}, "labels run from -1"),
        ({"labels": LABELS / 2}, "labels are float64"),
        ({"class_names": ("a", "b", "b")}, "same name"),
        ({"clients": np.array(["x"])}, "clients have shape"),
        ({"split": np.full(6, 2)}, r"split holds \[2\]"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_parts_that_do_not_fit(changes: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"images": IMAGES, "labels": LABELS, "class_names": NAMES, **changes}
    with pytest.raises(InputError, match=message):
        Dataset("d", **fields)  # type: ignore[arg-type]


def test_size_is_positive() -> None:
    with pytest.raises(InputError, match="at least 1 pixel, not 0"):
        Dataset("d", IMAGES, LABELS, NAMES).read([0], 0)
