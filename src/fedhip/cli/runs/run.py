"""`fedhip run`: from data to every client's own model, in one round."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedhip.cli.common.console import interval_of, note, print_table
from fedhip.cli.common.lifts import add_lift, lift_settings
from fedhip.cli.common.options import (
    DEFAULT_BACKBONE,
    add_backbone,
    add_partition,
    add_rows,
    divide,
    extract_features,
    listed_names,
    load_rows,
    names_table,
    refuse_unused,
)
from fedhip.cli.common.parser import Parser
from fedhip.cli.common.progress import show_progress
from fedhip.core.solvers import require_alpha, require_beta
from fedhip.data import Dataset
from fedhip.data.tables import TableRows
from fedhip.data.tables.report import summary
from fedhip.engines import ENGINES, engine_device, require_engine
from fedhip.errors import InputError
from fedhip.features import resolve_device
from fedhip.features.backbones import EMBEDDED
from fedhip.features.cache import note_run
from fedhip.features.lifts.kinds import NO_LIFT
from fedhip.features.text_columns import DEFAULT_TEXT_BACKBONE, TextColumns
from fedhip.heads import HEADS, Auto, Ridge
from fedhip.heads.budget import bytes_of
from fedhip.heads.choice import describe
from fedhip.heads.options import numbers_of
from fedhip.heads.round import RIDGES
from fedhip.methods import METHODS
from fedhip.privacy.mechanism import DEFAULT_DELTA, UNITS
from fedhip.runs import Run, require_place
from fedhip.runs.config import read_config
from fedhip.runs.folder import head_of
from fedhip.runs.privacy import PrivacySettings, divided_one_by_one, with_public_fills
from fedhip.runs.results import gains_in_words, metrics_in_words, title_of
from fedhip.runs.round.prepare import Described, columns_given
from fedhip.runs.round.settings import LEFT_OPEN, ROUNDS, RoundSettings, methods_beside
from fedhip.runs.run import run_round
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.options import RidgeOptions
from fedhip.simulation.tasks import METRICS, TASKS, require_classes
from fedhip.utils.bounds import LARGEST
from fedhip.utils.text import json_text, readable
from fedhip.utils.words import listed, percent, size

#: Options that say where the answer goes, and not what it is.
_NOT_CONFIGURATION = (
    "config", "out", "force", "json", "quiet", "verbose", "handler", "engine", "ray_address",
)  # fmt: skip
#: What most people need; --help-all shows the rest.
_COMMON = (
    *("--dataset", "--data", "--features", "--label", "--client-column", "--clients"),
    *("--task", "--head", "--methods", "--seed", "--out", "--force"),
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        help="train a model for every client in one round, and write a report",
        description="Train a personalized model for every client in one round. Rows come from a table, images or a "
        "feature file; a frozen backbone turns images and text into features. Writes a run folder: models/, "
        "results.json, report.html, and config.toml, which repeats the run.",
    )
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG.toml",
        help="a file of options, one key per option; the command line takes precedence",
    )  # fmt: skip
    add_rows(parser)
    add_backbone(parser)
    add_partition(parser)
    group = parser.add_argument_group("method")
    group.add_argument(
        "--task", choices=TASKS, default="classification",
        help="what is predicted: one class (default), real numbers, or several 0/1 labels",
    )  # fmt: skip
    group.add_argument(
        "--alpha", type=_number_or(("loo",), require_alpha), default="loo", metavar="loo|NUMBER",
        help="extra weight of a client's own rows; loo: chosen by leave-one-out on its training rows (default)",
    )  # fmt: skip
    group.add_argument(
        "--beta", type=_number_or(("auto", "gcv"), require_beta), default="auto", metavar="auto|gcv|NUMBER",
        help="ridge penalty; auto: chosen by the clients' summed leave-one-out accuracy (default); gcv: by generalized "
        "cross-validation on the summed statistics",
    )  # fmt: skip
    group.add_argument(
        "--standardize", action=argparse.BooleanOptionalAction, default=True,
        help="scale features to mean 0 and deviation 1 over all clients (default: yes; the paper: no)",
    )  # fmt: skip
    group.add_argument(
        "--intercept", action=argparse.BooleanOptionalAction, default=True,
        help="fit an intercept, without penalty (default: yes; the paper: no)",
    )  # fmt: skip
    group.add_argument(
        "--methods", type=listed_names, metavar="NAME,…",
        help=f"methods to compare: any of {', '.join((*METHODS, MAJORITY))}, or all (default: "
        f"{','.join((Auto.method, *RIDGES))}); a list without auto implies --head ridge unless --head is given",
    )  # fmt: skip
    group.add_argument(
        "--head", choices=tuple(HEADS), default=None,
        help="kind of model in the run folder: auto (default) chooses for each client by cross-validation on training "
        "rows; ridge is the paper's FedHiP; lda; logistic. Options that only ridge has (--beta, --no-standardize, "
        "--no-intercept, --balance) imply ridge",
    )  # fmt: skip
    group.add_argument(
        "--head-options", type=listed_names, metavar="NAME=NUMBER,…",
        help="options of the head's method, such as shrinkage=0.1 (lda), penalty=50,gradient_rounds=20 (logistic)",
    )  # fmt: skip
    group.add_argument(
        "--max-rounds", type=int, default=1, metavar="N",
        help="rounds that --head auto may use; from 8 on, the logistic head is a candidate (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--budget", metavar="SIZE",
        help="upload limit of each client, such as 5MB, 500kB or a number of bytes; features are projected to fewer "
        "dimensions if needed (default: no limit)",
    )  # fmt: skip
    # In configuration files of before there was a choice; it says nothing any more.
    group.add_argument(
        "--recommend", action=argparse.BooleanOptionalAction, default=None, help=argparse.SUPPRESS,
    )  # fmt: skip
    group.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N",
        help="rounds of the gradient methods (default: %(default)s, as in the paper)",
    )  # fmt: skip
    group.add_argument(
        "--only-local-classes", action=argparse.BooleanOptionalAction, default=False,
        help="never predict a class of which the client has no training row",
    )  # fmt: skip
    group.add_argument(
        "--prior", choices=("client", "none"), default=None,
        help="client: weight answers by the client's class frequencies, as far as its training rows support it, in "
        "every method (default: in auto only)",
    )  # fmt: skip
    group.add_argument(
        "--columns", type=Path, metavar="FILE",
        help="for a table: columns.toml, which says what each column holds (fedhip describe drafts it; default: "
        "detected); for features: a JSON file with the units of the columns, such as another run's details.json "
        "(default: from the training rows)",
    )  # fmt: skip
    group.add_argument(
        "--fraction-bits", type=int, metavar="N",
        help="resolution of the fixed-point sums: steps of 2^-N in the units of each column (default: 32)",
    )  # fmt: skip
    group.add_argument(
        "--balance", action=argparse.BooleanOptionalAction, default=None,
        help="weight rows so that all classes count alike (default: all rows count alike)",
    )  # fmt: skip
    add_lift(parser)
    add_privacy(parser)
    add_engine(parser)
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--out", type=Path, metavar="DIR", help="the run folder (default: runs/DATA-DATE-TIME)")
    output.add_argument("--force", action="store_true", help="replace an existing run")
    output.add_argument(
        "--statistics", action=argparse.BooleanOptionalAction, default=True,
        help="keep each client's statistics; join, update and forget need them",
    )  # fmt: skip
    output.add_argument("--json", action="store_true", help="print results.json instead of tables")
    if isinstance(parser, Parser):
        parser.show_first(*_COMMON)
    parser.set_defaults(handler=run)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Where clients' work runs, which is no part of the answer."""
    group = parser.add_argument_group("where clients' work runs (docs/scale.md)")
    group.add_argument(
        "--engine", choices=ENGINES, default="local",
        help="local: in threads of this process (default); ray: as tasks of a Ray cluster, to the same bits",
    )  # fmt: skip
    group.add_argument(
        "--ray-address", metavar="auto|HOST:PORT",
        help="with --engine ray: a cluster that is there (default: one of this machine's cores, for this run alone)",
    )  # fmt: skip


def add_privacy(parser: argparse.ArgumentParser, *, units: bool = True) -> None:
    """Options of differential privacy, all of which say nothing without --epsilon."""
    group = parser.add_argument_group("differential privacy (docs/howto/with-differential-privacy.md)")
    group.add_argument(
        "--epsilon", type=float, metavar="E",
        help="privacy budget: adds noise to the clients' sum; smaller is more private (default: no noise)",
    )  # fmt: skip
    group.add_argument(
        "--delta", type=float, metavar="D",
        help=f"probability that epsilon does not hold; choose it below 1/rows (default: {DEFAULT_DELTA:g})",
    )  # fmt: skip
    if units:
        group.add_argument("--unit", choices=UNITS, help="unit of protection: a row (default), a group or a client")
        group.add_argument(
            "--unit-rows", type=int, metavar="N", help="at most this many rows of a group or client are used"
        )
    group.add_argument(
        "--clip", type=float, metavar="LENGTH",
        help="clip the norm of each feature row to this; must not be derived from private rows",
    )  # fmt: skip
    group.add_argument(
        "--public", metavar="FILE",
        help="a feature file of public rows from the same backbone, used to scale and clip private rows; or "
        f"{EMBEDDED}, for features of the embedded backbone (default for images)",
    )  # fmt: skip


def options_from(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """A configuration file as options of the command line."""
    strings = {name: action for action in parser._actions for name in action.option_strings if name[:2] == "--"}
    actions = {
        name[2:].replace("-", "_"): action
        for name, action in strings.items()
        if not (name.startswith("--no-") and isinstance(action, argparse.BooleanOptionalAction))
    }
    known = set(actions) - {"help", "help_all", *_NOT_CONFIGURATION} | {"out", "force", "json", "engine", "ray_address"}
    words: list[str] = []
    several = {name: action.nargs for name, action in actions.items() if isinstance(action.nargs, int) and action.nargs}
    for name, value in read_config(path, known, several).items():
        option = f"--{name.replace('_', '-')}"
        if (actions[name].nargs == 0) is not isinstance(value, bool):
            raise InputError(f"{path}: '{name}' must {'be' if actions[name].nargs == 0 else 'not be'} true or false")
        if name in several and isinstance(value, list) and len(value) != several[name]:
            raise InputError(f"{path}: '{name}' has {len(value)} numbers; give {several[name]}")
        if isinstance(value, bool):
            words += (
                [option]
                if value
                else [f"--no-{name.replace('_', '-')}"] * isinstance(actions[name], argparse.BooleanOptionalAction)
            )
        elif name in several and isinstance(value, list):
            words += [option, *map(str, value)]
        else:
            words.append(f"{option}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return words


def run(args: argparse.Namespace) -> int:
    """Load, divide, extract, run the round, write, print."""
    refuse_unused(args)
    require_engine(args.engine, args.ray_address, private=args.epsilon is not None)
    args.backbone = args.backbone or (DEFAULT_TEXT_BACKBONE if args.text else DEFAULT_BACKBONE)
    described, units = columns_given(args.columns)
    if described is not None and not names_table(args):
        raise InputError(f"{args.columns} describes a table, and none is given; name one with --data FILE.csv")
    settings = RoundSettings(
        alpha=args.alpha,
        beta=args.beta,
        methods=methods_beside(args.methods, args.head),
        rounds=args.rounds,
        only_local_classes=args.only_local_classes,
        prior=args.prior,
        ridge=RidgeOptions(
            args.standardize,
            args.intercept,
            args.balance is True,
            args.fraction_bits,
            units,
        ),
        keep_statistics=args.statistics,
        head=args.head,
        head_options=numbers_of(args.head_options or ()),
        lift=lift_settings(args),
        wider=args.lift != NO_LIFT,
        max_rounds=args.max_rounds,
        budget=None if args.budget is None else bytes_of(args.budget),
        privacy=PrivacySettings.of(
            args.epsilon, {name: getattr(args, name) for name in ("delta", "unit", "unit_rows", "clip", "public")}
        ),
    )
    if args.out is not None:
        require_place(args.out, args.force)
    begin = time.perf_counter()
    kept: list[Path] = []
    texts = TextColumns(
        args.backbone,
        pooling=args.pooling,
        device=args.device,
        cache=args.cache,
        kept=kept,
        report=show_progress,
    )
    name, data = load_rows(args, texts)
    if settings.privacy is not None and isinstance(data, Dataset) and data.window is not None and args.window is None:
        raise InputError(
            f"{name} has images of more than 8 bits, and which of their values are black and white would be read off "
            "all of them: with --epsilon one image more must not change the others; give --window LOW HIGH, as the "
            "device is known to have it"
        )
    require_classes(data)
    # Divided before any feature is computed: a wrong number of clients is not worth a minute's wait.
    partition = divide(args, data)
    out = args.out or Path("runs") / f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    require_place(out, args.force)
    device = engine_device(args.engine, resolve_device(args.device), args.device)
    backbone, table = None, None
    if isinstance(data, Dataset):
        backbone, features = extract_features(args, data, kept)
        features = features if settings.privacy is None else divided_one_by_one(features, args.seed, data)
    elif isinstance(data, TableRows):
        data = data if settings.privacy is None else divided_one_by_one(with_public_fills(data), args.seed)
        features, table = Described.divided(data, partition)
    else:
        features = data if settings.privacy is None else divided_one_by_one(data, args.seed)
    made_by = str(backbone) if backbone is not None else "given features" if table is None else table.title
    made_by += f", {features.features.shape[1]} wide"
    if settings.lift is not None:
        plan = settings.lift.plan(features.features.shape[1], features.num_classes)
        plan.require_memory(len(features))  # before the price: what does not fit says so in one line
        note(plan.price)
        made_by += f", {plan.title}"
    folder, _ = run_round(
        out,
        features,
        partition,
        settings,
        title=f"{readable(name)} · {partition.title} · {made_by}",
        config=configuration(args, None if backbone is None else backbone.precision),
        images=data if isinstance(data, Dataset) else None,
        backbone=backbone,
        table=table,
        seconds={"features": time.perf_counter() - begin},
        device=device,
        engine=args.engine,
        ray_address=args.ray_address,
        force=args.force,
        report=show_progress,
    )
    if kept:
        note_run(kept, folder.ledger.run, folder.path)
    if args.json:
        print(json_text(folder.results, indent=1))
    else:
        print_results(folder.results, folder.class_names)
        if table is not None and settings.privacy is None:
            print(f"columns: {summary(table.description, table.report)}; see {out / 'columns.toml'}")
        print(where_models_are(folder))
    return 0


def where_models_are(folder: Run) -> str:
    """The last line of a run."""
    if folder.packs:
        return (
            f"{folder.results['num_clients']:,} clients: the ridge alone, and their models a thousand to a file in "
            f"{folder.path / 'models'}"
        )
    models = "1 model" if len(folder.clients) == 1 else f"{len(folder.clients):,} models"
    return f"{models} in {folder.path / 'models'}; the report: {folder.path / 'report.html'}"


def configuration(args: argparse.Namespace, precision: str | None) -> dict[str, Any]:
    """The options that repeat the run from any folder: paths made absolute, measured choices as they fell."""
    options = {name: value for name, value in vars(args).items() if name not in _NOT_CONFIGURATION}
    config = {name: value for name, value in options.items() if value is not None or name in LEFT_OPEN}
    for name in ("data", "features", "weights", "columns", "public"):
        if name in config and config[name] != EMBEDDED:
            config[name] = str(Path(config[name]).absolute())
    if precision is not None:
        config["precision"] = precision
    config.pop("recommend", None)
    if config["max_rounds"] == 1:  # as in runs from before there was a choice
        del config["max_rounds"]
    if config["task"] == "classification":  # as in runs from before there were others
        del config["task"]
    return config


def print_results(results: dict[str, Any], class_names: Sequence[str] = ()) -> None:
    """A row for each method, then what was chosen and what it took."""
    if (task := results.get("task", "classification")) != "classification":
        print_targets(results, task)
        return
    rows = []
    for name, method in results["methods"].items():
        accuracy = method["accuracy"]
        up, down = (size(method[f"{way}_bytes_per_client"] or None) for way in ("upload", "download"))
        shares = [percent(accuracy[key]) for key in ("mean", "weighted", "worst_decile")]
        means = (shares[0], interval_of(accuracy), *shares[1:])
        rows.append((title_of(name), *means, str(method["rounds"]), up, down, f"{method['seconds']:.1f} s"))
    heads = ("model", "mean over clients", "95 % interval", "over rows", "worst tenth", "rounds", "up", "down", "time")
    print_table(heads, rows, results["title"])
    for name, method in results["methods"].items():
        if method.get("diverged"):
            print(f"{title_of(name)} diverged: {method['diverged']}")
        elif method.get("note"):
            print(f"{title_of(name)}: {method['note']}")
    for line in metrics_in_words(results, class_names):
        print(line)
    if privacy := results.get("privacy"):
        print(privacy["guarantee"])
        if "released" in privacy and any(method["per_client"] for method in results["methods"].values()):
            print(
                f"may be handed out: {listed(privacy['released'])}; all else here is computed from rows without noise"
            )
    if balance := results.get("balance"):
        least, most = (f"{value:.3g}" for value in (min(balance["weights"]), max(balance["weights"])))
        print(f"balanced classes: a row weighs from {least} to {most}; the class counts take one more exchange")
    if lift := results.get("lift"):
        words = f"{lift['kind']}, {lift['from']:,} → {lift['width']:,} wide, seed {lift['seed']}"
        sent = size(lift["upload_bytes_per_client"])
        whose = " of the models chosen" if "choice" in results and "lift" not in results["config"] else ""
        print(f"lift{whose}: {words}; its first sum takes one more exchange, {sent} each way, included above")
    if (choice := results.get("choice")) and "candidates" in choice:
        print(describe(choice))
    head = head_of(results)
    chosen = [entry["alpha"] for entry in results["methods"].get(head.method, {"per_client": []})["per_client"]]
    alphas = [alpha for alpha in chosen if alpha is not None]
    if head is Auto:
        pass
    elif head is not Ridge:
        settings = "; ".join(f"{name} {value:.3g}" for name, value in results["settings"].items())
        own = sum(alpha > 0 for alpha in alphas)
        print(f"models: {title_of(head.method)}; {settings}; {own} of {len(alphas)} clients with α > 0")
    elif found := results.get("alpha") or (alphas and _spread(alphas)):
        low, middle, high = (f"{found[at]:.3g}" for at in ("low", "median", "high"))
        print(f"β = {results['beta']:.3g}; α from {low} to {high}, median {middle}")
    if (alphas or "alpha" in results) and (loo := results["leave_one_out"]):
        common = f"; global model {loo['accuracy'][0]:.1%}" if loo["accuracy"] else ""
        print(f"expected accuracy, by {_estimated(results)}: {loo['chosen']:.1%}{common}")
    print("; ".join(f"{phase}: {seconds:.1f} s" for phase, seconds in results["seconds"].items()))


def _spread(alphas: list[float]) -> dict[str, float]:
    return {"low": min(alphas), "median": float(np.median(alphas)), "high": max(alphas)}


def print_targets(results: dict[str, Any], task: str) -> None:
    """The same of real targets, or of several labels."""
    rows = []
    for name, method in results["methods"].items():
        values = (method[metric]["mean"] for metric in METRICS[task])
        up, down = (size(method[f"{way}_bytes_per_client"] or None) for way in ("upload", "download"))
        shown = ("–" if value is None else f"{value:.4g}" for value in values)
        rows.append((title_of(name, task), *shown, str(method["rounds"]), up, down, f"{method['seconds']:.1f} s"))
    print_table(("model", *METRICS[task], "rounds", "up", "down", "time"), rows, results["title"])
    print("means over clients, on their test rows")
    for line in gains_in_words(results):
        print(line)
    own = results["methods"].get(Ridge.method, {"per_client": []})["per_client"]
    alphas = [entry["alpha"] for entry in own if entry["alpha"] is not None]
    if alphas and (left := results.get("leave_one_out_error")):
        low, middle, high = (f"{value:.3g}" for value in (min(alphas), np.median(alphas), max(alphas)))
        print(f"β = {results['beta']:.3g}; α from {low} to {high}, median {middle}")
        print(
            "expected squared error, by leave-one-out with α and β chosen without the row: "
            f"{left['chosen']:.3g} of the targets' variance"
        )
    print("; ".join(f"{phase}: {seconds:.1f} s" for phase, seconds in results["seconds"].items()))


def _estimated(results: dict[str, Any]) -> str:
    """How accuracy on new rows was estimated: by rows held out, and what was chosen without each of them."""
    config, head = results["config"], head_of(results)
    chosen = ["α"] if config["alpha"] == "loo" or not any(option.name == "alpha" for option in head.options) else []
    chosen += ["β"] if head is Ridge and config["beta"] == "auto" else []
    chosen += ["prior"] if config.get("prior") == "client" else []
    if head is Auto:
        return "cross-validation on training rows"
    words = f"{', '.join(chosen[:-1])} and {chosen[-1]}" if len(chosen) > 1 else "".join(chosen)
    return f"leave-one-out with {words} chosen without the row" if chosen else "leave-one-out"


def _number_or(words: tuple[str, ...], check: Callable[[float], float]) -> Callable[[str], float | str]:
    """A parser of one of the words, or of a number that passes `check`."""

    def parse(text: str) -> float | str:
        if text in words:
            return text
        try:
            return check(float(text))
        except ValueError as error:
            known = " nor ".join(map(repr, words))
            raise argparse.ArgumentTypeError(
                f"{text!r} is neither {known} nor a number from 0 to {LARGEST:g}"
            ) from error

    return parse
