"""Ridge accuracy of every layer of an encoder, and of concatenations, on a labelled data set.

    python scripts/evaluate_backbone.py --dataset sketches
    python scripts/evaluate_backbone.py --dataset cifar100 --data DIR --official-split
    python scripts/evaluate_backbone.py --dataset sketches --encoder run/encoder.safetensors --pooling mean:9,12 cls

Features are standardised, the penalty is chosen on a fifth of the training rows. Without an official split a random
fifth of the rows is the test part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from fedhip.data import load_dataset
from fedhip.features import LabelledSet, evaluate_encoder, load_encoder
from fedhip.features.backbones import embedded_weights


def main() -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--official-split", action="store_true")
    parser.add_argument("--encoder", type=Path, default=embedded_weights(), help="default: the embedded one")
    parser.add_argument("--pooling", nargs="+", default=[], help="concatenations to try (default: four means and cls)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    dataset = load_dataset(args.dataset, args.data, official_split=args.official_split)
    if not isinstance(dataset.images, np.ndarray):
        parser.error(f"{args.dataset} is not held in memory; extract its features instead")
    split = dataset.split
    if split is None:
        split = (np.random.default_rng(0).permutation(len(dataset)) < len(dataset) // 5).astype(np.int8)
    labelled = LabelledSet(dataset.name, dataset.images, dataset.labels, split.astype(np.int64))
    results = evaluate_encoder(load_encoder(args.encoder), labelled, concatenations=args.pooling, device=args.device)
    for spec, result in results.items():
        print(f"{spec:<28} {result['accuracy']:7.2%}   β/N {result['beta']:g}")


if __name__ == "__main__":
    main()
