"""`fedhip extract`: a feature file from a data set of images."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhip.cli.options import add_backbone, add_dataset, extract_features, load_images
from fedhip.data import write_features
from fedhip.data.errors import FeatureFileError


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
    from fedhip.features.devices import require_folder

    # before the work, not after it: a place that the features cannot be written to
    if args.out.suffix not in (".npz", ".safetensors"):
        raise FeatureFileError(f"{args.out}: a feature file ends in .npz or .safetensors, not '{args.out.suffix}'")
    if args.out.is_dir():
        raise FeatureFileError(f"{args.out} is a folder; give the name of a file")
    require_folder(args.out.parent)
    backbone, features = extract_features(args, load_images(args))
    write_features(args.out, features)
    rows, width = features.features.shape
    print(f"{rows:,} × {width} features of {backbone}, written to {args.out}")
    return 0
