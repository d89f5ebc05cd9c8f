"""`fedhip predict`: classes and probabilities from a client's model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from fedhip.cli.common.client_rows import extract_for, known_window, print_known_window, refuse_window
from fedhip.cli.common.console import print_table
from fedhip.cli.common.options import add_window
from fedhip.data import Dataset, ImagePaths, image_files, read_features
from fedhip.data.images.pixels import has_more_bits
from fedhip.data.images.window import SIXTEEN_BITS
from fedhip.errors import CorruptImageError, DataMissingError
from fedhip.heads.model import NO_TEMPERATURE
from fedhip.runs import Run
from fedhip.runs.names import near_names
from fedhip.utils.text import json_text, readable

_MOST_ROWS = 1000  # a longer table is cut in the terminal; --json holds all of it


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "predict",
        help="classify images or features with a client's model",
        description="Classify images, folders of images or a feature file. Probabilities are calibrated on scores of "
        "training rows that were left out. Without --client, and for a client never seen, the global model answers.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("images", nargs="*", type=Path, metavar="IMAGE", help="image files, or folders of them")
    parser.add_argument("--client", metavar="ID", help="whose model")
    parser.add_argument(
        "--features", type=Path, metavar="FILE", help="a feature file, labels or none, instead of images"
    )
    parser.add_argument("--top", type=int, default=3, metavar="N", help="classes shown for each row (default: 3)")
    add_window(parser, default="that of the run")
    parser.add_argument("--weights", type=Path, metavar="PATH", help="weights of the run's backbone, if they moved")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--json", action="store_true", help="print JSON, with all scores, instead of a table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Read, extract, score, print."""
    folder = Run.open(args.run)
    client = args.client
    if client is not None and client not in folder.clients:
        near = near_names(client, folder.clients)
        hint = f" (near it: {near})" if near else ""
        print(f"fedhip: no client {client!r} in this run{hint}: the global model answers", file=sys.stderr)
        client = None
    model = folder.model(client)
    if model.temperature is None:
        folder.require_personalized()  # the temperature comes from its leave-one-out scores
    names, features = _rows(folder, args)
    scores = model.scores(features).numpy()
    probabilities = None if model.temperature is None else model.probabilities(features).numpy()
    top = np.argsort(-(scores if probabilities is None else probabilities), axis=1, kind="stable")[
        :, : max(1, args.top)
    ]
    if probabilities is None:
        print(f"fedhip: no probabilities, only scores: the model has no temperature; {NO_TEMPERATURE}", file=sys.stderr)
    if args.json:
        print(json_text({
            "model": "global" if client is None else "personalized",
            "client": client,
            "class_names": list(model.class_names),
            "rows": [
                {
                    "row": name,
                    "class": model.class_names[order[0]],
                    "probabilities": None if probabilities is None else probabilities[row].tolist(),
                    "scores": [None if np.isinf(value) else value for value in scores[row].tolist()],
                }
                for row, (name, order) in enumerate(zip(names, top, strict=True))
            ],
        }))  # fmt: skip
        return 0
    rows = []
    for row, (name, (first, *others)) in enumerate(zip(names, top, strict=True)):
        shown = [f"{s:.3f}" for s in scores[row]] if probabilities is None else [f"{p:.1%}" for p in probabilities[row]]
        also = ", ".join(f"{readable(model.class_names[c])} {shown[c]}" for c in others)
        best = readable(model.class_names[first])
        numbers = (shown[first],) if probabilities is None else (shown[first], f"{scores[row][first]:.3f}")
        rows.append((name, best, *numbers, also))
    numbered = ("score",) if probabilities is None else ("probability", "score")
    heads = ("row" if args.features else "image", "class", *numbered, "then")
    print_table(heads, rows[:_MOST_ROWS], model.who)
    if len(rows) > _MOST_ROWS:
        print(f"… and {len(rows) - _MOST_ROWS:,} more rows; --json prints all")
    return 0


def _rows(folder: Run, args: argparse.Namespace) -> tuple[list[str], np.ndarray]:
    """What to call each row, and its features."""
    if args.features is not None:
        if args.images:
            raise DataMissingError("--features stands alone; leave the images out")
        refuse_window(args)
        features = read_features(args.features, labelled=False).features
        return [str(row) for row in range(len(features))], features
    paths: list[Path] = []
    for path in args.images:
        if path.is_dir():
            paths += [path / name for name in image_files(path)]
        elif path.is_file():
            paths.append(path)
        else:
            raise DataMissingError(f"there is no image {path}; check the path")
    if not paths:
        raise DataMissingError("no image given; name image files, folders of images, or --features FILE")
    images = ImagePaths(Path("/"), tuple(str(path.absolute()) for path in paths))
    # What the images hold is looked at when they are read; that one has more bits stands in its header.
    deep = next((path for path in paths if has_more_bits(path)), None)
    window = None if deep is None else known_window(folder, args) or SIXTEEN_BITS
    data = Dataset("images", images, np.zeros(len(paths), dtype=np.int64), ("unknown",), window=window)
    print_known_window(folder, args, data, str(deep or "what was given"))
    try:
        return [readable(str(path)) for path in paths], extract_for(folder, data, args)
    except CorruptImageError as error:
        reason = str(error).split(";")[0]
        raise CorruptImageError(f"{reason}; replace the file, or leave it out") from error
