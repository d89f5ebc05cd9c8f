"""A whole federation in one process: every client's rows are here, and each phase sees only what it would see.

phase 0   at each client: a survey of its columns (`encoding.py`)
phase 1   at each client: statistics of its own training rows, on the grid
phase 2   at the server: their sum (`federation.py`); β, by the sum of what clients found on rows left out (`beta.py`)
phase 3   at each client: α by leave-one-out on its own training rows, and its model (`personalization.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from fedhip.core.choice.calibration import common_temperature
from fedhip.core.choice.prior import NO_CHOICE, PriorChoice
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.simulation.alone import MAJORITY, LocalModel, local_model, majority_model
from fedhip.simulation.beta import SCORING_ALPHAS, choose_beta
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import encoding_of
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import STANDARD, Alpha, Beta, RidgeOptions
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.personalization import Personalization, common_losses
from fedhip.simulation.priors import choose_client_priors, prior_alphas
from fedhip.simulation.testing import evaluate
from fedhip.utils.parallel import MEMINFO, in_order, memory_available
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.stopwatch import Stopwatch

#: The ridges that `simulate` computes side by side.
RIDGES = ("local", "global", "fedhip")
#: Those that classes may count alike in.
BALANCED = ("global", "fedhip")
#: Statistics of all clients are held from phase 1 to 3 while they take no more than this part of the free memory.
_HELD = 0.25


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
    device: str | torch.device = "cpu",
    report: ReportProgress | None = None,
    keep_statistics: Callable[[Client, GridStatistics], None] | None = None,
    keep_looked: bool = False,
) -> Outcome:
    """One round of FedHiP over the clients, beside models of the clients alone and the global one.

    `report(phase, done, total)` is called as the clients go by, `keep_statistics` with each client's upload. No model
    and no parameter sees a test row. With `prior` every client's class frequencies are part of its models' answers,
    where that is likelier than not by leave-one-out (see `fedhip.core.choice.prior`); a personalized model's α is
    chosen together with it. `standardize`, `intercept`, `balance`, `fraction_bits` and `columns` are those of
    `RidgeOptions`; where classes count alike in the sum, they do not so in models of one client alone. With
    `keep_looked` clients keep what their α was chosen by.
    """
    methods = tuple(methods)
    ridges = tuple(method for method in methods if method != MAJORITY)
    ridge = RidgeOptions(standardize, intercept, balance, fraction_bits, columns)
    if prior and balance:
        raise InputError(
            "a client's prior corrects for how often the federation has a class, and balanced classes are equally "
            "frequent by construction; give one of the two"
        )
    watch, tell = Stopwatch(), report or silent
    training = [client for client in clients if len(client.train[1])]
    uploads: dict[str, GridStatistics] = {}
    federation = federate(
        training,
        num_classes,
        beta,
        ridge,
        device,
        alpha=alpha if "fedhip" in methods else 0.0,
        report=report,
        watch=watch,
        keep_statistics=keep_statistics,
        uploads=uploads if "fedhip" in methods else None,
    )
    with watch("aggregation"):
        _ = federation.common  # factored once, before the clients share it
        tell("2 aggregation", len(training), len(training))
    choices: dict[str, dict[str, tuple[float, PriorChoice]]] = {}
    if prior:
        with watch("priors"):
            choices = choose_client_priors(federation, training, ridges, alpha, only_local_classes, tell)
    personal: dict[str, Personalization] = {}
    if "fedhip" in methods:
        with watch("personalization"):

            def phase3(client: Client) -> Personalization:
                chosen, choice = choices[client.name]["fedhip"] if prior else (alpha, NO_CHOICE)
                own = uploads.pop(client.name, None)
                return Personalization.of(
                    federation,
                    client,
                    chosen,
                    only_local_classes=only_local_classes,
                    own=own,
                    choice=choice,
                    keep=keep_looked,
                )

            for k, (client, found) in enumerate(zip(training, in_order(phase3, training, device), strict=True), 1):
                personal[client.name] = found
                tell("3 personalization", k, len(training))
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
                MAJORITY: majority_model(client, num_classes),
                "local": local.get(client.name),
                "global": federation.common,
                "fedhip": federation.common if own is None else own.model,
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


def federate(
    clients: Sequence[Client],
    num_classes: int,
    beta: Beta = 0.0,
    ridge: RidgeOptions = STANDARD,
    device: str | torch.device = "cpu",
    *,
    alpha: Alpha = "loo",
    alphas: Sequence[float] = SCORING_ALPHAS,
    report: ReportProgress | None = None,
    watch: Stopwatch | None = None,
    keep_statistics: Callable[[Client, GridStatistics], None] | None = None,
    uploads: dict[str, GridStatistics] | None = None,
) -> Federation:
    """Phases 1 and 2 of clients with training rows: their sum, and β, which is given or chosen.

    β is chosen for models of this α, or of the best of `alphas`. `keep_statistics` is called with each client's upload,
    and `uploads` takes them for phase 3, by name, if there is room for all.
    """
    tell, watch = report or silent, watch or Stopwatch()
    with watch("local training"):
        encoding = encoding_of(clients, num_classes, ridge)
        room = uploads is not None and _room(clients, num_classes)

        def terms() -> Iterator[GridStatistics]:
            found = in_order(lambda client: encoding.statistics(client, num_classes, device), clients, device)
            for k, (client, own) in enumerate(zip(clients, found, strict=True), start=1):
                if keep_statistics is not None:
                    keep_statistics(client, own)
                if uploads is not None and room:
                    uploads[client.name] = own
                yield own
                tell("1 local training", k, len(clients))

        total = add_up(terms())
    with watch("aggregation"):
        given = 0.0 if beta == "auto" else beta
        federation = Federation.of(total, given, encoding, standardize=ridge.standardize, intercept=ridge.intercept)
        federation.warn_of_labels()
        return choose_beta(federation, clients, alpha, tell, alphas) if beta == "auto" else federation


def add_up(uploads: Iterable[GridStatistics]) -> GridStatistics:
    """The sum of the clients' statistics, one at a time."""
    total: GridStatistics | None = None
    for own in uploads:
        total = own if total is None else total + own
    if total is None:
        raise InputError("no client has training rows, so there is nothing to sum; give at least one some")
    return total


def _room(clients: Sequence[Client], num_classes: int) -> bool:
    """Whether all clients' statistics may be held at once."""
    if not clients:
        return False
    width, free = clients[0].train[0].shape[1], memory_available(MEMINFO)
    needed = 8 * len(clients) * width * (width + num_classes)
    return bool(needed <= _HELD * (2**30 if free is None else free))
