"""Make the site of the README's tour: a folder of class/image for a client that joins later, and a drawing to classify.

    python examples/new_site.py [FOLDER] [CLASSES]

Twelve drawings of each of the first ten classes that come with the package, mirrored, so that no run has seen them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from fedhip.data import load_dataset


def main(folder: Path, classes: int = 10, each: int = 12) -> None:
    """Write FOLDER/new-site/CLASS/N.png and FOLDER/drawing.png."""
    drawings = load_dataset("sketches")
    pixels = np.asarray(drawings.images)
    for number in range(classes):
        place = folder / "new-site" / drawings.class_names[number]
        place.mkdir(parents=True, exist_ok=True)
        for row in np.flatnonzero(drawings.labels == number)[:each]:
            image = Image.fromarray(pixels[row][:, ::-1, 0])
            image.save(place / f"{row}.png")
            image.save(folder / "drawing.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(), *map(int, sys.argv[2:3]))
