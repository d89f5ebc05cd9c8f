import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedhip.data import Window
from fedhip.data.images.pixels import check_images, fit, has_more_bits, open_rgb
from fedhip.errors import CorruptImageError, InputError

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def pixel(path: Path, at: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    image = open_rgb(path)
    assert image.mode == "RGB"
    return tuple(int(v) for v in np.asarray(image)[at[1], at[0]])


def test_grey_and_bilevel(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 77).save(tmp_path / "grey.png")
    Image.new("1", (4, 4), 1).save(tmp_path / "bit.png")
    assert pixel(tmp_path / "grey.png") == (77, 77, 77)
    assert pixel(tmp_path / "bit.png") == WHITE


def test_transparent_pixels_are_laid_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 1), (*RED, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    image.save(tmp_path / "a.png")
    Image.new("LA", (2, 1), (0, 128)).save(tmp_path / "la.png")
    assert pixel(tmp_path / "a.png") == RED
    assert pixel(tmp_path / "a.png", (1, 0)) == WHITE
    assert pixel(tmp_path / "la.png") == (127, 127, 127)


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([*RED, *GREEN])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "plain.png")
    image.save(tmp_path / "clear.png", transparency=0)
    image.save(tmp_path / "bytes.png", transparency=b"\x00\xff")
    assert pixel(tmp_path / "plain.png") == RED
    for name in ("clear.png", "bytes.png"):
        assert pixel(tmp_path / name) == WHITE
        assert pixel(tmp_path / name, (1, 0)) == GREEN


@pytest.mark.parametrize("name", ["deep.png", "deep.tiff"])
def test_sixteen_bits_keep_their_high_byte(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    found = np.asarray(open_rgb(tmp_path / name, window=Window(0, 65535)))
    np.testing.assert_array_equal(found[0, :, 0], [0, 0, 1, 128, 255])
    assert found.shape == (1, 5, 3)


def test_more_than_8_bits_need_a_window(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(InputError, match=r"deep\.png has more than 8 bits.*--window LOW HIGH") as caught:
        open_rgb(tmp_path / "deep.png")
    assert not isinstance(caught.value, CorruptImageError)  # it is not to be skipped as one


def test_more_bits_stand_in_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(np.zeros((9, 9), np.float32)).save(tmp_path / "float.tiff")
    Image.new("L", (9, 9)).save(tmp_path / "grey.png")
    (tmp_path / "text.png").write_text("no image")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)
    names = ("deep.png", "float.tiff", "grey.png", "text.png", "none.png")
    assert [has_more_bits(tmp_path / name) for name in names] == [True, True, False, False, False]


def test_more_bits_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    values = np.zeros((8, 16), np.uint16)
    values[:, :8] = 4095
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(values).save(tmp_path / "r.png", exif=exif)
    turned = np.asarray(open_rgb(tmp_path / "r.png", window=Window(0, 4095)))[..., 0]
    assert turned.shape == (16, 8)
    assert (turned[:8] == 255).all()
    assert (turned[8:] == 0).all()


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "c.tiff")
    assert pixel(tmp_path / "c.tiff") == RED


def test_animation_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (GREEN, RED)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert pixel(tmp_path / "a.gif") == GREEN


def test_camera_orientation_is_honoured(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 8), WHITE)
    image.paste(RED, (0, 0, 8, 8))  # red on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise to view: red comes to the top
    image.save(tmp_path / "r.png", exif=exif)
    turned = open_rgb(tmp_path / "r.png")
    assert turned.size == (8, 16)
    assert turned.getpixel((4, 2)) == RED
    assert turned.getpixel((4, 14)) == WHITE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_no_number_is_damage(tmp_path: Path, value: float) -> None:
    Image.fromarray(np.array([[0, value]], np.float32)).save(tmp_path / "f.tiff")
    with pytest.raises(CorruptImageError, match=r"f\.tiff cannot be decoded .*a pixel is not a finite number"):
        open_rgb(tmp_path / "f.tiff", window=Window(0, 1))


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".webp"])
def test_truncated_image_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"half{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CorruptImageError, match=f"half{suffix} cannot be decoded.*skip_corrupt=True .--skip-corrupt"):
        open_rgb(path)


@pytest.mark.parametrize("name", ["text.png", "none.png"])
def test_file_that_is_no_image_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(CorruptImageError, match=name):
        open_rgb(tmp_path / name)


@pytest.mark.parametrize("limit", [40, 60])  # Pillow refuses twice its limit, and warns of what is above it
def test_image_above_pillows_limit_is_too_large_and_not_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    Image.new("RGB", (10, 10)).save(tmp_path / "big.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(
        CorruptImageError, match=r"big\.png is too large \(100 pixels.*MAX_IMAGE_PIXELS.*--skip-corrupt"
    ):
        open_rgb(tmp_path / "big.png")


def test_open_file_goes_by_the_name_given() -> None:
    file = io.BytesIO()
    Image.new("LA", (4, 4), (0, 0)).save(file, "PNG")
    assert open_rgb(file).getpixel((0, 0)) == WHITE
    with pytest.raises(CorruptImageError, match=r"^photos\.zip:3\.png cannot be decoded"):
        open_rgb(io.BytesIO(file.getvalue()[:40]), "photos.zip:3.png")


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 4, 5, 1), (2, 4, 5, 3)])
def test_arrays_that_are_images(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype=np.uint8)
    assert check_images(array) is array


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros((2, 4, 4), dtype=np.float32), "photos are float32"),
        (np.zeros((4, 4), dtype=np.uint8), r"photos have shape \(4, 4\)"),
        (np.zeros((2, 4, 4, 4), dtype=np.uint8), r"\(2, 4, 4, 4\)"),
        (np.zeros((0, 4, 4, 3), dtype=np.uint8), "nothing"),
    ],
)
def test_arrays_that_are_not_images(array: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        check_images(array, "photos")


def test_fit_takes_the_central_square() -> None:
    wide = Image.new("RGB", (40, 10), WHITE)
    wide.paste(RED, (15, 0, 25, 10))
    assert set(np.asarray(fit(wide, 10)).reshape(-1, 3)[:, 1].tolist()) == {0}
    assert fit(wide, 5).size == (5, 5)


def test_fit_crops_whole_pixels_and_resizes_bilinearly() -> None:
    """The oracle is Pillow itself, on a square cut out by hand: 21 − 14 = 7 columns, 3 of them on the left."""
    pixels = np.random.default_rng(0).integers(0, 256, (14, 21, 3), dtype=np.uint8)
    for size in (5, 28):
        expected = Image.fromarray(pixels[:, 3:17].copy()).resize((size, size), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(fit(Image.fromarray(pixels), size), expected)
