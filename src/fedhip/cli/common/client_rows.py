"""Rows of one client that come to a run after the round: images or features, in the run's classes and backbone."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhip.cli.common.options import add_window, print_window, require_deep, window_of
from fedhip.cli.common.progress import show_progress
from fedhip.data import Dataset, FeatureSet, Window, load_dataset, read_features
from fedhip.data.tables import is_table, read_labelled
from fedhip.errors import InputError
from fedhip.runs import Run
from fedhip.runs.rows import client_and_rows, divided, in_classes_of
from fedhip.simulation.client import Client


def add_client_rows(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Options that name a client's rows."""
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="an image folder (class/image), an .npz of images, or a table of a run that was made from one",
    )
    source.add_argument("--features", type=Path, metavar="FILE", help="a feature file of the run's backbone")
    parser.add_argument("--skip-corrupt", action="store_true", help="skip corrupt images, with a warning")
    add_window(parser, default="that of the run")
    add_backbone_place(parser)


def add_backbone_place(parser: argparse.ArgumentParser) -> None:
    """Options for the run's own backbone: where its weights are, and where it computes."""
    parser.add_argument("--weights", type=Path, metavar="PATH", help="weights of the run's backbone, if they moved")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")


def load_client(run: Run, args: argparse.Namespace, *, test_rows: bool) -> tuple[Client, NDArray[np.int8] | None]:
    """The rows that the options name, as a client of the run, and how they were divided, if not by the data.

    Rows for testing are those that the data marks as such; else, with `test_rows`, those that the run has divided so
    before, or as many as `fedhip run` takes.
    """
    source: Path = args.data if args.features is None else args.features
    data: Dataset | FeatureSet
    if is_table(args.data):
        refuse_of_images(args)
        data = read_labelled(
            args.data, run.require_table(), task=run.task, texts=run.text_encoder(args.device, show_progress)
        )
    elif args.features is None:
        window = known_window(run, args)
        data = load_dataset(source, skip_corrupt=args.skip_corrupt, allow_single=True, window=window)
        print_known_window(run, args, data, str(source))
    else:
        refuse_of_images(args)
        data = read_features(source, task=run.task)
    name, chosen = client_and_rows(str(source), data, args.client)
    labels = in_classes_of(run, str(source), data, chosen)
    features = data.features if isinstance(data, FeatureSet) else extract_for(run, data, args)
    split = None if data.split is None else data.split[chosen]
    groups = None if data.groups is None else data.groups[chosen]
    weights = None if isinstance(data, Dataset) or data.weights is None else data.weights[chosen]
    return divided(run, name, features[chosen], labels, split, groups, weights, test_rows=test_rows)


def extract_for(run: Run, data: Dataset, args: argparse.Namespace) -> np.ndarray:
    """Features of images by the run's own backbone."""
    from fedhip.features import cache_folder, extract
    from fedhip.features.cache import note_run

    reference = run.model(None).backbone
    if reference is None:
        raise InputError(f"{run.path} was run on given features, so nobody knows their backbone; give --features")
    backbone = reference.load(weights=args.weights, device=args.device)
    dtype = reference.dtype if backbone.mixed_precision else None
    kept: list[Path] = []
    cache = cache_folder(True) or False
    features = extract(backbone, data, dtype=dtype, cache=cache, kept=kept, report=show_progress)
    note_run(kept, run.ledger.run, run.path)
    return features


def known_window(run: Run, args: argparse.Namespace) -> Window | None:
    """What brings images of more than 8 bits to 8: --window, or what brought those there that the run was made from."""
    reference = run.model(None).backbone
    return window_of(args) or (None if reference is None else reference.window)


def print_known_window(run: Run, args: argparse.Namespace, data: Dataset, source: str) -> None:
    """Say which window was taken. Where none is known, refuse: one found here would not be that of the run's images."""
    require_deep(args, data, source)
    if data.window is None or run.model(None).backbone is None:
        return
    if known_window(run, args) is None:
        raise InputError(
            f"{source} has more than 8 bits, and {run.path} knows no window: it was made from images of 8 bits, or by "
            "an older fedhip, which took 0 to 65535; give --window LOW HIGH"
        )
    print_window(data, f"as in {run.path}" if args.window is None else "as --window says")


def refuse_of_images(args: argparse.Namespace) -> None:
    """Refuse what would do nothing, where no images are given."""
    given = [name for name in ("window", "skip_corrupt", "weights") if getattr(args, name, None)]
    if given:
        option = given[0].replace("_", "-")
        raise InputError(f"--{option} is for images, and none are given; leave it out")
