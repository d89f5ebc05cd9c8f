"""The sums that models are chosen by, after that of the statistics and β: what the head `auto` asks for.

    choice-means     log-losses of LDA's scores of rows left out, over 20 temperatures: at the best of them sites judge
                     whose means they take
    choice-members   log-losses of every member of candidates, over its temperatures
    choice-scales    of each candidate that can have a prior, squared deviations of its scores ‖ how many these are
    choice-priors    of each of them, log-losses over temperatures and smoothings ‖ rows right ‖ rows judged
    choice-shares    of each candidate the share of rows right, in steps of 1/1024 ‖ 1 for the site

`fedhip.heads.auto` says what they are. Each is made with what those before it decide. They go along with every later
question, one after the other in the array `choice`, so that all sites are asked about the same, and each decides by the
sums for itself: the server says nothing of what is best.

Where a lift competes there are the same sums with it first, under names that begin with `wide-`, of an agreement on the
lift (`Agreement.wide`): then there are members of the features and of all columns, twice as many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import StatisticsError
from fedhip.federation.errors import MessageError
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.head import federation_of_sites, fit_choice
from fedhip.federation.sums.kind import SiteInputs, SumContext
from fedhip.federation.sums.priors import (
    SCALE_LENGTH,
    check_same_head,
    deviations_of,
    prior_losses_in,
    prior_vector,
    require_possible_losses,
    scale_vector,
)
from fedhip.federation.sums.ridge import beta_in, fold_betas_in
from fedhip.federation.sums.vector import Vector, digest_of, from_vector, losses_of, losses_vector, require_losses
from fedhip.federation.transport.wire import RoundStep
from fedhip.utils.candidates import is_wide, with_prior
from fedhip.utils.grids import SHARE_STEPS

if TYPE_CHECKING:
    from fedhip.features.lifts.lift import Lift
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.state import Session
    from fedhip.federation.transport.wire import Letter
    from fedhip.heads import Auto
    from fedhip.heads.auto import ChoiceSums
    from fedhip.heads.head import Personalized
    from fedhip.simulation.client import Client

MEANS, MEMBERS, SCALES, PRIORS, SHARES = (
    f"choice-{what}" for what in ("means", "members", "scales", "priors", "shares")
)
#: The array of a question that holds the sums of before.
ARRAY = "choice"
#: What sums with the competing lift are called with, and what of a question holds β of the features beside it.
WIDE, PLAIN_BETA = "wide-", "plain-beta"


def count(ask: str, agreement: Agreement) -> int:
    """How many such sums there are: each one, of an agreement that chooses; two of them for priors."""
    return int(agreement.head == "auto" and (ask not in (SCALES, PRIORS) or agreement.prior == "client"))


def prefix(agreement: Agreement) -> str:
    """What these sums are called by beside their own names, and the array that holds them."""
    return WIDE if agreement.kept else ""


def lengths(agreement: Agreement) -> dict[str, int]:
    """How many whole numbers each of these sums has, in their order; without priors there are fewer."""
    from fedhip.core.choice.prior import PLACES
    from fedhip.heads.auto import MEMBER_LOSSES
    from fedhip.heads.lda import TEMPERATURES

    models, parts = len(with_prior(agreement.members_of_candidates)), 2 if agreement.kept else 1
    every = {
        MEANS: parts * len(TEMPERATURES),
        MEMBERS: parts * MEMBER_LOSSES,
        SCALES: models * SCALE_LENGTH,
        PRIORS: models * (2 * PLACES + 1),
        SHARES: len(agreement.candidates or ()) + 1,
    }
    return {ask: length for ask, length in every.items() if count(ask, agreement)}


def length(ask: str, agreement: Agreement) -> int:
    """Of one of them."""
    return lengths(agreement)[ask]


def known_bytes(ask: str, agreement: Agreement) -> int:
    """Of the sums that go along with the question for one; of all, with none."""
    return 8 * sum(_before(ask, agreement).values())


def _before(ask: str, agreement: Agreement) -> dict[str, int]:
    """The lengths of the sums before this one."""
    every = lengths(agreement)
    names = list(every)
    return {name: every[name] for name in names[: names.index(ask) if ask in names else len(names)]}


# At a site.


def choice_vector(ask: str, inputs: SiteInputs) -> Vector:
    """What the site gives to one of these sums."""
    question, agreement = inputs.question, inputs.agreement
    grid = from_vector(inputs.total, agreement.layout, agreement.fraction_bits)
    beta, folds = beta_in(question, agreement), fold_betas_in(question, agreement)
    federation = federation_of_sites(agreement, grid, beta, inputs.encoding, folds)
    sums = sums_in(parts_in(question, agreement, ask), agreement, plain_betas_in(question, agreement))
    return vector_of(ask, fit_choice(federation, agreement, [inputs.client], sums), inputs.client, agreement)


def vector_of(ask: str, head: Auto, client: Client, agreement: Agreement) -> Vector:
    """A client's part in one of these sums."""
    sites = len(agreement.sites)
    if ask == MEANS:
        return losses_vector(head.discriminant_losses(client), sites)
    if ask == MEMBERS:
        return losses_vector(head.member_losses(client), sites)
    if ask == SCALES:
        return np.concatenate([scale_vector(squares, int(n)) for squares, n in head.deviations(client).tolist()])
    if ask == PRIORS:
        return prior_vector([found.every for found in head.prior_losses(client)], sites)
    steps = head.shares(client).steps.numpy().astype(np.uint64)
    return np.concatenate((steps, np.ones(1, np.uint64)))


def check_choice(ask: str, question: Letter, session: Session, agreement: Agreement, _: Collection[str] = ()) -> None:
    """Refuse sums of before, or β, that are others than those that came with earlier questions."""
    if agreement.kept:
        _check_same_betas(question, session, agreement)
    else:
        check_same_head(question, session, agreement)
    check_parts(ask, question, session, agreement)


def check_parts(ask: str, question: Letter, session: Session, agreement: Agreement) -> None:
    """Refuse other sums than those that came with earlier questions, and those that no rows have."""
    rows, cohort = agreement.max_rows * len(agreement.sites), session.cohort
    sites = len(cohort) if cohort and is_in(session, agreement) else None
    for name, part in parts_in(question, agreement, ask).items():
        if session.choice.setdefault(prefix(agreement) + name, digest_of(part)) != digest_of(part):
            raise SiteRefusalError(
                SiteCode.WEIGHTS, f"the server tells another sum {name!r} than the one that came first"
            )
        try:
            _CHECKS[name](part, agreement, rows, sites)
        except StatisticsError as error:
            raise SiteRefusalError(SiteCode.TOTAL, f"the sum {name!r} that came is that of no rows: {error}") from error


def _check_same_betas(question: Letter, session: Session, agreement: Agreement) -> None:
    """Refuse other β than came first, of all columns or of the features beside a lift."""
    betas = [beta_in(question, agreement), *fold_betas_in(question, agreement), *plain_betas_in(question, agreement)]
    digest = hashlib.sha256(repr(betas).encode()).hexdigest()
    if session.choice.setdefault(f"{WIDE}betas", digest) != digest:
        raise SiteRefusalError(
            SiteCode.WEIGHTS, "the server speaks of other β with the lift than those that came first"
        )


def is_in(session: Session, agreement: Agreement) -> bool:
    """Whether this site is known to be in the last sum: one that has left before it is not."""
    last = RoundStep.UNMASK in session.answers or not agreement.secure_sum
    return session.ask == prefix(agreement) + SHARES and last


def require_others(sums: ChoiceSums, own: Vector) -> None:
    """Refuse shares that, less this site's own, are not those of the others."""
    assert sums.held_out is not None  # noqa: S101  (it came)
    rest, others = sums.held_out.steps.numpy() - own[:-1].view(np.int64), sums.held_out.clients - 1
    if int(rest.min()) < 0 or int(rest.max()) > others * SHARE_STEPS:
        raise StatisticsError(f"it would leave shares of rows right to {others} others that none have")


# What sums say, at a site and at the server.


def parts_in(question: Letter, agreement: Agreement, ask: str = "") -> dict[str, Vector]:
    """The sums that came with a question for another one; all of them with one for none."""
    return parts_of(question.array(prefix(agreement) + ARRAY), agreement, ask) if _before(ask, agreement) else {}


def parts_of(array: NDArray[Any], agreement: Agreement, ask: str = "") -> dict[str, Vector]:
    """The sums before another, or all of them, in one array."""
    expected = _before(ask, agreement)
    size = sum(expected.values())
    if array.shape != (size,) or array.dtype != np.uint64:
        raise MessageError(
            f"{array.shape} numbers of {array.dtype} came for the choice, where {size} belong: "
            f"{len(agreement.candidates or ())} candidates are agreed on"
        )
    ends = list(accumulate(expected.values()))
    return dict(zip(expected, np.split(array, ends[:-1]), strict=True))


def plain_betas_in(question: Letter, agreement: Agreement) -> tuple[float, ...]:
    """β of the features beside a lift that the server tells, and those without each fold; none without a lift."""
    from fedhip.core.choice.selection import FOLDS

    if not agreement.kept:
        return ()
    betas = tuple(question.real(name) for name in (PLAIN_BETA, *(f"{PLAIN_BETA}-{fold}" for fold in range(FOLDS))))
    if min(betas) < 0.0:
        raise SiteRefusalError(SiteCode.TOTAL, f"the server's β of the features is {min(betas)}; it is at least 0")
    return betas


def plain_betas_body(betas: Sequence[float]) -> dict[str, float]:
    """What `plain_betas_in` reads."""
    beta, *folds = betas
    return {PLAIN_BETA: beta, **{f"{PLAIN_BETA}-{fold}": value for fold, value in enumerate(folds)}}


def sums_in(parts: Mapping[str, Vector], agreement: Agreement, plain_betas: tuple[float, ...] = ()) -> ChoiceSums:
    """What the sums that are known say; `plain_betas` are of the features beside a lift."""
    import torch

    from fedhip.core.choice.candidates import HeldOut
    from fedhip.core.choice.prior import scale_from
    from fedhip.heads.auto import ChoiceSums

    scales = priors = held_out = None
    if SCALES in parts:
        scales = torch.tensor(_scales(parts[SCALES]), dtype=torch.float64)
    if PRIORS in parts and scales is not None:
        multiples = [scale_from(*found) for found in scales.tolist()]
        priors = prior_losses_in(parts[PRIORS], [(1, scale) for scale in multiples])
    if SHARES in parts:
        *_, sites = map(int, parts[SHARES])
        held_out = HeldOut(torch.from_numpy(parts[SHARES][:-1].astype(np.int64)), sites)
    known = {
        field: losses_of(parts[name])
        for field, name in (("discriminant", MEANS), ("members", MEMBERS))
        if name in parts
    }
    return ChoiceSums(**known, scales=scales, priors=priors, held_out=held_out, plain_betas=plain_betas)


def check_sum(ask: str, total: Vector, context: SumContext) -> None:
    """Refuse a sum that no rows have."""
    _CHECKS[ask](total, context.agreement, context.rows, context.sites)


def _check_losses(total: Vector, _agreement: Agreement, _rows: int, _sites: int | None) -> None:
    require_losses(total)


def _check_scales(total: Vector, agreement: Agreement, rows: int, _: int | None) -> None:
    for _squares, number in _scales(total):
        if not 0 < number <= rows * agreement.layout.d:
            raise StatisticsError(f"there are {number} scores, of {rows} rows and {agreement.layout.d} classes")


def _check_priors(total: Vector, agreement: Agreement, rows: int, _: int | None) -> None:
    models = len(with_prior(agreement.members_of_candidates))
    losses = prior_losses_in(total, [(1, 1.0)] * models)
    require_possible_losses(dict(zip(agreement.candidates or (), losses, strict=False)), rows)


def _check_candidates(total: Vector, agreement: Agreement, _: int, sites: int | None) -> None:
    *steps, told = map(int, total)
    if not 1 <= told <= len(agreement.sites) or (sites is not None and told != sites):
        raise StatisticsError(f"candidates were judged by {told} sites, and {sites or len(agreement.sites)} took part")
    if max(steps) > told * SHARE_STEPS:
        raise StatisticsError("more rows right than there are")


_CHECKS: dict[str, Callable[[Vector, Agreement, int, int | None], None]] = {
    MEANS: _check_losses,
    MEMBERS: _check_losses,
    SCALES: _check_scales,
    PRIORS: _check_priors,
    SHARES: _check_candidates,
}


def _scales(total: Vector) -> list[tuple[float, int]]:
    """Of each candidate the two sums behind its scale."""
    return [deviations_of(part) for part in np.split(total, len(total) // SCALE_LENGTH)]


def takes_lift(parts: Mapping[str, Vector], agreement: Agreement, rows: int) -> bool:
    """Whether everybody's candidate is one with the lift, by sums of so many rows."""
    from fedhip.heads.auto import everybodys

    candidates, held_out = agreement.members_of_candidates, sums_in(parts, agreement).held_out
    assert held_out is not None  # noqa: S101  (all parts came)
    return is_wide(candidates[everybodys(held_out, candidates, rows)])


def to_dict(
    head: Auto,
    owns: Mapping[str, Personalized] = MappingProxyType({}),
    lift: Lift | None = None,
    before: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """For results.json: how candidates did, in the mean over sites; and what a site with this model took.

    `lift` is that of the features, `before` what is said of candidates with a lift, tried first (`tried_first`).
    """
    from fedhip.heads.choice import Choice, Tried

    _ = head.settings  # chosen by now
    shares = np.array([np.nan if own.estimate is None else own.estimate for own, _ in owns.values()])
    found = Choice([Tried(head, owns, 0.0, shares, lift=lift)]).to_dict()
    found["rows"] = head.federation.grid.num_samples
    for entry in found["candidates"]:
        del entry["clients"]  # what others took, nobody knows
    if before:
        found |= {name: before[name] for name in before.keys() - {"candidates", "expected"}}
        found["candidates"] = [*before["candidates"], *found["candidates"]]
        found["expected"] = {**before["expected"], **found["expected"]}
    taken = [own.choice.name for own, _ in owns.values() if own.choice is not None]
    return {**found, "taken": taken[0]} if taken else found


def tried_first(parts: Mapping[str, Vector], agreement: Agreement, rows: int, up: int, down: int) -> dict[str, Any]:
    """What is said of candidates with a lift, where those of the features alone are taken; bytes are what it cost."""
    from fedhip.heads.auto import everybodys
    from fedhip.heads.choice import judged

    candidates, held_out = agreement.members_of_candidates, sums_in(parts, agreement).held_out
    assert held_out is not None  # noqa: S101  (all parts came)
    entries = judged(agreement.lift_title, candidates, held_out, everybodys(held_out, candidates, rows))
    return {
        "candidates": entries,
        "expected": {agreement.lift_title: None},
        "upload_bytes_per_client": up,
        "download_bytes_per_client": down,
    }
