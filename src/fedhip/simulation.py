"""A whole federation in one process: every client's rows are here, and each phase sees only what it would see.

`fedhip.phases` has what each side does in each phase; here they are done one after the other for all clients, beside
models of the clients alone, and tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.balance import class_weights
from fedhip.core.columns import COLUMN_BITS, Columns
from fedhip.core.errors import EmptyClientError, FedHiPError
from fedhip.core.fixedpoint import GridStatistics
from fedhip.core.prior import NO_CHOICE, NO_PRIOR, Prior, PriorChoice
from fedhip.data import FeatureSet, Partition, client_parts, split_of
from fedhip.models import masked
from fedhip.phases import (
    SCORING_ALPHAS,
    Alpha,
    Beta,
    Client,
    Federation,
    Personalization,
    Report,
    RowEncoding,
    choose_beta,
    columns_of,
    silent,
)
from fedhip.priors import choose_client_priors, local_path, prior_alphas, traffic_with_priors
from fedhip.utils.parallel import MEMINFO, in_order, memory_available

#: The ridges that `simulate` computes side by side.
RIDGES = ("local", "global", "fedhip")
#: Those that classes may count alike in.
BALANCED = ("global", "fedhip")
#: Statistics of all clients are held from phase 1 to 3 while they take no more than this part of the free memory.
_HELD = 0.25


@dataclass(frozen=True)
class ClientResult:
    """Test accuracies of one client's models by method, and its personalization.

    A client without training rows is tested with the global model and has no model of its own; one without test rows
    has no accuracies. `confusions` are (true, predicted, number) of its test rows that its own model gets wrong,
    `mistakes` the places of these rows among its test rows, with what was predicted. `priors` are those that the models
    were tested with, by method.
    """

    client: str
    train: int
    test: int
    train_counts: list[int]
    test_counts: list[int]
    accuracy: dict[str, float | None]
    personal: Personalization | None
    confusions: list[tuple[int, int, int]]
    mistakes: list[tuple[int, int]]
    priors: dict[str, Prior] = field(default_factory=dict)

    @property
    def alpha(self) -> float | None:
        """The α in use; None without a model of its own."""
        return None if self.personal is None else self.personal.alpha


@dataclass(frozen=True)
class Outcome:
    """What a round gave; `prior_models` are how many models of each method its priors were chosen among."""

    federation: Federation
    methods: tuple[str, ...]
    clients: list[ClientResult]
    seconds: dict[str, float]
    prior_models: tuple[int, ...] = ()

    @property
    def beta(self) -> float:
        """The ridge penalty in use."""
        return self.federation.beta

    def traffic(self, method: str) -> tuple[int, int, int]:
        """Rounds, and the bytes that one client sends and receives."""
        return traffic_with_priors(self.federation, method, self.prior_models)

    def summary(self, method: str) -> dict[str, float | None]:
        """Means over the clients; see `summarize`."""
        return summarize([r.accuracy[method] for r in self.clients], [r.test for r in self.clients])


def summarize(accuracies: Sequence[float | None], test_rows: Sequence[int]) -> dict[str, float | None]:
    """Mean over clients, mean over test rows, deviation over clients, and the mean over the worst tenth of them.

    Clients without an accuracy are left out; None where that leaves nobody.
    """
    pairs = [(value, rows) for value, rows in zip(accuracies, test_rows, strict=True) if value is not None]
    if not pairs:
        return dict.fromkeys(("mean", "weighted", "std", "worst_decile"))
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    worst = np.sort(values)[: max(1, round(len(values) / 10))]
    return {
        "mean": float(values.mean()),
        "weighted": float(np.average(values, weights=weights)),
        "std": float(values.std()),
        "worst_decile": float(worst.mean()),
    }


@dataclass
class Stopwatch:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def clients_of(data: FeatureSet, partition: Partition, split: NDArray[np.int8] | None = None) -> list[Client]:
    """Each client's rows to train and to test on: by this split, by the data's own, or eight of ten."""
    split = split_of(data.split if split is None else split, partition)
    return [
        Client(name, (data.features[train], data.labels[train]), (data.features[test], data.labels[test]))
        for name, (train, test) in zip(partition.clients, client_parts(partition, split), strict=True)
    ]


@dataclass(frozen=True)
class RidgeOptions:
    """What the ridge is of: standardised features or those that came, with or without an intercept; weights by class.

    `fraction_bits` is the grid's scale for columns in units of their own; `columns` are these units, where they are
    known (lifted features have the same in all columns).
    """

    standardize: bool = True
    intercept: bool = True
    balance: bool = False
    fraction_bits: int | None = None
    columns: Columns | None = None


STANDARD = RidgeOptions()
#: The ridge as the paper has it.
PAPER = RidgeOptions(standardize=False, intercept=False)


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
    report: Report | None = None,
    keep_statistics: Callable[[Client, GridStatistics], None] | None = None,
) -> Outcome:
    """One round of FedHiP over the clients, beside models of the clients alone and the global one.

    `report(phase, done, total)` is called as the clients go by, `keep_statistics` with each client's upload. No model
    and no parameter sees a test row. With `prior` every client's class frequencies are part of its models' answers,
    where that is likelier than not by leave-one-out (see `fedhip.core.prior`); a personalized model's α is chosen
    together with it. `standardize`, `intercept`, `balance`, `fraction_bits` and `columns` are those of `RidgeOptions`;
    where classes count alike in the sum, they do not so in models of one client alone.
    """
    methods = tuple(methods)
    ridge = RidgeOptions(standardize, intercept, balance, fraction_bits, columns)
    if prior and balance:
        raise BalancedPriorError(
            "a client's prior corrects for how often the federation has a class, and balanced classes are equally "
            "frequent by construction; give one of the two"
        )
    watch, tell = Stopwatch(), report or silent
    training = [client for client in clients if len(client.train[1])]
    held: dict[str, GridStatistics] = {}
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
        held=held if "fedhip" in methods else None,
    )
    with watch("aggregation"):
        _ = federation.common  # factored once, before the clients share it
        tell("2 aggregation", len(training), len(training))
    choices: dict[str, dict[str, tuple[float, PriorChoice]]] = {}
    if prior:
        with watch("priors"):
            choices = choose_client_priors(federation, training, methods, alpha, only_local_classes, tell)
    personal: dict[str, Personalization] = {}
    if "fedhip" in methods:
        with watch("personalization"):

            def phase3(client: Client) -> Personalization:
                chosen, choice = choices[client.name]["fedhip"] if prior else (alpha, NO_CHOICE)
                own = held.pop(client.name, None)
                found = Personalization.of(federation, client, chosen, only_local_classes=only_local_classes, own=own)
                return found.with_prior(choice, len(client.train[1]))

            for k, (client, found) in enumerate(zip(training, in_order(phase3, training, device), strict=True), 1):
                personal[client.name] = found
                tell("3 personalization", k, len(training))
    local: dict[str, AffineModel] = {}
    if "local" in methods:
        with watch("models of one client alone"):
            models = in_order(lambda client: local_model(client, num_classes, ridge, device), training, device)
            for k, (client, model) in enumerate(zip(training, models, strict=True), start=1):
                local[client.name] = model
                tell("trained alone", k, len(training))
    with watch("tests"):
        results = []
        for client in clients:
            own = personal.get(client.name)
            mine = {
                "local": local.get(client.name),
                "global": federation.common,
                "fedhip": federation.common if own is None else own.model,
            }
            tested = {method: mine[method] for method in methods}
            priors = {method: choice.prior for method, (_, choice) in choices.get(client.name, {}).items()}
            everybody = federation.grid.counts
            results.append(evaluate(client, tested, own, num_classes, only_local_classes, priors, everybody))
    prior_models = tuple(len(prior_alphas(alpha)[method]) for method in methods) if prior else ()
    return Outcome(federation, methods, results, watch.seconds, prior_models)


class BalancedPriorError(FedHiPError, ValueError):
    """Balanced classes and a client's prior contradict each other."""


def encoding_of(
    clients: Sequence[Client],
    num_classes: int,
    ridge: RidgeOptions = STANDARD,
) -> RowEncoding:
    """How the clients' rows become whole numbers, from sums over clients alone."""
    if not clients:
        raise EmptyClientError("no client has training rows, so there is nothing to sum; give at least one some")
    columns = ridge.columns or columns_of(clients, centred=ridge.intercept or ridge.standardize)
    bits = COLUMN_BITS if ridge.fraction_bits is None else ridge.fraction_bits
    scale = balancing_scale(clients, num_classes) if ridge.balance else None
    return RowEncoding(columns, bits, scale, surveyed=ridge.columns is None)


def _room(clients: Sequence[Client], num_classes: int) -> bool:
    """Whether all clients' statistics may be held at once."""
    if not clients:
        return False
    width, free = clients[0].train[0].shape[1], memory_available(MEMINFO)
    needed = 8 * len(clients) * width * (width + num_classes)
    return bool(needed <= _HELD * (2**30 if free is None else free))


def balancing_scale(clients: Iterable[Client], num_classes: int) -> Tensor:
    """√w of each class, from the clients' summed counts alone."""
    counts = sum(np.bincount(client.train[1], minlength=num_classes) for client in clients)
    return class_weights(torch.as_tensor(counts).expand(num_classes)).sqrt()


def add_up(uploads: Iterable[GridStatistics]) -> GridStatistics:
    """The sum of the clients' statistics, one at a time."""
    total: GridStatistics | None = None
    for own in uploads:
        total = own if total is None else total + own
    if total is None:
        raise EmptyClientError("no client has training rows, so there is nothing to sum; give at least one some")
    return total


def federate(
    clients: Sequence[Client],
    num_classes: int,
    beta: Beta = 0.0,
    ridge: RidgeOptions = STANDARD,
    device: str | torch.device = "cpu",
    *,
    alpha: Alpha = "loo",
    alphas: Sequence[float] = SCORING_ALPHAS,
    report: Report | None = None,
    watch: Stopwatch | None = None,
    keep_statistics: Callable[[Client, GridStatistics], None] | None = None,
    held: dict[str, GridStatistics] | None = None,
) -> Federation:
    """Phases 1 and 2 of clients with training rows: their sum, and β, which is given or chosen.

    β is chosen for models of this α, or of the best of `alphas`. `keep_statistics` is called with each client's upload,
    and `held` takes them for phase 3, by name, if there is room for all.
    """
    tell, watch = report or silent, watch or Stopwatch()
    with watch("local training"):
        encoding = encoding_of(clients, num_classes, ridge)
        room = held is not None and _room(clients, num_classes)

        def uploads() -> Iterator[GridStatistics]:
            found = in_order(lambda client: encoding.statistics(client, num_classes, device), clients, device)
            for k, (client, own) in enumerate(zip(clients, found, strict=True), start=1):
                if keep_statistics is not None:
                    keep_statistics(client, own)
                if held is not None and room:
                    held[client.name] = own
                yield own
                tell("1 local training", k, len(clients))

        total = add_up(uploads())
    with watch("aggregation"):
        given = 0.0 if beta == "auto" else beta
        federation = Federation.of(total, given, encoding, standardize=ridge.standardize, intercept=ridge.intercept)
        federation.warn_of_labels()
        return choose_beta(federation, clients, alpha, tell, alphas) if beta == "auto" else federation


def evaluate(
    client: Client,
    models: Mapping[str, AffineModel | None],
    personal: Personalization | None,
    num_classes: int,
    only_local_classes: bool = False,
    priors: Mapping[str, Prior] = MappingProxyType({}),
    everybody: Tensor | None = None,
    *,
    own: str = "fedhip",
) -> ClientResult:
    """Test every model on the client's test rows; with its prior, if it has one, among `everybody`'s class counts.

    `own` is the method whose mistakes are kept.
    """
    features, labels = client.test
    train_counts = np.bincount(client.train[1], minlength=num_classes)
    # A client that has seen nothing has no classes of its own to keep to.
    mask = torch.from_numpy(train_counts > 0) if only_local_classes and train_counts.any() else None
    accuracies: dict[str, float | None] = {}
    confusions: list[tuple[int, int, int]] = []
    mistakes: list[tuple[int, int]] = []
    for method, model in models.items():
        prior, counts = priors.get(method, NO_PRIOR), torch.from_numpy(train_counts)
        shift = None if prior.is_none or everybody is None else prior.temperature * prior.shift(counts, everybody)
        predicted = None if model is None or not len(labels) else predict(model, features, mask, shift)
        accuracies[method] = None if predicted is None else float((predicted == labels).mean())
        if method == own and predicted is not None:
            wrong = np.flatnonzero(predicted != labels)
            pairs, numbers = np.unique(np.stack((labels[wrong], predicted[wrong]), axis=1), axis=0, return_counts=True)
            confusions = [(int(t), int(p), int(n)) for (t, p), n in zip(pairs, numbers, strict=True)]
            mistakes = [(int(row), int(predicted[row])) for row in wrong]
    return ClientResult(
        client.name,
        len(client.train[1]),
        len(labels),
        train_counts.tolist(),
        np.bincount(labels, minlength=num_classes).tolist(),
        accuracies,
        personal,
        confusions,
        mistakes,
        dict(priors),
    )


def predict(
    model: AffineModel, features: NDArray[Any], classes: Tensor | None = None, shift: Tensor | None = None
) -> NDArray[np.int64]:
    """The class of highest score for each row, among `classes` (d,) bool if given; `shift` (d,) is added to scores."""
    scores = model.scores(features)
    if shift is not None:
        scores += shift.to(scores)
    return np.asarray(masked(scores, classes).argmax(dim=1).cpu().numpy())


def local_model(
    client: Client, num_classes: int, ridge: RidgeOptions = STANDARD, device: str | torch.device = "cpu"
) -> AffineModel:
    """The ridge of the client's rows alone, its penalty chosen by leave-one-out on them."""
    path = local_path(client, num_classes, ridge.standardize, ridge.intercept, device)
    return path.model(path.select())
