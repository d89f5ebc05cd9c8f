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
from dataclasses import dataclass, replace
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
from fedhip.core.errors import ColumnError, ColumnWarning, EmptyClientError
from fedhip.core.fixedpoint import GridStatistics, decode, decode_weighted, round_features
from fedhip.core.path import choose_betas
from fedhip.core.personalization import require_part
from fedhip.core.prior import PriorChoice
from fedhip.core.rows import one_hot
from fedhip.core.selection import FOLDS, fold_of, nested_hits, select
from fedhip.core.solvers import factorize, require_alpha
from fedhip.core.standardization import Standardization
from fedhip.models import masked
from fedhip.utils.parallel import in_order, one_thread

Rows = tuple[NDArray[Any], NDArray[np.int64]]
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
    """One client's name and its rows (features, labels) to train and to test on."""

    name: str
    train: Rows
    test: Rows

    def survey(self) -> Survey:
        """Phase 0: what its columns look like."""
        return Survey.of(self.train[0], client=self.name)


@dataclass(frozen=True)
class RowEncoding:
    """How rows become whole numbers on the grid: the same for everybody.

    `scale` (d,) is the √w that rows of each class are weighted with (`fedhip.core.balance`); None where all weigh
    alike. `surveyed` says that the columns' units are known by a survey, which every client sent and received.
    """

    columns: Columns
    fraction_bits: int = COLUMN_BITS
    scale: Tensor | None = None
    surveyed: bool = False

    def features(self, rows: Rows, device: str | torch.device = "cpu") -> Tensor:
        """Rows in the columns' own units, weighted, float64; not yet rounded."""
        scaled = self.columns.features(torch.as_tensor(np.asarray(rows[0]), device=device).to(torch.float64))
        if self.scale is None:
            return scaled
        return scaled * self.scale.to(scaled)[torch.as_tensor(rows[1], device=device)][:, None]

    def statistics(self, client: Client, num_classes: int, device: str | torch.device = "cpu") -> GridStatistics:
        """Phase 1: the client's upload."""
        return GridStatistics.from_data(
            self.features(client.train, device),
            client.train[1],
            num_classes,
            fraction_bits=self.fraction_bits,
            client=client.name,
        )

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
        found = Standardization.of_sums(N, sums.cross.sum(dim=1), sums.gram.diagonal(), step=self.encoding.step)
        return Standardization(found.mean, torch.where(found.used, scale, torch.inf))

    @property
    def _sums(self) -> Statistics:
        """The sum in float64, in the columns' own units."""
        sums, scale = decode(self.grid), self.encoding.scale
        return sums if scale is None else weighted_statistics(sums, scale)

    @property
    def _mass(self) -> Tensor | None:
        """What the rows of each class weigh together (d,), where they are weighted."""
        scale = self.encoding.scale
        return None if scale is None else self.grid.counts * scale.to(self.grid.device).square()

    @cached_property
    def total(self) -> Statistics:
        """The sum as the ridge sees it."""
        return self.standardization.statistics(self._sums, self._mass)

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
        to_raw = self.encoding.columns.standardization.then(self.standardization)
        if self.intercept:
            return AffineModel.of_standardized(weights, to_raw)
        return AffineModel(weights, torch.zeros_like(weights[0])).on_raw(to_raw)

    def warn_of_labels(self) -> None:
        """Warn of a column that is one value within each class and another in each: it looks like the label itself.

        It follows from the sums; a column that only nearly tells the classes apart is a good feature.
        """
        grid = self.grid
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
        return 8 * (m * (m + 1) // 2 + m * d + d)

    @property
    def survey_bytes(self) -> int:
        """Of what a client sent for the columns' units, and received of everybody's; none where they were given."""
        return 8 * Survey.size(self.grid.num_features) if self.encoding.surveyed else 0

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

    def path(self, client: Client) -> PersonalizationPath:
        """All of a client's models, and how each does on its rows left out."""
        F, labels = self.rows(client)
        scale = self.encoding.scale
        return PersonalizationPath(self.total, F, labels, self.beta, client=client.name, targets=scale)

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

        def gram() -> Tensor:
            room = units.room(grid.device)
            m = len(grid.gram)
            decode_weighted(grid.gram, own.gram, alpha, bits, out=room[:m, :m])
            return units.gram_in_place(room, cross.sum(dim=1), float(n.sum()))

        penalty = torch.full((len(units.mean) + self.intercept,), self.beta, dtype=torch.float64, device=grid.device)
        if self.intercept:
            penalty[-1] = 0.0
        return GlobalSystem.of(factorize(gram, penalty), units.cross(cross, n))

    def model(self, own: GridStatistics, alpha: float, *, client: str | None = None) -> AffineModel:
        """The client's model on features as they came, from its statistics."""
        if alpha == 0.0:
            require_part(self.grid, own, client)
            return self.common
        return self.on_raw(self.own_system(own, alpha, client=client).G)

    def with_beta(self, beta: float, fold_betas: tuple[float, ...] = ()) -> Federation:
        """The same sum with another β; what follows from the sum alone is kept."""
        found = replace(self, beta=beta, fold_betas=fold_betas)
        kept = ("standardization", "total", "digest")
        found.__dict__.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        if "total" in found.__dict__:  # its factor is of another β
            total = self.total
            found.__dict__["total"] = Statistics._of(total.gram, total.cross, total.counts, total.intercept)
        return found

    def beta_path(self, betas: Sequence[float] | None = None) -> RegularizationPath:
        """Every global model, over β."""
        return RegularizationPath(self.total, betas, targets=self.encoding.scale)

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
    return score_rows(federation.rows(client), path, client.name, alpha, alphas)


def score_rows(
    rows: tuple[Tensor, Tensor],
    path: RegularizationPath,
    client: str,
    alpha: Alpha,
    alphas: Sequence[float] = SCORING_ALPHAS,
) -> LooScore:
    """The same of rows as the ridge sees them, and their labels."""
    return path.score(*rows, alphas if alpha == "loo" else (float(alpha),), client=client)


def choose_beta(
    federation: Federation,
    clients: Sequence[Client],
    alpha: Alpha,
    tell: Report,
    alphas: Sequence[float] = SCORING_ALPHAS,
) -> Federation:
    """The β of highest smoothed leave-one-out accuracy of the models that clients are given, summed over clients.

    `alphas` are what clients choose among where α is "loo"; a coarser grid stands for the default one.
    """
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
    accuracy that may be expected: that of rows left out, with α, β and the prior chosen without them; None where a
    prior was kept that they had a part in. The log-losses over the grid of temperatures are sums over its rows, of its
    own model and of the global one. Heads other than the ridge have grids of their own (see `fedhip.heads`).
    """

    alpha: float
    model: AffineModel
    own: str
    local_classes: Tensor
    curve: list[float] | None
    estimate: float | None
    log_losses: list[float]
    global_log_losses: list[float]

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
        grid = federation.grid
        labels = torch.as_tensor(client.train[1], device=grid.device)
        local_classes = torch.bincount(labels, minlength=grid.num_classes) > 0
        mask = local_classes if only_local_classes else None
        judged = calibration_rows(len(labels))
        if alpha == "loo":
            looked = _look(federation, client, sorted(DEFAULT_ALPHAS if alphas is None else alphas), only_local_classes)
            chosen, curve, estimate, scores, common = *looked[:3], looked[3][judged], looked[4][judged]
            del looked
        else:
            chosen, curve = require_alpha(alpha), None
            F, targets = _targets(federation, client, judged)
            common = federation._system.left_out(F, targets) / targets.amax(dim=1, keepdim=True)
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
                scores = system.left_out(F, targets, 1.0 + chosen) / targets.amax(dim=1, keepdim=True)
                model = federation.on_raw(system.G)
            else:
                scores, model = common, federation.common
            nested = masked(_at_fold_betas(federation, own, chosen, (F, targets), judged, scores), mask)
            estimate = _accuracy(nested, labels[judged])
        return cls(
            chosen,
            model,
            own.digest(),
            local_classes,
            curve,
            estimate,
            log_losses(masked(scores, mask), labels[judged]).tolist(),
            log_losses(common, labels[judged]).tolist(),
        )

    def with_prior(self, choice: PriorChoice, rows: int) -> Personalization:
        """With what may be expected of the client's prior, chosen together with α on so many rows."""
        if choice.right is not None:
            return replace(self, estimate=choice.right / rows)
        return self if choice.prior.is_none else replace(self, estimate=None)


def _look(
    federation: Federation, client: Client, alphas: Sequence[float], only_local_classes: bool
) -> tuple[float, list[float], float, Tensor, Tensor]:
    """α, the curve, the nested estimate, and scores of the rows left out: at α, and of the global model."""
    fold_betas = federation.fold_betas or (federation.beta,) * FOLDS
    folds: dict[int, Tensor] = {}

    def look(at: Federation) -> tuple[PersonalizationPath, Tensor]:
        path = at.path(client)
        margins = path.loo_margins(alphas, only_local_classes=only_local_classes)
        for fold in (fold for fold, beta in enumerate(fold_betas) if beta == at.beta):
            folds[fold] = path.fold_margins(alphas, margins, fold)
        return path, margins

    _ = federation.total  # once for all of them
    for beta in set(fold_betas) - {federation.beta}:  # one factor at a time
        look(federation.with_beta(beta))
    path, margins = look(federation)
    estimate = nested_hits([folds[fold] for fold in range(FOLDS)]) / len(margins)
    chosen = alphas[select(margins)]
    curve = (margins > 0.0).double().mean(dim=0).tolist()
    return chosen, curve, estimate, path.loo_scores(chosen), path.loo_scores(0.0)


def _at_fold_betas(
    federation: Federation,
    own: GridStatistics,
    alpha: float,
    rows: tuple[Tensor, Tensor],
    judged: Tensor,
    scores: Tensor,
) -> Tensor:
    """Scores (n, d) of `judged` rows left out at this α, those of each fold at the β that is chosen without it.

    `rows` and `scores`, at the β in use, are theirs; where all folds have that β, nothing is solved.
    """
    F, targets = rows
    fold = fold_of(int(judged.max()) + 1)[judged].to(F.device)
    found = scores
    for beta in sorted(set(federation.fold_betas) - {federation.beta}):
        at = torch.isin(fold, torch.tensor([f for f, b in enumerate(federation.fold_betas) if b == beta]).to(fold))
        if bool(at.any()):
            system = federation.with_beta(beta).own_system(own, alpha)
            left_out = system.left_out(F[at], targets[at], 1.0 + alpha) / targets[at].amax(dim=1, keepdim=True)
            found = found.index_copy(0, at.nonzero()[:, 0], left_out)
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
