"""A whole federation in one process: every client's rows are here, and each phase sees only what it would see.

phase 1   at each client: statistics of its own training rows, on the grid
phase 2   at the server: their sum, β for the federation, the global model
phase 3   at each client: α by leave-one-out on its own training rows, its personalized model; on request its prior

All sums are of whole numbers, so that they are the same bits in any order; a client's model is a function of the sum
and of its own statistics, so that it can be solved anew, to the same bits, when the sum changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core import (
    DEFAULT_ALPHAS,
    LooScore,
    PersonalizationPath,
    RegularizationPath,
    Statistics,
    personalize_on_grid,
    solve_global,
)
from fedhip.core.affine import AffineModel
from fedhip.core.balance import class_weights, weighted_statistics
from fedhip.core.calibration import log_losses
from fedhip.core.errors import EmptyClientError
from fedhip.core.fixedpoint import GridStatistics, decode, fraction_bits_for, round_features
from fedhip.core.personalization import require_part
from fedhip.core.prior import NO_PRIOR, Prior
from fedhip.data import FeatureSet, Partition, client_parts, split_of
from fedhip.models import masked
from fedhip.parallel import in_order, one_thread
from fedhip.priors import choose_client_priors, local_path

METHODS = ("local", "global", "fedhip")
#: Those that classes may count alike in.
BALANCED = ("global", "fedhip")

Rows = tuple[NDArray[Any], NDArray[np.int64]]
#: A ridge's weights (m, d), or another head's with its intercept.
Linear = Tensor | AffineModel
Report = Callable[[str, int, int], None]
Alpha = float | Literal["loo"]
Beta = float | Literal["auto", "loo"]


@dataclass(frozen=True)
class Client:
    """One client's name and its rows (features, labels) to train and to test on."""

    name: str
    train: Rows
    test: Rows

    def statistics(self, num_classes: int, fraction_bits: int, device: str | torch.device = "cpu") -> GridStatistics:
        """Phase 1: the client's upload."""
        return GridStatistics.from_data(
            torch.as_tensor(self.train[0], device=device),
            self.train[1],
            num_classes,
            fraction_bits=fraction_bits,
            client=self.name,
        )

    def weighted(self, scale: Tensor | None) -> Client:
        """The client with training rows times √w of their class (d,); see `fedhip.core.balance`."""
        if scale is None:
            return self
        features, labels = self.train
        return replace(self, train=(features * scale.numpy()[labels][:, None].astype(features.dtype), labels))


@dataclass(frozen=True)
class Federation:
    """Phase 2: the clients' sum, and β. What every client receives.

    `scale` (d,) is the √w that rows of each class were weighted with; None where all weigh alike.
    """

    grid: GridStatistics
    beta: float
    scale: Tensor | None = None

    @classmethod
    def of(cls, grid: GridStatistics, beta: float | Literal["auto"], scale: Tensor | None = None) -> Federation:
        """With β as given, or by generalized cross-validation from the sum alone."""
        if beta != "auto":
            return cls(grid, float(beta), scale)
        return cls(grid, RegularizationPath(_decoded(grid, scale), targets=scale).minimize_gcv(), scale)

    @cached_property
    def total(self) -> Statistics:
        """The sum in float64."""
        return _decoded(self.grid, self.scale)

    @cached_property
    def digest(self) -> str:
        """Which sum it is."""
        return self.grid.digest()

    @cached_property
    def G(self) -> Tensor:  # noqa: N802
        """The global model (m, d)."""
        with one_thread():
            return solve_global(self.total, self.beta)

    def traffic(self, method: str) -> tuple[int, int, int]:
        """Rounds, and the bytes that one client sends and receives; a symmetric matrix travels as its triangle."""
        m, d = self.grid.num_features, self.grid.num_classes
        statistics, model = 8 * (m * (m + 1) // 2 + m * d + d), 8 * m * d
        return {"local": (0, 0, 0), "global": (1, statistics, model), "fedhip": (1, statistics, statistics)}[method]

    def weights(self, own: GridStatistics, alpha: float, *, client: str | None = None) -> Tensor:
        """The client's model (m, d) from its statistics."""
        if alpha == 0.0:
            require_part(self.grid, own, client)
            return self.G.clone()
        solved = personalize_on_grid(self.grid, own, alpha, self.beta, client=client)
        # A model's column follows from the cross terms of its class alone, and like these it has its scale.
        return solved if self.scale is None else solved * self.scale.to(solved)

    def release(self) -> None:
        """Let go of the sum in float64 and its factor, 400 MB of a wide federation; the global model stays."""
        _ = self.G
        self.__dict__.pop("total", None)


def _decoded(grid: GridStatistics, scale: Tensor | None) -> Statistics:
    return decode(grid) if scale is None else weighted_statistics(decode(grid), scale)


@dataclass(frozen=True, eq=False)
class Personalization:
    """Phase 3 at one client: α, the model, and what leave-one-out says of it.

    `loo_accuracy` is that of each α of `DEFAULT_ALPHAS`, `loo_chosen` that of the α in use. The log-losses over the
    grid of temperatures are sums over its rows, of its own model and of the global one. Heads other than the ridge have
    grids of their own, and an intercept (see `fedhip.heads`).
    """

    alpha: float
    weights: Tensor
    own: str
    local_classes: Tensor
    loo_accuracy: list[float] | None
    loo_chosen: float
    log_losses: list[float]
    global_log_losses: list[float]
    intercept: Tensor | None = None

    @property
    def model(self) -> Linear:
        """The client's model."""
        return self.weights if self.intercept is None else AffineModel(self.weights, self.intercept)

    @classmethod
    def of(
        cls,
        federation: Federation,
        client: Client,
        alpha: Alpha = "loo",
        *,
        only_local_classes: bool = False,
        last: bool = False,
    ) -> Personalization:
        """Choose α on the client's training rows, and solve.

        After the `last` client nobody needs the federation's factor: it makes room for that client's model.
        """
        grid, client = federation.grid, client.weighted(federation.scale)
        F = round_features(torch.as_tensor(client.train[0], device=grid.device), grid.fraction_bits)
        path = PersonalizationPath(
            federation.total, F, client.train[1], federation.beta, client=client.name, targets=federation.scale
        )
        curve = path.loo_accuracy(DEFAULT_ALPHAS, only_local_classes=only_local_classes)
        chosen = DEFAULT_ALPHAS[int(curve.argmax())] if alpha == "loo" else float(alpha)
        reached = curve.max() if alpha == "loo" else path.loo_accuracy([chosen], only_local_classes=only_local_classes)
        labels = torch.as_tensor(client.train[1], device=grid.device)
        local_classes = torch.bincount(labels, minlength=grid.num_classes) > 0
        mask = local_classes if only_local_classes else None
        losses = log_losses(masked(path.loo_scores(chosen), mask), labels).tolist()
        global_losses = log_losses(path.loo_scores(0.0), labels).tolist()
        if last:
            del path
            federation.release()
        own = client.statistics(grid.num_classes, grid.fraction_bits, grid.device)
        return cls(
            chosen,
            federation.weights(own, chosen, client=client.name),
            own.digest(),
            local_classes,
            curve.tolist(),
            float(reached),
            losses,
            global_losses,
        )


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
    """What a round gave."""

    federation: Federation
    methods: tuple[str, ...]
    clients: list[ClientResult]
    seconds: dict[str, float]

    @property
    def beta(self) -> float:
        """The ridge penalty in use."""
        return self.federation.beta

    def traffic(self, method: str) -> tuple[int, int, int]:
        """Rounds, and the bytes that one client sends and receives."""
        return self.federation.traffic(method)

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


def simulate(
    clients: Sequence[Client],
    num_classes: int,
    *,
    alpha: Alpha = "loo",
    beta: Beta = "auto",
    methods: Iterable[str] = METHODS,
    only_local_classes: bool = False,
    prior: bool = False,
    fraction_bits: int | None = None,
    balance: bool = False,
    device: str | torch.device = "cpu",
    report: Report | None = None,
    keep_statistics: Callable[[Client, GridStatistics], None] | None = None,
) -> Outcome:
    """One round of FedHiP over the clients, beside models of the clients alone and the global one.

    `report(phase, done, total)` is called as the clients go by, `keep_statistics` with each client's upload. No model
    and no parameter sees a test row. `fraction_bits` is the grid's scale; by default it fits the largest feature.
    With `prior` every client's class frequencies are part of its models' answers, where that is likelier than not by
    leave-one-out (see `fedhip.core.prior`); a personalized model's α is chosen together with it. With `balance` classes
    count alike in the sum (see `fedhip.core.balance`), not so in models of one client alone.
    """
    methods = tuple(methods)
    watch, tell = Stopwatch(), report or (lambda phase, done, total: None)
    training = [client for client in clients if len(client.train[1])]
    scale = balancing_scale(training, num_classes) if balance else None
    largest = largest_feature(client.weighted(scale) for client in training) if fraction_bits is None else 0.0
    bits = fraction_bits_for(largest) if fraction_bits is None else fraction_bits

    def upload(client: Client) -> GridStatistics:
        return client.weighted(scale).statistics(num_classes, bits, device)

    def uploads() -> Iterator[GridStatistics]:
        statistics = in_order(upload, training, device)
        for k, (client, own) in enumerate(zip(training, statistics, strict=True), start=1):
            if keep_statistics is not None:
                keep_statistics(client, own)
            yield own
            tell("1 local training", k, len(training))

    with watch("local training"):
        total = add_up(uploads())
    with watch("aggregation"):
        federation = Federation.of(total, choose_beta(total, training, tell, scale) if beta == "loo" else beta, scale)
        _ = federation.G  # factored once, before the clients share it
        tell("2 aggregation", len(training), len(training))
    choices: dict[str, dict[str, tuple[float, Prior]]] = {}
    if prior:
        with watch("priors"):
            choices = choose_client_priors(federation, training, methods, alpha, only_local_classes, tell)
    personal: dict[str, Personalization] = {}
    if "fedhip" in methods:
        with watch("personalization"):

            def phase3(client: Client) -> Personalization:
                chosen = choices[client.name]["fedhip"][0] if prior else alpha
                return Personalization.of(federation, client, chosen, only_local_classes=only_local_classes)

            for k, (client, found) in enumerate(zip(training, in_order(phase3, training, device), strict=True), 1):
                personal[client.name] = found
                tell("3 personalization", k, len(training))
    local: dict[str, Tensor] = {}
    if "local" in methods:
        with watch("models of one client alone"):
            models = in_order(lambda client: local_model(client, num_classes, device), training, device)
            for k, (client, model) in enumerate(zip(training, models, strict=True), start=1):
                local[client.name] = model
                tell("trained alone", k, len(training))
    with watch("tests"):
        results = []
        for client in clients:
            own = personal.get(client.name)
            weights = federation.G if own is None else own.weights
            mine = {"local": local.get(client.name), "global": federation.G, "fedhip": weights}
            tested = {method: mine[method] for method in methods}
            priors = {method: found for method, (_, found) in choices.get(client.name, {}).items()}
            everybody = federation.grid.counts
            results.append(evaluate(client, tested, own, num_classes, only_local_classes, priors, everybody))
    return Outcome(federation, methods, results, watch.seconds)


def balancing_scale(clients: Iterable[Client], num_classes: int) -> Tensor:
    """√w of each class, from the clients' summed counts alone."""
    counts = sum(np.bincount(client.train[1], minlength=num_classes) for client in clients)
    return class_weights(torch.as_tensor(counts).expand(num_classes)).sqrt()


def choose_beta(grid: GridStatistics, clients: Sequence[Client], tell: Report, scale: Tensor | None = None) -> float:
    """The β whose global model has the highest leave-one-out accuracy: every client scores the grid on its rows."""
    path = RegularizationPath(_decoded(grid, scale), targets=scale)

    def score(client: Client) -> LooScore:
        client = client.weighted(scale)
        F = round_features(torch.as_tensor(client.train[0], device=grid.device), grid.fraction_bits)
        return path.score(F, client.train[1], client=client.name)

    scores = []
    for k, found in enumerate(in_order(score, clients, grid.device), start=1):
        scores.append(found)
        tell("2 choosing beta", k, len(clients))
    return path.select(scores)


def largest_feature(clients: Iterable[Client]) -> float:
    """The largest absolute value among the training features: what the grid must hold."""
    return max((float(np.abs(client.train[0]).max()) for client in clients), default=0.0)


def add_up(uploads: Iterable[GridStatistics]) -> GridStatistics:
    """The sum of the clients' statistics, one at a time."""
    total: GridStatistics | None = None
    for own in uploads:
        total = own if total is None else total + own
    if total is None:
        raise EmptyClientError("no client has training rows, so there is nothing to sum; give at least one some")
    return total


def evaluate(
    client: Client,
    models: Mapping[str, Linear | None],
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
    model: Linear, features: NDArray[Any], classes: Tensor | None = None, shift: Tensor | None = None
) -> NDArray[np.int64]:
    """The class of highest score for each row, among `classes` (d,) bool if given; `shift` (d,) is added to scores."""
    weights = model if isinstance(model, Tensor) else model.weights
    scores = torch.as_tensor(features, dtype=weights.dtype, device=weights.device) @ weights
    if not isinstance(model, Tensor):
        scores += model.bias
    if shift is not None:
        scores += shift.to(scores)
    return np.asarray(masked(scores, classes).argmax(dim=1).cpu().numpy())


def local_model(client: Client, num_classes: int, device: str | torch.device = "cpu") -> Tensor:
    """The ridge of the client's rows alone, its penalty chosen by leave-one-out on them."""
    path = local_path(client, num_classes, device)
    return path.weights(path.select())
