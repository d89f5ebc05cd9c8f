"""The three phases for one head, the ridge: what a client sends, what everybody knows then, and a client's own model.

phase 1   at each client: statistics of its own training rows, on the grid
phase 2   at the server: their sum; β for the federation, by the sum of what clients found on rows left out
phase 3   at each client: α by leave-one-out on its own training rows, and its model

The ridge is on standardised features with an intercept that is not penalised, so that the units of a column decide
nothing; both follow from the sum. Without either it is the paper's.

All sums are of whole numbers, so that they are the same bits in any order; a client's model is a function of the sum
and of its own statistics, so that it can be solved anew, to the same bits, when the sum changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core import DEFAULT_ALPHAS, LooScore, PersonalizationPath, RegularizationPath, Statistics, default_betas
from fedhip.core.affine import AffineModel
from fedhip.core.aggregation import GlobalSystem, global_system
from fedhip.core.balance import weighted_statistics
from fedhip.core.calibration import log_losses
from fedhip.core.column_sums import ColumnSums
from fedhip.core.columns import COLUMN_BITS, Columns, Survey, require_same_constants
from fedhip.core.conformal import class_misses, score_scale, target_misses
from fedhip.core.errors import ColumnError, ColumnWarning, EmptyClientError
from fedhip.core.fixedpoint import GridStatistics, decode, decode_weighted, round_features
from fedhip.core.path import choose_betas
from fedhip.core.personalization import require_part
from fedhip.core.rows import one_hot
from fedhip.core.selection import FOLDS, nested, pick, without_fold
from fedhip.core.solvers import factorize, require_alpha
from fedhip.core.standardization import Standardization
from fedhip.core.targets import TargetRows, Targets
from fedhip.models import masked
from fedhip.utils.groups import group_numbers
from fedhip.utils.parallel import in_order, one_thread

#: Features (N, m), and labels (N,) or real targets (N, t).
Rows = tuple[NDArray[Any], NDArray[Any]]
Report = Callable[[str, int, int], None]
Alpha = float | Literal["loo"]
Beta = float | Literal["auto", "gcv"]

#: What β is chosen with: a client is scored at the best of these.
SCORING_ALPHAS: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(-2, 7)))
#: How many values of β are scored.
SCORED_BETAS = 8
#: What a client sends for that: the smoothed accuracy over β, of all its rows and without each fold.
SCORES_BYTES = 8 * (FOLDS + 1) * SCORED_BETAS
#: Of many clients so many score β, evenly spread over the list of their names.
MOST_SCORERS = 16
#: Probabilities are calibrated on so many rows of a client at most.
CALIBRATION_ROWS = 256


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Client:
    """One client's name and its rows (features, labels) to train and to test on.

    `groups` (N,) say which of its training rows belong together, where that is known: they are left out, folded and
    held out together. `test_groups` are those of its test rows. `weights` (N,) are what its training rows weigh, above
    0; None where all weigh 1. `multilabel` says that targets are labels of 0 and 1.
    """

    name: str
    train: Rows
    test: Rows
    groups: NDArray[np.int64] | None = None
    test_groups: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None
    multilabel: bool = False

    @property
    def group_tensor(self) -> Tensor | None:
        """The groups of its training rows, from 0 in the order in which they appear."""
        return None if self.groups is None else torch.from_numpy(group_numbers(self.groups))

    @property
    def group_counts(self) -> dict[str, int]:
        """How many groups there are to train and to test on; nothing where rows have none."""
        if self.groups is None or self.test_groups is None:
            return {}
        return {"train_groups": len(np.unique(self.groups)), "test_groups": len(np.unique(self.test_groups))}

    def testing(self, held: NDArray[np.bool_]) -> Client:
        """The client with some (N,) of its training rows to be tested on, and without its test rows."""
        features, labels = self.train
        groups = (None, None) if self.groups is None else (self.groups[~held], self.groups[held])
        rows = (features[~held], labels[~held]), (features[held], labels[held])
        return Client(self.name, *rows, *groups, None if self.weights is None else self.weights[~held], self.multilabel)

    def survey(self) -> Survey:
        """Phase 0: what its columns look like."""
        return Survey.of(self.train[0], client=self.name)


@dataclass(frozen=True)
class RowEncoding:
    """How rows become whole numbers on the grid: the same for everybody.

    `scale` (d,) is the √w that rows of each class are weighted with (`fedhip.core.balance`); None where all weigh
    alike. `surveyed` says that the columns' units are known by a survey, which every client sent and received.
    `targets` say how real targets and weights of rows stand on it; None for classes whose rows are counted.
    """

    columns: Columns
    fraction_bits: int = COLUMN_BITS
    scale: Tensor | None = None
    surveyed: bool = False
    targets: Targets | None = None

    def features(self, rows: Rows, device: str | torch.device = "cpu") -> Tensor:
        """Rows in the columns' own units, weighted, float64; not yet rounded."""
        scaled = self.columns.features(torch.as_tensor(np.asarray(rows[0]), device=device).to(torch.float64))
        if self.scale is None:
            return scaled
        return scaled * self.scale.to(scaled)[torch.as_tensor(rows[1], device=device)][:, None]

    def statistics(self, client: Client, num_classes: int, device: str | torch.device = "cpu") -> GridStatistics:
        """Phase 1: the client's upload."""
        if self.targets is not None:
            labels, Y, times = self.target_rows(client, num_classes, device)
            counts = torch.tensor([len(Y)]) if labels is None else torch.bincount(labels, minlength=num_classes)
            return GridStatistics.from_targets(
                self.features(client.train, device),
                Y,
                counts,
                weights=times,
                fraction_bits=self.fraction_bits,
                client=client.name,
            )
        return GridStatistics.from_data(
            self.features(client.train, device),
            client.train[1],
            num_classes,
            fraction_bits=self.fraction_bits,
            client=client.name,
        )

    def target_rows(
        self, client: Client, num_classes: int, device: str | torch.device = "cpu"
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Labels (N,) of classes, targets (N, t) as the grid holds them, and whole weights (N,) where there are any."""
        targets, values = self.targets or Targets(), torch.as_tensor(np.array(client.train[1]), device=device)
        weights = client.weights
        if weights is None and targets.unit != 1.0:
            weights = np.ones(len(values))
        times = None if weights is None else targets.whole(torch.tensor(weights, device=device))
        labels = values if targets.columns is None else None
        return labels, targets.matrix(values, num_classes, self.fraction_bits), times

    def rounded(self, rows: Rows, device: str | torch.device = "cpu") -> Tensor:
        """Rows (N, m) as the grid holds them."""
        return round_features(self.features(rows, device), self.fraction_bits)

    @property
    def step(self) -> float:
        """What features are rounded to."""
        return float(2.0 ** -(self.fraction_bits // 2))


def survey_of(clients: Sequence[Client]) -> Survey:
    """Phase 0: the sum of the clients' surveys."""
    surveys = list(in_order(Client.survey, clients))
    if not surveys:
        raise EmptyClientError("no client has training rows, so there is nothing to sum; give at least one some")
    return reduce(add, surveys)


def columns_of(
    clients: Sequence[Client],
    *,
    centred: bool = True,
    survey: Survey | None = None,
) -> Columns:
    """The columns' units, those that the sum of the clients' surveys gives; an error names who has the value."""
    try:
        columns = _without_survey(clients, centred) if survey is None else Columns.of(survey, centred=centred)
    except ColumnError as error:
        if error.column is None or not error.is_value:
            raise
        sizes = [float(np.abs(client.train[0][:, error.column]).max()) for client in clients]
        who = clients[int(np.argmax(sizes))]
        row = int(np.abs(who.train[0][:, error.column]).argmax())
        raise ColumnError(
            f"client {who.name!r}, training row {row}: {error}", column=error.column, is_value=True
        ) from None
    for client in clients:
        require_same_constants(columns, client.train[0], f"client {client.name!r}: ")
    return columns


def _without_survey(clients: Sequence[Client], centred: bool) -> Columns:
    """The same units, in a fraction of the time: only columns are surveyed of which plain sums leave them open."""
    sums = reduce(add, in_order(lambda client: ColumnSums.of(client.train[0], client=client.name), clients))
    columns, certain = sums.columns(centred=centred)
    open_ = np.flatnonzero(~certain)
    if not len(open_):
        return columns
    try:
        surveys = in_order(lambda client: Survey.of(client.train[0], client=client.name, only=open_), clients)
        surveyed = Columns.of(reduce(add, surveys), centred=centred)
    except ColumnError:  # in words that count the columns from the first
        return Columns.of(survey_of(clients), centred=centred)
    columns.offset[open_], columns.exponent[open_] = surveyed.offset, surveyed.exponent
    return columns


@dataclass(frozen=True)
class Federation:
    """Phase 2: the clients' sum, and β. What every client receives.

    Parameters
    ----------
    grid : GridStatistics
        The sum.
    beta : float
        The ridge penalty: on standardised features, unless these are as they came.
    encoding : RowEncoding
        How rows become part of the sum.
    standardize, intercept : bool
        Whether the ridge is on standardised features, and whether it has an intercept, which is not penalised. With
        neither it is the paper's.
    fold_betas : five numbers or none
        The β that is chosen without the rows of each fold, where it was chosen on rows; see `fedhip.core.selection`.
    """

    grid: GridStatistics
    beta: float
    encoding: RowEncoding
    standardize: bool = True
    intercept: bool = True
    fold_betas: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        grid: GridStatistics,
        beta: float | Literal["gcv"],
        encoding: RowEncoding,
        *,
        standardize: bool = True,
        intercept: bool = True,
    ) -> Federation:
        """With β as given, or by generalized cross-validation from the sum alone."""
        found = cls(grid, 0.0 if beta == "gcv" else float(beta), encoding, standardize, intercept)
        return found.with_beta(found.beta_path().minimize_gcv()) if beta == "gcv" else found

    @cached_property
    def standardization(self) -> Standardization:
        """From the columns' units to what the ridge sees."""
        sums = self._sums
        if self.standardize:
            return Standardization.of(sums, intercept=self.intercept, step=self.encoding.step, mass=self._mass)
        # Back to the units that the rows came in.
        scale = 1.0 / self.encoding.columns.standardization.scale.to(sums.gram)
        if not self.intercept:
            return Standardization(torch.zeros_like(scale), scale, intercept=False)
        # An intercept makes their mean a matter of taste, and leaves nothing of a column that is one value everywhere.
        mass = self._mass
        N = float(sums.num_samples if mass is None else mass.sum())
        if sums.moments is not None:
            N = float(sums.moments[-1, -1])
        found = Standardization.of_sums(N, sums.feature_sums, sums.gram.diagonal(), step=self.encoding.step)
        return Standardization(found.mean, torch.where(found.used, scale, torch.inf))

    @property
    def _sums(self) -> Statistics:
        """The sum in float64, in the columns' own units."""
        sums, scale = decode(self.grid, self._unit), self.encoding.scale
        return sums if scale is None else weighted_statistics(sums, scale)

    @property
    def _unit(self) -> float:
        """What a weight of 1 on the grid weighs."""
        return 1.0 if self.encoding.targets is None else self.encoding.targets.unit

    @cached_property
    def target_units(self) -> Standardization | None:
        """How the ridge sees real targets that are in units of their own; None for classes."""
        targets = self.encoding.targets
        return None if targets is None else targets.seen(self._sums, self.intercept, self.encoding.step)

    @property
    def is_regression(self) -> bool:
        """Whether targets are real numbers."""
        return self.encoding.targets is not None and self.encoding.targets.columns is not None

    @property
    def _mass(self) -> Tensor | None:
        """What the rows of each class weigh together (d,), where they are weighted."""
        scale = self.encoding.scale
        return None if scale is None else self.grid.counts * scale.to(self.grid.device).square()

    @cached_property
    def total(self) -> Statistics:
        """The sum as the ridge sees it."""
        found, targets = self.standardization.statistics(self._sums, self._mass), self.encoding.targets
        if targets is None:
            return found
        cross = targets.cross(found.cross, self.target_units)
        return Statistics._of(found.gram, cross, found.counts, found.intercept)

    @cached_property
    def digest(self) -> str:
        """Which sum it is."""
        return self.grid.digest()

    @cached_property
    def common(self) -> AffineModel:
        """The global model, on features as they came."""
        with one_thread():
            return self.on_raw(self._system.G)

    @property
    def _system(self) -> GlobalSystem:
        return global_system(self.total, self.beta)

    def on_raw(self, weights: Tensor) -> AffineModel:
        """A model on features as they came, from weights of those that the ridge sees."""
        to_raw, seen = self.encoding.columns.standardization.then(self.standardization), self.target_units
        if self.intercept:
            model = AffineModel.of_standardized(weights, to_raw)
        else:
            model = AffineModel(weights, torch.zeros_like(weights[0])).on_raw(to_raw)
        targets = self.encoding.targets
        if seen is None or targets is None or targets.columns is None:
            return model
        scale = targets.columns.standardization.then(seen).scale.to(model.weights)
        return AffineModel(model.weights * scale, self.target_values(model.bias))

    def target_values(self, seen: Tensor) -> Tensor:
        """Real targets (n, t) as they came, from those that the ridge sees."""
        targets, units = self.encoding.targets, self.target_units
        if targets is None or targets.columns is None or units is None:
            return seen
        to_raw = targets.columns.standardization.then(units)
        return seen * to_raw.scale.to(seen) + to_raw.mean.to(seen)

    def warn_of_labels(self) -> None:
        """Warn of a column that is one value within each class and another in each: it looks like the label itself.

        It follows from the sums; a column that only nearly tells the classes apart is a good feature.
        """
        grid = self.grid
        if grid.moments is not None:
            self._warn_of_targets()
            return
        n, sums = grid.counts.to(torch.float64), decode(grid)
        seen = n > 0
        if int(seen.sum()) < 2 or grid.num_samples < 3 * int(seen.sum()) or self.encoding.scale is not None:
            return
        means = sums.cross[:, seen] / n[seen]
        within = sums.gram.diagonal() - (means.square() * n[seen]).sum(dim=1)
        deviation = (sums.gram.diagonal() / n.sum() - (sums.cross.sum(dim=1) / n.sum()).square()).clamp(min=0.0).sqrt()
        apart = means.sort(dim=1).values.diff(dim=1).amin(dim=1) > 1e-3 * deviation
        told = (deviation > 0.0) & apart & (within <= 1e-6 * n.sum() * deviation.square())
        if bool(told.any()):
            warnings.warn(
                f"column {int(told.nonzero()[0])} alone tells every label: it is one value within each class, and "
                "another in each; if it is the label, or follows from it, leave it out",
                ColumnWarning,
                stacklevel=2,
            )

    def _warn_of_targets(self) -> None:
        """Warn of a column that is a real target itself, moved and scaled: nothing of it is left unexplained."""
        total, seen = self.total, self.target_units
        if seen is None or not (self.standardize and self.intercept) or self.grid.num_samples < 3:
            return
        mass = float(self._sums.moments[-1, -1]) if self._sums.moments is not None else 0.0
        told = ((total.cross[:-1] / mass).square() > 1.0 - 1e-9).nonzero()
        if len(told):
            column, target = told[0].tolist()
            warnings.warn(
                f"column {column} is target {target} itself, in other units: leave it out of the features",
                ColumnWarning,
                stacklevel=3,
            )

    def traffic(self, method: str) -> tuple[int, int, int]:
        """Rounds, and the bytes that one client sends and receives, as `fedhip.federation.server.traffic` counts them.

        What tells the columns' units and what β is chosen by are counted, and are no rounds.
        """
        if method == "local":
            return 0, 0, 0
        chosen = SCORES_BYTES if self.fold_betas else 0
        up = down = self.survey_bytes + self.statistics_bytes
        if method == "global" and not chosen:  # what β is chosen by takes the sum itself
            down = self.survey_bytes + 8 * (self.grid.num_features + self.intercept) * self.grid.num_classes
        return 1, up + chosen, down

    @property
    def statistics_bytes(self) -> int:
        """Of a client's statistics, and of their sum; a symmetric matrix travels as its triangle."""
        m, d = self.grid.num_features, self.grid.num_classes
        if self.grid.moments is not None:
            return 8 * ((m + d + 1) * (m + d + 2) // 2 + len(self.grid.counts))
        return 8 * (m * (m + 1) // 2 + m * d + d)

    @property
    def survey_bytes(self) -> int:
        """Of what a client sent for the columns' units, and received of everybody's; none where they were given."""
        columns = self.grid.num_features + self.grid.num_classes * self.is_regression
        return 8 * Survey.size(columns) if self.encoding.surveyed else 0

    def rows(self, client: Client, at: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A client's training rows as the ridge sees them (N, m), and their labels (N,); or those `at` some places."""
        chosen = client.train if at is None else (client.train[0][at.numpy()], client.train[1][at.numpy()])
        F = self.encoding.rounded(chosen, self.grid.device)
        labels, scale = torch.as_tensor(chosen[1], device=self.grid.device), self.encoding.scale
        if scale is None:
            return self.standardization.features(F), labels
        root = scale.to(F)[labels][:, None]
        seen = self.standardization.features(F / root)
        return seen * root, labels

    def target_rows(self, client: Client) -> TargetRows:
        """A client's training rows and targets as the ridge sees them; times √w where they have weights."""
        labels, Y, times = self.encoding.target_rows(client, self.grid.num_classes, self.grid.device)
        F = self.standardization.features(self.encoding.rounded(client.train, self.grid.device))
        if self.target_units is not None:
            Y = self.target_units.features(Y)
        if times is None:
            return TargetRows(F, Y, labels, None, client.group_tensor)
        root = (times * self._unit).to(torch.float64).sqrt()
        return TargetRows(F * root[:, None], Y * root[:, None], labels, root, client.group_tensor)

    def path(self, client: Client) -> PersonalizationPath:
        """All of a client's models, and how each does on its rows left out."""
        if self.encoding.targets is not None:
            return PersonalizationPath.of(self.total, self.target_rows(client), self.beta)
        F, labels = self.rows(client)
        scale = self.encoding.scale
        return PersonalizationPath(
            self.total, F, labels, self.beta, client=client.name, targets=scale, groups=client.groups
        )

    def own_system(self, own: GridStatistics, alpha: float, *, client: str | None = None) -> GlobalSystem:
        """The equations of a client's model, from its statistics."""
        alpha = require_alpha(alpha)
        require_part(self.grid, own, client)
        if alpha == 0.0:
            return self._system
        grid, units, bits, scale = self.grid, self.standardization, self.grid.fraction_bits, self.encoding.scale
        cross = decode_weighted(grid.cross, own.cross, alpha, bits)
        n = grid.counts.to(torch.float64) + alpha * own.counts.to(grid.device)
        if scale is not None:
            cross, n = cross * scale.to(cross), n * scale.to(cross).square()
        sums, N, targets = cross.sum(dim=1), float(n.sum()), self.encoding.targets
        if targets is not None and grid.moments is not None and own.moments is not None:
            cross = cross * targets.unit
            n = decode_weighted(grid.moments[-1:], own.moments[-1:], alpha, bits)[0] * targets.unit
            sums, N = cross[:, -1], float(n[-1])

        def gram() -> Tensor:
            room = units.room(grid.device)
            m = len(grid.gram)
            decode_weighted(grid.gram, own.gram, alpha, bits, out=room[:m, :m])
            if self._unit != 1.0:
                room[:m, :m] *= self._unit
            return units.gram_in_place(room, sums, N)

        penalty = torch.full((len(units.mean) + self.intercept,), self.beta, dtype=torch.float64, device=grid.device)
        if self.intercept:
            penalty[-1] = 0.0
        B = units.cross(cross, n)
        return GlobalSystem.of(factorize(gram, penalty), B if targets is None else targets.cross(B, self.target_units))

    def model(self, own: GridStatistics, alpha: float, *, client: str | None = None) -> AffineModel:
        """The client's model on features as they came, from its statistics."""
        if alpha == 0.0:
            require_part(self.grid, own, client)
            return self.common
        return self.on_raw(self.own_system(own, alpha, client=client).G)

    def with_beta(self, beta: float, fold_betas: tuple[float, ...] = ()) -> Federation:
        """The same sum with another β; what follows from the sum alone is kept."""
        found = replace(self, beta=beta, fold_betas=fold_betas)
        kept = ("standardization", "target_units", "total", "digest")
        found.__dict__.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        if "total" in found.__dict__:  # its factor is of another β
            total = self.total
            found.__dict__["total"] = Statistics._of(total.gram, total.cross, total.counts, total.intercept)
        return found

    def beta_path(self, betas: Sequence[float] | None = None) -> RegularizationPath:
        """Every global model, over β."""
        return RegularizationPath(self.total, betas, targets=self.encoding.scale, squares=self._squares)

    @property
    def _squares(self) -> float | None:
        """‖Y‖² of the targets that the ridge sees, where they are not one-hot rows that weigh 1 each."""
        moments, seen = self._sums.moments, self.target_units
        if moments is None:
            return None
        N = moments[-1, -1]
        if seen is None:
            return float(N)
        t = len(seen.mean)
        around = moments.diagonal()[:t] - 2.0 * seen.mean * moments[-1, :t] + N * seen.mean.square()
        return float((around / seen.scale.square()).sum())

    def release(self) -> None:
        """Let go of the sum in float64 and its factor, 400 MB of a wide federation; the global model stays."""
        _ = self.common
        self.__dict__.pop("total", None)


def scoring_betas(total: Statistics) -> tuple[float, ...]:
    """What β is chosen among: one to the decade, from 1e-6 to 10 times the mean square of the features."""
    return default_betas(total)[::2]


def scorers(names: Iterable[str]) -> set[str]:
    """Which of the clients score β: all, or 16 spread evenly over the list of their names."""
    ordered = sorted(names)
    if len(ordered) <= MOST_SCORERS:
        return set(ordered)
    return {ordered[at * len(ordered) // MOST_SCORERS] for at in range(MOST_SCORERS)}


def score_betas(
    federation: Federation,
    path: RegularizationPath,
    client: Client,
    alpha: Alpha,
    alphas: Sequence[float] = SCORING_ALPHAS,
) -> LooScore:
    """At a client: how every β does on its rows left out, at the α that it would choose with it among `alphas`."""
    if federation.encoding.targets is not None:
        return path.score_rows(federation.target_rows(client), alphas if alpha == "loo" else (float(alpha),))
    return score_rows(federation.rows(client), path, client.name, alpha, alphas, client.groups)


def score_rows(
    rows: tuple[Tensor, Tensor],
    path: RegularizationPath,
    client: str,
    alpha: Alpha,
    alphas: Sequence[float] = SCORING_ALPHAS,
    groups: NDArray[np.int64] | None = None,
) -> LooScore:
    """The same of rows as the ridge sees them, and their labels."""
    return path.score(*rows, alphas if alpha == "loo" else (float(alpha),), client=client, groups=groups)


def choose_beta(
    federation: Federation,
    clients: Sequence[Client],
    alpha: Alpha,
    tell: Report,
    alphas: Sequence[float] = SCORING_ALPHAS,
) -> Federation:
    """The β of highest smoothed leave-one-out accuracy of the models that clients are given, summed over clients.

    Of real targets, the one of least squared error of the global model.

    `alphas` are what clients choose among where α is "loo"; a coarser grid stands for the default one.
    """
    if federation.is_regression:
        # A personalized model takes β/(1 + α) with its α: what is good for it shrinks the global model to nothing, and
        # of real targets, unlike of classes, the size of a prediction matters.
        alpha = 0.0
    with one_thread():
        path = federation.beta_path(scoring_betas(federation.total))
    names = scorers(client.name for client in clients)
    scoring = [client for client in clients if client.name in names]
    found = in_order(
        lambda client: score_betas(federation, path, client, alpha, alphas), scoring, federation.grid.device
    )
    soft = torch.zeros((FOLDS + 1, len(path.betas)), dtype=torch.float64, device=federation.grid.device)
    for done, score in enumerate(found, start=1):
        soft += score.soft
        tell("2 choosing beta", done, len(scoring))
    beta, *without = choose_betas(path.betas, soft)
    return federation.with_beta(beta, tuple(without))


@dataclass(frozen=True, eq=False)
class Personalization:
    """Phase 3 at one client: α, the model, and what leave-one-out says of it.

    `curve` is the leave-one-out accuracy at each α of the head's grid, where it was looked at. `estimate` is the
    accuracy that may be expected: that of rows left out, with α (and β) chosen without them. Of real targets both are
    mean squared errors, in units of the targets' variances. The log-losses over the
    grid of temperatures are sums over its rows, of its own model and of the global one. Heads other than the ridge have
    grids of their own (see `fedhip.heads`). `misses` say how far rows left out are from being right, by its own model
    and by the global one (`fedhip.core.conformal`); `miss_scale` is what those of its own model are multiples of.
    """

    alpha: float
    model: AffineModel
    own: str
    local_classes: Tensor
    curve: list[float] | None
    estimate: float
    log_losses: list[float]
    global_log_losses: list[float]
    misses: list[list[float]] = field(default_factory=list)
    miss_scale: float = 1.0
    global_misses: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        federation: Federation,
        client: Client,
        alpha: Alpha = "loo",
        *,
        alphas: Sequence[float] | None = None,
        only_local_classes: bool = False,
        own: GridStatistics | None = None,
        last: bool = False,
    ) -> Personalization:
        """Choose α on the client's training rows, and solve; `own` are its statistics, where they are at hand.

        After the `last` client nobody needs the federation's factor: it makes room for that client's model.
        """
        if federation.encoding.targets is not None:
            return cls._of_targets(federation, client, alpha, alphas, only_local_classes, own)
        grid = federation.grid
        labels = torch.as_tensor(client.train[1], device=grid.device)
        local_classes = torch.bincount(labels, minlength=grid.num_classes) > 0
        mask = local_classes if only_local_classes else None
        groups = client.group_tensor
        # A group is left out whole, and so looked at whole.
        judged = calibration_rows(len(labels)) if groups is None else torch.arange(len(labels))
        if alpha == "loo":
            looked = _look(federation, client, sorted(DEFAULT_ALPHAS if alphas is None else alphas), only_local_classes)
            chosen, curve, estimate = looked[:3]
            scores, common, by_others = (part[judged] for part in looked[3:])
            del looked
        else:
            chosen, curve = require_alpha(alpha), None
            F, targets = _targets(federation, client, judged)
            common = federation._system.left_out(F, targets, groups=groups) / targets.amax(dim=1, keepdim=True)
        if last:
            federation.release()
        if own is None:
            own = federation.encoding.statistics(client, grid.num_classes, grid.device)
        if alpha == "loo":
            model = federation.model(own, chosen, client=client.name)
        else:
            require_part(grid, own, client.name)
            if chosen > 0.0:
                system = federation.own_system(own, chosen, client=client.name)
                scores = system.left_out(F, targets, 1.0 + chosen, groups) / targets.amax(dim=1, keepdim=True)
                model = federation.on_raw(system.G)
            else:
                scores, model = common, federation.common
            estimate, by_others = _accuracy(masked(scores, mask), labels[judged]), scores
        return cls(
            chosen,
            model,
            own.digest(),
            local_classes,
            curve,
            estimate,
            log_losses(masked(scores, mask), labels[judged]).tolist(),
            log_losses(common, labels[judged]).tolist(),
            [class_misses(masked(by_others, mask), labels[judged]).tolist()],
            score_scale(scores),
            [class_misses(common, labels[judged]).tolist()],
        )

    @classmethod
    def _of_targets(
        cls,
        federation: Federation,
        client: Client,
        alpha: Alpha,
        alphas: Sequence[float] | None,
        only_local_classes: bool,
        own: GridStatistics | None,
    ) -> Personalization:
        """The same of real targets, and of rows that have weights."""
        grid, given = federation.grid, alpha != "loo"
        tried = [require_alpha(float(alpha))] if given else sorted(DEFAULT_ALPHAS if alphas is None else alphas)
        chosen, curve, estimate, scores, common, by_others = _look(federation, client, tried, only_local_classes)
        own = own or federation.encoding.statistics(client, grid.num_classes, grid.device)
        model = federation.model(own, chosen, client=client.name)
        judged = calibration_rows(len(scores))
        local = torch.ones(grid.num_classes, dtype=torch.bool)
        losses: tuple[list[float], list[float]] = ([], [])
        if federation.is_regression:
            truth = torch.as_tensor(np.array(client.train[1], np.float64)).to(scores)
            misses = [
                target_misses(federation.target_values(part), truth)[judged].mT.tolist() for part in (by_others, common)
            ]
        else:
            labels = torch.as_tensor(client.train[1], device=grid.device)
            local = torch.bincount(labels, minlength=grid.num_classes) > 0
            parts = masked(scores, local if only_local_classes else None)[judged], common[judged]
            losses = tuple(log_losses(part, labels[judged]).tolist() for part in parts)  # type: ignore[assignment]
            answers = masked(by_others, local if only_local_classes else None)[judged], common[judged]
            misses = [[class_misses(part, labels[judged]).tolist()] for part in answers]
        scale = 1.0 if federation.is_regression else score_scale(scores)
        own_misses, common_misses = misses
        return cls(
            chosen, model, own.digest(), local, None if given else curve, estimate, *losses,
            own_misses, scale, common_misses,
        )  # fmt: skip


def _look(
    federation: Federation, client: Client, alphas: Sequence[float], only_local_classes: bool
) -> tuple[float, list[float], float, Tensor, Tensor, Tensor]:
    """α, the curve, the nested estimate, and scores of the rows left out: at α, of the global model, and nested."""
    fold_betas = federation.fold_betas or (federation.beta,) * FOLDS
    folds: dict[int, tuple[Tensor, Tensor]] = {}

    def look(at: Federation) -> tuple[PersonalizationPath, Tensor]:
        path = at.path(client)
        table = path.loo_table(alphas, only_local_classes=only_local_classes)
        for fold in (fold for fold, beta in enumerate(fold_betas) if beta == at.beta):
            of_fold = path.fold_margins(alphas, table, fold)
            folds[fold] = of_fold, path.credit(of_fold)
        return path, table

    _ = federation.total  # once for all of them
    for beta in set(fold_betas) - {federation.beta}:  # one factor at a time
        look(federation.with_beta(beta))
    path, table = look(federation)
    tables, credit = zip(*(folds[fold] for fold in range(FOLDS)), strict=True)
    outcome = nested(tables, credit, client.group_tensor)
    chosen = alphas[pick(path.credit(table))]
    scores, common = path.loo_scores(chosen), path.loo_scores(0.0)
    sized = not federation.is_regression
    by_others = _by_others(path, alphas, credit, client.group_tensor, {0.0: common, chosen: scores}, chosen, sized)
    if federation.is_regression:
        t = federation.grid.num_classes
        return chosen, (-table.mean(dim=0) / t).tolist(), float(-outcome.mean() / t), scores, common, by_others
    curve = (table > 0.0).double().mean(dim=0).tolist()
    return chosen, curve, int((outcome > 0.0).sum()) / len(table), scores, common, by_others


def _by_others(
    path: PersonalizationPath,
    alphas: Sequence[float],
    credit: Sequence[Tensor],
    groups: Tensor | None,
    known: dict[float, Tensor],
    chosen: float,
    sized: bool,
) -> Tensor:
    """Scores (N, d) of rows left out, of the α that the rows of other folds choose: nobody chooses for itself.

    Where they are `sized`, as large as those of the α that is chosen, for α decides how large scores of classes are.
    """
    found, size = torch.empty_like(known[0.0]), score_scale(known[chosen])
    for fold, counts in enumerate(credit):
        others = without_fold(len(counts), fold, groups).to(counts.device)
        alpha = alphas[pick(counts[others])]
        if alpha not in known:
            known[alpha] = path.loo_scores(alpha)
        factor = size / score_scale(known[alpha]) if sized and alpha != chosen else 1.0
        found[~others] = known[alpha][~others] * factor
    return found


def _targets(federation: Federation, client: Client, at: Tensor) -> tuple[Tensor, Tensor]:
    """Some of a client's rows as the ridge sees them, and their one-hot targets, weighted like them."""
    F, labels = federation.rows(client, at)
    Y, scale = one_hot(labels, federation.grid.num_classes), federation.encoding.scale
    return F, Y if scale is None else Y * scale.to(Y)


def calibration_rows(rows: int) -> Tensor:
    """Which of a client's rows (n,) probabilities are calibrated on: all, or 256 spread evenly."""
    if rows <= CALIBRATION_ROWS:
        return torch.arange(rows)
    return torch.arange(CALIBRATION_ROWS) * rows // CALIBRATION_ROWS


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(dim=1) == labels).double().mean())
