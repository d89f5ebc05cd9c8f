"""The sums after the statistics', at a site: which of them it takes part in, and what it gives.

The server is trusted with the sums and no more, and it chooses the weights. So a site takes part in as many sums as the
agreement says, each once, in their order, and all of them about one sum of statistics. It answers about the same
weights in one sum only, and in one sum about few weights. It goes on only with all the sites that were in the sum
before: of two sums at the same weights, one with a site and one without, the difference is that site's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import FedHiPError, GridOverflowError
from fedhip.federation.agreement import Agreement
from fedhip.federation.codes import SiteCode, SiteRefusalError
from fedhip.federation.errors import MessageError
from fedhip.federation.later_sums import Ask, LaterLayout, fit_of, losses_vector, model_digest, models_in
from fedhip.federation.policy import Policy
from fedhip.federation.site_state import Session
from fedhip.federation.vector import Layout, Vector, digest_of, require_length, require_room
from fedhip.federation.wire import Letter, Step

if TYPE_CHECKING:
    from torch import Tensor

    from fedhip.core.logistic_fit import LogisticFit
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
    total = _require_same_total(session, question, Layout(agreement.width, len(agreement.classes)))
    session.round, session.attempt, session.ask, session.member = number, envelope.attempt, ask, None
    session.answers = {Step.HELLO: session.answers[Step.HELLO]}
    if ask == Ask.GRADIENT:
        _require_fresh_weights(session, question, LaterLayout(agreement.width, len(agreement.classes)))
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
    import torch

    from fedhip.core.fixedpoint import round_features
    from fedhip.core.logistic import LossError
    from fedhip.parallel import one_thread

    layout, bits = Layout(agreement.width, len(agreement.classes)), agreement.fraction_bits
    F, y = round_features(torch.tensor(client.train[0]), bits), torch.tensor(client.train[1])
    give = {Ask.TEMPERATURE: _temperature_losses, Ask.GRADIENT: _gradient, Ask.PENALTY: _penalty_losses}
    try:
        with one_thread():
            fit = fit_of(total, layout, bits)
            vector = give[Ask(session.ask)](fit, session, question, F, y, client.name)
    except LossError as error:
        raise SiteRefusalError(SiteCode.LOSS, str(error)) from error
    except (GridOverflowError, SiteRefusalError, MessageError):
        raise
    except FedHiPError as error:
        raise SiteRefusalError(SiteCode.TOTAL, f"the sum that came does not fit this site's rows: {error}") from error
    require_room(vector, len(agreement.sites), bits)
    return vector


def _temperature_losses(
    fit: LogisticFit, session: Session, question: Letter, F: Tensor, y: Tensor, name: str
) -> Vector:
    return losses_vector(fit.temperature_losses(F, y, client=name))


def _gradient(fit: LogisticFit, session: Session, question: Letter, F: Tensor, y: Tensor, name: str) -> Vector:
    from fedhip.core.logistic import logistic_term

    layout = LaterLayout(F.shape[1], fit.statistics.num_classes)
    (model,) = models_in(question, layout, 1)
    return layout.term_vector(logistic_term(F, y, model, fit.standardization, rows=fit.rows, client=name))


def _penalty_losses(fit: LogisticFit, session: Session, question: Letter, F: Tensor, y: Tensor, name: str) -> Vector:
    """After the two sums of gradients that the server tells of, at weights which this site was asked about."""
    layout = LaterLayout(F.shape[1], fit.statistics.num_classes)
    models = models_in(question, layout, 2)
    if any(model_digest(model) not in session.weights for model in models):
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server tells of weights that nobody was asked about here")
    sums = require_length(question.array("sums"), 2 * layout.size(Ask.GRADIENT))
    fit.temperature = question.real("temperature")
    for model, vector in zip(models, np.split(sums, 2), strict=True):
        fit.tell(model, layout.term(vector, fit.rows))
    return losses_vector(fit.penalty_losses(F, y, client=name))


def _require_turn(done: list[str], question: Letter, agreement: Agreement) -> str:
    """What is asked for, if it is its turn."""
    ask, gradients = question.text("ask"), done.count(Ask.GRADIENT)
    turns = {
        Ask.TEMPERATURE: Ask.TEMPERATURE not in done and gradients == 0,
        Ask.GRADIENT: Ask.TEMPERATURE in done and gradients < (agreement.gradient_rounds or 0),
        Ask.PENALTY: Ask.PENALTY not in done and gradients >= 2,
    }
    if not turns.get(ask, False):  # type: ignore[call-overload]
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


def _require_fresh_weights(session: Session, question: Letter, layout: LaterLayout) -> None:
    """Refuse weights of an earlier sum, and too many in one."""
    (model,) = models_in(question, layout, 1)
    digest = model_digest(model)
    if session.weights.setdefault(digest, session.round) != session.round:
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server asked about the same weights in two sums")
    if sum(number == session.round for number in session.weights.values()) > _MOST_WEIGHTS:
        raise SiteRefusalError(SiteCode.WEIGHTS, f"the server asked about more than {_MOST_WEIGHTS} weights in one sum")
