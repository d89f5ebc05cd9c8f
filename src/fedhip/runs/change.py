"""A change to a run: the new sum is solved again, phase 3 re-run for who is there, the run's next version written."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhip.core.choice.calibration import common_temperature
from fedhip.core.choice.prior import NO_PRIOR, Prior, PriorChoice
from fedhip.core.exact.fixedpoint import GridStatistics, decode
from fedhip.core.exact.outweighing import Spread, outweighed
from fedhip.core.exact.root import root_bytes
from fedhip.errors import ColumnError, ColumnWarning, GridOverflowError, InputError
from fedhip.heads import Auto, Head, Ridge
from fedhip.heads.budget import LEAST_BITS
from fedhip.heads.choice import by_halves
from fedhip.heads.model import Model
from fedhip.heads.options import numbers_of, options_of
from fedhip.heads.task import Task
from fedhip.runs.draft import changed_run
from fedhip.runs.folder import Run
from fedhip.runs.models import global_model, personal_model
from fedhip.runs.results import put_client, refresh
from fedhip.simulation.alone import MAJORITY, LocalModel, local_model, majority_model
from fedhip.simulation.beta import choose_beta
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.lifting import lift_clients
from fedhip.simulation.outcome import ClientResult
from fedhip.simulation.personalization import Personalization, common_losses
from fedhip.simulation.priors import choose_client_priors
from fedhip.simulation.testing import evaluate
from fedhip.utils.parallel import in_order, one_thread
from fedhip.utils.progress import ReportProgress

Json = dict[str, Any]
#: No rows of anybody.
NOBODY: Mapping[str, Client] = MappingProxyType({})


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
    head: type[Head] = Ridge
    #: Rounds that it took over the rows of everybody who is present.
    rounds: int = 0
    #: After a client was forgotten: what went with it, and what is left of it elsewhere.
    left: tuple[str, ...] = ()


class RunState:
    """The run in memory, to be changed and written; `rows` are those of clients that a head in rounds needs."""

    def __init__(self, run: Run, rows: Mapping[str, Client] = NOBODY) -> None:
        self.run = run
        self.results, self.details = (json.loads(json.dumps(part)) for part in (run.results, run.details))
        self.grid = run.total()
        self.statistics: dict[str, Callable[[], GridStatistics]] = {
            client: lambda client=client: run.statistics(client)  # type: ignore[misc]
            for client in run.clients
        }
        self.common = run.model(None)
        #: How the rows of those who joined were divided.
        self.splits = {name: known["split"] for name, known in self.details["clients"].items() if "split" in known}
        #: Who re-runs phase 3, with its rows; and with those that came, where the run's models see others.
        self.again: dict[str, Client] = {}
        self.came: dict[str, Client] = {}
        if run.head.needs_rows:
            lifted = ((name, lift_client(run, client)) for name, client in rows.items())
            self.again = {name: client for name, client in lifted if are_its_rows(run, client)}

    def commit(
        self, event: str, client: str | None, term: GridStatistics | None, *, report: ReportProgress | None
    ) -> Change:
        """Solve every model anew, and write the next version of the run."""
        run, tell = self.run, report or (lambda phase, done, total: None)
        before = self.results["beta"]
        self.again = {name: self.again[name] for name in self.statistics if name in self.again}
        federation = self._federation(event, tell)
        _ = federation.common  # factored once, before the clients share it
        head = self._head(federation, event, tell)
        results = self._phase3(head)
        with changed_run(run) as draft:
            if event == "forget" and client is not None:
                draft.remove_client(client)
            for result in results.values():
                put_client(self.results, self.details, result)
            for name in self.splits.keys() & self.details["clients"].keys():
                self.details["clients"][name]["split"] = self.splits[name]
            models = in_order(lambda name: self._model(head, name, results.get(name)), self.statistics)
            for number, model in enumerate(models, start=1):
                draft.write_model(model)
                tell("models", number, len(self.statistics))
            if term is not None and event in ("join", "update") and client is not None:
                draft.write_statistics(client, self.statistics[client]())
            draft.write_model(
                global_model(
                    federation,
                    run.class_names,
                    self.common.backbone,
                    head=head,
                    lift=self.common.lift,
                    task=run.task,
                    table=self.common.table,
                )
            )
            self.results["beta"], self.details["fold_betas"] = federation.beta, list(federation.fold_betas)
            if run.head is not Ridge:
                self.results["settings"] = dict(head.settings)
            refresh(self.results, self.details)
            before_it = self.details.get("stale", []) if event == "personalize" else self.statistics
            self.details["stale"] = sorted(set(before_it) - set(self.again))
            self.results["stale"] = self._stale(event, client)
            ledger, receipt = draft.record(
                run.ledger,
                event,
                federation,
                self.results,
                self.details,
                run.config_text(),
                client=client,
                term=term,
                clients={name: self.details["clients"][name]["own"] for name in self.statistics},
            )
            draft.write_report(run.path)
        return Change(
            event,
            client,
            0 if term is None else term.num_samples,
            len(self.statistics),
            len(self.again),
            before,
            federation.beta,
            results.get(client) if client is not None else None,
            self.results["stale"],
            receipt,
            ledger.entries[-1],
            run.head,
            head.traffic[0] if run.head.needs_rows and event != "personalize" else 0,
        )

    def _federation(self, event: str, tell: ReportProgress) -> Federation:
        """The sum with its β: as it was where it was chosen on rows, for that takes everyone's."""
        run, rule = self.run, beta_rule(self.run)
        found = run.federation(self.grid)
        if rule == "gcv":
            return found.with_beta(found.beta_path().minimize_gcv())
        if rule != "auto":
            return found.with_beta(float(rule))
        if event == "personalize" and self._everyone and not self.results.get("sites"):
            alpha = run.config["alpha"] if {Ridge.method, run.head.method} & {*self.results["methods"]} else 0.0
            return choose_beta(found, list(self.again.values()), alpha, tell)
        return found

    @property
    def _everyone(self) -> bool:
        """Whether all clients re-run phase 3, so that what they choose together is chosen again."""
        return set(self.again) == set(self.statistics)

    def _head(self, federation: Federation, event: str, tell: ReportProgress) -> Head:
        """The head of the sum as it is now; where rounds are needed, from the model that was there.

        Phase 3 of everyone with the sum as it was is a new beginning: it chooses all there is to choose.
        """
        kind = self.run.head
        if kind.needs_rows and event != "personalize" and not self._everyone:
            missing = sorted(set(self.statistics) - set(self.again))
            raise InputError(
                f"a logistic head is fitted to rows, in rounds: those of everybody who is present are needed, and the "
                f"rows of {_some(missing)} are not in the run's own data; give them with --rows FILE, or run again "
                "without those clients"
            )
        task = task_of(self.run, list(self.again.values()), tell)
        fresh = event == "personalize" and self._everyone
        with one_thread():
            return kind.fit(federation, task, None if fresh else self.common)

    def _phase3(self, head: Head) -> dict[str, ClientResult]:
        """Models and accuracies of those whose rows are here.

        Priors are chosen by everyone's losses: where everyone is here; else they stay, and who joined has none. The
        sites of a federation are never here.
        """
        if not self.again:
            return {}
        everyone = self._everyone and not self.results.get("sites")
        kept = {name: self.run.priors(name) if name in self.run.clients else {} for name in self.again}
        method = head.method
        owns = head.personalize(
            None if everyone else {name: self._kept(head, name, priors) for name, priors in kept.items()},
            self._losses_of_others(),
        )
        if everyone and isinstance(head, Auto):
            owns = dict(by_halves(head.task, head, owns))
        task, federation = head.task, head.federation
        beside = [name for name in ("local", "global") if name in self.results["methods"]]
        if self._beside_plain:  # of the others' features as they came there is no sum
            beside = [name for name in beside if name == "local"]
        with_priors = task.prior == "client"
        beside_priors = self.run.config.get("prior") == "client"
        if everyone and beside_priors:
            only_local, everybody = task.only_local_classes, list(self.again.values())
            chosen = choose_client_priors(federation, everybody, beside, "loo", only_local, task.report)
            kept = {name: {m: choice.prior for m, (_, choice) in found.items()} for name, found in chosen.items()}
        results = {}
        alone = {
            name: local_model(
                self.came.get(name, client) if self._beside_plain else client,
                task.num_classes,
                task.ridge,
                only_local_classes=task.only_local_classes,
            )
            for name, client in self.again.items()
            if "local" in beside
        }
        temperatures = self._temperatures(head, {name: own for name, (own, _) in owns.items()}, alone)
        for name, (personal, prior) in owns.items():
            client = self.again[name]
            models = {method: personal.model}
            if "global" in beside:
                models["global"] = federation.common
            if (majority := majority_model(client, task.num_classes)) is not None:
                models[MAJORITY] = majority
            if name in alone and not self._beside_plain:
                models["local"] = alone[name]
            found = evaluate(
                client,
                {m: models[m] for m in self.results["methods"] if m in models},
                personal,
                task.num_classes,
                task.only_local_classes,
                {**kept[name], method: prior} if with_priors and (everyone or kept[name]) else {},
                federation.grid.counts,
                own=method,
                temperatures=temperatures,
            )
            if name in alone and self._beside_plain:
                plain = evaluate(
                    self.came.get(name, client), {"local": alone[name]}, None, task.num_classes,
                    task.only_local_classes, temperatures=temperatures,
                )  # fmt: skip
                found = replace(found, accuracy=found.accuracy | plain.accuracy, tested=found.tested | plain.tested)
            results[name] = found
        return results

    @property
    def _beside_plain(self) -> bool:
        """Whether what stands beside the run's models is of features as they came: a lift was chosen, not asked for."""
        return self.run.lift is not None and "lift" not in self.run.config

    def _temperatures(
        self, head: Head, owns: Mapping[str, Personalization], alone: Mapping[str, LocalModel]
    ) -> dict[str, float | None]:
        """What makes probabilities of scores, by method; chosen again by everybody's rows, where these are all here."""
        methods, others = (
            self.results["methods"],
            [k for n, k in self.details["clients"].items() if n not in self.again],
        )

        def of(kept: str, new: Iterable[list[float]]) -> float | None:
            return common_temperature([*(known[kept] for known in others), *new], self.details["temperatures"])

        found = {name: methods[name].get("temperature") for name in ("local", "global") if name in methods}
        if alone and (self._everyone or found["local"] is None):
            found["local"] = common_temperature(fit.losses for fit in alone.values())
        if self.run.head is Ridge:
            found["global"] = of("global_log_losses", (own.global_log_losses for own in owns.values()))
        elif "global" in methods and not self._beside_plain and (self._everyone or found["global"] is None):
            # The row of that name is of a ridge, whatever the head.
            found["global"] = common_temperature(common_losses(head.federation, c) for c in self.again.values())
        found[head.method] = of("log_losses", (own.log_losses for own in owns.values()))
        for name in found.keys() & methods.keys():
            methods[name]["temperature"] = found[name]
        return found

    def _losses_of_others(self) -> Tensor | None:
        """The summed losses of the federation's model, as far as they are known of those who are not here."""
        clients = self.details["clients"]
        others = [clients[name]["global_log_losses"] for name in self.statistics if name not in self.again]
        return torch.tensor(others, dtype=torch.float64).sum(dim=0) if others else None

    def _kept(self, head: Head, client: str, priors: Mapping[str, Prior]) -> PriorChoice:
        """What a client keeps that was chosen by everybody's rows."""
        known = self.run.details["clients"].get(client, {})
        return head.kept(known, PriorChoice(0, priors.get(head.method, NO_PRIOR)))

    def _model(self, head: Head, client: str, result: ClientResult | None) -> Model:
        own = self.statistics[client]()
        alpha = self.details["clients"][client]["alpha"]
        personal = None if result is None else result.personal
        return personal_model(
            head.federation,
            client,
            head.refit(client, own, alpha, lambda: self.run.model(client)) if personal is None else personal.model,
            alpha,
            own.digest(),
            own.counts > 0 if self.run.task == "classification" else torch.ones(own.num_classes, dtype=torch.bool),
            class_names=self.run.class_names,
            only_local_classes=bool(self.run.config.get("only_local_classes")),
            backbone=self.common.backbone,
            head=head,
            lift=self.common.lift,
            task=self.run.task,
            table=self.common.table,
            settings=(
                head.settings_after(lambda: self.run.model(client))
                if personal is None or personal.choice is None
                else personal.choice.settings
            ),
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


def task_of(run: Run, clients: Sequence[Client], tell: ReportProgress) -> Task:
    """What the head of a run is told, of clients whose rows are here."""
    config, head = run.config, run.head
    return Task(
        clients,
        run.results["num_classes"],
        options_of(head, config["alpha"], numbers_of(config.get("head_options", ()))),
        report=tell,
        ridge=run.ridge,
        only_local_classes=bool(config.get("only_local_classes")),
        prior=config.get("prior", "client" if "choice" in run.results else "none"),
        seed=config["seed"],
        kept=lift["from"] if (lift := run.results.get("lift")) and lift.get("keeps") else 0,
    )


def beta_rule(run: Run) -> float | str:
    """How β is chosen when the sum changes: a number, "gcv" from the sum, or "auto", on rows.

    Runs of before there were units of columns said "auto" where they meant the sum, and "loo" where they meant rows.
    """
    given: float | str = run.config["beta"]
    if "columns" not in run.details and given == "auto":
        return "gcv"
    return "auto" if given == "loo" else given


def are_its_rows(run: Run, client: Client) -> bool:
    """Whether these are the rows behind the client's statistics, to the last bit."""
    known = run.details["clients"].get(client.name, {}).get("own")
    return known is not None and len(client.train[1]) > 0 and statistics_of(run, client).digest() == known


def with_more(client: Client, more: Client) -> Client:
    """A client with more training rows."""
    features, labels = (np.concatenate(pair) for pair in zip(client.train, more.train, strict=True))
    groups = None
    if client.groups is not None and more.groups is not None:
        # By number alone nobody knows that a group of before has come again: new rows are groups of their own.
        groups = np.concatenate((client.groups, more.groups + client.groups.max() + 1))
    weights = None
    if client.weights is not None or more.weights is not None:
        parts = (np.ones(len(c.train[1])) if c.weights is None else c.weights for c in (client, more))
        weights = np.concatenate(list(parts))
    return replace(client, train=(features, labels), groups=groups, weights=weights)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def lift_client(run: Run, client: Client) -> Client:
    """The client's rows as the run's models see them."""
    if run.lift is None:
        return client
    try:
        return lift_clients(run.lift, [client])[0]
    except InputError as error:
        raise InputError(f"client {client.name!r}: {error}; use the backbone of the run") from None


def statistics_of(run: Run, client: Client) -> GridStatistics:
    """The statistics of rows that are to be part of the run, on its grid."""
    width = client.train[0].shape[1]
    if width != run.results["feature_dim"]:
        raise InputError(
            f"client {client.name!r}: features are {width} wide, and the run's {run.results['feature_dim']}; "
            "use the backbone of the run"
        )
    if len(client.train[1]) == 0:
        raise InputError(f"client {client.name!r} brings no training row; give at least one")
    room, number, d = run.encoding.room, len(client.train[1]), int(run.results["num_classes"])
    if room is not None and room < (needed := root_bytes(number, width, d, LEAST_BITS)):
        raise InputError(
            f"client {client.name!r}: statistics of {number} training rows need {needed:,} bytes, and the run's budget "
            f"leaves {room:,}; bring fewer rows, or run anew with a larger budget"
        )
    try:
        own = run.encoding.statistics(client, d)
    except GridOverflowError:
        if run.lift is not None:
            raise
        F = np.asarray(client.train[0], dtype=np.float64)
        column = int(np.abs(run.encoding.columns.features(torch.from_numpy(F)).numpy()).max(axis=0).argmax())
        value = F[np.abs(F[:, column]).argmax(), column]
        raise ColumnError(
            f"client {client.name!r}: column {column} goes to {value:.4g}, and the run has no room for it: its columns "
            "are in the units of the clients that it was made of; put it in theirs, or repair or clip the value",
            column,
        ) from None
    _warn_of_outweighing(run, client)
    return own


def _warn_of_outweighing(run: Run, client: Client) -> None:
    """Warn of a column of which the client's rows say more than all others' in the run's sum."""
    encoding = run.encoding
    if run.lift is not None or encoding.scale is not None or encoding.targets is not None:
        return
    others = Spread.of_statistics(decode(run.total()), encoding.columns)
    if (words := outweighed(client.train[0], others)) is not None:
        warnings.warn(f"client {client.name!r}: {words}", ColumnWarning, stacklevel=2)
