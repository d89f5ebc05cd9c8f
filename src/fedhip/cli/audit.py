"""`fedhip audit`: what a site would give away, found on its own rows before it takes part."""

from __future__ import annotations

import argparse
import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedhip.cli.common.console import print_table
from fedhip.cli.common.options import (
    add_backbone,
    add_window,
    extract_features,
    refuse_unused,
    require_deep,
    require_new,
    window_of,
)
from fedhip.cli.common.parser import respell
from fedhip.cli.common.progress import show_progress
from fedhip.cli.runs.run import add_privacy
from fedhip.data import Dataset, FeatureSet, image_files, load_dataset, make_partition, read_features, split_of
from fedhip.runs.rows import client_and_rows
from fedhip.utils.files import write_private
from fedhip.utils.text import json_text, readable

if TYPE_CHECKING:
    from fedhip.features.reference import BackboneReference
    from fedhip.privacy import Audit, AuditedSite
    from fedhip.privacy.audit import Noise

_THUMBNAIL = 96


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "audit",
        help="what a site would give away, before it takes part",
        description="Carry out the known attacks on this site's own rows: on a plain upload, on the secure sum of a "
        "cohort of this size, and on its model. Says which rows were recovered, and what to do. Nothing is sent.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="PATH", help="an image folder (class/image) or .npz of images")
    source.add_argument("--features", type=Path, metavar="FILE", help="a feature file instead")
    parser.add_argument("--client", metavar="ID", help="whose rows, where the data holds those of several clients")
    parser.add_argument("--skip-corrupt", action="store_true", help="leave corrupt images out, with a warning")
    add_window(parser)
    cohort = parser.add_argument_group("cohort")
    cohort.add_argument(
        "--sites", type=int, default=3, metavar="N", help="sites in the sum, with this one (default: 3)"
    )
    cohort.add_argument(
        "--rows-of-others", type=int, metavar="N",
        help="training rows of the other sites together (default: as many for each as this site has)",
    )  # fmt: skip
    cohort.add_argument(
        "-s", "--seed", type=int, default=0, help="the federation's, which chooses test rows (default: 0)"
    )
    cohort.add_argument(
        "--fraction-bits", type=int, metavar="N", help="the federation's grid (default: by the largest feature)"
    )
    add_privacy(parser, units=False)
    add_backbone(parser)
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S",
        help="patience with each search for single rows (default: %(default)s)",
    )  # fmt: skip
    output = parser.add_argument_group("output")
    page = output.add_argument(
        "out", type=Path, metavar="[FILE.html]", help="a page, with the images of recovered rows (default: none)"
    )
    respell(parser, page, "-o", "--out")
    output.add_argument("--force", action="store_true", help="write over a page that is there")
    output.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=run, official_split=False)


def run(args: argparse.Namespace) -> int:
    """Load, attack, tell."""
    from fedhip.errors import InputError
    from fedhip.privacy import SitesInSum, audit_site

    refuse_unused(args)
    if not args.seconds > 0:
        raise InputError(f"--seconds {args.seconds:g} is no time to search in; give a number above 0")
    if args.out is not None and args.out.suffix != ".html":
        raise InputError(f"{args.out}: the page ends in .html, not '{args.out.suffix}'")
    if args.out is not None:
        require_new(args.out, args.force)
    site, backbone, pictured, numbers = _site(args)
    rows, assumed = args.rows_of_others, args.rows_of_others is None
    cohort = SitesInSum(args.sites, len(site.features) * (args.sites - 1) if rows is None else rows, assumed)
    found = audit_site(
        site, cohort,
        fraction_bits=args.fraction_bits, seconds=args.seconds, seed=args.seed,
        noise=_noise(args, site, backbone), report=show_progress,
    )  # fmt: skip
    if args.out is not None:
        _write_page(args.out, found, pictured, numbers)
    if args.json:
        print(json_text(found.to_dict(), indent=1))
    else:
        _print_audit(found)
        if args.out is not None:
            print(f"the page, with data of this site on it: {args.out}")
    return 0


def _noise(args: argparse.Namespace, site: AuditedSite, backbone: BackboneReference | None) -> Noise | None:
    """With --epsilon, what a federation of so many sites would add, where one more may look."""
    from fedhip.errors import InputError
    from fedhip.privacy.audit import Noise
    from fedhip.privacy.mechanism import Mechanism
    from fedhip.runs.privacy import PrivacySettings

    given = {name: getattr(args, name) for name in ("delta", "clip", "public")}
    if (settings := PrivacySettings.of(args.epsilon, given)) is None:
        return None
    if args.fraction_bits is not None:
        raise InputError("--fraction-bits is given, and with --epsilon it follows from the noise; leave it out")
    settings.require_others_rows(site.features)
    public = settings.with_public(site.features.shape[1], backbone=backbone).public
    return Noise(Mechanism(settings.epsilon, settings.delta, "row", 1, public.width, args.sites), public)


def _site(args: argparse.Namespace) -> tuple[AuditedSite, BackboneReference | None, Dataset | None, np.ndarray]:
    """The site's rows, what made them of images, if it has any, and the number of each training row among them."""
    from fedhip.privacy import AuditedSite

    source: Path = args.data if args.features is None else args.features
    data: Dataset | FeatureSet
    if args.features is None:
        data = load_dataset(source, skip_corrupt=args.skip_corrupt, allow_single=True, window=window_of(args))
        require_deep(args, data, str(source))
    else:
        data = read_features(source)
    name, chosen = client_and_rows(str(source), data, args.client or (source.stem if data.clients is None else None))
    labels = data.labels[chosen]
    if data.split is None:  # as a federation's site divides them
        groups = None if data.groups is None else data.groups[chosen]
        whose = np.full(len(labels), name)
        partition = make_partition(labels, "natural", clients=whose, seed=args.seed, groups=groups)
        split = split_of(None, partition)
    else:
        split = data.split[chosen]
    backbone, made = extract_features(args, data) if isinstance(data, Dataset) else (None, data)
    features = made.features[chosen]
    numbers = np.flatnonzero(chosen)[split == 0]
    names = _row_names(source, data)
    site = AuditedSite(
        readable(name), features[split == 0], labels[split == 0], tuple(map(readable, data.class_names)),
        tuple(names[number] for number in numbers), features[split == 1],
    )  # fmt: skip
    return site, backbone, data if isinstance(data, Dataset) else None, numbers


def _row_names(source: Path, data: Dataset | FeatureSet) -> list[str]:
    """The image file of each row, or its number."""
    if isinstance(data, Dataset) and source.is_dir():
        files = [file for file in image_files(source) if file not in set(data.skipped)]
        if len(files) == len(data):
            return [readable(file) for file in files]
    return [f"row {number}" for number in range(len(data))]


def _write_page(path: Path, found: Audit, images: Dataset | None, numbers: np.ndarray) -> None:
    from PIL import Image

    from fedhip.privacy.page import MOST_PICTURES, recovered_rows, render_audit

    pictures = {}
    for entry in recovered_rows(found)[:MOST_PICTURES] if images is not None else ():
        row, buffer = int(str(entry["row"])), io.BytesIO()
        pixels = images.read([numbers[row]], _THUMBNAIL)[0]  # type: ignore[union-attr]
        Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
        pictures[row] = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, render_audit(found, pictures).encode())  # rows of the site are on it


def _print_audit(found: Audit) -> None:
    """Findings as a table, then advice."""
    site, cohort = found.site, found.cohort
    rows, width = site.features.shape
    assumed = " (assumed)" if cohort.assumed else ""
    title = (
        f"{site.name}: {rows:,} training rows of {width:,} features; {cohort.sites} sites, the others with "
        f"{cohort.rows_of_others:,} rows{assumed}"
    )
    print_table(("severity", "who sees it", "found"), [(f.severity, f.about, f.finding) for f in found.findings], title)
    print("what to do")
    for number, line in enumerate(found.advice, 1):
        print(f"{number}. {line}")
