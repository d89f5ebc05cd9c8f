"""The sums after the statistics', at a site: which of them it takes part in, and what it gives.

The server is trusted with the sums and no more, and it chooses the weights. So a site takes part in as many sums as the
agreement says, each once, in their order, and all of them about one sum of statistics. It answers about the same
weights in one sum only, and in one sum about few weights. It goes on only with all the sites that were in the sum
before: of two sums at the same weights, one with a site and one without, the difference is that site's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import FedHiPError, GridOverflowError, StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.codes import SiteCode, SiteRefusalError
from fedhip.federation.errors import MessageError
from fedhip.federation.site.priors import SitePriors
from fedhip.federation.site.state import Session
from fedhip.federation.sums.head_letter import head_digest, head_in
from fedhip.federation.sums.later import Ask, length, losses_vector, model_digest, models_in, term_of, term_vector
from fedhip.federation.sums.lifts import moments_length, require_possible_moments
from fedhip.federation.sums.priors import beta_shape
from fedhip.federation.sums.vector import Layout, Vector, digest_of, from_vector, require_length, require_room
from fedhip.federation.transport.wire import Letter, Step, without_proofs

if TYPE_CHECKING:
    from torch import Tensor

    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.core.statistics import Statistics
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding
    from fedhip.simulation.federation import Federation

#: In one sum: the weights, and half the step five times where somebody has no finite loss.
_MOST_WEIGHTS = 6


def begin(session: Session, question: Letter, agreement: Agreement, *, spoilt: bool = False) -> Vector | None:
    """Refuse a sum that is not the next, or not the one under way once more; else begin it.

    What came with it: the first sum with the statistics that are the second, the total with the first after these.
    One that was unmasked is begun again only if a site has `spoilt` it, and about the very same.
    """
    envelope, number = question.envelope, question.envelope.round
    again = number == session.round
    unmasked = Step.UNMASK in session.answers and not spoilt
    if again and (unmasked or envelope.attempt <= session.attempt):
        raise SiteRefusalError(SiteCode.ANSWERED, f"sum {number} was unmasked, or asked for in this attempt already")
    if again and session.unmasked not in (None, without_proofs(question).digest()):
        raise SiteRefusalError(SiteCode.WEIGHTS, f"sum {number} is to be made again about something else than before")
    if not again and (number != session.round + 1 or Step.MASK not in session.answers):
        raise SiteRefusalError(SiteCode.ORDER, f"sum {number} was asked for, and the last here is {session.round}")
    if Step.PERSONALIZE in session.answers:
        raise SiteRefusalError(SiteCode.ORDER, "a sum was asked for after the model was made")
    if not again:
        session.done.append(session.ask)
        session.unmasked = None
    ask = _require_turn(session.done, question, agreement) if session.done else session.ask
    layout = agreement.layout
    told: Vector | None
    if number <= 1:
        told = None  # but the census, which is looked at and not kept
    elif ask == Ask.STATISTICS:
        told = _require_same_moments(session, question, agreement)
    else:
        told = _require_same_total(session, question, layout)
    session.round, session.attempt, session.ask, session.member = number, envelope.attempt, ask, None
    session.answers = {Step.HELLO: session.answers[Step.HELLO]}
    if ask == Ask.GRADIENT:
        _require_fresh_weights(session, question, layout)
    if ask in (Ask.SCALE, Ask.PRIOR):
        require_same_head(session, question, agreement)
    return told


def require_nobody_left(session: Session, policy: Policy, sites: Iterable[str]) -> None:
    """Refuse a later sum of other sites than the one before, unless the policy lets sites leave."""
    now, before = set(sites), set(session.cohort)
    if not session.done or now == before:
        return
    if not now < before:
        raise SiteRefusalError(SiteCode.COHORT, "a site is to be in this sum that was not in the one before")
    if not policy.allow_leavers:
        raise SiteRefusalError(
            SiteCode.LEAVER,
            f"{', '.join(sorted(before - now))} was in the sum before and is not in this one; the difference of two "
            "sums may be one site's own, so that this one is refused (allow_leavers in site.toml)",
        )


def require_same_scorers(session: Session, question: Letter, cheaters: Collection[str]) -> None:
    """Refuse β's sum by another list of sites than those of the sum before.

    Of many sites some score, by this list: one that is made up could leave a single site to do so.
    """
    if set(question.names("sites")).difference(cheaters) != set(session.cohort).difference(cheaters):
        raise SiteRefusalError(SiteCode.COHORT, "β is to be chosen by other sites than those of the sum before")


def require_same_head(session: Session, question: Letter, agreement: Agreement) -> None:
    """Refuse another head than the one that the site's prior is chosen for: there is one for an agreement."""
    digest = head_digest(question, agreement)
    if session.head is None:
        session.head = digest
    if session.head != digest:
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server speaks of another head than the one that came first")


def later_vector(
    session: Session,
    question: Letter,
    agreement: Agreement,
    total: Vector,
    client: Client,
    encoding: RowEncoding,
) -> Vector:
    """What this site gives to a later sum."""
    from fedhip.core.logistic.sums import LossError
    from fedhip.utils.parallel import one_thread

    layout, bits = agreement.layout, agreement.fraction_bits
    try:
        with one_thread():
            part = _Part(session, question, layout, total, client, agreement, encoding)
            gives = {
                Ask.BETA: part.beta,
                Ask.TEMPERATURE: part.temperature,
                Ask.GRADIENT: part.gradient,
                Ask.PENALTY: part.penalty,
                Ask.SCALE: part.scale,
                Ask.PRIOR: part.prior,
            }
            vector = gives[Ask(session.ask)]()
    except LossError as error:
        raise SiteRefusalError(SiteCode.LOSS, str(error)) from error
    except (GridOverflowError, SiteRefusalError, MessageError):
        raise
    except FedHiPError as error:
        raise SiteRefusalError(SiteCode.TOTAL, f"the sum that came does not fit this site's rows: {error}") from error
    require_room(vector, len(agreement.sites), bits)
    return vector


@dataclass(frozen=True)
class _Part:
    """A site's part in a later sum."""

    session: Session
    question: Letter
    layout: Layout
    vector: Vector
    client: Client
    agreement: Agreement
    encoding: RowEncoding

    @property
    def grid(self) -> GridStatistics:
        """The sum of the statistics; not kept, for in a wide federation it is 200 MB."""
        return from_vector(self.vector, self.layout, self.agreement.fraction_bits)

    @cached_property
    def total(self) -> Statistics:
        """The sum of the statistics in float64."""
        from fedhip.core.exact.fixedpoint import decode

        return decode(self.grid)

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """The training rows as the grid sees them."""
        import torch

        return self.encoding.rounded(self.client.train), torch.tensor(self.client.train[1])

    def beta(self) -> Vector:
        """The smoothed accuracy over β, at the α that this site would choose; nothing where others are to score."""
        import torch

        from fedhip.core import RegularizationPath
        from fedhip.simulation.beta import score_rows, scorers, scoring_betas

        agreement, client = self.agreement, self.client
        if client.name not in scorers(self.question.names("sites")):
            return losses_vector(torch.zeros(beta_shape(), dtype=torch.float64), len(agreement.sites))
        federation = self._federation(0.0)
        rows, total = federation.rows(client), federation.total
        del federation  # an eigendecomposition takes room, and the sum on the grid is a matrix more
        path = RegularizationPath(total, scoring_betas(total))
        return losses_vector(score_rows(rows, path, client.name, agreement.alpha).soft, len(agreement.sites))

    def _federation(self, beta: float) -> Federation:
        from fedhip.federation.site.personal import federation_of

        return federation_of(self.agreement, self.grid, beta, self.encoding)

    def temperature(self) -> Vector:
        """Losses of LDA's scores."""
        from fedhip.core.logistic.fit import LogisticFit

        if self.agreement.head == "lda":
            return self._priors.temperature()
        fit = LogisticFit.of(self.total, step=self.encoding.step)
        return losses_vector(fit.temperature_losses(*self.rows, client=self.client.name), len(self.agreement.sites))

    def gradient(self) -> Vector:
        """At the weights that came; of the total it takes the scale of the features alone."""
        from fedhip.core.logistic.sums import logistic_term
        from fedhip.core.standardization import Standardization

        (model,) = models_in(self.question, self.layout, 1)
        scale, rows = Standardization.of(self.total, step=self.encoding.step), self.total.num_samples
        return term_vector(logistic_term(*self.rows, model, scale, rows=rows, client=self.client.name))

    def penalty(self) -> Vector:
        """After the two sums of gradients that the server tells of, at weights which this site was asked about."""
        from fedhip.core.logistic.fit import LogisticFit

        models = models_in(self.question, self.layout, 2)
        if any(model_digest(model) not in self.session.weights for model in models):
            raise SiteRefusalError(SiteCode.WEIGHTS, "the server tells of weights that nobody was asked about here")
        sums = require_length(self.question.array("sums"), 2 * length(Ask.GRADIENT, self.layout))
        temperature = self.question.real("temperature")
        fit = LogisticFit.of(self.total, temperature=temperature, step=self.encoding.step)
        for model, vector in zip(models, np.split(sums, 2), strict=True):
            fit.tell(model, term_of(vector, self.layout, fit.rows))
        return losses_vector(fit.penalty_losses(*self.rows, client=self.client.name), len(self.agreement.sites))

    def scale(self) -> Vector:
        """Of the scores that priors are added to."""
        return self._priors.scale()

    def prior(self) -> Vector:
        """Losses over priors, at temperatures that are multiples of the scale that came."""
        return self._priors.losses(scale_in(self.question, self.agreement))

    @property
    def _priors(self) -> SitePriors:
        from fedhip.federation.site.personal import fit_head

        question, agreement = self.question, self.agreement
        beta = beta_in(question, agreement) if agreement.head == "ridge" else 0.0
        held = head_in(question, agreement, self.grid.digest()) if agreement.head == "logistic" else None
        temperature = None if self.session.ask == Ask.TEMPERATURE else temperature_in(question, agreement)
        known = {} if temperature is None else {"temperature": temperature}
        head = fit_head(self._federation(beta), agreement, [self.client], held, known)
        return SitePriors(head, self.client, agreement)


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


def scale_in(question: Letter, agreement: Agreement) -> float | None:
    """The scale that the server tells; None of a ridge, whose scale everybody knows."""
    if agreement.head == "ridge":
        return None
    if (scale := question.real("scale")) <= 0.0:
        raise MessageError(f"the scale is {scale}; it is above 0")
    return scale


def temperature_in(question: Letter, agreement: Agreement) -> float | None:
    """LDA's temperature that the server tells; None of another head, which has none or tells it with its weights."""
    if agreement.head != "lda":
        return None
    if (temperature := question.real("temperature")) <= 0.0:
        raise MessageError(f"the temperature is {temperature}; it is above 0")
    return temperature


def _require_turn(done: list[str], question: Letter, agreement: Agreement) -> str:
    """What is asked for, if it is its turn."""
    ask, gradients = question.text("ask"), done.count(Ask.GRADIENT)
    head, summed, fitted = agreement.head, Ask.STATISTICS in done, Ask.SCALE in done or Ask.PRIOR in done
    ready = summed and (Ask.BETA in done or not agreement.chooses_beta)
    first = summed and not fitted and Ask.TEMPERATURE not in done and gradients == 0
    turns = {
        Ask.MOMENTS: done == [Ask.CENSUS] and agreement.has_first_sum,
        Ask.STATISTICS: not summed and (Ask.MOMENTS in done) == agreement.has_first_sum,
        Ask.BETA: agreement.chooses_beta and summed and not fitted and Ask.BETA not in done,
        Ask.TEMPERATURE: first and (head == "logistic" or (head == "lda" and agreement.prior == "client")),
        Ask.GRADIENT: Ask.TEMPERATURE in done and not fitted and gradients < (agreement.gradient_rounds or 0),
        Ask.PENALTY: Ask.PENALTY not in done and not fitted and gradients >= 2,
    }
    if agreement.prior == "client":
        turns[Ask.SCALE] = not fitted and Ask.TEMPERATURE in done and (head == "lda" or gradients > 0)
        turns[Ask.PRIOR] = Ask.PRIOR not in done and (ready if head == "ridge" else Ask.SCALE in done)
    if ask not in list(Ask) or not turns.get(Ask(ask), False):
        raise SiteRefusalError(SiteCode.ORDER, f"{ask!r} was asked for after {', '.join(done)}; it is not its turn")
    return ask


def _require_same_total(session: Session, question: Letter, layout: Layout) -> Vector | None:
    """The sum of the statistics where it comes; every later sum must be about it."""
    named, total = question.text("sum"), None
    if "total" in question.arrays:
        total = layout.require(question.array("total"))
        if digest_of(total) != named:
            raise MessageError("the sum that came is not the one that was named")
    if session.total is None and total is not None:
        session.total = named
    if named != session.total:
        raise SiteRefusalError(SiteCode.TOTAL, "the server speaks of another sum than the one that came first")
    return total


def _require_same_moments(session: Session, question: Letter, agreement: Agreement) -> Vector:
    """The sum that says what the columns, or the lift, are: one for an agreement, as there is one total."""
    moments = require_length(question.array("moments"), moments_length(agreement))
    if digest_of(moments) != question.text("sum"):
        raise MessageError("the moments that came are not those that were named")
    if session.moments not in (None, question.text("sum")):
        raise SiteRefusalError(SiteCode.TOTAL, "the server speaks of other moments than those that came first")
    try:
        require_possible_moments(moments, agreement, agreement.max_rows * len(agreement.sites))
    except StatisticsError as error:
        raise SiteRefusalError(SiteCode.TOTAL, f"the first sum that came is that of no rows: {error}") from error
    session.moments = question.text("sum")
    return moments


def _require_fresh_weights(session: Session, question: Letter, layout: Layout) -> None:
    """Refuse weights of an earlier sum, and too many in one."""
    (model,) = models_in(question, layout, 1)
    digest = model_digest(model)
    if session.weights.setdefault(digest, session.round) != session.round:
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server asked about the same weights in two sums")
    if sum(number == session.round for number in session.weights.values()) > _MOST_WEIGHTS:
        raise SiteRefusalError(SiteCode.WEIGHTS, f"the server asked about more than {_MOST_WEIGHTS} weights in one sum")
