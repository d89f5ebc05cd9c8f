"""Images of more than 8 bits: which of their values become 0 to 255.

A radiograph has 12 bits in a file with room for 16. Cut off at 8 it would be white, and taken for 16 nearly black. So
the range is found, once for all images of a data set: one for each image would lose what makes it darker than another.
It is that of the bits which the largest value of all needs, unless a window is given. A model remembers the window of
the images it was made from, and images that come later are brought to 8 bits by the same one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import InputError

#: Pixels of more than 8 bits, (H, W): uint16, int32 or float32.
Deep = NDArray[Any]


@dataclass(frozen=True)
class Values:
    """The smallest and the largest value of images of more than 8 bits, whether all are whole numbers, how many."""

    low: float
    high: float
    whole: bool
    images: int = 1

    @classmethod
    def of(cls, image: Deep) -> Values:
        """Those of one image."""
        return cls(float(image.min()), float(image.max()), image.dtype.kind in "iu")

    def __str__(self) -> str:
        return f"{_shown(self.low)} to {_shown(self.high)}"

    def __or__(self, other: Values) -> Values:
        return Values(
            min(self.low, other.low),
            max(self.high, other.high),
            self.whole and other.whole,
            self.images + other.images,
        )


@dataclass(frozen=True)
class Window:
    """From `low`, which becomes 0, to `high`, which becomes 255; what lies outside becomes the nearer of the two."""

    low: float
    high: float

    def __post_init__(self) -> None:
        try:
            low, high = float(self.low), float(self.high)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"a window is two numbers, not {self.low!r} and {self.high!r}") from None
        if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
            raise InputError(f"a window from {low:g} to {high:g} has no end; give two finite numbers")
        if low >= high:
            raise InputError(
                f"a window from {_shown(low)} to {_shown(high)} is empty; give the lower value first, then the higher"
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @classmethod
    def of(cls, values: Values) -> Window:
        """The bits that these values use: 0 to 2^b − 1, from −2^b where whole numbers go below 0.

        Whole numbers have at least 8 bits, the sign among them. Other numbers have at least one, so that 0 to 1 stays
        0 to 1, and those below 0 have as much room as those above.
        """
        signed = values.low < 0
        least = (7 if signed else 8) if values.whole else 1
        below = -values.low - 1 if values.whole else -values.low
        largest = max(values.high, below if signed else 0.0)
        top = 2.0 ** max(math.ceil(largest).bit_length(), least) - 1
        return cls((-top - 1 if values.whole else -top) if signed else 0.0, top)

    def __str__(self) -> str:
        return f"{_shown(self.low)} to {_shown(self.high)}"

    def holds(self, values: Values) -> bool:
        """Whether nothing lies outside."""
        return self.low <= values.low and values.high <= self.high

    def apply(self, image: Deep) -> NDArray[np.uint8]:
        """⌊256 (v − low) / (high − low + 1)⌋ of whole numbers, ⌊256 (v − low) / (high − low)⌋ of others, in 0 to 255.

        Every level stands for as many values: b bits keep their highest 8.
        """
        if image.dtype == np.uint16:
            return _table(self)[image]
        return _levels(self, image)


#: What 16-bit images were taken for before there were windows.
SIXTEEN_BITS = Window(0, 65535)


def _levels(window: Window, image: Deep) -> NDArray[np.uint8]:
    span = window.high - window.low + (image.dtype.kind in "iu")
    inside = np.clip(image.astype(np.float64), window.low, window.high) - window.low
    return np.minimum(np.floor(inside * 256 / span), 255).astype(np.uint8)


@lru_cache(maxsize=8)
def _table(window: Window) -> NDArray[np.uint8]:
    """The level of each of the 65,536 values."""
    return _levels(window, np.arange(65536))


def _shown(value: float) -> str:
    return f"{int(value)}" if value.is_integer() and abs(value) < 1e15 else f"{value!r}"
