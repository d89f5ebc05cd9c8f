"""Life after the round: clients join, bring more rows, and leave.

The sum changes by one term, exactly; β follows from the sum, if it was chosen from it. Every other client's model is
solved anew from its stored statistics with the α it has: none of its rows is touched. What needs a client's rows is
choosing α again, its accuracy and the temperature: for that the client re-runs phase 3 (`personalize`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedhip.core.errors import DimensionError
from fedhip.core.fixedpoint import GridStatistics
from fedhip.lifting import lift_clients
from fedhip.models import Model
from fedhip.parallel import in_order, one_thread
from fedhip.runs.errors import ClientJoinedError, ClientRowsError, LastClientError
from fedhip.runs.folder import RunFolder, changed_run
from fedhip.runs.models import global_model, models_digest, personal_model
from fedhip.runs.results import put_client, refresh, remove_client
from fedhip.simulation import Client, ClientResult, Federation, Personalization, evaluate, local_model

Json = dict[str, Any]
Render = Callable[[str, Json, Json, str, list[Json]], str]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Change:
    """What a command did."""

    event: str
    client: str | None
    rows: int
    clients: int
    measured: int
    beta_before: float
    beta: float
    result: ClientResult | None
    stale: str | None
    receipt: str
    entry: Json


def forget(run: RunFolder, client: str, *, render: Render, report: Report | None = None) -> Change:
    """Take a client out: every sum, model and picture as if it had never been there."""
    run.require_personalized()
    state = _State(run)
    own = None
    if client not in run.details["clients"] or client in run.clients:  # who only tests has nothing in the sum
        run.require_client(client)
        if len(run.clients) == 1:
            raise LastClientError(
                f"client {client!r} is the last one: without it no row is left to learn from; delete {run.path} instead"
            )
        own = run.statistics(client)
        state.grid = state.grid - own
        del state.statistics[client]
    remove_client(state.results, state.details, client)
    return state.commit("forget", client, own, render=render, report=report)


def join(run: RunFolder, client: Client, *, render: Render, report: Report | None = None) -> Change:
    """Add a client: one more term of the sum, and phase 3 for it."""
    run.require_personalized()
    if client.name in run.results.get("sites", ()):
        raise ClientJoinedError(
            f"{client.name!r} is one of the sites whose sum this is, so its rows are in it; choose another name, if "
            "these are the rows of somebody else"
        )
    if client.name in run.clients:
        raise ClientJoinedError(
            f"client {client.name!r} is in the run already; add rows to it with: fedhip update, or choose another name"
        )
    client = _lifted(run, client)
    own = _statistics_of(run, client)
    for other in run.clients:
        if run.details["clients"][other]["own"] == own.digest():
            raise ClientJoinedError(f"these very rows are in the run already, as client {other!r}; nothing was added")
    state = _State(run)
    state.grid = state.grid + own
    state.statistics[client.name] = lambda: own
    state.again[client.name] = client
    return state.commit("join", client.name, own, render=render, report=report)


def update(run: RunFolder, client: Client, *, render: Render, report: Report | None = None) -> Change:
    """Add training rows to a client; its α stays until it re-runs phase 3 on all its rows."""
    run.require_client(client.name)
    term = _statistics_of(run, _lifted(run, client))
    added: set[str | None] = set()
    for entry in run.ledger.entries:
        if entry["client"] == client.name:
            added = set() if entry["event"] == "forget" else added | {entry["term"]}
    if term.digest() in added or term.digest() == run.details["clients"][client.name]["own"]:
        raise ClientJoinedError(f"client {client.name!r}: these very rows were added before; nothing was added")
    own = run.statistics(client.name) + term
    state = _State(run)
    state.grid = state.grid + term
    state.statistics[client.name] = lambda: own
    known = state.details["clients"][client.name]
    known["own"], known["train_counts"] = own.digest(), own.counts.tolist()
    for method in state.results["methods"].values():
        for entry in method["per_client"]:
            if entry["client"] == client.name:
                entry["train"] = own.num_samples
    return state.commit("update", client.name, term, render=render, report=report)


def personalize(
    run: RunFolder,
    clients: Mapping[str, Client],
    *,
    skip_changed: bool = False,
    render: Render,
    report: Report | None = None,
) -> Change:
    """Phase 3 again for these clients, on their rows: α, model, accuracies.

    With `skip_changed` a client whose rows are no longer these is passed over.
    """
    run.require_personalized()
    state = _State(run)
    for name, client in clients.items():
        run.require_client(name)
        if skip_changed and len(client.train[1]) == 0:
            continue
        client = _lifted(run, client)
        own = _statistics_of(run, client)
        if own.digest() == run.details["clients"][name]["own"]:
            state.again[name] = client
        elif not skip_changed:
            raise ClientRowsError(
                f"client {name!r}: these are not the {run.statistics(name).num_samples} training rows behind its "
                f"statistics (there are {own.num_samples} here); give all rows that it trained on, and no other"
            )
    if not state.again:
        raise ClientRowsError(
            "the run's own data has the training rows of none of these clients; give a client's rows, with --client "
            "and --features or --data"
        )
    return state.commit("personalize", None, None, render=render, report=report)


class _State:
    """The run in memory, to be changed and written."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.results, self.details = (json.loads(json.dumps(part)) for part in (run.results, run.details))
        self.grid = run.total()
        self.statistics: dict[str, Callable[[], GridStatistics]] = {
            client: lambda client=client: run.statistics(client)  # type: ignore[misc]
            for client in run.clients
        }
        self.backbone, self.lift = run.model(None).backbone, run.lift
        self.again: dict[str, Client] = {}

    def commit(
        self, event: str, client: str | None, term: GridStatistics | None, *, render: Render, report: Report | None
    ) -> Change:
        """Solve every model anew, and write the next version of the run."""
        run, config, tell = self.run, self.run.config, report or (lambda phase, done, total: None)
        before = self.results["beta"]
        # Chosen by leave-one-out it stays: that would take everyone's rows.
        federation = Federation.of(self.grid, before if config["beta"] == "loo" else config["beta"], run.scale)
        _ = federation.G  # factored once, before the clients share it
        result = None
        with changed_run(run) as draft:
            if event == "forget" and client is not None:
                draft.remove_client(client)
            for name in self.again:
                result = self._phase3(federation, self.again[name])
                put_client(self.results, self.details, result)
            digests: dict[str | None, str] = {}
            models = in_order(lambda name: self._model(federation, name), self.statistics)
            for number, model in enumerate(models, start=1):
                draft.write_model(model)
                digests[model.client] = model.digest()
                tell("models", number, len(self.statistics))
            if term is not None and event in ("join", "update") and client is not None:
                draft.write_statistics(client, self.statistics[client]())
            shared = global_model(federation, run.class_names, self.backbone, self.lift)
            draft.write_model(shared)
            draft.write_total(self.grid)
            self.results["beta"] = federation.beta
            refresh(self.results, self.details)
            before_it = self.details.get("stale", []) if event == "personalize" else self.statistics
            self.details["stale"] = sorted(set(before_it) - set(self.again))
            self.results["stale"] = self._stale(event, client)
            ledger = run.ledger.with_entry(
                event,
                client=client,
                rows=0 if term is None else term.num_samples,
                term=None if term is None else term.digest(),
                clients={name: self.details["clients"][name]["own"] for name in self.statistics},
                total=federation.digest,
                beta=federation.beta,
                models=models_digest({**digests, None: shared.digest()}),
                results=draft.write_json("results.json", self.results),
                details=draft.write_json("details.json", self.details),
            )
            receipt = draft.write_ledger(ledger)
            page = render(run.path.resolve().name, self.results, self.details, run.config_text(), list(ledger.entries))
            draft.write_text("report.html", page)
        return Change(
            event,
            client,
            0 if term is None else term.num_samples,
            len(self.statistics),
            len(self.again),
            before,
            federation.beta,
            result,
            self.results["stale"],
            receipt,
            ledger.entries[-1],
        )

    def _phase3(self, federation: Federation, client: Client) -> ClientResult:
        config = self.run.config
        only_local = bool(config.get("only_local_classes"))
        with one_thread():
            personal = Personalization.of(federation, client, config["alpha"], only_local_classes=only_local)
        d = federation.grid.num_classes
        methods = self.results["methods"]
        models = {"global": federation.G, "fedhip": personal.weights}
        if "local" in methods:
            models["local"] = local_model(client, d)
        return evaluate(client, {method: models[method] for method in methods}, personal, d, only_local)

    def _model(self, federation: Federation, client: str) -> Model:
        own = self.statistics[client]()
        alpha = self.details["clients"][client]["alpha"]
        return personal_model(
            federation,
            client,
            federation.weights(own, alpha, client=client),
            alpha,
            own.digest(),
            own.counts > 0,
            class_names=self.run.class_names,
            only_local_classes=bool(self.run.config.get("only_local_classes")),
            backbone=self.backbone,
            lift=self.lift,
        )

    def _stale(self, event: str, client: str | None) -> str | None:
        """Which numbers are of models that are no more: those measured before the sum last changed."""
        names = self.details["stale"]
        if not names:
            return None
        of = f"{len(names)} clients" if len(names) > 3 else ", ".join(map(repr, names))
        entries = [*self.run.ledger.entries, {"entry": len(self.run.ledger.entries), "event": event, "client": client}]
        last = [entry for entry in entries if entry["event"] != "personalize"][-1]
        what = f"entry {last['entry']} of the ledger: {last['event']} {last['client']!r}"
        return (
            f"The accuracies and α of {of} were measured before the last change ({what}). "
            "Their models are up to date; fedhip personalize chooses α and measures again, on the clients' rows."
        )


def _lifted(run: RunFolder, client: Client) -> Client:
    """The client's rows as the run's models see them."""
    if run.lift is None:
        return client
    try:
        return lift_clients(run.lift, [client])[0]
    except DimensionError as error:
        raise ClientRowsError(f"client {client.name!r}: {error}; use the backbone of the run") from None


def _statistics_of(run: RunFolder, client: Client) -> GridStatistics:
    """The statistics of rows that are to be part of the run, on its grid."""
    width = client.train[0].shape[1]
    if width != run.results["feature_dim"]:
        raise ClientRowsError(
            f"client {client.name!r}: features are {width} wide, and the run's {run.results['feature_dim']}; "
            "use the backbone of the run"
        )
    if len(client.train[1]) == 0:
        raise ClientRowsError(f"client {client.name!r} brings no training row; give at least one")
    weighted = client.weighted(run.scale)
    return weighted.statistics(run.results["num_classes"], run.results["fraction_bits"])
