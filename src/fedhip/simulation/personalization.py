"""Phase 3: α by leave-one-out on a client's own training rows, and its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedhip.core import DEFAULT_ALPHAS, PersonalizationPath
from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice.calibration import log_losses
from fedhip.core.choice.conformal import class_misses, score_scale, target_misses
from fedhip.core.choice.prior import NO_CHOICE, PriorChoice
from fedhip.core.choice.selection import FOLDS, fold_of, nested, pick, without_fold
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.ridge.personalization import require_part
from fedhip.core.rows import one_hot
from fedhip.core.solvers import require_alpha
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha

#: Probabilities are calibrated on so many rows of a client at most.
CALIBRATION_ROWS = 256


@dataclass(frozen=True)
class Chosen:
    """Which candidate a client took (`fedhip.heads.auto`), what its model is made of, and what spoke for it.

    `right` are the rows held out that each candidate has right; nothing where they were not looked at.
    """

    name: str
    settings: Mapping[str, float]
    right: Mapping[str, int]

    def to_dict(self) -> dict[str, object]:
        """For details.json."""
        return {"model": self.name, "right": dict(self.right)}


@dataclass(frozen=True, eq=False)
class Looked:
    """What choosing α of a ridge found: scores (N_k, d) of rows left out, at α, of the global model, and nested."""

    alpha: float
    curve: list[float]
    estimate: float
    scores: Tensor
    common: Tensor
    by_others: Tensor


@dataclass(frozen=True, eq=False)
class Personalization:
    """Phase 3 at one client: α, the model, and what leave-one-out says of it.

    `curve` is the leave-one-out accuracy at each α of the head's grid, where it was looked at. `estimate` is the
    accuracy that may be expected: that of rows left out, with α, β and the prior chosen without them; None where a
    prior was kept that they had a part in. Of real targets both are mean squared errors, in units of the targets'
    variances. The log-losses over the grid of temperatures are sums over its rows, of its own model and of the global
    one. Heads other than the ridge have grids of their own (see `fedhip.heads`). `misses` say how far rows left out are
    from being right, by its own model and by the global one (`fedhip.core.choice.conformal`); `miss_scale` is what
    those of its own model are multiples of.
    """

    alpha: float
    model: AffineModel
    own: str
    local_classes: Tensor
    curve: list[float] | None
    estimate: float | None
    log_losses: list[float]
    global_log_losses: list[float]
    misses: list[list[float]] = field(default_factory=list)
    miss_scale: float = 1.0
    global_misses: list[list[float]] = field(default_factory=list)
    #: Of a model that was chosen among candidates.
    choice: Chosen | None = None
    #: What its α was chosen by, where somebody has use for it.
    looked: Looked | None = None

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
        choice: PriorChoice = NO_CHOICE,
        last: bool = False,
        keep: bool = False,
    ) -> Personalization:
        """Choose α on the client's training rows, and solve; `own` are its statistics, where they are at hand.

        With `keep`, what α was chosen by is kept.

        `choice` is that of the prior, which says what may be expected where α was chosen together with it.
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
            found = choose_alpha(
                federation, client, sorted(DEFAULT_ALPHAS if alphas is None else alphas), only_local_classes
            )
            chosen, curve, estimate = found.alpha, found.curve, found.estimate
            scores, common, by_others = (part[judged] for part in (found.scores, found.common, found.by_others))
            looked = found if keep else None
            del found
        else:
            chosen, curve, looked = require_alpha(alpha), None, None
            F, targets = _targets(federation, client, judged)
            common = _left_out(federation, F, targets, groups)
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
            by_others = scores
            if choice.right is None:
                at_betas = _at_fold_betas(federation, own, chosen, (F, targets), judged, scores, groups)
                estimate = _accuracy(masked(at_betas, mask), labels[judged])
        if choice.right is not None:
            estimate = choice.right / len(labels)
        return cls(
            chosen,
            model,
            own.digest(),
            local_classes,
            curve,
            None if choice.fold_priors is None else estimate,
            log_losses(masked(scores, mask), labels[judged]).tolist(),
            log_losses(common, labels[judged]).tolist(),
            [class_misses(masked(by_others, mask), labels[judged]).tolist()],
            score_scale(scores),
            [class_misses(common, labels[judged]).tolist()],
            looked=looked,
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
        looked = choose_alpha(federation, client, tried, only_local_classes)
        chosen, scores, common, by_others = looked.alpha, looked.scores, looked.common, looked.by_others
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
            chosen, model, own.digest(), local, None if given else looked.curve, looked.estimate, *losses,
            own_misses, scale, common_misses,
        )  # fmt: skip


def common_losses(federation: Federation, client: Client) -> list[float]:
    """The global model's log-losses over temperatures, of the client's rows left out; none of real targets."""
    if federation.is_regression:
        return []
    judged = calibration_rows(len(client.train[1]))
    if federation.encoding.targets is not None:  # rows have weights
        scores = common_scores(federation, client)[judged]
    else:
        if client.groups is not None:
            judged = torch.arange(len(client.train[1]))
        scores = common_scores(federation, client, judged)
    found: list[float] = log_losses(scores, torch.as_tensor(client.train[1])[judged]).tolist()
    return found


def common_scores(federation: Federation, client: Client, at: Tensor | None = None) -> Tensor:
    """Scores (n, d) of a client's rows by the federation's ridge without each: all, or those `at` some places.

    Of rows that have weights, all; where rows have groups, `at` is of all too.
    """
    if federation.encoding.targets is not None:
        return federation.path(client).loo_scores(0.0)
    return _left_out(federation, *_targets(federation, client, at), client.group_tensor)


def _left_out(federation: Federation, F: Tensor, targets: Tensor, groups: Tensor | None) -> Tensor:
    scores: Tensor = federation._system.left_out(F, targets, groups=groups) / targets.amax(dim=1, keepdim=True)
    return scores


def choose_alpha(
    federation: Federation, client: Client, alphas: Sequence[float], only_local_classes: bool = False
) -> Looked:
    """α by leave-one-out on the client's training rows; scores `by_others` are of α that other folds choose."""
    fold_betas = federation.fold_betas or (federation.beta,) * FOLDS
    folds: dict[int, tuple[Tensor, Tensor]] = {}

    def scored(at: Federation) -> tuple[PersonalizationPath, Tensor]:
        path = at.path(client)
        table = path.loo_table(alphas, only_local_classes=only_local_classes)
        for fold in (fold for fold, beta in enumerate(fold_betas) if beta == at.beta):
            of_fold = path.fold_margins(alphas, table, fold)
            folds[fold] = of_fold, path.credit(of_fold)
        return path, table

    _ = federation.total  # once for all of them
    for beta in set(fold_betas) - {federation.beta}:  # one factor at a time
        scored(federation.with_beta(beta))
    path, table = scored(federation)
    tables, credit = zip(*(folds[fold] for fold in range(FOLDS)), strict=True)
    outcome = nested(tables, credit, client.group_tensor)
    chosen = alphas[pick(path.credit(table))]
    scores, common = path.loo_scores(chosen), path.loo_scores(0.0)
    sized = not federation.is_regression
    by_others = _by_others(path, alphas, credit, client.group_tensor, {0.0: common, chosen: scores}, chosen, sized)
    if federation.is_regression:
        t = federation.grid.num_classes
        errors = (-table.mean(dim=0) / t).tolist()
        return Looked(chosen, errors, float(-outcome.mean() / t), scores, common, by_others)
    curve = (table > 0.0).double().mean(dim=0).tolist()
    return Looked(chosen, curve, int((outcome > 0.0).sum()) / len(table), scores, common, by_others)


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


def _at_fold_betas(
    federation: Federation,
    own: GridStatistics,
    alpha: float,
    rows: tuple[Tensor, Tensor],
    judged: Tensor,
    scores: Tensor,
    groups: Tensor | None,
) -> Tensor:
    """Scores (n, d) of `judged` rows left out at this α, those of each fold at the β that is chosen without it.

    `rows` and `scores`, at the β in use, are theirs; where all folds have that β, nothing is solved. Of `groups` (N_k,)
    all rows are judged.
    """
    F, targets = rows
    fold = fold_of(int(judged.max()) + 1, groups)[judged].to(F.device)
    found = scores
    for beta in sorted(set(federation.fold_betas) - {federation.beta}):
        at = torch.isin(fold, torch.tensor([f for f, b in enumerate(federation.fold_betas) if b == beta]).to(fold))
        if bool(at.any()):
            system = federation.with_beta(beta).own_system(own, alpha)
            together = None if groups is None else groups[at.cpu()]
            left_out = system.left_out(F[at], targets[at], 1.0 + alpha, together)
            left_out = left_out / targets[at].amax(dim=1, keepdim=True)
            found = found.index_copy(0, at.nonzero()[:, 0], left_out)
    return found


def _targets(federation: Federation, client: Client, at: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A client's rows, or some of them, as the ridge sees them, and their one-hot targets, weighted like them."""
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
