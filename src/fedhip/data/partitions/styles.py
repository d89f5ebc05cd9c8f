"""Clients that see things otherwise: every client's images in a style of its own.

Partitions make clients that differ in which classes they have. Styles make them differ in what a class looks like: a
client turns, slants, thickens, blurs, fades, tints and perhaps inverts all of its images alike, those to train on and
those to test on, as one scanner, pen or camera would.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageFilter

from fedhip.data.images.pixels import Pixels
from fedhip.data.partitions.partition import Partition
from fedhip.data.sets.dataset import Dataset, ImagePaths
from fedhip.errors import InputError


@dataclass(frozen=True)
class Style:
    """What one client does to all of its images.

    `turn` in degrees, clockwise, and `slant` (sideways by so much of the height) about the middle; `bold` lets what is
    bright grow by a pixel; `blur` is a radius in pixels; `contrast` scales the distance from mid-grey; `tint` scales
    red, green and blue; `inverted` makes dark bright.
    """

    turn: float = 0.0
    slant: float = 0.0
    bold: bool = False
    blur: float = 0.0
    contrast: float = 1.0
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    inverted: bool = False

    @classmethod
    def drawn(cls, generator: np.random.Generator) -> Self:
        """At random: up to 45° either way, up to 0.4 aslant; half of the clients bold, and half inverted."""
        return cls(
            turn=float(generator.uniform(-45.0, 45.0)),
            slant=float(generator.uniform(-0.4, 0.4)),
            bold=bool(generator.integers(2)),
            blur=float(generator.uniform(0.0, 0.8)),
            contrast=float(generator.uniform(0.4, 1.0)),
            tint=tuple(generator.uniform(0.5, 1.0, 3).tolist()),
            inverted=bool(generator.integers(2)),
        )

    def apply(self, image: Image.Image) -> Image.Image:
        """An RGB image of the same size; what turns in from outside is as its upper left corner."""
        image = image.convert("RGB")
        if self.turn or self.slant:
            image = image.transform(
                image.size,
                Image.Transform.AFFINE,
                self._affine(*image.size),
                Image.Resampling.BILINEAR,
                fillcolor=image.getpixel((0, 0)),
            )
        if self.bold:
            image = image.filter(ImageFilter.MaxFilter(3))
        if self.blur:
            image = image.filter(ImageFilter.GaussianBlur(self.blur))
        if self.inverted:
            image = ImageChops.invert(image)
        levels = 127.5 + self.contrast * (np.arange(256) - 127.5)
        table = np.rint(np.outer(self.tint, levels)).clip(0, 255).astype(np.uint8)
        return image.point(table.ravel().tolist())

    def _affine(self, width: int, height: int) -> tuple[float, ...]:
        """From a place in the new image to that in the old one, as pillow asks for it."""
        angle = np.deg2rad(self.turn)
        turned = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        back = turned @ np.array([[1.0, self.slant], [0.0, 1.0]])
        middle = np.array([width / 2, height / 2])
        offset = middle - back @ middle
        return (*back[0].tolist(), float(offset[0]), *back[1].tolist(), float(offset[1]))


def draw_styles(number: int, seed: int) -> tuple[Style, ...]:
    """A style for each of so many clients; a client's depends on the seed and its place, and not on their number."""
    return tuple(Style.drawn(np.random.default_rng((seed, client))) for client in range(number))


def styled(dataset: Dataset, partition: Partition, styles: tuple[Style, ...]) -> Dataset:
    """The images of each of the partition's clients in its style; the clients are then those of the data."""
    if isinstance(dataset.images, ImagePaths):
        raise InputError(f"the images of {dataset.name} differ in size; styles need images of one size")
    if len(styles) != partition.num_clients:
        raise InputError(f"there are {len(styles)} styles for {partition.num_clients} clients; give each one")
    images = _styled(dataset.images, partition.assignment, styles)
    clients = np.array(partition.clients)[partition.assignment]
    return replace(dataset, name=f"{dataset.name} in styles", images=images, clients=clients)


def _styled(images: Pixels, assignment: NDArray[np.int64], styles: tuple[Style, ...]) -> Pixels:
    out = np.empty((*images.shape[:3], 3), np.uint8)
    for source, client, target in zip(images, assignment, out, strict=True):
        image = Image.fromarray(source[:, :, 0] if source.shape[2] == 1 else source)
        target[:] = np.asarray(styles[client].apply(image))
    return out
