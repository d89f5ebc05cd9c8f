"""`fedhip join`, `update`, `forget` and `personalize`: life after the round."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedhip.cli.common.client_rows import (
    add_backbone_place,
    add_client_rows,
    extract_for,
    load_client,
    refuse_of_images,
)
from fedhip.cli.common.options import print_window
from fedhip.cli.common.progress import show_progress
from fedhip.data import FEDERATIONS, FeatureSet, load_dataset, load_federation, load_partition, read_features
from fedhip.data.images.window import SIXTEEN_BITS
from fedhip.data.tables import read_labelled
from fedhip.errors import InputError
from fedhip.heads import Ridge
from fedhip.runs import Change, Run, life
from fedhip.runs.measures import TITLES, written
from fedhip.runs.results import title_of
from fedhip.runs.rows import clients_in
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.outcome import ClientResult
from fedhip.simulation.tasks import METRICS
from fedhip.utils.text import json_text


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    joining = _command(
        subparsers, "join", join, "add a client to a run",
        "Add a client to a run. It gets a model of its own, and all other models are updated exactly.",
    )  # fmt: skip
    joining.add_argument("--client", metavar="ID", help="the client's name, unless the data names it")
    add_client_rows(joining)
    updating = _command(
        subparsers, "update", update, "add training rows to a client of a run",
        "Add training rows to a client. Its α stays until you run: fedhip personalize.",
    )  # fmt: skip
    updating.add_argument("--client", metavar="ID", required=True, help="the client's name")
    add_client_rows(updating)
    forgetting = _command(
        subparsers, "forget", forget, "remove a client from a run (exact unlearning)",
        "Remove a client from a run. All other models become, bit for bit, what they would be without it.",
    )  # fmt: skip
    forgetting.add_argument("--client", metavar="ID", required=True, help="the client's name")
    add_backbone_place(forgetting)
    again = _command(
        subparsers, "personalize", personalize, "choose and measure one client's model, or all, again",
        "Choose and measure models again: one client's on the rows given, or all clients' on the run's own data.",
    )  # fmt: skip
    again.add_argument("--client", metavar="ID", help="one client, with its rows (default: all, from the run's data)")
    add_client_rows(again, required=False)
    for command in (joining, updating, forgetting):
        command.add_argument(
            "--rows", type=Path, action="append", default=[], metavar="FILE",
            help="only for --head logistic, which needs all clients' rows: a feature file with the rows and names of "
            "clients that are not in the run's own data",
        )  # fmt: skip


def _command(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, handler: Any, line: str, text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=line, description=text)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=handler)
    return parser


def join(args: argparse.Namespace) -> int:
    """Add a client."""
    run = Run.open(args.run)
    run.require_exact()
    client, split = load_client(run, args, test_rows=True)
    rows = _everybodys_rows(run, args)
    return _print_change(args, life.join(run, client, split=split, rows=rows, report=show_progress))


def update(args: argparse.Namespace) -> int:
    """Add rows to a client."""
    run = Run.open(args.run)
    run.require_exact()
    run.require_client(args.client)
    client, _ = load_client(run, args, test_rows=False)
    rows = _everybodys_rows(run, args)
    return _print_change(args, life.update(run, client, rows=rows, report=show_progress))


def forget(args: argparse.Namespace) -> int:
    """Remove a client."""
    run = Run.open(args.run)
    run.require_exact()
    if not run.head.needs_rows:
        refuse_of_images(args)
    rows = _everybodys_rows(run, args)
    return _print_change(args, life.forget(run, args.client, rows=rows, report=show_progress))


def personalize(args: argparse.Namespace) -> int:
    """Phase 3 again."""
    run = Run.open(args.run)
    run.require_exact()
    run.require_personalized()
    if args.client is not None:
        run.require_client(args.client)
    if args.data is not None or args.features is not None:
        client, _ = load_client(run, args, test_rows=True)
        clients = {client.name: client}
    else:
        clients = clients_of_the_data(run, args, run.clients if args.client is None else [args.client])
    everyone = args.client is None and args.data is None and args.features is None
    change = life.personalize(run, clients, skip_changed=everyone, report=show_progress)
    return _print_change(args, change)


def _everybodys_rows(run: Run, args: argparse.Namespace) -> dict[str, Client]:
    """The rows of all clients that can be had, where the run's head needs them."""
    if not run.head.needs_rows:
        if args.rows:
            raise InputError(f"the models of {run.path} are solved without rows; leave --rows out")
        return {}
    given = {
        name: client
        for source in args.rows
        for name, client in clients_in(run, str(source), read_features(source)).items()
    }
    rest = set(run.clients) - set(given)
    return {**clients_of_the_data(run, args, rest), **given} if rest else given


def clients_of_the_data(run: Run, args: argparse.Namespace, wanted: Collection[str]) -> dict[str, Client]:
    """Those of the clients wanted whose rows are in the data set that the run was made from."""
    config = run.config
    if "federation" in config:
        raise InputError(
            f"{run.path} is of a federation, whose sites keep their rows; give a client's rows, with --client and "
            "--features or --data"
        )
    images = run.model(None).backbone is not None
    if not images:
        refuse_of_images(args)
    elif getattr(args, "window", None) is not None or getattr(args, "skip_corrupt", False):
        raise InputError("--window and --skip-corrupt are for images that are given; leave them out")
    if "features" in config:
        rows = read_features(config["features"], task=run.task)
    elif config.get("dataset") in FEDERATIONS:
        named = load_federation(config["dataset"], config.get("data"), description=run.table)
        rows = named if isinstance(named, FeatureSet) else named.features()[0]
    elif run.table is not None and "data" in config:
        rows = read_labelled(
            config["data"], run.table, expect=False, task=run.task, texts=run.text_encoder(args.device, show_progress)
        )
    elif "data" not in config and "dataset" not in config:
        raise InputError(
            f"{run.path} was made in Python, from rows that no file is named of; give a client's rows, with --client "
            "and --features, or those of all with --rows FILE"
        )
    else:
        reference = run.model(None).backbone
        data = load_dataset(
            config.get("dataset") or Path(config["data"]),
            config.get("data") if "dataset" in config else None,
            official_split=bool(config.get("official_split")),
            skip_corrupt=bool(config.get("skip_corrupt")),
            allow_single=bool(config.get("allow_single")),
            # a run of images with more bits that knows no window is older than windows
            window=(None if reference is None else reference.window) or SIXTEEN_BITS,
        )
        print_window(data, f"as in {run.path}")
        features = extract_for(run, data, args)
        rows = FeatureSet(
            features, data.labels, data.class_names, clients=data.clients, split=data.split, groups=data.groups
        )
    partition, split = load_partition(
        run.path / "partition.json", rows.dealt_labels, rows.clients, data_split=rows.split
    )
    return {client.name: client for client in clients_of(rows, partition, split) if client.name in wanted}


def _solved(change: Change) -> str:
    """What the models come from now."""
    if change.rounds:
        return (
            f"fitted in {change.rounds} rounds from the head that was there; the objective is that of those present, "
            "and they chose α again"
        )
    if change.head.needs_rows:
        return "fitted to rows"
    changed = change.head is Ridge and change.beta != change.beta_before
    return "solved from the sum" + (f"; β went from {change.beta_before:.3g} to {change.beta:.3g}" if changed else "")


def _tested(result: ClientResult, task: str) -> str:
    """What each method makes of a client's test rows: its accuracy, or what there is of real targets in its place."""
    values, metric = result.accuracy, "accuracy"
    if task != "classification":
        metric = METRICS[task][0]
        values = {method: found.get(metric) for method, found in result.metrics.items()}
    each = ", ".join(f"{title_of(method, task)} {written(metric, value)}" for method, value in values.items())
    what = "" if task == "classification" else f"{TITLES[metric]} "
    return f"{what}on its {result.test:,} test rows: {each}"


def _print_change(args: argparse.Namespace, change: Change) -> int:
    """What was done, and what is left to do."""
    if args.json:
        print(json_text({"entry": change.entry, "stale": change.stale, "receipt": change.receipt}))
        return 0
    did = {
        "join": f"client {change.client!r} joined with {change.rows:,} training rows",
        "update": f"client {change.client!r} has {change.rows:,} training rows more",
        "forget": f"client {change.client!r} is forgotten: its {change.rows:,} training rows are out of the sum",
        "personalize": f"phase 3 again for {change.measured:,} of {change.clients:,} clients",
    }[change.event]
    models = "1 model" if change.clients == 1 else f"{change.clients:,} models"
    print(f"{did}; {models} {_solved(change)}.")
    if change.result is not None and change.event == "join":
        print(f"its α is {change.result.alpha:.3g}; {_tested(change.result, Run.open(args.run).task)}.")
    if change.stale:
        print(change.stale)
    number, digest = change.entry["entry"], change.entry["hash"]
    print(f"entry {number} of the ledger, {digest[:16]}…; receipt: {args.run / change.receipt}")
    for line in change.left:
        print(line)
    return 0
