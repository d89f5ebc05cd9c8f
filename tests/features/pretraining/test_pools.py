import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedhip.errors import CorruptImageError, FileError, InputError
from fedhip.features.pretraining.pools import Pool, load_pool
from tests.features.samples import waves


def png(image: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """An .npz of grey images at another size, a folder and a zip file."""
    np.savez(tmp_path / "grey.npz", images=waves(5, 20)[..., 0])
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for i, image in enumerate(waves(3)):
        (tmp_path / "folder" / "deep" / f"{i}.png").write_bytes(png(image))
    (tmp_path / "folder" / "notes.txt").write_text("not an image")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for i, image in enumerate(waves(4, seed=1)):
            archive.writestr(f"photos/{i}.png", png(image))
        archive.writestr("photos/labels.csv", "a,b")
    return [tmp_path / "grey.npz", tmp_path / "folder", tmp_path / "photos.zip"]


def test_sources_side_by_side(sources: list[Path]) -> None:
    pool = load_pool(sources, 16)
    assert pool.images.shape == (12, 16, 16, 3)
    assert (pool.names, pool.counts) == (("grey.npz", "folder", "photos.zip"), (5, 3, 4))
    assert pool.weights == (5.0, 3.0, 4.0)
    assert (pool.images[5:8] == waves(3)).all()
    assert (pool.images[8:] == waves(4, seed=1)).all()
    assert (pool.images[:5, ..., 0] == pool.images[:5, ..., 2]).all()


def test_images_of_more_than_8_bits_have_one_window_in_each_source(tmp_path: Path) -> None:
    """As if each had been brought to 8 bits before, and then resized."""
    shades = waves(3, 24)[..., 0]
    deep = [(image.astype(np.uint16) << 4) + 9 for image in shades]
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for i, image in enumerate([*deep, shades[0]]):
            (tmp_path / "folder" / f"{i}.png").write_bytes(png(image))
            archive.writestr(f"{i}.png", png(image))
    (tmp_path / "folder" / "4.png").write_bytes(b"damaged")
    with pytest.raises(CorruptImageError, match=r"4\.png"):
        load_pool([tmp_path / "folder"], 16)
    pool = load_pool([tmp_path / "folder", tmp_path / "all.zip"], 16, skip_corrupt=True)
    assert pool.names == ("folder (0 to 4095 in 8 bits)", "all.zip (0 to 4095 in 8 bits)")
    shallow = tmp_path / "shallow"
    shallow.mkdir()
    for i, image in enumerate([*shades, shades[0]]):
        (shallow / f"{i}.png").write_bytes(png(image))
    expected = load_pool([shallow], 16)
    assert expected.names == ("shallow",)
    for part in (pool.images[:4], pool.images[4:]):
        np.testing.assert_array_equal(part, expected.images)


def test_a_saved_pool_is_the_same_pool(sources: list[Path], tmp_path: Path) -> None:
    pool = load_pool(sources, 16, weights=[1, 1, 2])
    pool.save(tmp_path / "pool.npz")
    again = load_pool([tmp_path / "pool.npz"], 16)
    assert (again.images == pool.images).all()
    assert (again.names, again.counts) == (pool.names, pool.counts)
    assert np.array(again.weights) / sum(again.weights) == pytest.approx([0.25, 0.25, 0.5])
    assert load_pool(sources, 16).digest != pool.digest
    assert load_pool(sources, 16, weights=[1, 1, 2]).digest == pool.digest


def test_corrupt_images_are_named_and_skipped_only_if_asked(sources: list[Path]) -> None:
    (sources[1] / "broken.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(CorruptImageError, match=r"broken\.png"):
        load_pool(sources, 16)
    assert load_pool(sources, 16, skip_corrupt=True).counts == (5, 3, 4)


@pytest.mark.parametrize("at", ["header", "pixels"])
def test_damaged_image_in_a_zip_file_is_named_and_skipped_only_if_asked(sources: list[Path], at: str) -> None:
    content = bytearray(sources[2].read_bytes())
    second = content.index(b"PK\x03\x04", 4)
    content[second if at == "header" else content.index(b"IDAT", second) + 8] ^= 0xFF
    sources[2].write_bytes(content)
    with pytest.raises(CorruptImageError, match=r"photos\.zip:photos/1\.png"):
        load_pool(sources, 16)
    assert load_pool(sources, 16, skip_corrupt=True).counts == (5, 3, 3)


def test_other_sizes_are_cropped_to_the_central_square(tmp_path: Path) -> None:
    image = waves(1, 32)[0, :16].copy()
    image[:, :8] = image[:, 24:] = 255
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "wide.png").write_bytes(png(image))
    np.savez(tmp_path / "wide.npz", images=image[None])
    for source in ("folder", "wide.npz"):
        np.testing.assert_array_equal(load_pool([tmp_path / source], 16).images[0], image[:, 8:24])


def test_hidden_files_are_no_images(sources: list[Path]) -> None:
    rubbish = ["._1.png", ".thumbs/1.png", "__MACOSX/photos/._1.png", "__MACOSX/1.png"]
    with zipfile.ZipFile(sources[2], "a") as archive:
        for name in rubbish:
            archive.writestr(name, b"resource fork")
            (sources[1] / name).parent.mkdir(parents=True, exist_ok=True)
            (sources[1] / name).write_bytes(b"resource fork")
    assert load_pool(sources, 16).counts == (5, 3, 4)


def test_pools_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    np.savez(tmp_path / "other.npz", pixels=waves(2))
    np.savez(tmp_path / "objects.npz", images=np.array([{}, 1], dtype=object))
    np.savez(tmp_path / "floats.npz", images=np.zeros((2, 4, 4)))
    cases = {
        "gone.npz": "no file or folder",
        "empty": "no readable image",
        "text.txt": "neither",
        "cut.npz": "is the file complete",
        "other.npz": "no array 'images'",
        "objects.npz": "cannot read",
    }
    for name, named in cases.items():
        with pytest.raises(FileError if name in ("cut.npz", "objects.npz") else InputError, match=named):
            load_pool([tmp_path / name], 16)
    with pytest.raises(InputError, match=r"floats\.npz are float64"):
        load_pool([tmp_path / "floats.npz"], 16)
    with pytest.raises(InputError, match="at least one"):
        load_pool([], 16)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [float("inf"), 1.0, 1.0]])
def test_weights_that_make_no_sense(sources: list[Path], weights: list[float]) -> None:
    with pytest.raises(InputError, match="weights"):
        load_pool(sources, 16, weights)


def test_pool_checks_itself() -> None:
    with pytest.raises(InputError, match="hold 3 images, the pool 2"):
        Pool(waves(2), ("a",), (3,), (1.0,))
