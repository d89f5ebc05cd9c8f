"""Phase 2: the clients' sum, β, and what follows from them: the global model, a client's own, the bytes that travel.

The ridge is on standardised features with an intercept that is not penalised, so that the units of a column decide
nothing; both follow from the sum. Without either it is the paper's.

All sums are of whole numbers, so that they are the same bits in any order; a client's model is a function of the sum
and of its own statistics, so that it can be solved anew, to the same bits, when the sum changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedhip.core import PersonalizationPath, RegularizationPath, Statistics
from fedhip.core.affine import AffineModel
from fedhip.core.balance import weighted_statistics
from fedhip.core.choice.selection import FOLDS
from fedhip.core.exact.columns import Survey
from fedhip.core.exact.fixedpoint import GridStatistics, decode, decode_weighted
from fedhip.core.ridge.aggregation import GlobalSystem, global_system
from fedhip.core.ridge.personalization import require_part
from fedhip.core.solvers import factorize, require_alpha
from fedhip.core.standardization import Standardization
from fedhip.core.targets import TargetRows
from fedhip.errors import ColumnWarning
from fedhip.features.lifts.budget import upload_bytes
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import RowEncoding
from fedhip.utils.parallel import one_thread

#: How many values of β are scored.
SCORED_BETAS = 8
#: What a client sends for that: the smoothed accuracy over β, of all its rows and without each fold.
SCORES_BYTES = 8 * (FOLDS + 1) * SCORED_BETAS


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
        The β that is chosen without the rows of each fold, where it was chosen on rows; see
        `fedhip.core.choice.selection`.
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

    def warn_of_labels(self, kept: int = 0) -> None:
        """Warn of a column that is one value within each class and another in each: it looks like the label itself.

        It follows from the sums; a column that only nearly tells the classes apart is a good feature. Where `kept` of
        the last columns are the features, those before are a lift's, and nobody's label.
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
        telling = (deviation > 0.0) & apart & (within <= 1e-6 * n.sum() * deviation.square())
        telling = telling[-kept:] if kept else telling
        if bool(telling.any()):
            warnings.warn(
                f"column {int(telling.nonzero()[0])} alone tells every label: it is one value within each class, and "
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
        telling = ((total.cross[:-1] / mass).square() > 1.0 - 1e-9).nonzero()
        if len(telling):
            column, target = telling[0].tolist()
            warnings.warn(
                f"column {column} is target {target} itself, in other units: leave it out of the features",
                ColumnWarning,
                stacklevel=3,
            )

    def traffic(self, method: str) -> tuple[int, int, int]:
        """Rounds, and the bytes that one client sends and receives, as `fedhip.federation.sums.traffic` counts them.

        What tells the columns' units and what β is chosen by are counted, and are no rounds.
        """
        if method == "local":
            return 0, 0, 0
        chosen = SCORES_BYTES if self.fold_betas else 0
        up, down = self.survey_bytes + self.sent_bytes, self.survey_bytes + self.statistics_bytes
        if method == "global" and not chosen:  # what β is chosen by takes the sum itself
            down = self.survey_bytes + 8 * (self.grid.num_features + self.intercept) * self.grid.num_classes
        return 1, up + chosen, down

    @property
    def statistics_bytes(self) -> int:
        """Of the sum; a symmetric matrix travels as its triangle."""
        m, d = self.grid.num_features, self.grid.num_classes
        if self.grid.moments is not None:
            return 8 * ((m + d + 1) * (m + d + 2) // 2 + len(self.grid.counts))
        return upload_bytes(m, d)

    @property
    def sent_bytes(self) -> int:
        """What a client's statistics take, at most."""
        return self.statistics_bytes if self.encoding.room is None else self.encoding.room

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
