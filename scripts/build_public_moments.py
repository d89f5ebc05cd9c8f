"""Mean and main directions of the embedded backbone's features over its public pre-training pool.

    python scripts/build_public_moments.py photos-64px.zip cifar10.npz sketches-pool.npz

The pools are those of docs/backbone.md. Of each as many images are drawn (seed 0), so that drawings and photographs
count alike. What is written has no image in it: a mean and a covariance over thousands of them, cut to its main
directions. Runs with differential privacy project and scale rows by it, for what is public costs no privacy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from fedhip.features import extract, load_backbone
from fedhip.features.pretraining.pools import load_pool
from fedhip.privacy.public import DIRECTIONS, PublicMoments

TARGET = Path(__file__).parent.parent / "src/fedhip/features/weights/fedhip-vit.public.safetensors"


def main() -> None:
    """Read the pools, extract, and write the moments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pools", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=3000, help="from each pool (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument("--rows", type=Path, help="keep the features too, as a feature file")
    arguments = parser.parse_args()
    backbone, rng = load_backbone("fedhip-vit"), np.random.default_rng(0)
    found = []
    for source in arguments.pools:
        images = load_pool([source], backbone.image_size).images
        chosen = np.sort(rng.choice(len(images), min(arguments.images, len(images)), replace=False))
        found.append(extract(backbone, np.ascontiguousarray(images[chosen]), dtype=torch.float32, cache=False))
    rows = np.concatenate(found)
    if arguments.rows is not None:
        np.savez(arguments.rows, features=rows, labels=np.repeat(np.arange(len(found)), [len(part) for part in found]))
    PublicMoments.of(rows, DIRECTIONS).to_file(arguments.out)


if __name__ == "__main__":
    main()
