"""What the ridge's β is chosen by, as a sum over the sites: the smoothed accuracy of rows left out, over β.

It is summed over all rows and without each fold, so that the expected accuracy is that of a β chosen without them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.head import federation_of_sites, task_of
from fedhip.federation.sums.kind import SiteInputs, SumContext
from fedhip.federation.sums.vector import Vector, from_vector, losses_of, losses_vector

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.state import Session
    from fedhip.federation.transport.wire import Letter
    from fedhip.simulation.client import Client
    from fedhip.simulation.federation import Federation


def beta_scores(inputs: SiteInputs) -> Vector:
    """The score of each β on this site's rows, at the α that it would choose; nothing where others are to score.

    Beside a lift also that of each β of the features alone.
    """
    import torch

    from fedhip.heads.members import cut_client, kept_federation
    from fedhip.simulation.beta import scorers

    agreement, client = inputs.agreement, inputs.client
    if client.name not in scorers(inputs.question.names("sites")):
        return losses_vector(torch.zeros(beta_length(agreement), dtype=torch.float64), len(agreement.sites))
    found = [_scores(_federation(inputs), client, agreement)]
    if agreement.kept:
        plain = kept_federation(_federation(inputs), task_of(agreement, [client]), 0.0)
        found.append(_scores(plain, cut_client(client, agreement.layout.m - agreement.kept), agreement))
    return np.concatenate(found)


def _federation(inputs: SiteInputs) -> Federation:
    """The sum, whose β is not known yet."""
    agreement = inputs.agreement
    grid = from_vector(inputs.total, agreement.layout, agreement.fraction_bits)
    return federation_of_sites(agreement, grid, 0.0, inputs.encoding)


def _scores(federation: Federation, client: Client, agreement: Agreement) -> Vector:
    """The score of each β of a sum on a site's rows."""
    from fedhip.core import RegularizationPath
    from fedhip.simulation.beta import score_rows, scoring_betas

    rows, total = federation.rows(client), federation.total
    del federation  # an eigendecomposition takes room, and the sum on the grid is a matrix more
    path = RegularizationPath(total, scoring_betas(total))
    found = score_rows(rows, path, client.name, agreement.alpha, groups=client.groups)
    return losses_vector(found.soft, len(agreement.sites))


def check_scorers(question: Letter, session: Session, agreement: Agreement, cheaters: Collection[str]) -> None:
    """Refuse another list of sites than those of the sum before.

    Of many sites some score, by this list: one that is made up could leave a single site to do so.
    """
    named = set(question.names("sites")).difference(cheaters)
    if agreement.secure_sum and named != set(session.cohort).difference(cheaters):
        raise SiteRefusalError(SiteCode.COHORT, "β is to be chosen by other sites than those of the sum before")


def check_beta_scores(total: Vector, context: SumContext) -> None:
    """Refuse more rows right than there are, or fewer than none."""
    scores = losses_of(total)
    if float(scores.min()) < 0.0 or float(scores.max()) > context.rows:
        raise StatisticsError("more rows right than there are, or fewer than none")


def beta_length(agreement: Agreement) -> int:
    """How many scores a site gives: twice as many with a lift beside the features."""
    return math.prod(beta_shape()) * (2 if agreement.kept else 1)


def beta_shape() -> tuple[int, int]:
    """All rows and each fold left out, by the β that are tried."""
    from fedhip.core.choice.selection import FOLDS
    from fedhip.simulation.federation import SCORED_BETAS

    return FOLDS + 1, SCORED_BETAS


def beta_in(question: Letter, agreement: Agreement) -> float:
    """The ridge's β that the server tells, if it is the agreed one."""
    beta = question.real("beta")
    if beta < 0.0 or (agreement.beta not in ("auto", "gcv") and beta != agreement.beta):
        raise SiteRefusalError(SiteCode.TOTAL, f"the server's β is {beta}, and the agreement says {agreement.beta}")
    return beta


def fold_betas_in(question: Letter, agreement: Agreement) -> tuple[float, ...]:
    """The β without each fold that the server tells, where β was chosen on rows."""
    from fedhip.core.choice.selection import FOLDS

    if not agreement.chooses_beta:
        return ()
    betas = tuple(question.real(f"beta-{fold}") for fold in range(FOLDS))
    if min(betas) < 0.0:
        raise SiteRefusalError(SiteCode.TOTAL, f"the server's β without a fold is {min(betas)}; it is at least 0")
    return betas
