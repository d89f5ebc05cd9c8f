"""`fedhip extract`: a feature file from a data set of images."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhip.cli.common.options import (
    add_backbone,
    add_dataset,
    add_partition,
    divide,
    extract_features,
    load_images,
    require_new,
)
from fedhip.cli.common.parser import respell
from fedhip.data import Dataset, draw_styles, styled, write_features
from fedhip.errors import InputError
from fedhip.utils.text import json_text


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "extract",
        help="extract features of images into a feature file",
        description="Send every image through a frozen backbone; write features and labels to a file.",
    )
    add_dataset(parser)
    add_backbone(parser)
    parser.add_argument(
        "--styles",
        action="store_true",
        help="divide the images among clients, and turn, slant, blur, fade and tint each client's in a way of its own, "
        "by --seed; the file then holds the clients",
    )
    add_partition(parser)
    file = parser.add_argument("out", type=Path, metavar="FILE", help="what to write: .npz or .safetensors")
    respell(parser, file, "-o", "--out")
    parser.add_argument("--force", action="store_true", help="write over what is there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Load, extract, write."""
    # before the work, not after it: a place that the features cannot be written to
    if args.out.suffix not in (".npz", ".safetensors"):
        raise InputError(f"{args.out}: a feature file ends in .npz or .safetensors, not '{args.out.suffix}'")
    require_new(args.out, args.force)
    backbone, features = extract_features(args, images_of(args))
    write_features(args.out, features)
    rows, width = features.features.shape
    if args.json:
        print(json_text({"file": str(args.out), "rows": rows, "width": width, "backbone": str(backbone)}))
    else:
        print(f"{rows:,} × {width} features of {backbone}, written to {args.out}")
    return 0


def images_of(args: argparse.Namespace) -> Dataset:
    """The data set as it is, or divided among clients with a style each."""
    if not args.styles:
        given = [f"--{name}" for name in ("clients", "partition", "concentration", "shards") if getattr(args, name)]
        if given:
            raise InputError(f"{', '.join(given)} has no effect without --styles; leave it out")
        return load_images(args)
    dataset = load_images(args)
    partition = divide(args, dataset)
    return styled(dataset, partition, draw_styles(partition.num_clients, args.seed))
