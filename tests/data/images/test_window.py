"""Images of more than 8 bits: their range is kept, and one for all of a data set."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedhip.data import Dataset, ImagePaths, Window, load_dataset
from fedhip.data.images.window import Values
from fedhip.data.sets import folders
from fedhip.errors import FedHiPWarning, InputError
from tests.core.problems import Array

RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)


def put(root: Path, **images: Array) -> Path:
    """Each as a TIFF of class "a" or "b", by its first letter."""
    for name, image in images.items():
        place = root / name[0] / f"{name}.tiff"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    return root


@pytest.mark.parametrize(
    ("largest", "top"), [(0, 255), (255, 255), (256, 511), (4095, 4095), (4096, 8191), (65535, 65535), (70000, 131071)]
)
def test_whole_numbers_use_so_many_bits(largest: int, top: int) -> None:
    assert Window.of(Values.of(np.array([[0, largest]], np.int32))) == Window(0, top)


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([0.0, 1.0], (0, 1)),
        ([0.0, 0.2], (0, 1)),
        ([0.5, 1.5], (0, 3)),
        ([0.0, 3500.7], (0, 4095)),
        ([-1.0, 1.0], (-1, 1)),
        ([-0.1, 100.0], (-127, 127)),
        ([0.0, 0.0], (0, 1)),
        ([0.0, 3e38], (0, 2.0**128 - 1)),
    ],
)
def test_other_numbers_use_so_many_bits(values: list[float], ends: tuple[float, float]) -> None:
    assert Window.of(Values.of(np.array([values], np.float32))) == Window(*ends)


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([-1, 0], (-128, 127)),
        ([-128, 127], (-128, 127)),
        ([-1024, 3071], (-4096, 4095)),
        ([-32768, 5], (-32768, 32767)),
    ],
)
def test_whole_numbers_below_0_are_a_bit_more(values: list[int], ends: tuple[int, int]) -> None:
    assert Window.of(Values.of(np.array([values], np.int32))) == Window(*ends)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_no_value_lies_outside_of_the_bits_it_uses_and_fewer_would_not_do(one: int, other: int) -> None:
    values = Values.of(np.array([[one, other]], np.int32))
    window = Window.of(values)
    assert window.holds(values)
    assert window.apply(np.array([[window.low, window.high]]).astype(np.int64)).tolist() == [[0, 255]]
    half = Window(math.floor(window.low / 2), math.floor(window.high / 2))
    assert not half.holds(values) or window.high - window.low == 255


@pytest.mark.parametrize("bits", range(8, 17))
def test_of_b_bits_the_highest_8_are_kept(bits: int) -> None:
    values = np.arange(2**bits, dtype=np.uint16)[None]
    window = Window.of(Values.of(values))
    for kind in (np.uint16, np.int32):
        np.testing.assert_array_equal(window.apply(values.astype(kind)), values >> (bits - 8))


def test_what_lies_outside_is_cut_off_and_every_level_is_as_wide() -> None:
    window = Window(-1000, 400)
    values = np.arange(-3000, 3000, dtype=np.int32)[None]
    found = window.apply(values)[0].astype(int)
    assert (found[values[0] <= -1000] == 0).all()
    assert (found[values[0] >= 400] == 255).all()
    inside = found[(values[0] >= -1000) & (values[0] <= 400)]
    assert set(np.bincount(inside)) == {5, 6}  # 1401 values, 256 levels
    assert (np.diff(found) >= 0).all()
    floats = Window(-1, 1).apply(np.linspace(-1, 1, 2561)[None])[0]
    assert set(np.bincount(floats)[1:-1]) <= {9, 10, 11}  # a value between two levels may round to either
    assert (floats[0], floats[-1]) == (0, 255)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (5, 5, "a window from 5 to 5 is empty; give the lower value first"),
        (100, 0, "from 100 to 0 is empty"),
        (float("nan"), 1, "two finite numbers"),
        (0, float("nan"), "two finite numbers"),
        (0, float("inf"), "two finite numbers"),
        (-1e308, 1e308, "two finite numbers"),
        ("x", 1, "two numbers, not 'x' and 1"),
        (None, 1, "two numbers"),
    ],
)
def test_windows_that_are_none(low: float, high: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Window(low, high)


def test_a_ramp_of_12_bits_keeps_256_levels(tmp_path: Path) -> None:
    for name in ("0.png", "1.tiff"):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(RAMP).save(tmp_path / "a" / name)
    data = load_dataset(tmp_path)
    assert data.window == Window(0, 4095)
    assert str(data.values) == "0 to 4095"
    assert isinstance(data.images, np.ndarray)
    for image in data.images:
        np.testing.assert_array_equal(image, np.repeat((RAMP >> 4)[..., None], 3, axis=2))


@pytest.mark.parametrize("in_memory", [True, False])
def test_one_window_for_all_images(tmp_path: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dark image stays darker than a bright one, and images of 8 bits are as they were."""
    dark, bright = np.full((8, 8), 100, np.uint16), np.full((8, 8), 3000, np.int32)
    grey = np.full((8, 8), 77, np.uint8)
    put(tmp_path, a0=dark, a1=grey, b0=bright, b1=np.full((8, 8), 500.25, np.float32))
    if not in_memory:
        monkeypatch.setattr(folders, "IN_MEMORY", 0)
    data = load_dataset(tmp_path)
    assert isinstance(data.images, np.ndarray if in_memory else ImagePaths)
    assert data.window == Window(0, 4095)
    assert data.values == Values(100, 3000, whole=False, images=3)
    np.testing.assert_array_equal(data.read(range(4), 8)[:, 0, 0], [[6] * 3, [77] * 3, [187] * 3, [31] * 3])


def test_a_window_that_is_given(tmp_path: Path) -> None:
    put(tmp_path, a0=RAMP, a1=RAMP.astype(np.int32) - 1000, b0=RAMP.astype(np.float32), b1=RAMP)
    for window in (Window(0, 255), (0, 255)):
        data = load_dataset(tmp_path, window=window)
        assert data.window == Window(0, 255)
        found = data.read([0, 1], 64)[..., 0]
        np.testing.assert_array_equal(found[0], RAMP.clip(0, 255))
        np.testing.assert_array_equal(found[1], (RAMP.astype(int) - 1000).clip(0, 255))
    with pytest.raises(InputError, match="is empty"):
        load_dataset(tmp_path, window=(255, 0))


def test_images_of_8_bits_are_as_they_were(tmp_path: Path) -> None:
    """Also with a window, which is for others; the fingerprints, by which features are kept, are those of before."""
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 256, (6, 6, 3), np.uint8), rng.integers(0, 256, (9, 6), np.uint8)
    same = load_dataset(put(tmp_path / "same", a0=one, a1=one), window=(3, 9))
    assert (same.window, same.values) == (None, None)
    np.testing.assert_array_equal(same.images, [one, one])
    assert same.pixels_fingerprint == hashlib.sha256(b"|u1(2, 6, 6, 3)" + 2 * one.tobytes()).hexdigest()
    differing = load_dataset(put(tmp_path / "differing", a0=one, a1=other), window=(3, 9))
    assert differing.window is None
    files = (hashlib.sha256((tmp_path / f"differing/a/{name}.tiff").read_bytes()).digest() for name in ("a0", "a1"))
    assert differing.pixels_fingerprint == hashlib.sha256(b"".join(files)).hexdigest()


def test_another_window_is_another_fingerprint(tmp_path: Path) -> None:
    put(tmp_path, a0=RAMP, a1=RAMP[:32])
    names = [None, (0, 4095), (0, 4094), (1, 4095)]
    found = [load_dataset(tmp_path, window=window).pixels_fingerprint for window in names]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_damage_is_left_out_of_the_range(tmp_path: Path) -> None:
    put(tmp_path, a0=RAMP.astype(np.float32), a1=RAMP.astype(np.float32), a2=np.full((64, 64), np.nan, np.float32))
    with pytest.warns(FedHiPWarning, match=r"a2\.tiff"):
        data = load_dataset(tmp_path, skip_corrupt=True)
    assert data.window == Window(0, 4095)
    assert len(data) == 2


def test_images_on_disk_need_their_window(tmp_path: Path) -> None:
    put(tmp_path, a0=RAMP)
    images = ImagePaths(tmp_path, ("a/a0.tiff",))
    data = Dataset("x", images, np.zeros(1, np.int64), ("a",))
    with pytest.raises(InputError, match=r"a0\.tiff has more than 8 bits"):
        data.read([0], 64)
    data = Dataset("x", images, np.zeros(1, np.int64), ("a",), window=Window(0, 4095))
    np.testing.assert_array_equal(data.read([0], 64)[0, ..., 0], RAMP >> 4)
