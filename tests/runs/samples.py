"""Small federations as feature files, and runs of them on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhip.cli.main import main
from fedhip.core.exact.columns import Columns
from fedhip.data import FeatureSet, make_partition
from fedhip.runs import Run
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.options import RidgeOptions
from tests.core.problems import Array

WIDTH, CLASSES, ROWS, BITS = 8, ("ape", "bee", "cat"), 15, 32
NAMES = ("north", "south", "west")
#: What is written of a run for anybody but the clients of it, and depends on their statistics alone.
EXACT = ("models", "statistics", "global.safetensors", "total.safetensors")


def rows_of(client: str, rows: int = ROWS, seed: int = 0) -> tuple[Array, Array]:
    """A client's rows: a function of its name, whoever else there is."""
    rng = np.random.default_rng([seed, *client.encode("utf-8", "surrogatepass")])
    means = np.random.default_rng(1).normal(size=(len(CLASSES), WIDTH))
    labels = rng.integers(0, len(CLASSES), rows)
    return means[labels] + rng.normal(size=(rows, WIDTH)), labels


def feature_set(clients: Sequence[str] = NAMES, rows: int = ROWS) -> FeatureSet:
    parts = [rows_of(client, rows) for client in clients]
    return FeatureSet(
        np.concatenate([F for F, _ in parts]),
        np.concatenate([y for _, y in parts]),
        CLASSES,
        clients=np.repeat(np.array(list(clients)), rows),
    )


def feature_file(path: Path, clients: Sequence[str] = NAMES, rows: int = ROWS, **more: Any) -> Path:
    data = feature_set(clients, rows)
    arrays: dict[str, Any] = {
        "features": data.features,
        "labels": data.labels,
        "class_names": np.array(CLASSES),
        "clients": data.clients,
        **more,
    }
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return path


def the_client(name: str, rows: int = ROWS) -> Client:
    """A client as `fedhip run` would make it of its rows."""
    data = feature_set([name], rows)
    return clients_of(data, make_partition(data.labels, "natural", clients=data.clients))[0]


def one_grid(width: int = WIDTH) -> RidgeOptions:
    """The default ridge on a grid that does not depend on anybody's rows."""
    return RidgeOptions(columns=Columns.plain(width), fraction_bits=BITS)


def make_run(
    path: Path,
    clients: Sequence[str] = NAMES,
    *,
    data: FeatureSet | None = None,
    features: Path | None = None,
    **settings: Any,
) -> Run:
    """A run of these clients, or of other data, without its report."""
    data = feature_set(clients) if data is None else data
    partition = make_partition(data.labels, "natural", clients=data.clients)
    options = {"alpha": "loo", "beta": "auto", "seed": 0, "only_local_classes": False, "statistics": True}
    options |= {name: value for name, value in settings.items() if name in options}
    if features is not None:
        options["features"] = str(features)
    settings.pop("statistics", None)
    of_ridge = {field.name for field in fields(RidgeOptions)}
    # One grid whoever takes part, so that runs of different clients can be compared byte by byte.
    ridge = replace(one_grid(data.features.shape[1]), **{n: v for n, v in settings.items() if n in of_ridge})
    told = {name: value for name, value in settings.items() if name not in of_ridge}
    chosen = RoundSettings(**{"ridge": ridge, "keep_statistics": bool(options["statistics"]), **told})
    return run_round(path, data, partition, chosen, title="sites", config=options)[0]


def contents(path: Path, names: Sequence[str] | None = None) -> dict[str, bytes]:
    """Every file below a folder, or below some of its parts, byte for byte."""
    parts = [path] if names is None else [path / name for name in names]
    files = [file for part in parts for file in ([part] if part.is_file() else part.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def digest(path: Path) -> str:
    """One hash of all that is below a folder, hidden files and empty folders too."""
    sha = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        sha.update(f"{file.relative_to(path)}\0{file.is_dir()}\0".encode("utf-8", "surrogateescape"))
        sha.update(file.read_bytes() if file.is_file() else b"")
    return sha.hexdigest()


def cli(*words: object) -> int:
    return main([str(word) for word in words])
