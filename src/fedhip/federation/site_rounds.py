"""The sums after the statistics', at a site: which of them it takes part in, and what it gives.

The server is trusted with the sums and no more, and it chooses the weights. So a site takes part in as many sums as the
agreement says, each once, in their order, and all of them about one sum of statistics. It answers about the same
weights in one sum only, and in one sum about few weights. It goes on only with all the sites that were in the sum
before: of two sums at the same weights, one with a site and one without, the difference is that site's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import FedHiPError, GridOverflowError
from fedhip.federation.agreement import Agreement
from fedhip.federation.codes import SiteCode, SiteRefusalError
from fedhip.federation.errors import MessageError
from fedhip.federation.later_sums import Ask, length, losses_vector, model_digest, models_in, term_of, term_vector
from fedhip.federation.policy import Policy
from fedhip.federation.site_state import Session
from fedhip.federation.vector import Layout, Vector, digest_of, from_vector, require_length, require_room
from fedhip.federation.wire import Letter, Step

if TYPE_CHECKING:
    from torch import Tensor

    from fedhip.core.statistics import Statistics
    from fedhip.simulation import Client

#: In one sum: the weights, and half the step five times where somebody has no finite loss.
_MOST_WEIGHTS = 6


def begin(session: Session, question: Letter, agreement: Agreement) -> Vector | None:
    """Refuse a sum that is not the next, or not the one under way once more; else begin it. The total, if it came."""
    envelope, number = question.envelope, question.envelope.round
    again = number == session.round
    if agreement.head != "logistic":
        raise SiteRefusalError(SiteCode.ORDER, f"sum {number} was asked for, and the head {agreement.head!r} has one")
    if again and (Step.UNMASK in session.answers or envelope.attempt <= session.attempt):
        raise SiteRefusalError(SiteCode.ANSWERED, f"sum {number} was unmasked, or asked for in this attempt already")
    if not again and (number != session.round + 1 or Step.MASK not in session.answers):
        raise SiteRefusalError(SiteCode.ORDER, f"sum {number} was asked for, and the last here is {session.round}")
    if Step.PERSONALIZE in session.answers:
        raise SiteRefusalError(SiteCode.ORDER, "a sum was asked for after the model was made")
    if not again:
        session.done.append(session.ask)
    ask = _require_turn(session.done, question, agreement)
    layout = Layout(agreement.width, len(agreement.classes))
    total = _require_same_total(session, question, layout)
    session.round, session.attempt, session.ask, session.member = number, envelope.attempt, ask, None
    session.answers = {Step.HELLO: session.answers[Step.HELLO]}
    if ask == Ask.GRADIENT:
        _require_fresh_weights(session, question, layout)
    return total


def require_nobody_left(session: Session, policy: Policy, sites: Iterable[str]) -> None:
    """Refuse a later sum of other sites than the one before, unless the policy lets sites leave."""
    now, before = set(sites), set(session.cohort)
    if session.round == 1 or now == before:
        return
    if not now < before:
        raise SiteRefusalError(SiteCode.COHORT, "a site is to be in this sum that was not in the one before")
    if not policy.allow_leavers:
        raise SiteRefusalError(
            SiteCode.LEAVER,
            f"{', '.join(sorted(before - now))} was in the sum before and is not in this one; the difference of two "
            "sums may be one site's own, so that this one is refused (allow_leavers in site.toml)",
        )


def later_vector(session: Session, question: Letter, agreement: Agreement, total: Vector, client: Client) -> Vector:
    """What this site gives to a later sum."""
    from fedhip.core.fixedpoint import decode
    from fedhip.core.logistic import LossError
    from fedhip.parallel import one_thread

    layout, bits = Layout(agreement.width, len(agreement.classes)), agreement.fraction_bits
    try:
        with one_thread():
            part = _Part(session, question, layout, decode(from_vector(total, layout, bits)), client, agreement)
            gives = {Ask.TEMPERATURE: part.temperature, Ask.GRADIENT: part.gradient, Ask.PENALTY: part.penalty}
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
    total: Statistics
    client: Client
    agreement: Agreement

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """The training rows as the grid sees them."""
        import torch

        from fedhip.core.fixedpoint import round_features

        features, labels = self.client.train
        return round_features(torch.tensor(features), self.agreement.fraction_bits), torch.tensor(labels)

    def temperature(self) -> Vector:
        """Losses of LDA's scores."""
        from fedhip.core.logistic_fit import LogisticFit

        fit = LogisticFit.of(self.total)
        return losses_vector(fit.temperature_losses(*self.rows, client=self.client.name), len(self.agreement.sites))

    def gradient(self) -> Vector:
        """At the weights that came; of the total it takes the scale of the features alone."""
        from fedhip.core.logistic import logistic_term
        from fedhip.core.standardization import Standardization

        (model,) = models_in(self.question, self.layout, 1)
        scale, rows = Standardization.of(self.total), self.total.num_samples
        return term_vector(logistic_term(*self.rows, model, scale, rows=rows, client=self.client.name))

    def penalty(self) -> Vector:
        """After the two sums of gradients that the server tells of, at weights which this site was asked about."""
        from fedhip.core.logistic_fit import LogisticFit

        models = models_in(self.question, self.layout, 2)
        if any(model_digest(model) not in self.session.weights for model in models):
            raise SiteRefusalError(SiteCode.WEIGHTS, "the server tells of weights that nobody was asked about here")
        sums = require_length(self.question.array("sums"), 2 * length(Ask.GRADIENT, self.layout))
        fit = LogisticFit.of(self.total, temperature=self.question.real("temperature"))
        for model, vector in zip(models, np.split(sums, 2), strict=True):
            fit.tell(model, term_of(vector, self.layout, fit.rows))
        return losses_vector(fit.penalty_losses(*self.rows, client=self.client.name), len(self.agreement.sites))


def _require_turn(done: list[str], question: Letter, agreement: Agreement) -> str:
    """What is asked for, if it is its turn."""
    ask, gradients = question.text("ask"), done.count(Ask.GRADIENT)
    turns = {
        Ask.TEMPERATURE: Ask.TEMPERATURE not in done and gradients == 0,
        Ask.GRADIENT: Ask.TEMPERATURE in done and gradients < (agreement.gradient_rounds or 0),
        Ask.PENALTY: Ask.PENALTY not in done and gradients >= 2,
    }
    if ask not in list(Ask) or not turns[Ask(ask)]:
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


def _require_fresh_weights(session: Session, question: Letter, layout: Layout) -> None:
    """Refuse weights of an earlier sum, and too many in one."""
    (model,) = models_in(question, layout, 1)
    digest = model_digest(model)
    if session.weights.setdefault(digest, session.round) != session.round:
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server asked about the same weights in two sums")
    if sum(number == session.round for number in session.weights.values()) > _MOST_WEIGHTS:
        raise SiteRefusalError(SiteCode.WEIGHTS, f"the server asked about more than {_MOST_WEIGHTS} weights in one sum")
