import numpy as np
import pytest
import torch
from PIL import Image

from fedhip.features.images import normalise, resize_uint8, to_rgb
from tests.features.samples import waves


def test_resize_agrees_with_pillow() -> None:
    images = waves(3, 48)
    expected = np.stack([np.asarray(Image.fromarray(i).resize((20, 20), Image.Resampling.BILINEAR)) for i in images])
    difference = np.abs(resize_uint8(images, 20).astype(int) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01
    grey = images[..., 0]
    assert resize_uint8(grey, 20).shape == (3, 20, 20, 3)
    assert (to_rgb(grey)[..., 2] == grey).all()


@pytest.mark.parametrize(("height", "width"), [(24, 40), (41, 24)])
def test_the_central_square_is_what_counts(height: int, width: int) -> None:
    images = waves(3, 41)[:, :height, :width]
    top, left = (height - 24) // 2, (width - 24) // 2
    middle = images[:, top : top + 24, left : left + 24]
    for size in (16, 24, 30):
        np.testing.assert_array_equal(resize_uint8(images, size), resize_uint8(middle, size))
        found, expected = (normalise(torch.from_numpy(x), size, (0.5,) * 3, (0.5,) * 3) for x in (images, middle))
        assert found.shape == (3, 3, size, size)
        assert torch.equal(found, expected)


def test_normalise_by_the_formula() -> None:
    images = waves(2, 8)
    found = normalise(torch.from_numpy(images), 8, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    expected = (images / 255 - [0.5, 0.4, 0.3]) / [0.1, 0.2, 0.3]
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, atol=1e-5)
