"""The sums that every site chooses its class prior by, after the head is known.

    temperature   of LDA (`fedhip.federation.sums.logistic`): log-losses of the federation's scores of rows left out
    scale         squared deviations of the scores of a site's own model, in four parts ‖ how many scores these are
    prior         of each method: log-losses over models, temperatures and smoothings ‖ rows right ‖ rows judged

`fedhip.core.choice.prior` says what they are, of which rows, and how a client chooses by its own and everybody's.
Temperature and scale are those of `fedhip run`: LDA's sites judge at the temperature whose means they take, and the
scale is two sums; a ridge's scores have one that everybody knows, and need no sum. Squares are as large as scores are,
so they go on a grid of 2^-64 in parts of 32 bits, whose sums cannot overflow: nothing is rounded but what a float64
rounds too. What a site chooses stays with it: the server learns the sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.federation.errors import MessageError
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.head import federation_of_sites, fit_head, head_digest, head_from_message
from fedhip.federation.sums.kind import SiteInputs, SumContext
from fedhip.federation.sums.ridge import beta_in
from fedhip.federation.sums.vector import Vector, from_vector, losses_of, losses_vector

if TYPE_CHECKING:
    from fedhip.core.choice.prior import FoldLosses, PriorChoice, PriorLosses
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.state import Session
    from fedhip.federation.transport.wire import Letter
    from fedhip.heads import Head
    from fedhip.simulation.client import Client

_PARTS, _PART_BITS, _SQUARE_BITS = 4, 32, 64
#: The parts of the squares, and how many scores there are.
SCALE_LENGTH = _PARTS + 1


def scale_parts(inputs: SiteInputs) -> Vector:
    """The two sums behind the scale of the scores that priors are added to."""
    return _site_priors(inputs, temperature_in(inputs.question, inputs.agreement)).scale()


def check_scale(total: Vector, context: SumContext) -> None:
    """Refuse more scores than rows have."""
    scale_of_sum(total, context.rows, context.agreement.layout.d)


def prior_length(agreement: Agreement) -> int:
    """Losses and rows right over the grid of priors, of all methods."""
    from fedhip.core.choice.prior import PLACES

    return sum(2 * models * PLACES + 1 for models in models_of(agreement).values())


def prior_losses(inputs: SiteInputs) -> Vector:
    """At temperatures that are multiples of the scale that came."""
    question, agreement = inputs.question, inputs.agreement
    return _site_priors(inputs, temperature_in(question, agreement)).losses(scale_in(question, agreement))


def check_prior_losses(total: Vector, context: SumContext) -> None:
    """Refuse losses that no rows have."""
    require_possible_losses(prior_losses_of(total, context.agreement, None), context.rows)


def check_same_head(question: Letter, session: Session, agreement: Agreement, _: Collection[str] = ()) -> None:
    """Refuse another head than the one that the site's prior is chosen for: there is one for an agreement."""
    digest = head_digest(question, agreement)
    if session.head is None:
        session.head = digest
    if session.head != digest:
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server speaks of another head than the one that came first")


def head_bytes(agreement: Agreement) -> int:
    """Bytes of a head that travels; the others follow from the sum."""
    return 8 * (agreement.layout.m + 1) * agreement.layout.d if agreement.head == "logistic" else 0


def lda_losses(inputs: SiteInputs) -> Vector:
    """Losses of LDA's scores, over its temperatures."""
    import torch

    priors = _site_priors(inputs, None)
    (scores,) = priors.head.left_out(priors.client)["global"].scores
    losses = priors.head.losses(scores, torch.as_tensor(priors.client.train[1]))
    return losses_vector(torch.tensor(losses, dtype=torch.float64), len(inputs.agreement.sites))


def _site_priors(inputs: SiteInputs, temperature: float | None) -> SitePriors:
    """Of the head that the server tells of; `temperature` is LDA's, once it is known."""
    question, agreement = inputs.question, inputs.agreement
    grid = from_vector(inputs.total, agreement.layout, agreement.fraction_bits)
    beta = beta_in(question, agreement) if agreement.head == "ridge" else 0.0
    held = head_from_message(question, agreement, grid.digest()) if agreement.head == "logistic" else None
    known = {} if temperature is None else {"temperature": temperature}
    federation = federation_of_sites(agreement, grid, beta, inputs.encoding)
    return SitePriors(fit_head(federation, agreement, [inputs.client], held, known), inputs.client, agreement)


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


@dataclass(frozen=True)
class SitePriors:
    """Of the agreed head, fitted to the sum; its task has this site's rows alone."""

    head: Head
    client: Client
    agreement: Agreement

    def scale(self) -> Vector:
        """The two sums behind the scale of the site's own scores."""
        from fedhip.core.choice.prior import deviations

        (scores,) = self.head.left_out(self.client)[self.agreement.methods[-1]].scores
        return scale_vector(*deviations(self.head.local_only(self.client, scores)))

    def losses(self, scale: float | None) -> Vector:
        """Losses and rows right of all methods, at temperatures that are multiples of the scale."""
        sent = {method: found.every for method, found in self._losses(scale).items()}
        return prior_vector(sent.values(), len(self.agreement.sites))

    def choose(self, pooled: Vector, scale: float | None) -> dict[str, PriorChoice]:
        """For each method which of its models, and the prior: by the site's own losses and everybody's."""
        from fedhip.core.choice.prior import choose_nested

        everybody = prior_losses_of(pooled, self.agreement, scale)
        own = self._losses(scale)
        return {method: choose_nested(own[method], everybody[method]) for method in self.agreement.methods}

    def _losses(self, scale: float | None) -> dict[str, FoldLosses]:
        from fedhip.simulation.priors import local_scores, prior_losses

        agreement, counts = self.agreement, self.head.federation.grid.counts
        scores = {"local": local_scores(self.client, self.head.federation), **self.head.left_out(self.client)}
        return prior_losses(scores, self.client, counts, scales_of(agreement, scale), agreement.only_local_classes)


def models_of(agreement: Agreement) -> dict[str, int]:
    """How many models a site chooses among, by method: a ridge's α is chosen together with its prior."""
    from fedhip.simulation.priors import prior_alphas

    *beside, own = agreement.methods
    number = len(prior_alphas(agreement.alpha)[own]) if agreement.head == "ridge" else 1
    return {**dict.fromkeys(beside, 1), own: number}


def scales_of(agreement: Agreement, scale: float | None) -> dict[str, float]:
    """What temperatures are multiples of, by method; `scale` is the one that was summed, where one was."""
    from fedhip.simulation.priors import ridge_scale

    ridges = ridge_scale(len(agreement.classes))
    local, *others = agreement.methods
    return {local: ridges, **dict.fromkeys(others, ridges if scale is None else scale)}


def scale_vector(squares: float, number: int) -> Vector:
    """A site's two sums."""
    from fedhip.errors import LossError

    if not squares < 2.0 ** (_PARTS * _PART_BITS - _SQUARE_BITS):
        raise LossError(
            f"the scores of rows left out deviate by {squares:g}, squared and summed; "
            "look for features out of all proportion, and leave those rows out"
        )
    steps = int(math.ldexp(squares, _SQUARE_BITS))
    parts = [steps >> (_PART_BITS * at) & ((1 << _PART_BITS) - 1) for at in range(_PARTS)]
    return np.array([*parts, number], np.uint64)


def scale_of_sum(vector: Vector, rows: int, classes: int) -> float:
    """The scale, from the sum of all sites' vectors; refused where no scores of so many rows have it."""
    from fedhip.core.choice.prior import scale_from

    squares, number = deviations_of(vector)
    if not 0 < number <= rows * classes:
        raise StatisticsError(f"there are {number} scores, of {rows} rows and {classes} classes")
    return scale_from(squares, number)


def deviations_of(vector: Vector) -> tuple[float, int]:
    """The two sums in all sites' vectors: squared deviations, and how many scores they are of."""
    *parts, number = map(int, vector)
    squares = sum(part << (_PART_BITS * at) for at, part in enumerate(parts))
    return squares / (1 << _SQUARE_BITS), number


def prior_vector(losses: Iterable[PriorLosses], sites: int) -> Vector:
    """A site's losses, method by method."""
    parts: list[Vector] = []
    for part in losses:
        right = part.right.numpy().reshape(-1).astype(np.uint64)
        parts += [losses_vector(part.losses, sites), right, np.array([part.rows], np.uint64)]
    return np.concatenate(parts)


def prior_losses_of(vector: Vector, agreement: Agreement, scale: float | None) -> dict[str, PriorLosses]:
    """The losses that a vector holds, by method."""
    scales, models = scales_of(agreement, scale), models_of(agreement)
    found = prior_losses_in(vector, [(number, scales[method]) for method, number in models.items()])
    return dict(zip(models, found, strict=True))


def prior_losses_in(vector: Vector, kinds: Iterable[tuple[int, float]]) -> list[PriorLosses]:
    """The losses that a vector holds one after the other, each of so many models and of this scale."""
    import torch

    from fedhip.core.choice.prior import PLACES, SMOOTHINGS, TEMPERATURES, PriorLosses

    found, start = [], 0
    for models, scale in kinds:
        shape, size = (models, len(TEMPERATURES), len(SMOOTHINGS)), models * PLACES
        losses, right, rows = np.split(vector[start : start + 2 * size + 1], [size, 2 * size])
        hits = torch.from_numpy(right.astype(np.float64)).reshape(shape)
        found.append(PriorLosses(losses_of(losses).reshape(shape), hits, int(rows[0]), scale))
        start += 2 * size + 1
    return found


def require_possible_losses(losses: Mapping[str, PriorLosses], rows: int) -> None:
    """Refuse a sum that no rows have, so many at most."""
    for method, part in losses.items():
        if not 0 <= part.rows <= rows or float(part.right.max()) > part.rows or float(part.losses.min()) < 0.0:
            raise StatisticsError(f"the losses of {method!r} over priors, or its rows right, are those of no rows")
