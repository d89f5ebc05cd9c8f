"""A round in one process: fit, personalize, test; of any head, and of the ridge beside models of one client alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fedhip.core.choice.calibration import common_temperature
from fedhip.core.choice.prior import NO_PRIOR, Prior, PriorChoice
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.heads.head import Head, Personalized
from fedhip.heads.ridge import Ridge
from fedhip.heads.task import Task
from fedhip.simulation.alone import MAJORITY, LocalModel, local_model, majority_model
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha, Beta, RidgeOptions
from fedhip.simulation.outcome import ClientResult, Outcome
from fedhip.simulation.personalization import Personalization, common_losses
from fedhip.simulation.priors import choose_client_priors, prior_alphas
from fedhip.simulation.testing import evaluate
from fedhip.utils.parallel import in_order, one_thread
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch

#: The ridges that `simulate` computes side by side.
RIDGES = ("local", "global", "fedhip")
#: Those that classes may count alike in.
BALANCED = ("global", "fedhip")


@dataclass(frozen=True)
class HeadRound:
    """The head as it was fitted, every client tested with its model, and the seconds without the tests."""

    head: Head
    clients: list[ClientResult]
    seconds: float

    @property
    def accuracy(self) -> list[float | None]:
        """Of each client's model on its test rows."""
        return [client.accuracy[self.head.method] for client in self.clients]

    @property
    def priors(self) -> dict[str, Prior]:
        """The clients', where they were asked for."""
        method = self.head.method
        return {client.client: client.priors[method] for client in self.clients if method in client.priors}


def run_head(kind: type[Head], task: Task, federation: Federation | None = None) -> HeadRound:
    """The head on the task's clients; `federation` is their sum, where it is known.

    A client without training rows is tested with the federation's model.
    """
    began = time.perf_counter()
    head = fitted(kind, task, federation)
    owns = head.personalize()
    return tested(head, owns, time.perf_counter() - began)


def fitted(kind: type[Head], task: Task, federation: Federation | None = None) -> Head:
    """The head of the sum, where nobody has a model of its own yet."""
    if federation is None:
        federation = kind.federate(task)
    with one_thread():
        return kind.fit(federation, task)


def tested(head: Head, owns: Mapping[str, Personalized], seconds: float) -> HeadRound:
    """Every client of the head's task tested with its model, or with the federation's."""
    kind, task, federation = type(head), head.task, head.federation
    clients = []
    temperatures = {
        kind.method: common_temperature((own.log_losses for own, _ in owns.values()), kind.temperatures),
    }
    for client in task.clients:
        own, prior = owns.get(client.name, (None, NO_PRIOR))
        clients.append(
            evaluate(
                client,
                {kind.method: head.common if own is None else own.model},
                own,
                task.num_classes,
                task.only_local_classes,
                {kind.method: prior} if own is not None and task.prior == "client" else {},
                federation.grid.counts,
                own=kind.method,
                temperatures=temperatures,
            )
        )
    return HeadRound(head, clients, seconds)


def simulate(
    clients: Sequence[Client],
    num_classes: int,
    *,
    alpha: Alpha = "loo",
    beta: Beta = "auto",
    methods: Iterable[str] = RIDGES,
    only_local_classes: bool = False,
    prior: bool = False,
    standardize: bool = True,
    intercept: bool = True,
    balance: bool = False,
    fraction_bits: int | None = None,
    columns: Columns | None = None,
    room: int | None = None,
    device: str | torch.device = "cpu",
    report: ReportProgress | None = None,
    keep_digest: Callable[[Client, str], None] | None = None,
    keep_statistics: Callable[[Client, GridStatistics], None] | None = None,
    keep_looked: bool = False,
) -> Outcome:
    """One round of FedHiP over the clients, beside models of the clients alone and the global one.

    `report(phase, done, total)` is called as the clients go by, `keep_statistics` with each client's upload, and
    `keep_digest` with its digest. No model
    and no parameter sees a test row. With `prior` every client's class frequencies are part of its models' answers,
    where that is likelier than not by leave-one-out (see `fedhip.core.choice.prior`); a personalized model's α is
    chosen together with it. `standardize`, `intercept`, `balance`, `fraction_bits`, `columns` and `room`
    are those of `RidgeOptions`; where classes count alike in the sum, they do not so in models of one client alone.
    With `keep_looked` clients keep what their α was chosen by.
    """
    methods = tuple(methods)
    ridges = tuple(method for method in methods if method != MAJORITY)
    ridge = RidgeOptions(standardize, intercept, balance, fraction_bits, columns, room)
    if prior and balance:
        raise InputError(
            "a client's prior corrects for how often the federation has a class, and balanced classes are equally "
            "frequent by construction; give one of the two"
        )
    watch, tell = Stopwatch(), report or silent
    options = {} if alpha == "loo" else {"alpha": alpha}
    task = Task(
        clients, num_classes, options, device, tell, ridge, only_local_classes=only_local_classes,
        keep_looked=keep_looked,
    )  # fmt: skip
    training = task.training
    federation = federate(
        training,
        num_classes,
        beta,
        ridge,
        device,
        alpha=alpha if "fedhip" in methods else 0.0,
        report=report,
        watch=watch,
        keep_digest=keep_digest,
        keep_statistics=keep_statistics,
        uploads=task.uploads if "fedhip" in methods else None,
    )
    with watch("aggregation"):
        head = Ridge.fit(federation, task)
        tell("2 aggregation", len(training), len(training))
    choices: dict[str, dict[str, tuple[float, PriorChoice]]] = {}
    if prior:
        with watch("priors"):
            choices = choose_client_priors(federation, training, ridges, alpha, only_local_classes, tell)
    personal: dict[str, Personalization] = {}
    if "fedhip" in methods:
        with watch("personalization"):
            chosen = {name: found["fedhip"] for name, found in choices.items()}
            personal = {name: own for name, (own, _) in head.solve(chosen).items()}
    local: dict[str, LocalModel] = {}
    if "local" in methods:
        with watch("models of one client alone"):
            fits = in_order(
                lambda client: local_model(client, num_classes, ridge, device, only_local_classes), training, device
            )
            for k, (client, fit) in enumerate(zip(training, fits, strict=True), start=1):
                local[client.name] = fit
                tell("trained alone", k, len(training))
    with watch("tests"):
        results = []
        common = [own.global_log_losses for own in personal.values()]
        if "global" in methods and not personal:
            common = list(in_order(lambda client: common_losses(federation, client), training, device))
        temperatures = {
            "local": common_temperature(fit.losses for fit in local.values()),
            "global": common_temperature(common),
            "fedhip": common_temperature(own.log_losses for own in personal.values()),
        }
        for client in clients:
            own = personal.get(client.name)
            mine = {
                MAJORITY: majority_model(client, num_classes) if MAJORITY in methods else None,
                "local": local.get(client.name),
                "global": head.common,
                "fedhip": head.common if own is None else own.model,
            }
            tested = {method: mine[method] for method in methods}
            priors = {method: choice.prior for method, (_, choice) in choices.get(client.name, {}).items()}
            everybody = federation.grid.counts
            results.append(
                evaluate(
                    client, tested, own, num_classes, only_local_classes, priors, everybody, temperatures=temperatures
                )
            )
    prior_models = tuple(len(prior_alphas(alpha)[method]) for method in ridges) if prior else ()
    return Outcome(federation, methods, results, watch.seconds, prior_models, temperatures)
