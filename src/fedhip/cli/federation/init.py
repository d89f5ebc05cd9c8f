"""`fedhip federation init`: the options of an agreement, and what was made."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.cli.common.console import note, print_table
from fedhip.cli.common.lifts import add_lift, lift_settings
from fedhip.cli.common.options import add_window, window_of
from fedhip.errors import MissingExtraError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.fields import options_of
from fedhip.federation.agreement.privacy import costs_in_words, guarantee_of
from fedhip.utils.text import json_text

if TYPE_CHECKING:
    from fedhip.federation.agreement.init import InitSummary

_FLAG = argparse.BooleanOptionalAction
_REMEDY = 'a federation needs packages that are not installed; pip install "fedhip[federation]"'


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "init",
        help="at the coordinator: create a federation and its invitations",
        description="Create the folder of a federation: the agreement, the server's certificate, and a file for each "
        "site (its parcel), from which it makes its key. If all sites are on this machine, their folders and keys "
        "are made at once.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a folder that does not exist yet")
    parser.add_argument("--name", required=True, help="the federation's name")
    parser.add_argument(
        "--site", action="append", required=True, metavar="NAME", dest="sites", help="name of a site; repeat for each"
    )
    parser.add_argument(
        "--make-keys", action=_FLAG,
        help="make the private keys of all sites here (default: only without --host, or if it is this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--auditor", metavar="NAME",
        help="the auditor, to whom a site can be asked to reveal what it masked; sites sign a commitment",
    )  # fmt: skip
    net = parser.add_argument_group("network")
    net.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name or address by which sites reach the server",
    )
    net.add_argument("--port", type=int, metavar="N", help="port of the server (default: 8443)")
    net.add_argument(
        "--days", type=int, metavar="N", help="days until the server's certificate expires (default: a year)"
    )
    what = parser.add_argument_group("classes and features, one way of each")
    what.add_argument("--classes", metavar="A,B,…", help="the classes, or a file with one in each line")
    what.add_argument("--features", type=Path, metavar="FILE", help="classes and width as in this feature file")
    what.add_argument("--dataset", metavar="NAME", help="the classes of a data set by name")
    _add_fields(what, "features")
    what.add_argument("--backbone", metavar="NAME", help="the backbone, where sites bring images")
    what.add_argument("--weights", type=Path, metavar="PATH", help="its weights, if not the usual ones")
    what.add_argument("--pooling", metavar="SPEC", help="as for fedhip run")
    add_window(what, default="such images are refused")
    what.add_argument(
        "--columns", metavar="sum|plain|FILE",
        help="where sites bring tables: columns.toml, which says what their columns hold (fedhip describe drafts it); "
        "else the units of the features' columns: by a first sum over the sites (sum, default); as in a JSON file with "
        "offset and exponent of each, or as a feature file's rows ask for; or all the same (plain)",
    )  # fmt: skip
    _add_fields(parser.add_argument_group("round"), "round")
    add_lift(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(init))


def _add_fields(group: argparse._ArgumentGroup, table: str) -> None:
    """An option for each field of the agreement that is declared with help."""
    for option in options_of(Agreement, table):
        flag, more = f"--{option.name.replace('_', '-')}", dict[str, Any](help=option.help)
        if option.kind is bool:
            group.add_argument(flag, action=_FLAG, **more)
        elif option.kind is str:
            group.add_argument(flag, choices=option.words, **more)
        else:
            kind = _number_or(*option.words) if option.words else option.kind
            short = ("-s",) if flag == "--seed" else ()
            group.add_argument(*short, flag, type=kind, metavar=option.metavar, **more)


def with_engine(handler: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A handler whose missing packages are one line with a remedy."""

    def run_it(args: argparse.Namespace) -> int:
        try:
            return handler(args)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("fedhip"):
                raise
            raise MissingExtraError(f"{_REMEDY} ({error})") from error

    return run_it


def _number_or(*words: str) -> Callable[[str], float | str]:
    def parse(text: str) -> float | str:
        return text if text in words else float(text)

    parse.__name__ = f"number or {' or '.join(words)}"  # argparse puts it into its message
    return parse


def init(args: argparse.Namespace) -> int:
    """Make a federation."""
    from fedhip.federation.agreement.init import init as make
    from fedhip.federation.operations.serving import write_endpoint
    from fedhip.federation.sums.statistics import plan_of

    fields = [option.name for table in ("features", "round") for option in options_of(Agreement, table)]
    given = {name: getattr(args, name) for name in (*fields, "port", "days", "make_keys", "auditor")}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings |= {"name": args.name, "sites": args.sites, "hosts": args.host, **_agreed(args)}
    settings |= _lift(args, settings) | _columns(args)
    weights: Path | None = settings.pop("weights", None)
    made = make(args.directory, **settings)
    if made.agreement.wide is not None:
        note(f"a lift competes (--lift none leaves it out): {plan_of(made.agreement.wide).price}")
    try:
        write_endpoint(made.directory, made.address)
        if weights is not None:
            shutil.copyfile(weights, made.directory / "encoder.safetensors")
    except BaseException:  # Ctrl-C and a full disk too: a federation is there whole, or not at all
        shutil.rmtree(made.directory, ignore_errors=True)
        raise
    if args.json:
        print(json_text({
            "federation": str(made.directory),
            "address": made.address,
            "fingerprint": made.fingerprint,
            "agreement": made.agreement.digest(),
            "privacy": guarantee_of(made.agreement),
            "sites": _sites_in_json(made),
            "warnings": list(made.warnings),
        }))  # fmt: skip
        return 0
    for warning in made.warnings:
        print(f"fedhip: warning: {warning}", file=sys.stderr)
    _print_sites(made)
    if (promised := guarantee_of(made.agreement)) is not None:
        print(promised)
        print(costs_in_words(made.agreement))
    print(f"sites connect to the server at {made.address}")
    for where, command in made.next_commands:
        print(f"{where + ':':13} {command}")
    return 0


def _print_sites(made: InitSummary) -> None:
    """What each site must get."""
    from fedhip.federation.agreement.credentials import fingerprint

    if made.roster is None:
        rows = [(name, str(path.relative_to(made.directory))) for name, path in made.for_sites.items()]
        print_table(("site", "first parcel, for the site; no secret is in it"), rows, str(made.directory))
        return
    keys = made.roster.keys
    rows3 = [(name, path.name, fingerprint(keys[name])) for name, path in made.for_sites.items()]
    print_table(("site", "folder with its private key", "the key's fingerprint"), rows3, str(made.directory))
    print(f"fingerprint: {made.fingerprint}")


def _sites_in_json(made: InitSummary) -> dict[str, dict[str, str]]:
    from fedhip.federation.agreement.credentials import fingerprint

    if made.roster is None:
        return {name: {"parcel": str(path)} for name, path in made.for_sites.items()}
    keys = made.roster.keys
    return {name: {"folder": str(path), "key": fingerprint(keys[name])} for name, path in made.for_sites.items()}


def _lift(args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """The lift of the agreement, its price said before anybody pays it."""
    if (wanted := lift_settings(args)) is None:
        return {} if args.lift is None else {"lift": args.lift}
    plan = wanted.plan(settings["width"], len(settings["classes"]))
    plan.require_memory(0)  # of the server
    note(plan.price)
    sigma = None if wanted.kind == "relu" else wanted.sigma
    return {"lift": wanted.kind, "lift_width": plan.width, "lift_seed": wanted.seed, "lift_bandwidth": sigma}


def _columns(args: argparse.Namespace) -> dict[str, Any]:
    """The units of the columns, where they are agreed on by hand."""
    if _describes_tables(args):
        return {}
    if args.columns in (None, "sum", "plain"):
        return {} if args.columns is None else {"columns": args.columns}
    from fedhip.core.exact.columns import Columns, Survey

    path = Path(args.columns)
    if path.suffix == ".json":
        columns = Columns.from_file(path)
    else:
        from fedhip.data import read_features

        # Of the paper's ridge no column can be moved: there is no intercept that would make up for it.
        centred = args.standardize is not False or args.intercept is not False
        columns = Columns.of(Survey.of(read_features(path).features), centred=centred)
    content = columns.to_dict()
    return {"columns": "given", "column_offsets": content["offset"], "column_exponents": content["exponent"]}


def _describes_tables(args: argparse.Namespace) -> bool:
    return args.columns is not None and Path(args.columns).suffix == ".toml"


def _table(args: argparse.Namespace) -> dict[str, Any]:
    """The description of tables, with the backbones of text looked up, and how wide its features are."""
    from fedhip.data.tables import Description
    from fedhip.data.tables.text import with_backbones
    from fedhip.features.text_columns import TextColumns

    described = with_backbones(Description.from_file(args.columns), TextColumns(device="cpu"))
    return {"table": described, "width": described.width}


def _agreed(args: argparse.Namespace) -> dict[str, Any]:
    """Classes, width, and backbone or tables, from the options that describe them."""
    from fedhip.federation.errors import SetupError

    found: dict[str, Any] = _table(args) if _describes_tables(args) else {}
    if found and (args.features is not None or args.backbone is not None):
        raise SetupError(
            f"{args.columns} describes tables, which need no --features and no --backbone; leave them out, and name "
            "the classes with --classes"
        )
    given = [option for option in ("classes", "features", "dataset") if getattr(args, option) is not None]
    if found and not given:
        raise SetupError(
            f"a federation predicts classes: name those of column {', '.join(found['table'].labels)!r} with --classes; "
            "real numbers and several labels are for fedhip run, in one place"
        )
    if len(given) != 1:
        raise SetupError("the classes are needed, once: give one of --classes, --features and --dataset")
    if args.classes is not None:
        path = Path(args.classes)
        text = path.read_text(encoding="utf-8").splitlines() if path.is_file() else args.classes.split(",")
        if not path.is_file() and len(text) == 1:
            raise SetupError(
                f"--classes {args.classes} is one class, and no file; give A,B,… or a file with one in each line"
            )
        found["classes"] = [name.strip() for name in text if name.strip()]
    elif args.dataset is not None:
        from fedhip.data import load_dataset

        found["classes"] = load_dataset(args.dataset).class_names
    else:
        from fedhip.data import read_features

        sample = read_features(args.features)
        found |= {"classes": sample.class_names, "width": sample.features.shape[1]}
    if args.width is not None and found.setdefault("width", args.width) != args.width:
        what = args.features or args.columns
        raise SetupError(f"--width is {args.width}, and the features of {what} are {found['width']} wide")
    if args.backbone is not None:
        made = _backbone(args)
        if found.get("width", made["width"]) != made["width"]:
            raise SetupError(
                f"{args.backbone} makes features {made['width']} wide, not {found['width']}; where sites bring images, "
                "leave --width out; where they bring feature files, leave --backbone out"
            )
        found |= made
    elif args.weights is not None or args.pooling is not None or args.window is not None:
        raise SetupError("--weights, --pooling and --window are of a backbone; name it with --backbone")
    if "width" not in found:
        raise SetupError(
            "the width of the features is needed: give --features, --width, --backbone or --columns columns.toml"
        )
    return found


def _backbone(args: argparse.Namespace) -> dict[str, Any]:
    """The reference of a backbone, its width, and its weights file, which the server offers to sites."""
    from fedhip.features import load_backbone
    from fedhip.features.backbones import find_weights
    from fedhip.features.reference import BackboneReference
    from fedhip.federation.site.encoder import digest_of

    backbone = load_backbone(args.backbone, pooling=args.pooling, weights=args.weights, device="cpu")
    # In single precision all machines agree to rounding; in bfloat16 they do not.
    reference = BackboneReference(
        backbone.name, backbone.identity, "float32", pooling=args.pooling, window=window_of(args)
    )
    found: dict[str, Any] = {"backbone": reference.to_dict(), "width": backbone.feature_dim}
    if backbone.identity is not None:
        path = find_weights(args.backbone, args.weights)
        if path.suffix == ".safetensors":
            found |= {"encoder_digest": digest_of(path), "encoder_size": path.stat().st_size, "weights": path}
    return found
