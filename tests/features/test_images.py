import numpy as np
import torch
from PIL import Image

from fedhip.features.images import normalise, resize_uint8, to_rgb
from tests.features.samples import waves


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
