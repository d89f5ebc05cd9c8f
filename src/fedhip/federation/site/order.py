"""Which sums a site takes part in: the next by the table of sums, once, about what came first, with the same sites.

The server is trusted with the sums and no more. So a site takes part in as many sums as the agreement says, each once,
in their order, and all of them about one sum of statistics. It goes on only with all the sites that were in the sum
before: of two sums at the same weights, one with a site and one without, the difference is that site's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedhip.errors import StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.errors import MessageError
from fedhip.federation.site.state import Session
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.kind import SumKind
from fedhip.federation.sums.table import KINDS, PRODUCTS, STATISTICS, may_follow
from fedhip.federation.sums.vector import Vector, digest_of, require_length
from fedhip.federation.transport.wire import Letter, RoundStep, without_proofs


def begin(
    session: Session,
    question: Letter,
    agreement: Agreement,
    *,
    cheaters: Collection[str] = (),
    spoilt: bool = False,
) -> Vector | None:
    """Refuse a sum that is not the next, or not the one under way once more; else begin it.

    What came with it: the sum before, if it is one that is shared. A sum that was unmasked is begun again only if a
    site has `spoilt` it, and about the very same.
    """
    envelope, number = question.envelope, question.envelope.round
    again = number == session.round
    unmasked = RoundStep.UNMASK in session.answers and not spoilt
    if again and (unmasked or envelope.attempt <= session.attempt):
        raise SiteRefusalError(SiteCode.ANSWERED, f"sum {number} was unmasked, or asked for in this attempt already")
    if again and session.unmasked not in (None, without_proofs(question).digest()):
        raise SiteRefusalError(SiteCode.WEIGHTS, f"sum {number} is to be made again about something else than before")
    if not again and (number != session.round + 1 or RoundStep.MASK not in session.answers):
        raise SiteRefusalError(SiteCode.ORDER, f"sum {number} was asked for, and the last here is {session.round}")
    if RoundStep.PERSONALIZE in session.answers:
        raise SiteRefusalError(SiteCode.ORDER, "a sum was asked for after the model was made")
    if not again:
        session.done.append(session.ask)
        session.unmasked = None
    ask = session.ask if not session.done else question.text("ask")
    if session.done and not may_follow(ask, session.done, agreement):
        raise SiteRefusalError(
            SiteCode.ORDER, f"{ask!r} was asked for after {', '.join(session.done)}; it is not its turn"
        )
    shared = _require_same(session, question, agreement)
    session.round, session.attempt, session.ask, session.member = number, envelope.attempt, ask, None
    session.answers = {RoundStep.HELLO: session.answers[RoundStep.HELLO]}
    KINDS[ask].check_question(question, session, agreement, cheaters)
    return shared


def shared_sum(session: Session) -> SumKind | None:
    """The latest sum that goes back to the sites, of those that were made: what the next is about."""
    return next((KINDS[ask] for ask in reversed(session.done) if KINDS[ask].shared_as is not None), None)


def _require_same(session: Session, question: Letter, agreement: Agreement) -> Vector | None:
    """The sum that this one is about, where it comes along: one for an agreement, whatever the server says later."""
    kind = shared_sum(session)
    if kind is None or kind.shared_as is None:
        return None
    vector = None
    if kind.shared_as in question.arrays or not kind.is_kept:
        vector = require_length(question.array(kind.shared_as), kind.length(agreement))
    if not kind.is_kept:  # looked at with every question that it comes with
        return vector
    named = question.text("sum")
    if vector is not None and digest_of(vector) != named:
        raise MessageError(f"the sum {kind.name!r} that came is not the one that was named")
    if vector is not None and kind.shared_as not in session.received:
        try:
            kind.check_shared(vector, agreement)
        except StatisticsError as error:
            raise SiteRefusalError(
                SiteCode.TOTAL, f"the sum {kind.name!r} that came is that of no rows: {error}"
            ) from error
        session.received[kind.shared_as] = named
    if session.received.get(kind.shared_as) != named:
        raise SiteRefusalError(
            SiteCode.TOTAL, f"the server speaks of another sum {kind.name!r} than the one that came first, or of none"
        )
    return vector


def require_nobody_left(session: Session, policy: Policy, sites: Iterable[str]) -> None:
    """Refuse a later sum of other sites than the one before, unless the policy lets sites leave.

    It cannot between the sum of products and that of the features alone: these, and the sum with the lift between them,
    hold the same products of columns, and their difference would be all of a leaver's.
    """
    now, before = set(sites), set(session.cohort)
    if not session.done or now == before:
        return
    if not now < before:
        raise SiteRefusalError(SiteCode.COHORT, "a site is to be in this sum that was not in the one before")
    if PRODUCTS.name in session.done and STATISTICS.name not in session.done:
        raise SiteRefusalError(
            SiteCode.LEAVER,
            f"{', '.join(sorted(before - now))} was in the sum before and is not in this one; while a lift competes, "
            "the difference of two sums is one site's own statistics: this one is refused, whatever allow_leavers says",
        )
    if not policy.allow_leavers:
        raise SiteRefusalError(
            SiteCode.LEAVER,
            f"{', '.join(sorted(before - now))} was in the sum before and is not in this one; the difference of two "
            "sums may be one site's own, so that this one is refused (allow_leavers in site.toml)",
        )
