"""Is a run what it says it is? Every file against its digest, the sum against its terms, the models against the sum."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedhip.core.affine import AffineModel
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data.tables import Description
from fedhip.errors import FedHiPError, FileError
from fedhip.heads.model import RIDGE, Model
from fedhip.runs.change import task_of
from fedhip.runs.folder import Run
from fedhip.runs.ledger import Ledger
from fedhip.runs.models import models_digest
from fedhip.runs.names import file_name
from fedhip.simulation.driver import add_up
from fedhip.utils.toml import write_toml

#: What comes of values of another kind than a run's files hold.
DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
#: Models are solved again to compare; another machine's linear algebra rounds differently.
SOLVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what, and what is wrong with it, or None."""

    what: str
    problem: str | None


def verify(
    run: Run, receipts: Sequence[Path] = (), report: Callable[[str, int, int], None] | None = None
) -> list[Check]:
    """Check all of a run, and receipts that clients hold."""
    tell = report or (lambda phase, done, total: None)
    checks: list[Check] = []

    def check(what: str, look: Callable[[], str | None]) -> bool:
        try:
            problem = look()
        except (FedHiPError, OSError) as error:
            problem = str(error)
        except DAMAGE as error:  # what is written there is not even of the right kind
            problem = f"it cannot be checked, since a file was altered ({type(error).__name__}); restore the run"
        checks.append(Check(what, problem))
        return problem is None

    if not check("the ledger's chain is unbroken", lambda: _nothing(run.ledger)):
        return checks
    last = run.ledger.entries[-1]
    check("the history adds up to the clients there are", lambda: _history(run))
    check("no file of a client that is not in the run", lambda: _left_over(run))
    check(
        "the sum is that of the last entry", lambda: _differs(run.total().digest(), last["total"], "total.safetensors")
    )
    if _kept(run):
        of = "the round's, and the statistics of who joined" if _of_federation(run) else "the clients' statistics"
        check(f"the sum is the sum of {of}", lambda: _sum(run, tell))
    solved = "belongs to that sum" if run.head.needs_rows else "is solved from that sum"
    check(f"every model {solved}", lambda: _models(run, tell))
    check("the models are those of the last entry", lambda: _models_digest(run))
    for name in ("results", "details"):
        check(f"{name}.json is that of the last entry", lambda name=name: _json_digest(run, name))  # type: ignore[misc]
    check("config.toml is what results.json says", lambda: _config(run))
    if (run.path / "columns.toml").is_file():
        check("columns.toml is what the models hold", lambda: _columns(run))
    if "partition" in run.ledger.entries[0]:  # those before it was written down are as good as they were
        check("partition.json is that of the first entry", lambda: _partition_digest(run))
    for path in [*sorted((run.path / "receipts").glob("*.json")), *receipts]:
        check(f"receipt {path.name}", lambda path=path: _receipt(run, path))  # type: ignore[misc]
    return checks


def altered_file(folder: Path) -> Path | None:
    """A file of a run that is not what its ledger says; None if there is none, or no ledger to ask."""
    try:
        last = Ledger.read(folder / "ledger.jsonl").entries[-1]
        for name in ("results", "details"):
            path = folder / f"{name}.json"
            if name in last and hashlib.sha256(path.read_bytes()).hexdigest() != last[name]:
                return path
    except (FedHiPError, OSError):
        return folder / "ledger.jsonl" if (folder / "results.json").is_file() else None
    return None


def _config(run: Run) -> str | None:
    try:
        if tomllib.loads(run.config_text()) == tomllib.loads(write_toml(run.config)):
            return None
    except tomllib.TOMLDecodeError:
        pass
    return f"{run.path / 'config.toml'} would not repeat this run: it was altered; restore it from a copy"


def _columns(run: Run) -> str | None:
    path = run.path / "columns.toml"
    if run.table is not None and Description.from_file(path) == run.table:
        return None
    return f"{path} is not the description that the models were made with; restore it from a copy"


def _nothing(_: object) -> None:
    return None


def _differs(found: str, expected: Any, what: str) -> str | None:
    if found == expected:
        return None
    return f"{what} has digest {found[:12]}…, and the ledger says {str(expected)[:12]}…; restore the run from a copy"


def _history(run: Run) -> str | None:
    """Replay the ledger: who is in the run after every entry."""
    clients: dict[str, Any] = {}
    for entry in run.ledger.entries:
        expected = set(clients)
        name = entry["client"]
        if entry["event"] == "run":
            expected = set(entry["clients"])
        elif entry["event"] == "join":
            expected = expected | {name}
        elif entry["event"] == "forget":
            expected = expected - {name}
        if set(entry["clients"]) != expected:
            return f"entry {entry['entry']} ({entry['event']}) does not follow from the entries before it"
        changed = {client for client, own in entry["clients"].items() if clients.get(client, own) != own}
        if changed - {name}:
            return f"entry {entry['entry']} ({entry['event']}) changes clients that it does not name"
        clients = entry["clients"]
    recorded = {} if run.packs else {name: run.details["clients"][name]["own"] for name in run.clients}
    if run.results["methods"].get(run.head.method) and recorded != clients:
        return "details.json and the ledger name different clients or statistics; restore the run from a copy"
    return None


def _left_over(run: Run) -> str | None:
    expected = {file_name(client) for client in run.ledger.entries[-1]["clients"]} | {path.name for path in run.packs}
    for folder in ("models", "statistics"):
        there = run.path / folder
        found = {path.name for path in there.iterdir()} if there.is_dir() else set()
        if more := sorted(found - expected):
            return f"{folder}/{more[0]} belongs to no client of the run; remove it"
    return None


def _sum(run: Run, tell: Callable[[str, int, int], None]) -> str | None:
    clients = run.ledger.entries[-1]["clients"]

    def terms() -> Iterator[GridStatistics]:
        for number, (client, digest) in enumerate(clients.items(), start=1):
            path = run.path / "statistics" / file_name(client)
            own = GridStatistics.from_file(path)
            if own.digest() != digest:
                raise FileError(
                    f"client {client!r}: {path.name} has digest {own.digest()[:12]}…, and the ledger says "
                    f"{digest[:12]}…; restore the run from a copy"
                )
            yield own
            tell("statistics", number, len(clients))

    total = run.total()
    if _of_federation(run):
        # Nobody's statistics of the round are here; its sum is, by its digest.
        rest = total - add_up(terms()) if clients else total
        found = rest.digest() == run.ledger.entries[0]["total"]
        return None if found else "total.safetensors less the statistics of who joined is not the sum of the round"
    return None if add_up(terms()) == total else "the clients' statistics do not add up to total.safetensors"


def _of_federation(run: Run) -> bool:
    """Whether the sum is of sites whose statistics nobody has, as in the folder of a federation's server."""
    return bool(run.results.get("sites"))


def _kept(run: Run) -> bool:
    """Whether the clients' statistics should be there; a run that says so and lacks them is found out."""
    return bool(run.config.get("statistics", True)) or (run.path / "statistics").is_dir()


def _models(run: Run, tell: Callable[[str, int, int], None]) -> str | None:
    if run.packs:
        return _packed(run, tell)
    federation = run.federation()
    head = run.head.fit(federation, task_of(run, [], tell), run.model(None))
    kept = _kept(run)
    for number, client in enumerate([None, *run.clients], start=1):
        model = run.model(client)
        if model.class_names != run.class_names:
            return f"{model.who} has other class names than details.json; restore the run from a copy"
        if client is not None and model.alpha != run.details["clients"][client]["alpha"]:
            return f"{model.who} has another α than details.json says; restore the run from a copy"
        if model.total != federation.digest or model.beta != (federation.beta if head.name == RIDGE else None):
            return f"{model.who} was solved from another sum or with another β; restore it from a copy"
        if client is None:
            solved = head.common
        elif kept:
            own = run.statistics(client)
            if model.own != own.digest() or model.alpha is None:
                return f"{model.who} was solved from other statistics than those in the run; restore it from a copy"
            solved = head.refit(client, own, model.alpha, partial(run.model, client))
        else:
            continue
        if solved.weights.shape != model.weights.shape:
            return f"{model.who} has weights of another shape than its statistics; restore it from a copy"
        difference = _distance(solved, model)
        if difference > SOLVE_TOLERANCE:
            return f"{model.who} is not the solution of its equations (off by {difference:.1e}); restore it from a copy"
        tell("models", number, len(run.clients) + 1)
    return None


def _packed(run: Run, tell: Callable[[str, int, int], None]) -> str | None:
    """The global model is solved from the sum; packs, whose clients' statistics nobody keeps, belong to it."""
    federation, model = run.federation(), run.model(None)
    if model.class_names != run.class_names:
        return f"{model.who} has other class names than details.json; restore the run from a copy"
    if model.total != federation.digest or model.beta != federation.beta:
        return f"{model.who} was solved from another sum or with another β; restore it from a copy"
    if (difference := _distance(federation.common, model)) > SOLVE_TOLERANCE:
        return f"{model.who} is not the solution of its equations (off by {difference:.1e}); restore it from a copy"
    rows = torch.zeros_like(federation.grid.counts)
    for number, path in enumerate(run.packs, start=1):
        found = run.pack(path)[0].found
        rows += found.counts.sum(dim=0)
        common = (found.alpha == 0.0) | found.alpha.isnan()
        if not bool((found.weights[common] == model.weights).all()):
            return f"{path.name}: a client with α = 0 has another model than the global one; restore it from a copy"
        tell("models", number, len(run.packs))
    return None if torch.equal(rows, federation.grid.counts) else "the packs' clients have other rows than the sum"


def _distance(solved: AffineModel, model: Model) -> float:
    """Between a model and what it should be, relative; ∞ where a class is left out by one alone."""
    found, expected = (torch.cat((m.weights, m.bias[None])) for m in (model.affine, solved))
    known = expected.isfinite()
    if not torch.equal(known, found.isfinite()):
        return float("inf")
    return float(torch.linalg.norm((found - expected)[known]) / torch.linalg.norm(expected[known]).clamp(min=1e-300))


def _models_digest(run: Run) -> str | None:
    digests: dict[str | None, str] = {client: run.model_digest(client) for client in [None]}
    if run.packs:
        digests |= {path.name: run.pack(path)[1] for path in run.packs}
    else:
        digests |= {client: run.model_digest(client) for client in run.clients}
    return _differs(models_digest(digests), run.ledger.entries[-1]["models"], "the set of models")


def _json_digest(run: Run, name: str) -> str | None:
    found = hashlib.sha256((run.path / f"{name}.json").read_bytes()).hexdigest()
    return _differs(found, run.ledger.entries[-1][name], f"{name}.json")


def _partition_digest(run: Run) -> str | None:
    found = hashlib.sha256((run.path / "partition.json").read_bytes()).hexdigest()
    return _differs(found, run.ledger.entries[0]["partition"], "partition.json")


def _receipt(run: Run, path: Path) -> None:
    try:
        receipt = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise FileError(f"{path} is not a receipt; get a fresh copy") from None
    entry = run.ledger.require_receipt(receipt, str(path))
    if entry["event"] == "forget" and entry["client"] in run.ledger.entries[-1]["clients"]:
        later = [e for e in run.ledger.entries[entry["entry"] + 1 :] if e["client"] == entry["client"]]
        if not any(e["event"] == "join" for e in later):
            raise FileError(f"{path}: client {entry['client']!r} was forgotten, and is in the run")
