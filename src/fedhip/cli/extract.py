"""`fedhip extract`: a feature file from a data set of images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "extract",
        help="turn a data set of images into a feature file",
        description="Send every image through a frozen backbone; write features and labels to a file.",
    )
    add = parser.add_argument
    add("--dataset", required=True, metavar="NAME", help="a data set (see: fedhip list datasets)")
    add("--data", type=Path, metavar="DIR", help="where its files are")
    add("--backbone", default="fedhip-vit-tiny", metavar="NAME", help="default: %(default)s")
    add("--weights", type=Path, metavar="PATH", help="file or folder of weights instead of the usual ones")
    add("--pooling", metavar="SPEC", help="cls, mean, or layers such as mean:6,8,10,12+cls")
    add("--mask-ratio", type=float, default=0.0, metavar="R", help="share of hidden patches (default: none)")
    add("--mask-seed", type=int, default=0, metavar="N", help="seed of the mask (default: %(default)s)")
    add("--device", help="cuda or cpu (default: cuda where there is one)")
    add("--batch", type=int, metavar="N", help="images at a time (default: by their size)")
    add("--precision", choices=["float32", "bfloat16"], help="default: bfloat16 on a GPU, measured on a CPU")
    add("--no-cache", action="store_true", help="neither read nor write the cache")
    add("--out", type=Path, required=True, metavar="FILE", help=".npz or .safetensors")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Load, extract, write."""
    import torch

    from fedhip.data import FeatureSet, load_dataset
    from fedhip.features import extract, load_backbone

    backbone = load_backbone(
        args.backbone,
        pooling=args.pooling,
        device=args.device,
        mask_ratio=args.mask_ratio,
        mask_seed=args.mask_seed,
        weights=args.weights,
    )
    dataset = load_dataset(args.dataset, data_dir=args.data)
    features = extract(
        backbone,
        dataset,
        batch=args.batch,
        dtype=None if args.precision is None else getattr(torch, args.precision),
        cache=not args.no_cache,
        report=show_progress,
    )
    print(file=sys.stderr)
    FeatureSet(
        features=features,
        labels=dataset.labels,
        clients=dataset.clients,
        split=dataset.split,
        class_names=dataset.class_names,
    ).save(args.out)
    print(f"{features.shape[0]:,} × {features.shape[1]} features of {backbone.name} in {args.out}")
    return 0


def show_progress(done: int, total: int, rate: float, left: float) -> None:
    """One line that is written over."""
    bar = "█" * (30 * done // total)
    minutes, seconds = divmod(round(left), 60)
    line = f"\r{bar:<30} {done:>7,}/{total:,}  {rate:>9,.0f} images/s  {minutes:d}:{seconds:02d} left "
    print(line, end="", file=sys.stderr, flush=True)
