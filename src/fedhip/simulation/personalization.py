"""Phase 3: α by leave-one-out on a client's own training rows, and its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core import DEFAULT_ALPHAS, PersonalizationPath
from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice.calibration import log_losses
from fedhip.core.choice.prior import NO_CHOICE, PriorChoice
from fedhip.core.choice.selection import FOLDS, fold_of, nested_hits, select
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.ridge.personalization import require_part
from fedhip.core.rows import one_hot
from fedhip.core.solvers import require_alpha
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha

#: Probabilities are calibrated on so many rows of a client at most.
CALIBRATION_ROWS = 256


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
        choice: PriorChoice = NO_CHOICE,
        last: bool = False,
    ) -> Personalization:
        """Choose α on the client's training rows, and solve; `own` are its statistics, where they are at hand.

        `choice` is that of the prior, which says what may be expected where α was chosen together with it.
        After the `last` client nobody needs the federation's factor: it makes room for that client's model.
        """
        grid = federation.grid
        labels = torch.as_tensor(client.train[1], device=grid.device)
        local_classes = torch.bincount(labels, minlength=grid.num_classes) > 0
        mask = local_classes if only_local_classes else None
        judged = calibration_rows(len(labels))
        if alpha == "loo":
            looked = _choose_alpha(
                federation, client, sorted(DEFAULT_ALPHAS if alphas is None else alphas), only_local_classes
            )
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
            if choice.right is None:
                nested = masked(_at_fold_betas(federation, own, chosen, (F, targets), judged, scores), mask)
                estimate = _accuracy(nested, labels[judged])
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
        )


def common_losses(federation: Federation, client: Client) -> list[float]:
    """The global model's log-losses over temperatures, of the client's rows left out."""
    judged = calibration_rows(len(client.train[1]))
    F, targets = _targets(federation, client, judged)
    scores = federation._system.left_out(F, targets) / targets.amax(dim=1, keepdim=True)
    found: list[float] = log_losses(scores, torch.as_tensor(client.train[1])[judged]).tolist()
    return found


def _choose_alpha(
    federation: Federation, client: Client, alphas: Sequence[float], only_local_classes: bool
) -> tuple[float, list[float], float, Tensor, Tensor]:
    """α, the curve, the nested estimate, and scores of the rows left out: at α, and of the global model."""
    fold_betas = federation.fold_betas or (federation.beta,) * FOLDS
    folds: dict[int, Tensor] = {}

    def scored(at: Federation) -> tuple[PersonalizationPath, Tensor]:
        path = at.path(client)
        margins = path.loo_margins(alphas, only_local_classes=only_local_classes)
        for fold in (fold for fold, beta in enumerate(fold_betas) if beta == at.beta):
            folds[fold] = path.fold_margins(alphas, margins, fold)
        return path, margins

    _ = federation.total  # once for all of them
    for beta in set(fold_betas) - {federation.beta}:  # one factor at a time
        scored(federation.with_beta(beta))
    path, margins = scored(federation)
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
