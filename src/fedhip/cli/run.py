"""`fedhip run`: from data to every client's own model, in one round."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from fedhip.cli.console import print_table
from fedhip.cli.options import (
    add_backbone,
    add_partition,
    add_rows,
    describe,
    divide,
    extract_features,
    load_rows,
    refuse_unused,
)
from fedhip.cli.progress import show_clients
from fedhip.core.solvers import require_alpha, require_beta
from fedhip.data import Dataset
from fedhip.features import resolve_device
from fedhip.simulation import METHODS, Outcome, clients_of, simulate

TITLES = {"local": "trained alone", "global": "global model", "fedhip": "personalized"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        help="one round of FedHiP: local, global and personalized accuracy for every client",
        description="Divide a data set among clients, extract features with a frozen backbone, and run the three "
        "phases: local training, global aggregation, local personalization.",
    )
    add_rows(parser)
    add_backbone(parser)
    add_partition(parser)
    group = parser.add_argument_group("method")
    group.add_argument(
        "--alpha", type=_number_or("loo", require_alpha), default="loo", metavar="loo|NUMBER",
        help="weight of a client's own rows; loo: by leave-one-out on its training rows (default)",
    )  # fmt: skip
    group.add_argument(
        "--beta", type=_number_or("auto", require_beta), default="auto", metavar="auto|NUMBER",
        help="ridge penalty; auto: by the clients' summed leave-one-out (default)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Load, divide, extract, run the round, print."""
    refuse_unused(args)
    name, data = load_rows(args)
    # Divided before any feature is computed: a wrong number of clients is not worth a minute's wait.
    partition = divide(args, data)
    backbone, features = extract_features(args, data) if isinstance(data, Dataset) else ("given features", data)
    outcome = simulate(
        clients_of(features, partition),
        features.num_classes,
        alpha=args.alpha,
        beta=args.beta,
        device=resolve_device(args.device),
        report=show_clients,
    )
    title = f"{name} · {describe(partition)} · {backbone}, {features.features.shape[1]} wide"
    if args.json:
        print(json.dumps(as_json(outcome, title), ensure_ascii=False, indent=1))
    else:
        print_outcome(outcome, title)
    return 0


def print_outcome(outcome: Outcome, title: str) -> None:
    """A row for each client, then one for each method."""
    rows = [
        (
            r.client,
            r.train,
            r.test,
            r.classes,
            *(_percent(r.accuracy[m]) for m in METHODS),
            "–" if r.alpha is None else f"{r.alpha:.3g}",
        )
        for r in outcome.clients
    ]
    columns = ("client", "train", "test", "classes", *TITLES.values(), "α")
    print_table(columns, rows[:100], title)
    if len(rows) > 100:
        print(f"… and {len(rows) - 100:,} more clients; --json prints all")
    summaries = []
    for method, label in TITLES.items():
        summary = outcome.summary(method)
        summaries.append((label, *(_percent(summary[key]) for key in ("mean", "weighted", "worst_decile"))))
    print_table(("model", "mean over clients", "mean over rows", "worst tenth of clients"), summaries)
    alphas = [r.alpha for r in outcome.clients if r.alpha is not None]
    print(
        f"one round; up {outcome.upload_bytes / 1e6:.1f} MB and down {outcome.download_bytes / 1e6:.1f} MB for each "
        f"client; β = {outcome.beta:.3g}; median α = {np.median(alphas):.3g}"
    )
    print("; ".join(f"{phase}: {seconds:.1f} s" for phase, seconds in outcome.seconds.items()))


def as_json(outcome: Outcome, title: str) -> dict[str, Any]:
    """The outcome for machines."""
    return {
        "title": title,
        "beta": outcome.beta,
        "methods": {method: outcome.summary(method) for method in METHODS},
        "clients": [
            {"client": r.client, "train": r.train, "test": r.test, "alpha": r.alpha, "accuracy": r.accuracy}
            for r in outcome.clients
        ],
        "upload_bytes_per_client": outcome.upload_bytes,
        "download_bytes_per_client": outcome.download_bytes,
        "seconds": outcome.seconds,
    }


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number_or(word: str, check: Callable[[float], float]) -> Callable[[str], float | str]:
    """A parser of `word`, or of a number that passes `check`."""

    def parse(text: str) -> float | str:
        if text == word:
            return word
        try:
            return check(float(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is neither {word!r} nor a number of at least 0") from error

    return parse
