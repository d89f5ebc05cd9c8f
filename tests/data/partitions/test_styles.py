"""Clients' styles: what they do to an image, and that each client has its own."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedhip.data import Dataset, ImagePaths, Style, draw_styles, make_partition, styled
from fedhip.errors import InputError


def image(side: int = 9) -> Image.Image:
    """A bright vertical line in the middle, its upper half thicker."""
    pixels = np.zeros((side, side), np.uint8)
    pixels[:, side // 2] = 255
    pixels[: side // 2, side // 2 + 1] = 255
    return Image.fromarray(pixels)


def pixels(style: Style) -> np.ndarray:
    return np.asarray(style.apply(image())).astype(int)


def test_no_style_leaves_the_image_as_it_is() -> None:
    assert np.array_equal(pixels(Style()), np.repeat(np.asarray(image())[..., None], 3, axis=2))


@pytest.mark.parametrize(("turn", "quarters"), [(90.0, -1), (180.0, -2), (-90.0, 1)])
def test_right_angles_are_numpys(turn: float, quarters: int) -> None:
    assert np.abs(pixels(Style(turn=turn)) - np.rot90(pixels(Style()), quarters)).max() <= 1


def test_each_part_of_a_style_does_what_it_says() -> None:
    plain = pixels(Style())
    assert np.array_equal(pixels(Style(inverted=True)), 255 - plain)
    assert (pixels(Style(bold=True)) > 0).sum() > (plain > 0).sum()
    assert (pixels(Style(bold=True)) >= plain).all()
    assert pixels(Style(blur=1.0)).max() < 255
    assert (pixels(Style(contrast=0.5)).min(), pixels(Style(contrast=0.5)).max()) == (64, 191)
    tinted = pixels(Style(tint=(1.0, 0.5, 0.0)))
    assert tinted.max(axis=(0, 1)).tolist() == [255, 128, 0]
    slanted = pixels(Style(slant=0.5))[..., 0]
    assert slanted[0].argmax() > slanted[4].argmax() > slanted[-1].argmax()


def test_a_clients_style_depends_on_seed_and_place_alone() -> None:
    few, many = draw_styles(3, seed=5), draw_styles(8, seed=5)
    assert many[:3] == few
    assert len(set(many)) == 8
    assert draw_styles(3, seed=6) != few


def test_every_row_is_in_its_clients_style() -> None:
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (12, 8, 8), dtype=np.uint8)
    data = Dataset("noise", grey, np.arange(12) % 3, ("a", "b", "c"))
    partition = make_partition(data.labels, "iid", 4, seed=1)
    styles = draw_styles(4, seed=2)
    found = styled(data, partition, styles)
    assert found.clients is not None
    assert found.clients.tolist() == [partition.clients[k] for k in partition.assignment]
    assert np.array_equal(found.labels, data.labels)
    assert isinstance(found.images, np.ndarray)
    for row, client in enumerate(partition.assignment):
        assert np.array_equal(found.images[row], np.asarray(styles[client].apply(Image.fromarray(grey[row]))))
    assert found.pixels_fingerprint != data.pixels_fingerprint


def test_bad_input() -> None:
    data = Dataset("noise", np.zeros((6, 4, 4), np.uint8), np.arange(6) % 2, ("a", "b"))
    partition = make_partition(data.labels, "iid", 2, seed=1)
    with pytest.raises(InputError, match="3 styles for 2 clients"):
        styled(data, partition, draw_styles(3, seed=0))
    paths = Dataset("folder", ImagePaths(Path(), tuple("abcdef")), data.labels, ("a", "b"))
    with pytest.raises(InputError, match="images of folder differ in size"):
        styled(paths, partition, draw_styles(2, seed=0))
