"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.cli.common.console import note
from fedhip.cli.common.progress import show_progress
from fedhip.data import (
    DEFAULT_CLIENTS,
    FEDERATIONS,
    Dataset,
    FeatureSet,
    Partition,
    Window,
    list_partitions,
    load_dataset,
    load_federation,
    read_features,
)
from fedhip.data.tables import TableRows, TextEncoder, is_table, load_table
from fedhip.errors import InputError
from fedhip.features.text_columns import DEFAULT_TEXT_BACKBONE
from fedhip.utils.files import require_folder, write_private
from fedhip.utils.text import readable

if TYPE_CHECKING:
    from fedhip.features.reference import BackboneReference

DEFAULT_BACKBONE = "fedhip-vit"
#: How the files of a run end that it cannot be read without.
_OF_RUNS = (".toml", ".json", ".safetensors")
_FLAG = argparse.BooleanOptionalAction  # so that the command line can take back what a configuration file turns on


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Options that name images."""
    group = parser.add_argument_group("data")
    group.add_argument("--dataset", metavar="NAME", help="a built-in data set (see: fedhip list datasets)")
    group.add_argument(
        "--data",
        metavar="PATH",
        help="an image folder, an .npz file or a table; with --dataset: the folder of its files",
    )
    group.add_argument(
        "--official-split",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="use the data set's own test rows (default: each client's rows are split 8:2)",
    )
    group.add_argument(
        "--skip-corrupt",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="skip corrupt images, with a warning",
    )
    group.add_argument("--allow-single", action=_FLAG, default=False, help="accept classes with a single image")
    add_window(group)


def add_window(group: argparse._ActionsContainer, default: str = "from the bits the images use") -> None:
    """The option for images of more than 8 bits."""
    group.add_argument(
        "--window", nargs=2, type=float, metavar=("LOW", "HIGH"),
        help=f"pixel values to map to black and white, for images of more than 8 bits (default: {default})",
    )  # fmt: skip


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Options that name images, features or a table."""
    add_dataset(parser)
    parser.add_argument("--features", metavar="FILE", help="a feature file (.npz or .safetensors), instead of --data")
    group = parser.add_argument_group("table (--data FILE.csv, .tsv or .parquet)")
    add_client_column(group, "the column that names each row's client (default: rows are divided, see --clients)")
    add_columns(group)


def add_client_column(group: argparse._ActionsContainer, meaning: str) -> None:
    """The option that names the column of clients; --client is what it was called at first, and stays understood."""
    group.add_argument("--client-column", dest="client", metavar="COLUMN", help=meaning)
    group.add_argument("--client", metavar="COLUMN", help=argparse.SUPPRESS)


def add_columns(group: argparse._ActionsContainer) -> None:
    """The options that say what other columns of a table are."""
    group.add_argument("--label", metavar="COLUMN", help="the column to predict")
    group.add_argument(
        "--group", metavar="COLUMN", help="the column of rows that belong together, such as one patient's"
    )
    group.add_argument("--weight", metavar="COLUMN", help="the column of row weights (default: all rows count alike)")
    group.add_argument("--drop", type=listed_names, metavar="COLUMN,…", help="columns to leave out")
    group.add_argument(
        "--text", type=listed_names, metavar="COLUMN,…", help="columns of free text, turned into features by a backbone"
    )


def require_new(path: Path, force: bool) -> None:
    """Before the work: a place where a file can be written, and none is lost."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if path.exists() and not force:
        raise InputError(f"{path} is there already; write over it with --force, or choose another name")
    if path.exists() and path.suffix in _OF_RUNS and (path.parent / "ledger.jsonl").exists():
        raise InputError(f"{path} is a file of the run {path.parent}, which is lost without it; choose another name")
    require_folder(path.parent)


def require_csv(path: Path, force: bool) -> None:
    """The same of a file of answers."""
    if path.suffix != ".csv":
        raise InputError(f"{path}: answers are written as .csv, not '{path.suffix}'")
    require_new(path, force)


def write_answers(path: Path, text: str) -> None:
    """Write a file that tells of rows, for its owner alone, in a folder that need not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, text.encode())


def at_least(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from here on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return number

    return parse


def listed_names(text: str) -> list[str]:
    """Names with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def add_backbone(parser: argparse.ArgumentParser) -> None:
    """Options that choose a backbone and how it runs."""
    group = parser.add_argument_group("backbone")
    group.add_argument(
        "--backbone", metavar="NAME",
        help=f"default: {DEFAULT_BACKBONE} for images, {DEFAULT_TEXT_BACKBONE} for --text; see: fedhip list backbones",
    )  # fmt: skip
    group.add_argument(
        "--weights", type=Path, metavar="PATH", help="file or folder of weights, instead of the usual ones"
    )
    group.add_argument("--pooling", metavar="SPEC", help="cls, mean, or layers such as mean:6,8,10,12+cls")
    group.add_argument(
        "--mask-ratio",
        type=float,
        default=0.0,
        metavar="R",
        help="share of image patches to hide, as the paper does (default: none)",
    )
    group.add_argument(
        "--mask-seed", type=int, default=0, metavar="N", help="seed of the hidden patches (default: %(default)s)"
    )
    group.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    group.add_argument("--batch", type=int, metavar="N", help="batch size (default: from the image size)")
    group.add_argument("--precision", choices=["float32", "bfloat16"], help="default: bfloat16 where the device has it")
    group.add_argument(
        "--cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="store extracted features and reuse them",
    )


def add_partition(parser: argparse.ArgumentParser) -> None:
    """Options that divide rows among clients."""
    group = parser.add_argument_group("clients")
    group.add_argument(
        "-k",
        "--clients",
        type=int,
        metavar="K",
        help=f"number of clients (default: {DEFAULT_CLIENTS}, as in the paper)",
    )
    group.add_argument(
        "--partition",
        choices=tuple(list_partitions()),
        help="how rows are divided (default: by the data's own clients if it names any, else dirichlet)",
    )
    group.add_argument(
        "--concentration",
        type=float,
        metavar="λ",
        help="of the Dirichlet schemes; smaller is more non-IID (default: 0.1)",
    )
    group.add_argument("--shards", type=int, metavar="S", help="shards per client (default: 2)")
    group.add_argument(
        "--min-rows", type=int, default=1, metavar="N", help="least number of rows per client (default: 1)"
    )
    group.add_argument("-s", "--seed", type=int, default=0, help="random seed of partition and split (default: 0)")


def refuse_unused(args: argparse.Namespace) -> None:
    """Feature files have been through their backbone, and tables without text need none: its options would do nothing.

    The backbone of text that a file of columns describes stands there.
    """
    if args.features is None and not names_table(args):
        return
    text = bool(getattr(args, "text", None))
    given = {
        # the configuration of a run names the usual one
        "--backbone": args.backbone not in (None, DEFAULT_BACKBONE) and not text,
        "--weights": args.weights is not None,
        "--pooling": args.pooling is not None and not text,
        "--mask-ratio": args.mask_ratio != 0.0,
        "--batch": args.batch is not None,
        "--precision": args.precision is not None,
        "--official-split": args.official_split,
        "--skip-corrupt": args.skip_corrupt,
        "--window": args.window is not None,
    }
    unused = [option for option, is_given in given.items() if is_given]
    if unused:
        what = "--features" if args.features is not None else "a table"
        raise InputError(f"{', '.join(unused)} has no effect on {what}; leave it out")


def names_table(args: argparse.Namespace) -> bool:
    """Whether --data or --dataset is a table."""
    if args.features is not None or isinstance(args.data, list):
        return False
    return is_table(args.data) if (name := getattr(args, "dataset", None)) is None else name in FEDERATIONS


def refuse_columns(args: argparse.Namespace, client: str | None) -> None:
    """Refuse the names of columns, of which `client` is one, where no table is given that has them."""
    given = {"--label": args.label, "--client-column": client, "--group": args.group, "--weight": args.weight}
    given |= {"--drop": args.drop, "--text": args.text}
    named = ", ".join(option for option, value in given.items() if value is not None)
    if named and (dataset := getattr(args, "dataset", None)) in FEDERATIONS:
        raise InputError(f"{dataset} has columns and clients of its own; leave {named} out")
    if named and not names_table(args):
        raise InputError(f"{named} names columns of a table; give one with --data FILE.csv, .tsv or .parquet")


def load_rows_of_table(args: argparse.Namespace, texts: TextEncoder, client: str | None) -> TableRows:
    """The table that --data names; `client` is the column that tells whose row each is."""
    from fedhip.runs.round.prepare import columns_given

    description, _ = columns_given(getattr(args, "columns", None))
    return load_table(
        args.data,
        label=args.label,
        client=client,
        group=args.group,
        weight=args.weight,
        drop=args.drop or (),
        description=description,
        task=getattr(args, "task", "classification"),
        text=args.text or (),
        texts=texts,
    )


def load_images(args: argparse.Namespace) -> Dataset:
    """The data set that --dataset and --data name."""
    options: dict[str, Any] = {
        "official_split": args.official_split,
        "skip_corrupt": args.skip_corrupt,
        "allow_single": args.allow_single,
        "window": window_of(args),
    }
    if args.dataset is not None:
        dataset = load_dataset(args.dataset, args.data, **options)
    elif args.data is not None:
        dataset = load_dataset(Path(args.data), **options)
    else:
        raise InputError("no data given; choose --dataset NAME or --data PATH (see: fedhip list datasets)")
    require_deep(args, dataset, readable(dataset.name))
    return dataset


def window_of(args: argparse.Namespace) -> Window | None:
    """What --window says."""
    return None if args.window is None else Window(*args.window)


def require_deep(args: argparse.Namespace, dataset: Dataset, source: str) -> None:
    """Images of 8 bits have been given their range by whoever made them: a window would do nothing."""
    if args.window is not None and dataset.window is None:
        raise InputError(f"--window is for images of more than 8 bits, and there is none in {source}; leave it out")


def print_window(dataset: Dataset, why: str = "the bits that they use; --window LOW HIGH for another range") -> None:
    """One line on how images of more than 8 bits came to have 8, if there are any."""
    window, values = dataset.window, dataset.values
    if window is None:
        return
    some, seen = "images", ""
    if values is not None:
        some = "1 image" if values.images == 1 else f"{values.images:,} images"
        outside = "" if window.holds(values) else "; what lies outside is cut off"
        seen = f" (their values: {values}{outside})"
    note(f"{some} of more than 8 bits: {window} is black to white{seen}, {why}")


def load_rows(args: argparse.Namespace, texts: TextEncoder) -> tuple[str, Dataset | FeatureSet | TableRows]:
    """The rows that the options name, images, features or a table, and what to call them; `texts` reads text."""
    refuse_columns(args, args.client)
    if args.features is not None:
        if args.dataset is not None or args.data is not None:
            raise InputError("--features stands alone; leave --dataset and --data out")
        return Path(args.features).stem, read_features(args.features, task=getattr(args, "task", "classification"))
    if args.dataset is None and args.data is None:
        raise InputError("no data given; choose one of --dataset NAME, --data PATH and --features FILE")
    if args.dataset in FEDERATIONS:
        return args.dataset, load_federation(args.dataset, args.data)
    if names_table(args):
        return Path(args.data).stem, load_rows_of_table(args, texts, args.client)
    dataset = load_images(args)
    return dataset.name, dataset


def divide(args: argparse.Namespace, data: Dataset | FeatureSet | TableRows) -> Partition:
    """The partition that the options describe."""
    from fedhip.simulation.tasks import divide as divide_rows

    return divide_rows(
        data,
        args.partition,
        args.clients,
        owner=getattr(args, "client", None),
        seed=args.seed,
        concentration=args.concentration,
        shards_per_client=args.shards,
        min_rows=args.min_rows,
    )


def extract_features(
    args: argparse.Namespace, dataset: Dataset, kept: list[Path] | None = None
) -> tuple[BackboneReference, FeatureSet]:
    """Send the images through the backbone that the options choose; which one it was, and the features.

    `kept` gets the folder of the cache that they are in.
    """
    import torch

    from fedhip.features import cache_folder, choose_dtype, extract, load_backbone
    from fedhip.features.reference import BackboneReference

    print_window(dataset, *(() if args.window is None else ("as --window says",)))
    backbone = load_backbone(
        args.backbone or DEFAULT_BACKBONE,
        pooling=args.pooling,
        device=args.device,
        mask_ratio=args.mask_ratio,
        mask_seed=args.mask_seed,
        weights=args.weights,
    )
    folder = cache_folder(args.cache)
    dtype = getattr(torch, args.precision) if args.precision else choose_dtype(backbone)
    features = extract(
        backbone, dataset, batch=args.batch, dtype=dtype, cache=folder or False, kept=kept, report=show_progress
    )
    reference = BackboneReference(
        name=backbone.name,
        identity=backbone.identity,
        precision=str(dtype).removeprefix("torch."),
        pooling=args.pooling,
        weights=None if args.weights is None else str(args.weights.absolute()),
        mask_ratio=args.mask_ratio,
        mask_seed=args.mask_seed if args.mask_ratio else 0,
        window=dataset.window,
    )
    rows = FeatureSet(
        features,
        dataset.labels,
        dataset.class_names,
        clients=dataset.clients,
        split=dataset.split,
        groups=dataset.groups,
    )
    return reference, rows
