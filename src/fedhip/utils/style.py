"""Colours and manners of figures. The pages' own, light and dark, are in runs/report/style.css."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedhip.errors import MissingExtraError

INK, MUTED, OWN = "#1f2933", "#66727f", "#bf4408"
#: Dark enough for print, apart from each other; marks and dashes tell them apart without colour.
OTHERS = ("#2c6cb0", "#0b7a5c", "#8a4a9e", "#8f6400", "#0c7388", "#b02e63", "#4a5a9c", "#5d7a1f")


@dataclass(frozen=True)
class Colours:
    """Colours of a picture, as matplotlib reads them."""

    ink: str = INK
    muted: str = MUTED
    grid: str = "#e9edf1"
    bubble: str = "#2f6fb3"


@contextmanager
def drawing(**style: Any) -> Iterator[None]:
    """matplotlib in house style, the same on every machine; figures are made, laid out and saved inside."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("drawing needs matplotlib; install it with: pip install matplotlib") from error
    # Names come from the user's folders: a dollar sign in one is a dollar sign.
    house: Any = {"svg.hashsalt": "fedhip", "font.size": 9.0, "text.parse_math": False}
    with matplotlib.rc_context(house | style), warnings.catch_warnings():
        # A letter the font lacks is drawn as a box, and is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield
