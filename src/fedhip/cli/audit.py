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
    add_columns,
    add_window,
    extract_features,
    load_rows_of_table,
    refuse_columns,
    refuse_unused,
    require_deep,
    require_new,
    window_of,
)
from fedhip.cli.common.parser import respell
from fedhip.cli.common.progress import show_progress
from fedhip.cli.runs.run import add_privacy
from fedhip.data import Dataset, FeatureSet, image_files, load_dataset, make_partition, read_features, split_of
from fedhip.data.tables import Description, TableRows, is_table
from fedhip.errors import InputError
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
        help="try known attacks on a site's own rows before it takes part",
        description="Try known attacks on this site's own rows: on a plain upload, on the secure sum of a cohort of "
        "this size, and on its model. Reports which rows were recovered and what to do. Nothing is sent.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", type=Path, metavar="PATH", help="an image folder (class/image), an .npz of images, or a table"
    )
    source.add_argument("--features", type=Path, metavar="FILE", help="a feature file instead")
    parser.add_argument("--client", metavar="ID", help="the client to audit, if the data holds several")
    parser.add_argument("--skip-corrupt", action="store_true", help="skip corrupt images, with a warning")
    add_window(parser)
    table = parser.add_argument_group("table (--data FILE.csv, .tsv or .parquet)")
    table.add_argument("--client-column", metavar="COLUMN", help="whose row it is (default: all are the site's)")
    add_columns(table)
    table.add_argument("--columns", type=Path, metavar="FILE", help="what its columns hold (default: as they seem)")
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
    output.add_argument("--force", action="store_true", help="overwrite an existing page")
    output.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=run, official_split=False)


def run(args: argparse.Namespace) -> int:
    """Load, attack, tell."""
    from fedhip.privacy import SitesInSum, audit_site

    refuse_unused(args)
    refuse_columns(args, args.client_column)
    if args.columns is not None and not (args.columns.suffix == ".toml" and is_table(args.data)):
        raise InputError(f"--columns {args.columns} is to say what a table's columns hold: a .toml file, with a table")
    if not args.seconds > 0:
        raise InputError(f"--seconds {args.seconds:g} is no time to search in; give a number above 0")
    if args.out is not None and args.out.suffix != ".html":
        raise InputError(f"{args.out}: the page ends in .html, not '{args.out.suffix}'")
    if args.out is not None:
        require_new(args.out, args.force)
    description: Description | None = None
    if is_table(args.data):
        site, description, numbers = _table_site(args)
        backbone, pictured = None, None
    else:
        site, backbone, pictured, numbers = _site(args)
    rows, assumed = args.rows_of_others, args.rows_of_others is None
    cohort = SitesInSum(args.sites, len(site.features) * (args.sites - 1) if rows is None else rows, assumed)
    found = audit_site(
        site, cohort,
        fraction_bits=args.fraction_bits, seconds=args.seconds, seed=args.seed,
        noise=_noise(args, site, backbone, description), report=show_progress,
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


def _noise(
    args: argparse.Namespace, site: AuditedSite, backbone: BackboneReference | None, table: Description | None
) -> Noise | None:
    """With --epsilon, what a federation of so many sites would add, where one more may look."""
    from fedhip.privacy.audit import Noise
    from fedhip.privacy.mechanism import Mechanism
    from fedhip.runs.privacy import PrivacySettings

    given = {name: getattr(args, name) for name in ("delta", "clip", "public")}
    if (settings := PrivacySettings.of(args.epsilon, given)) is None:
        return None
    if args.fraction_bits is not None:
        raise InputError("--fraction-bits is given, and with --epsilon it follows from the noise; leave it out")
    settings.require_others_rows(site.features)
    public = settings.with_public(site.features.shape[1], table=table, backbone=backbone).public
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
    name, train, held_out = _divided(args, source, data)
    backbone, made = extract_features(args, data) if isinstance(data, Dataset) else (None, data)
    names = _row_names(source, data)
    site = AuditedSite(
        readable(name), made.features[train], data.labels[train], tuple(map(readable, data.class_names)),
        tuple(names[number] for number in train), made.features[held_out],
    )  # fmt: skip
    return site, backbone, data if isinstance(data, Dataset) else None, train


def _table_site(args: argparse.Namespace) -> tuple[AuditedSite, Description, np.ndarray]:
    """The site's rows of a table, what its columns hold, and the place of each training row.

    Missing values are filled from the site's own training rows; with --epsilon, by what was agreed on.
    """
    from fedhip.features.text_columns import DEFAULT_TEXT_BACKBONE, TextColumns
    from fedhip.privacy import AuditedSite
    from fedhip.runs.privacy import with_public_fills

    texts = TextColumns(
        args.backbone or DEFAULT_TEXT_BACKBONE, pooling=args.pooling, device=args.device, cache=args.cache, kept=[],
        report=show_progress,
    )  # fmt: skip
    rows = load_rows_of_table(args, texts, args.client_column)
    rows = rows if args.epsilon is None else with_public_fills(rows)
    if rows.task != "classification" or rows.weights is not None:
        raise InputError(f"{args.data}: the attacks are on sums of rows that have one class each, and count alike")
    name, train, held_out = _divided(args, args.data, rows)
    numbers = np.arange(len(rows)) if rows.numbers is None else rows.numbers
    names, class_names = tuple(f"row {number}" for number in numbers[train]), tuple(map(readable, rows.class_names))
    filled, description = rows.features(np.isin(np.arange(len(rows)), train))
    features = filled.features
    site = AuditedSite(readable(name), features[train], rows.labels[train], class_names, names, features[held_out])
    return site, description, train


def _divided(
    args: argparse.Namespace, source: Path, data: Dataset | FeatureSet | TableRows
) -> tuple[str, np.ndarray, np.ndarray]:
    """The site's name, and its rows for training and for testing, as a federation's site divides them."""
    name, chosen = client_and_rows(str(source), data, args.client or (source.stem if data.clients is None else None))
    if data.split is None:
        groups = None if data.groups is None else data.groups[chosen]
        whose = np.full(chosen.sum(), name)
        partition = make_partition(data.labels[chosen], "natural", clients=whose, seed=args.seed, groups=groups)
        split = split_of(None, partition)
    else:
        split = data.split[chosen]
    rows = np.flatnonzero(chosen)
    return name, rows[split == 0], rows[split == 1]


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
