"""The table of sums: all that sites and server ever add up, in the order in which it is asked for.

A new sum (of noise, of a regression, of losses of rows held out) is a new row here, with the functions that make and
check its vector in a module of this folder; `kind.py` says what each column of the table is. All else follows from the
table: lengths of messages, which sum may come when, what `fedhip federation accept` tells the people of a
site, what is kept and where, what traffic is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedhip.federation.sums import choice, logistic, priors, ridge, statistics, tables, veto, wide
from fedhip.federation.sums.choice import WIDE as PREFIX
from fedhip.federation.sums.kind import ModelSums, SumKind, SumStage
from fedhip.federation.sums.wide import wide_of

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement


def _of_choice(name: str, title: str, *needs: str) -> SumKind:
    """A sum that models are chosen by."""
    return SumKind(
        name=name,
        title=title,
        stage=SumStage.CHOICE,
        needs=needs,
        count=partial(choice.count, name),
        length=partial(choice.length, name),
        download=partial(choice.known_bytes, name),
        vector=partial(choice.choice_vector, name),
        check_question=partial(choice.check_choice, name),
        check_sum=partial(choice.check_sum, name),
    )


def _with_lift(kind: SumKind, stage: SumStage, *needs: str) -> SumKind:
    """The same sum of features with a lift that competes beside them, of the agreement on these."""

    def of_wide(value: Callable[[Agreement], int]) -> Callable[[Agreement], int]:
        return lambda agreed: 0 if agreed.wide is None else value(agreed.wide)

    return replace(
        kind,
        name=PREFIX + kind.name,
        title=f"{kind.title}, with the lift",
        stage=stage,
        needs=needs or tuple(PREFIX + need for need in kind.needs),
        count=of_wide(kind.count),
        length=of_wide(kind.length),
        download=of_wide(kind.download),
        shared_as=kind.shared_as and PREFIX + kind.shared_as,
        vector=lambda inputs: kind.vector(inputs.wide),
        check_question=lambda question, session, agreed, who: kind.check_question(
            question, session, wide_of(agreed), who
        ),
        check_own=lambda vector, inputs: kind.check_own(vector, inputs.wide),
        check_shared=lambda vector, agreed: kind.check_shared(vector, wide_of(agreed)),
        check_rest=lambda rest, inputs: kind.check_rest(rest, inputs.wide),
        check_part=lambda vector, agreed: kind.check_part(vector, wide_of(agreed)),
        check_sum=lambda total, context: kind.check_sum(total, replace(context, agreement=wide_of(context.agreement))),
    )


#: The sums that models are chosen by, in the order in which each needs what those before it decide.
CHOICE = (
    _of_choice(choice.MEANS, "whose means are better", "statistics", "beta"),
    _of_choice(choice.MEMBERS, "the temperatures of what candidates are made of", choice.MEANS),
    _of_choice(choice.SCALES, "the scales of candidates' scores", choice.MEMBERS),
    _of_choice(choice.PRIORS, "priors of candidates", choice.SCALES),
    _of_choice(choice.SHARES, "which candidate is best", choice.MEMBERS, choice.PRIORS),
)
STATISTICS = SumKind(
    name="statistics",
    title="the statistics",
    stage=SumStage.STATISTICS,
    needs=("census", "fills", "moments"),
    count=lambda _: 1,
    length=lambda agreed: agreed.layout.size,
    vector=statistics.statistics_vector,
    check_question=wide.check_whole,
    check_own=statistics.check_own_statistics,
    check_rest=statistics.check_statistics_rest,
    check_part=statistics.check_statistics_part,
    check_sum=statistics.check_statistics,
    shared_as="total",
    has_noise=True,
)
BETA = SumKind(
    name="beta",
    title="which β is best",
    stage=SumStage.HEAD,
    needs=("statistics",),
    count=lambda agreed: int(agreed.chooses_beta),
    length=ridge.beta_length,
    vector=ridge.beta_scores,
    check_question=ridge.check_scorers,
    check_sum=ridge.check_beta_scores,
)
PLAIN = ModelSums(STATISTICS, BETA, CHOICE)
#: The same of features with a lift that competes beside them, asked for before the others.
WIDE = ModelSums(
    _with_lift(STATISTICS, SumStage.WIDE, wide.PRODUCTS),
    _with_lift(BETA, SumStage.WIDE_CHOICE),
    tuple(_with_lift(kind, SumStage.WIDE_CHOICE) for kind in CHOICE),
)
TABLE = (
    CENSUS := SumKind(
        name="census",
        title="how many rows there are of each class",
        stage=SumStage.BEFORE,
        count=lambda agreed: int(agreed.has_census),
        length=lambda agreed: len(agreed.classes),
        vector=statistics.census_vector,
        check_rest=statistics.check_census_rest,
        check_sum=statistics.check_census,
        shared_as="census",
        is_kept=False,
    ),
    FILLS := SumKind(
        name="fills",
        title="the means that fill missing values",
        stage=SumStage.BEFORE,
        needs=("census",),
        count=lambda agreed: int(bool(agreed.open_fills)),
        length=tables.fills_length,
        vector=tables.fills_vector,
        check_own=lambda vector, site: tables.check_fills_part(vector, site.agreement),
        check_shared=tables.check_fills,
        check_rest=tables.check_fills_rest,
        check_part=tables.check_fills_part,
        check_sum=tables.check_fills_sum,
        shared_as="fills",
    ),
    MOMENTS := SumKind(
        name="moments",
        title="what the columns are like",
        stage=SumStage.BEFORE,
        needs=("census", "fills"),
        count=lambda agreed: int(agreed.surveys_columns),
        length=statistics.moments_length,
        vector=lambda site: statistics.moments_vector(site.raw_client, site.agreement),
        check_own=lambda vector, site: statistics.check_moments_part(vector, site.agreement),
        check_shared=statistics.check_moments,
        check_rest=statistics.check_moments_rest,
        check_part=statistics.check_moments_part,
        check_sum=statistics.check_moments_sum,
        shared_as="moments",
    ),
    PRODUCTS := SumKind(
        name=wide.PRODUCTS,
        title="the products of columns, for a lift",
        stage=SumStage.WIDE,
        needs=("census", "fills", "moments"),
        count=lambda agreed: int(agreed.wide is not None),
        length=wide.products_length,
        vector=wide.products_vector,
        check_own=lambda vector, site: wide.check_products_part(vector, site.agreement),
        check_shared=wide.check_products,
        check_rest=wide.check_products_rest,
        check_part=wide.check_products_part,
        check_sum=lambda total, context: wide.check_products(total, context.agreement),
        shared_as="products",
    ),
    *WIDE.all,
    STATISTICS,
    VETO := SumKind(
        name="veto",
        title="who finds the sum worse than being alone",
        stage=SumStage.HEAD,
        needs=("statistics",),
        count=lambda agreed: int(agreed.veto_share is not None),
        length=veto.veto_length,
        vector=veto.veto_vector,
        check_rest=veto.check_other_vetoes,
        check_part=veto.check_veto_part,
        check_sum=veto.check_vetoes,
    ),
    BETA,
    TEMPERATURE := SumKind(
        name="temperature",
        title="a temperature",
        stage=SumStage.HEAD,
        needs=("statistics",),
        count=lambda agreed: int(agreed.head == "logistic" or (agreed.head == "lda" and agreed.prior == "client")),
        length=lambda agreed: len(logistic.temperatures(agreed)),
        vector=logistic.temperature_losses,
        check_sum=logistic.check_losses,
    ),
    GRADIENT := SumKind(
        name="gradient",
        title="gradients",
        stage=SumStage.HEAD,
        needs=("temperature",),
        count=lambda agreed: agreed.gradient_rounds or 0,
        length=logistic.gradient_length,
        download=logistic.weights_bytes,
        vector=logistic.gradient,
        check_question=logistic.check_weights,
        check_sum=logistic.check_gradient,
    ),
    PENALTY := SumKind(
        name="penalty",
        title="a penalty",
        stage=SumStage.HEAD,
        needs=("gradient", "gradient"),
        count=lambda agreed: int((agreed.gradient_rounds or 0) >= 2),
        length=logistic.penalty_length,
        download=lambda agreed: 2 * (logistic.weights_bytes(agreed) + 8 * logistic.gradient_length(agreed)),
        vector=logistic.penalty_losses,
        check_sum=logistic.check_losses,
    ),
    SCALE := SumKind(
        name="scale",
        title="the scores' scale",
        stage=SumStage.PRIOR,
        needs=("temperature", "gradient"),
        count=lambda agreed: int(agreed.prior == "client" and agreed.head in ("lda", "logistic")),
        length=lambda _: priors.SCALE_LENGTH,
        download=priors.head_bytes,
        vector=priors.scale_parts,
        check_question=priors.check_same_head,
        check_sum=priors.check_scale,
    ),
    PRIOR := SumKind(
        name="prior",
        title="priors",
        stage=SumStage.PRIOR,
        needs=("statistics", "beta", "scale"),
        count=lambda agreed: int(agreed.prior == "client" and agreed.head != "auto"),
        length=priors.prior_length,
        download=priors.head_bytes,
        vector=priors.prior_losses,
        check_question=priors.check_same_head,
        check_sum=priors.check_prior_losses,
    ),
    *CHOICE,
)
#: The sums of statistics, of which there may be two.
TOTALS = (WIDE.statistics, PLAIN.statistics)
KINDS: dict[str, SumKind] = {kind.name: kind for kind in TABLE}


def sums_of(agreement: Agreement) -> dict[SumKind, int]:
    """The sums of an agreement, in their order, and how many of each kind a site gives at most."""
    counts = {kind: kind.count(agreement) for kind in TABLE}
    return {kind: count for kind, count in counts.items() if count}


def sums_before(agreement: Agreement) -> list[SumKind]:
    """The sums before those of models."""
    return [kind for kind in sums_of(agreement) if kind.stage is SumStage.BEFORE]


def sums_follow(agreement: Agreement) -> bool:
    """Whether sums follow that of the statistics."""
    return any(kind.stage > SumStage.STATISTICS for kind in sums_of(agreement))


def first_number(agreement: Agreement) -> int:
    """The number of a session's first sum: a census is sum 0, and the sum that everything is known by is sum 1."""
    return 0 if CENSUS.count(agreement) else 1


def may_follow(name: str, done: Sequence[str], agreement: Agreement) -> bool:
    """Whether a sum of this name may be asked for after these."""
    if name not in KINDS:
        return False
    kind, had = KINDS[name], Counter(done)
    needed = Counter(need for need in kind.needs if KINDS[need].count(agreement))
    in_order = all(KINDS[before].stage <= kind.stage for before in done)
    return had[name] < kind.count(agreement) and needed <= had and in_order
