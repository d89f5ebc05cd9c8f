"""A matplotlib figure as part of a page: small, without ids that clash, in colours that follow the page's."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Drawn in the colour on the right, shown in the page's colour of the name on the left.
_PAGE_COLOURS = (
    "ink", "muted", "grid", "paper", "bubble",
    "fedhip", "global", "local", "other-1", "other-2", "other-3", "other-4", "other-5",
)  # fmt: skip
_SENTINELS = {name: f"#fed1{place:02x}" for place, name in enumerate(_PAGE_COLOURS, start=1)}
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
_FONT = re.compile(r"font:((?: \w+)*) ([\d.]+px) [^;]*")
_DROPPED = ("metadata", "style")


def colour(name: str) -> str:
    """What to draw with so that the page's `--name` is shown."""
    return _SENTINELS[name]


def inline(figure: Figure, prefix: str, *, zoom: float = 1.0) -> str:
    """The figure as <svg> for the inside of HTML; `prefix` keeps its ids apart from those of other figures.

    It is shown at `zoom` times the size it was drawn at, or smaller where the page is narrow.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(file.getvalue())  # noqa: S314 (matplotlib's own)
    _tidy(root, prefix)
    width, height = (float(side) for side in root.attrib["viewBox"].split()[2:])
    root.attrib = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{zoom * width:.0f}",
        "height": f"{zoom * height:.0f}",
        "style": f"--width: {zoom * width:.0f}px",
        "aria-hidden": "true",  # the figure around it speaks for it
    }
    return ET.tostring(root, encoding="unicode")


def _tidy(element: ET.Element, prefix: str) -> None:
    """HTML's own names, page colours, prefixed references, two decimals, circles as circles; all the way down."""
    element.tag = element.tag.partition("}")[2]
    element.text, element.tail = (None if text and text.isspace() else text for text in (element.text, element.tail))
    attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    element.attrib = {name: _value(name, value, prefix) for name, value in attributes.items()}
    for child in list(element):
        if child.tag.partition("}")[2] in _DROPPED:
            element.remove(child)
        else:
            _tidy(child, prefix)
    _to_circle(element)
    _hoist(element)


def _value(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href" and not value.startswith("#"):
        return value  # an embedded image
    if name in ("href", "clip-path"):
        return value.replace("#", f"#{prefix}-", 1)
    for shown, drawn in _SENTINELS.items():
        value = value.replace(drawn, f"var(--{shown})")
    digits = 4 if name == "transform" else 2
    value = _NUMBER.sub(lambda found: f"{float(found[0]):.{digits}f}".rstrip("0").rstrip("."), value)
    return _FONT.sub(r"font:\1 \2 var(--sans)", value) if name == "style" else value


def _hoist(element: ET.Element) -> None:
    """What all children say, said once by their parent."""
    for name in ("style", "clip-path"):
        said = {child.get(name) for child in element}
        if (
            element.tag == "g"
            and len(element) > 1
            and name not in element.attrib
            and len(said) == 1
            and None not in said
        ):
            element.attrib[name] = str(element[0].attrib[name])
            for child in element:
                del child.attrib[name]


def _to_circle(element: ET.Element) -> None:
    """matplotlib writes a circle as eight curves; SVG has one word for it."""
    d = element.get("d", "")
    if element.tag != "path" or d.count("C") != 8 or not d.rstrip().endswith("z"):
        return
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", d)]
    xs, ys = numbers[0::2], numbers[1::2]
    element.tag = "circle"
    element.attrib.pop("d")
    element.attrib |= {
        "cx": f"{(min(xs) + max(xs)) / 2:.2f}",
        "cy": f"{(min(ys) + max(ys)) / 2:.2f}",
        "r": f"{(max(xs) - min(xs)) / 2:.2f}",
    }
