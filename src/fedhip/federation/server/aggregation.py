"""Secure aggregation at the server, one sum: keys → share → mask, then [agree] → unmask; the same for every sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedhip.federation.errors import RoundError
from fedhip.federation.secure_sum import Collector, Reason, SecureSumError
from fedhip.federation.server.cohort import GO_ON, SiteCohort, always
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.table import sums_of
from fedhip.federation.sums.vector import Vector
from fedhip.federation.transport.wire import Arrays, Body, Letter, RoundStep, by_site, context_of
from fedhip.utils.files import private_folder, write_private


class NotAgreedError(RoundError):
    """Too few sites signed the list of survivors: nobody has unmasked anything."""


class CheatedError(RoundError):
    """A site is proven to have dealt wrong shares; `others` are those whose sum could not be unmasked."""

    def __init__(self, site: str, proof: bytes, others: list[str]) -> None:
        super().__init__(f"the masks could not be taken off the sum: site {site!r} dealt wrong shares")
        self.site, self.proof, self.others = site, proof, others


class NoLossError(RoundError):
    """Sites have no finite loss at the weights that they were asked about; nothing was summed."""


@dataclass(frozen=True)
class Wanted:
    """What the sites are asked to sum: vectors that `require` lets pass, about `body` and `arrays`.

    `moments` and `total` are the digests of the sums of before that the sites have by now; this one is bound to them.
    """

    require: Callable[[Vector], Vector]
    body: Body = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    moments: str | None = None
    total: str | None = None


def masked_sum(cohort: SiteCohort, wanted: Wanted) -> Collector:
    """Stages 1 to 3: the sum of the masked vectors."""
    question = Letter(replace(cohort.envelope, step=RoundStep.KEYS), wanted.body, wanted.arrays)
    context = context_of(question, wanted.moments, wanted.total)
    collector = Collector(cohort.roster.keys, cohort.envelope.sum_session, context, cohort.agreement.threshold)
    came, cohort.greetings = cohort.greetings, {}
    cohort.fold(
        RoundStep.KEYS,
        cohort.nodes,
        always(wanted.body, wanted.arrays),
        lambda site, letter: collector.keys(site, letter.data("keys")),
        came,
    )
    _require_losses(cohort)
    cohort.require_quorum(RoundStep.KEYS)
    keys = by_site("keys", collector.cohort())
    cohort.fold(
        RoundStep.SHARE,
        cohort.nodes,
        always(keys, {}),
        lambda site, letter: collector.shares(site, letter.mapping("shares")),
    )
    cohort.require_quorum(RoundStep.SHARE)
    ask = wanted.body.get("ask") or next(iter(sums_of(cohort.agreement))).name

    def add(site: str, letter: Letter) -> None:
        vector, signature = wanted.require(letter.array("vector")), letter.data("signature")
        collector.add(site, vector, signature)
        if cohort.agreement.auditor is not None:
            path = commitment_path(cohort.state, cohort.envelope.round, str(ask), site)
            write_private(path, collector.commitment(site, vector, signature).to_bytes())

    cohort.fold(
        RoundStep.MASK,
        cohort.nodes,
        lambda site: ({"secure": True, **by_site("shares", collector.dealt_to(site))}, {}),
        add,
    )
    if cohort.begin_again_without_accused():
        return masked_sum(cohort, wanted)
    cohort.require_quorum(RoundStep.MASK)
    return collector


def commitment_path(state: Path, number: int, ask: str, site: str) -> Path:
    """Where the server keeps what a site signed in a sum, for an auditor."""
    return private_folder(state / "commitments") / f"{number}-{ask}-{site}.commitment"


def plain_sum(cohort: SiteCohort, wanted: Wanted, size: int) -> tuple[Vector, list[str]]:
    """Without masks, where the agreement and every site's policy permit it: `require` sees each site's vector."""
    total = np.zeros(size, np.uint64)
    added: list[str] = []

    def add(site: str, letter: Letter) -> None:
        np.add(total, wanted.require(letter.array("vector")), out=total)
        added.append(site)

    cohort.fold(RoundStep.MASK, cohort.nodes, always({"secure": False, **wanted.body}, wanted.arrays), add)
    _require_losses(cohort)
    cohort.require_quorum(RoundStep.MASK)
    return total, sorted(added)


def unmasked(cohort: SiteCohort, collector: Collector) -> Vector:
    """SumState 4: the survivors' list agreed on where somebody is gone, and the masks taken off."""
    survivors = collector.survivors()
    body: Body = {"survivors": survivors}
    asked = [site for site in survivors if site in cohort.nodes]
    try:
        if not _nobody_is_gone(collector):
            asked = cohort.fold(
                RoundStep.AGREE,
                asked,
                always(body, {}),
                lambda site, letter: collector.signature(site, letter.data("signature")),
            )
        body = {**body, **by_site("signatures", collector.signatures())}
        cohort.fold(
            RoundStep.UNMASK,
            asked,
            always(body, {}),
            lambda site, letter: collector.unmask(site, letter.data("shares")),
        )
        return collector.result()
    except SecureSumError as error:
        if error.reason is Reason.WRONG_DEAL and error.site is not None:
            others = [site for site in survivors if site != error.site]
            raise CheatedError(error.site, collector.proof(error.site), others) from error
        kind = NotAgreedError if error.reason is Reason.NOT_AGREED else RoundError
        raise kind(f"the masks could not be taken off the sum: {error}; {GO_ON}") from error


def _require_losses(cohort: SiteCohort) -> None:
    """Go on only if nobody lacks a loss: to go on without such a site would hide that the weights are wrong."""
    if lacking := [site for site, code in cohort.dropped.items() if code == SiteCode.LOSS]:
        named = ", ".join(f"site {site!r} ({SiteCode.LOSS})" for site in sorted(lacking))
        raise NoLossError(f"in sum {cohort.envelope.round} {named} has no finite loss at the weights asked about")


def _nobody_is_gone(collector: Collector) -> bool:
    try:
        return not collector.signatures()
    except SecureSumError:
        return False
