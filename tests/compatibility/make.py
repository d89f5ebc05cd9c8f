"""How `files/` was made, once, by fedhip 0.1.0: `python -m tests.compatibility.make /tmp/compatibility`.

No test runs this. Files of an old version are made by the old version: to make them again with a newer one would
compare it with itself. Something new gets a folder of its own, beside `files/`.

FOLDER is written into what is made (`commands.json`, and the paths in the runs' settings), so that a test can put its
own in the place of it. Private keys are made on the way, and thrown away: none is in `files/`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fedhip import Statistics
from fedhip.cli.main import main
from tests.compatibility.onnx import answers_of
from tests.compatibility.rounds import ROUNDS, play

CLASSES = ("ape", "bee", "cat")
WIDTH, ROWS = 6, 24
CLIENTS = ("north", "south", "west")

RUNS = {
    "ridge": "",
    "lda": "--head lda --prior client",
    "logistic": "--head logistic --prior client",
    "relu": "--lift relu --lift-width 10",
    "nystroem": "--lift nystroem --lift-width 10 --lift-seed 3",
    "paper": "--no-standardize --no-intercept",
    "balance": "--balance --only-local-classes",
    "methods": "--methods fedavg,fedhip --rounds 2",
}
#: Which run, and what then happens to a copy of it.
CHANGES = {
    "ridge": (
        "join RUN --features FOLDER/east.npz",
        "update RUN --client west --features FOLDER/more-of-west.npz",
        "forget RUN --client south",
        "personalize RUN --client north --features FOLDER/sites.npz",
    ),
    "lda": ("join RUN --features FOLDER/east.npz",),
    "logistic": ("forget RUN --client south --rows FOLDER/sites.npz",),
    "relu": ("forget RUN --client south",),
    "paper": ("update RUN --client west --features FOLDER/more-of-west.npz", "personalize RUN"),
}
AGREEMENTS = {
    "ridge": "--features FOLDER/sites.npz",
    "paper": "--classes ape,bee,cat --width 6 --columns plain --largest-feature 8 --no-standardize --no-intercept"
    " --alpha 20 --beta 1.5 --seed 4 --quorum 4 --threshold 4 --few-rows --deadline 30 --max-rows 500",
    "given": "--features FOLDER/sites.npz --columns FOLDER/runs/ridge/details.json --beta gcv --only-local-classes",
    "lda": "--features FOLDER/sites.npz --head lda --prior client --dishonest-sites 1",
    "logistic": "--features FOLDER/sites.npz --head logistic --gradient-rounds 3 --prior client",
    "relu": "--features FOLDER/sites.npz --lift relu --lift-width 10",
    "nystroem": "--features FOLDER/sites.npz --columns plain --lift nystroem --lift-width 10 --lift-seed 3",
    "plain": "--features FOLDER/sites.npz --no-secure-sum",
    "images": "--classes dark,bright --backbone fedhip-vit --window 0 4095",
}
SITES = ("a", "b", "c", "d")


def rows_of(client: str, seed: int = 0, rows: int = ROWS) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows around means of their class, some of which are the client's own: what is worth personalizing."""
    rng = np.random.default_rng([seed, *client.encode()])
    own = np.random.default_rng([7, *client.encode()])
    means = 1.5 * np.random.default_rng(1).normal(size=(len(CLASSES), WIDTH))
    labels = rng.choice(len(CLASSES), rows, p=own.dirichlet([2.0] * len(CLASSES)))
    shift = 1.2 * own.normal(size=(len(CLASSES), WIDTH))
    return (means + shift)[labels] + rng.normal(size=(rows, WIDTH)), labels


def write_rows(path: Path, clients: tuple[str, ...], seed: int = 0) -> None:
    """A feature file, by its ending."""
    parts = [rows_of(client, seed) for client in clients]
    features, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    if path.suffix == ".safetensors":
        numbers = np.repeat(np.arange(len(clients)), ROWS)
        names = {"class_names": json.dumps(CLASSES), "client_names": json.dumps(clients)}
        save_file({"features": features.astype(np.float32), "labels": labels, "clients": numbers}, path, names)
    else:
        who = np.repeat(np.array(clients), ROWS)
        np.savez(path, features=features, labels=labels, class_names=np.array(CLASSES), clients=who)


def command(*words: object) -> str:
    """Run a command that succeeds; what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([str(word) for word in words])
    if code:
        raise SystemExit(f"{words}: {code}")
    return printed.getvalue()


def make(folder: Path) -> None:
    """All of `files/`."""
    folder.mkdir(parents=True)
    write_rows(folder / "sites.npz", CLIENTS)
    write_rows(folder / "sites.safetensors", CLIENTS)
    write_rows(folder / "east.npz", ("east",))
    write_rows(folder / "more-of-west.npz", ("west",), seed=1)
    commands: dict[str, Any] = {
        "folder": str(folder),
        "runs": make_runs(folder),
        "changes": make_changes(folder),
        "answers": make_answers(folder),
        "agreements": make_agreements(folder),
    }
    F, y = rows_of("north")
    statistics = Statistics.from_data(F, y, len(CLASSES))
    statistics.to_file(folder / "statistics.safetensors")
    commands["statistics"] = {"digest": statistics.digest(), "client": "north"}
    make_onnx(folder)
    make_estimators(folder)
    commands["federation"] = make_federation(folder)
    make_rounds(folder)
    (folder / "commands.json").write_text(json.dumps(commands, indent=1) + "\n")
    for report in [*folder.rglob("report.html"), *folder.rglob("*.svg")]:
        report.unlink()


def make_runs(folder: Path) -> dict[str, list[str]]:
    """runs/NAME."""
    found = {}
    for name, options in RUNS.items():
        words = ["run", "--features", f"{folder}/sites.npz", *options.split(), "--out", f"{folder}/runs/{name}"]
        command(*words)
        found[name] = words
    words = ["run", "--features", f"{folder}/sites.safetensors", "--clients", "4", "--partition", "dirichlet"]
    words += ["--concentration", "0.5", "--min-rows", "6", "--seed", "5", "--alpha", "2", "--beta", "gcv"]
    words += ["--no-statistics", "--no-recommend", "--out", f"{folder}/runs/divided"]
    command(*words)
    found["divided"] = words
    return found


def make_changes(folder: Path) -> dict[str, list[list[str]]]:
    """changes/NAME, from runs/NAME."""
    found = {}
    for name, steps in CHANGES.items():
        run = folder / "changes" / name
        shutil.copytree(folder / "runs" / name, run)
        found[name] = [step.replace("RUN", str(run)).replace("FOLDER", str(folder)).split() for step in steps]
        for words in found[name]:
            command(*words)
    return found


def make_answers(folder: Path) -> dict[str, list[str]]:
    """answers/NAME.json: what commands print."""
    rows, new = (["--features", f"{folder}/{name}.npz"] for name in ("sites", "more-of-west"))
    found = {
        "audit": ["audit", *rows, "--client", "west", "--sites", "4"],
        "audit-of-few": ["audit", *rows, "--client", "west", "--rows-of-others", "3"],
        "partition": ["partition", *rows, "--partition", "shards", "--clients", "4", "--seed", "2"],
    }
    for kind in ("runs", "changes"):
        for run in sorted((folder / kind).iterdir()):
            who = ["0"] if run.name == "divided" else ["west"]
            found[f"{kind}-{run.name}"] = ["predict", str(run), "--client", *who, *new]
            found[f"{kind}-{run.name}-global"] = ["predict", str(run), *new]
    (folder / "answers").mkdir()
    for name, words in found.items():
        words.append("--json")
        (folder / "answers" / f"{name}.json").write_text(command(*words))
    words = ["partition", *rows, "--partition", "shards", "--clients", "4", "--seed", "2", "--out"]
    command(*words, f"{folder}/partition")
    return found


def make_onnx(folder: Path) -> None:
    """onnx.npz: what exported models answer."""
    found = {}
    for name in ("ridge", "lda", "logistic", "relu"):
        path = folder / f"{name}.onnx"
        command("export", folder / "runs" / name, "--client", "west", "--head-only", path)
        found[name] = answers_of(path, rows_of("west")[0])
        path.unlink()
    np.savez(folder / "onnx.npz", **found)  # type: ignore[arg-type]


def make_estimators(folder: Path) -> None:
    """estimators.npz: probabilities of each head."""
    from fedhip.sklearn import FedHiPClassifier

    data = np.load(folder / "sites.npz")
    X, y, groups = data["features"], data["class_names"][data["labels"]], data["clients"]
    found = {}
    for head in ("ridge", "lda", "logistic"):
        model = FedHiPClassifier(head=head, prior="client" if head == "lda" else "none").fit(X, y, groups=groups)
        found[head] = model.predict_proba(X, groups=groups)
        found[f"{head}-labels"] = model.predict(X, groups=groups)
        found[f"{head}-forgotten"] = model.forget("south").predict_proba(X, groups=groups)
    np.savez(folder / "estimators.npz", **found)  # type: ignore[arg-type]


def make_agreements(folder: Path) -> dict[str, list[str]]:
    """agreements/NAME.toml."""
    found = {}
    (folder / "agreements").mkdir()
    for name, options in AGREEMENTS.items():
        made = folder / "made"
        sites = [word for site in SITES for word in ("--site", site)]
        words = ["federation", "init", str(made), "--name", "trial", *sites, "--host", "coordinator.test"]
        words += options.replace("FOLDER", str(folder)).split()
        command(*words)
        (made / "federation.toml").rename(folder / "agreements" / f"{name}.toml")
        shutil.rmtree(made)
        found[name] = words
    return found


def make_federation(folder: Path) -> dict[str, Any]:
    """federation/: the coordinator's folder before and after it enrolled the sites, and a site's; no private key."""
    base, secret = folder / "federation", folder / "secret"
    made = secret / "coordinator"
    sites = [word for site in SITES for word in ("--site", site)]
    options = ["--host", "coordinator.test", "--features", folder / "sites.npz"]
    with for_centuries():
        command("federation", "init", made, "--name", "trial", *sites, *options)
    keep(made, base / "before")
    for site in SITES:
        command("federation", "accept", made / "parcels" / f"{site}-1.json", "--out", secret / f"site-{site}")
    replies = [secret / f"site-{site}" / f"reply-{site}.json" for site in SITES]
    command("federation", "enroll", made, *replies)
    fingerprint = command("federation", "fingerprint", made).strip()
    parcel = made / "parcels" / "a-2.json"
    command("federation", "accept", parcel, "--out", secret / "site-a", "--fingerprint", fingerprint)
    keep(made, base / "coordinator")
    keep(secret / "site-a", base / "site-a")
    (base / "replies").mkdir()
    for reply in replies:
        shutil.copy(reply, base / "replies")
    shutil.rmtree(secret)
    fingerprints = {}
    shutil.copytree(base / "coordinator", made)
    for name in AGREEMENTS:
        shutil.copy(folder / "agreements" / f"{name}.toml", made / "federation.toml")
        fingerprints[name] = command("federation", "fingerprint", made).strip()
    shutil.rmtree(secret)
    return {"fingerprint": fingerprint, "fingerprints": fingerprints}


@contextlib.contextmanager
def for_centuries() -> Iterator[None]:
    """Certificates that are made within are valid whatever day it is when a test looks at them."""
    start, days = datetime(2000, 1, 1, tzinfo=UTC), 200 * 365
    # By its name of then: a later version need not have such a module.
    with mock.patch.multiple("fedhip.federation.agreement.credentials", _now=lambda: start, _days=lambda _: days):
        yield


def keep(source: Path, target: Path) -> None:
    """A copy without private keys, and without what is of one machine and one hour."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.key", "key", "state"))
    for path in target.rglob("*"):
        if path.is_file() and b"PRIVATE" in path.read_bytes():
            raise SystemExit(f"{path} holds a private key")


def make_rounds(folder: Path) -> None:
    """rounds/NAME: the server's result and that of a site, of a round in one process."""
    for name in ROUNDS:
        os.environ["FEDHIP_STATE"] = str(folder / "played" / f"sums-{name}")  # sites give the same rows only once
        played = play(name, folder / "played" / name)
        for part, path in played.items():
            shutil.copytree(path, folder / "rounds" / name / part)
    shutil.rmtree(folder / "played")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    make(Path(sys.argv[1]).absolute())
