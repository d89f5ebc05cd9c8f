import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedhip.features.errors import ImagesError
from fedhip.features.images import check_images, normalise, read_image, resize_uint8, to_rgb
from tests.features.samples import waves


def encoded(image: Image.Image, kind: str, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return file


def test_grey_is_repeated_and_16_bit_is_brought_to_8() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    found = read_image(encoded(Image.fromarray(grey), "PNG"), 16)
    assert all((found[..., c] == grey).all() for c in range(3))
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    assert (read_image(encoded(deep, "PNG"), 16)[..., 0] == grey).all()


def test_transparency_is_put_on_white() -> None:
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert (read_image(encoded(clear, "PNG"), 4) == 255).all()
    solid = Image.new("RGBA", (4, 4), (255, 0, 0, 255))
    assert read_image(encoded(solid, "PNG"), 4)[0, 0].tolist() == [255, 0, 0]


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("lime", "blue")]
    file = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_image(file, 4)[0, 0].tolist() == [0, 255, 0]


def test_corrupt_image_is_named(tmp_path: Path) -> None:
    whole = encoded(Image.fromarray(waves(1, 64)[0]), "JPEG").getvalue()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no image")
    for name in ("cut.jpg", "text.png", "none.png"):
        with pytest.raises(ImagesError, match=name):
            read_image(tmp_path / name, 16)


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros((2, 4, 4), dtype=np.float32), "float32"),
        (np.zeros((4, 4), dtype=np.uint8), r"\(4, 4\)"),
        (np.zeros((2, 4, 4, 4), dtype=np.uint8), r"\(2, 4, 4, 4\)"),
        (np.zeros((0, 4, 4, 3), dtype=np.uint8), "nothing"),
    ],
)
def test_arrays_that_are_not_images(array: object, named: str) -> None:
    with pytest.raises(ImagesError, match=named):
        check_images(array)


def test_resize_agrees_with_pillow() -> None:
    images = waves(3, 48)
    expected = np.stack([np.asarray(Image.fromarray(i).resize((20, 20), Image.Resampling.BILINEAR)) for i in images])
    assert np.abs(resize_uint8(images, 20).astype(int) - expected).max() <= 1
    grey = images[..., 0]
    assert resize_uint8(grey, 20).shape == (3, 20, 20, 3)
    assert (to_rgb(grey)[..., 2] == grey).all()


def test_normalise_by_the_formula() -> None:
    images = waves(2, 8)
    found = normalise(torch.from_numpy(images), 8, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    expected = (images / 255 - [0.5, 0.4, 0.3]) / [0.1, 0.2, 0.3]
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, atol=1e-5)
