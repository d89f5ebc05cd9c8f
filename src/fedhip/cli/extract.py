"""`fedhip extract`: a feature file from a data set of images."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhip.cli.options import add_backbone, add_dataset, extract_features, load_images
from fedhip.data import write_features


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "extract",
        help="turn a data set of images into a feature file",
        description="Send every image through a frozen backbone; write features and labels to a file.",
    )
    add_dataset(parser)
    add_backbone(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".npz or .safetensors")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Load, extract, write."""
    backbone, features = extract_features(args, load_images(args))
    write_features(args.out, features)
    rows, width = features.features.shape
    print(f"{rows:,} × {width} features of {backbone} in {args.out}")
    return 0
