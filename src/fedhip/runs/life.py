"""Life after the round: clients join, bring more rows, and are forgotten.

The sum changes by one term, exactly; β follows from the sum, if it was chosen from it. Every other client's model is
solved anew from its stored statistics with the α it has: none of its rows is touched. What needs a client's rows is
choosing α again, its accuracy and the temperature: for that the client re-runs phase 3 (`personalize`).

A head that is fitted in rounds (`Head.needs_rows`) goes on from the model that was there, over the rows of everybody
who is present, and since these are here then, all clients re-run phase 3 at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedhip.data.partitions.manifest import packed
from fedhip.errors import InputError
from fedhip.features.cache import entries
from fedhip.runs.change import NOBODY, Change, RunState, lift_client, statistics_of, with_more
from fedhip.runs.folder import Run
from fedhip.runs.results import remove_client
from fedhip.simulation.client import Client
from fedhip.utils.progress import ReportProgress
from fedhip.utils.text import fault_of_name


def forget(
    run: Run,
    client: str,
    *,
    rows: Mapping[str, Client] = NOBODY,
    report: ReportProgress | None = None,
) -> Change:
    """Take a client out: every sum, model and picture as if it had never been there.

    `rows` are the others', where the head needs them.
    """
    run.require_exact()
    run.require_personalized()
    state = RunState(run, rows)
    own = None
    if client not in run.details["clients"] or client in run.clients:  # who only tests has nothing in the sum
        run.require_client(client)
        if len(run.clients) == 1:
            raise InputError(
                f"client {client!r} is the last one: without it no row is left to learn from; delete {run.path} instead"
            )
        own = run.statistics(client)
        state.grid = state.grid - own
        del state.statistics[client]
    remove_client(state.results, state.details, client)
    change = state.commit("forget", client, own, report=report)
    return replace(change, left=tuple(_left_of_it(run)))


def _left_of_it(run: Run) -> Iterator[str]:
    """Remove what the cache holds of the run's images; what is gone and what is left, in words.

    An entry is of a whole data set and known by its digest: nobody's rows can be taken out of it, so it goes whole.
    """
    found = entries(run=run.ledger.run)
    for entry in found:
        entry.remove()
    source = run.config.get("features") or run.config.get("data") or run.config.get("dataset") or "in memory"
    gone = f"{len(found)} sets of features that the run used were removed from the cache, the others' rows with them; "
    kept = f"left: the rows themselves ({source}), copies of the run, and features kept by other commands"
    yield f"{gone if found else 'the cache holds no features that the run used; '}{kept} (fedhip cache list)"
    if run.lift is not None:
        yield "the lift was drawn by a sum with its rows in it, and stays: for another one, run again"
    if run.encoding.scale is not None:
        yield "the weights of classes are of counts with its rows in them, and stay: for others, run again"


def join(
    run: Run,
    client: Client,
    *,
    split: NDArray[np.int8] | None = None,
    rows: Mapping[str, Client] = NOBODY,
    report: ReportProgress | None = None,
) -> Change:
    """Add a client: one more term of the sum, and phase 3 for it; `rows` as in `forget`.

    `split` says which of its rows, in the order in which it has them, were drawn for testing. It is kept, so that the
    same rows are divided alike when they are given again.
    """
    run.require_exact()
    run.require_personalized()
    if fault := fault_of_name(client.name):
        raise InputError(f"the name {client.name!r} {fault}; give the client another")
    if client.name in run.results.get("sites", ()):
        raise InputError(
            f"{client.name!r} is one of the sites whose sum this is, so its rows are in it; choose another name, if "
            "these are the rows of somebody else"
        )
    if client.name in run.clients:
        raise InputError(
            f"client {client.name!r} is in the run already; add rows to it with: fedhip update, or choose another name"
        )
    came, client = client, lift_client(run, client)
    own = statistics_of(run, client)
    for other in run.clients:
        if run.details["clients"][other]["own"] == own.digest():
            raise InputError(f"these very rows are in the run already, as client {other!r}; nothing was added")
    state = RunState(run, rows)
    state.grid = state.grid + own
    state.statistics[client.name] = lambda: own
    state.again[client.name], state.came[client.name] = client, came
    if split is not None:
        state.splits[client.name] = packed(split)
    return state.commit("join", client.name, own, report=report)


def update(
    run: Run,
    client: Client,
    *,
    rows: Mapping[str, Client] = NOBODY,
    report: ReportProgress | None = None,
) -> Change:
    """Add training rows to a client; its α stays until it re-runs phase 3 on all its rows.

    `rows` as in `forget`, and the rows that the client had: the new ones are added to them.
    """
    run.require_exact()
    run.require_client(client.name)
    client = lift_client(run, client)
    term = statistics_of(run, client)
    added: set[str | None] = set()
    for entry in run.ledger.entries:
        if entry["client"] == client.name:
            added = set() if entry["event"] == "forget" else added | {entry["term"]}
    if term.digest() in added or term.digest() == run.details["clients"][client.name]["own"]:
        raise InputError(f"client {client.name!r}: these very rows were added before; nothing was added")
    own = run.statistics(client.name) + term
    state = RunState(run, rows)
    if client.name in state.again:
        state.again[client.name] = with_more(state.again[client.name], client)
    state.grid = state.grid + term
    state.statistics[client.name] = lambda: own
    known = state.details["clients"][client.name]
    state.splits.pop(client.name, None)  # it was of fewer rows
    known.pop("split", None)
    known["own"], known["train_counts"] = own.digest(), own.counts.tolist()
    for method in state.results["methods"].values():
        for entry in method["per_client"]:
            if entry["client"] == client.name:
                entry["train"] = own.num_samples
    return state.commit("update", client.name, term, report=report)


def personalize(
    run: Run,
    clients: Mapping[str, Client],
    *,
    skip_changed: bool = False,
    report: ReportProgress | None = None,
) -> Change:
    """Phase 3 again for these clients, on their rows: α, model, accuracies.

    With `skip_changed` a client whose rows are no longer these is passed over.
    """
    run.require_exact()
    run.require_personalized()
    state = RunState(run)
    for name, client in clients.items():
        run.require_client(name)
        if skip_changed and len(client.train[1]) == 0:
            continue
        came, client = client, lift_client(run, client)
        own = statistics_of(run, client)
        if own.digest() == run.details["clients"][name]["own"]:
            state.again[name], state.came[name] = client, came
        elif not skip_changed:
            if run.encoding.room is not None and own.num_samples == run.statistics(name).num_samples:
                raise InputError(
                    f"client {name!r}: these are other rows than its own, or its own came in parts, each rounded for "
                    "the budget by itself; to choose by all of them forget the client, and let it join with them"
                )
            raise InputError(
                f"client {name!r}: these are not the {run.statistics(name).num_samples} training rows behind its "
                f"statistics (there are {own.num_samples} here); give all rows that it trained on, and no other"
            )
    if not state.again:
        raise InputError(
            "the run's own data has the training rows of none of these clients; give a client's rows, with --client "
            "and --features or --data"
        )
    return state.commit("personalize", None, None, report=report)
