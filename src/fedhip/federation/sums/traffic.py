"""What a method costs a site: sums, and the bytes that it sends and receives for them, keys and shares apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedhip.federation.sums.choice import known_bytes
from fedhip.federation.sums.kind import SumKind, SumStage
from fedhip.federation.sums.priors import head_bytes
from fedhip.federation.sums.statistics import plan_of
from fedhip.federation.sums.table import KINDS, MOMENTS, PLAIN, PRIOR, PRODUCTS, STATISTICS, VETO, WIDE, sums_before
from fedhip.federation.sums.wide import wide_of

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement


def of_models(asks: Sequence[str]) -> list[str]:
    """What the sums behind models are of, among all from the first."""
    return [ask for ask in asks if KINDS[ask].stage is not SumStage.BEFORE]


def traffic_of(agreement: Agreement, method: str, asks: Sequence[str] = (STATISTICS.name,)) -> dict[str, Any]:
    """As in a row of results.json; `asks` are the sums behind models, from that of the statistics.

    Of a lift the first sum is counted with the lift, and is no round (`fedhip.runs.results.add_lift`).
    """
    later = [KINDS[ask] for ask in asks]
    kinds = [] if method == "local" else [*sums_before(agreement), *later]
    up, down = bytes_of(agreement, kinds)
    rounds = len(kinds)
    if kinds and agreement.lift != "none":
        rounds, up, down = rounds - 1, up - 8 * MOMENTS.length(agreement), down - 8 * MOMENTS.length(agreement)
    if kinds and takes_lift(asks):
        exchange = plan_of(wide_of(agreement)).exchange
        rounds, up, down = rounds - 1, up - exchange, down - exchange
    if PRIOR in kinds:  # everybody's losses come at last
        down += 8 * PRIOR.length(agreement)
    if VETO in kinds:
        down += 8 * VETO.length(agreement)
    if len(later) > 1 and kinds:
        down += head_bytes(agreement)
    elif method == "global":  # the federation's model alone would do
        layout, intercept = agreement.layout, agreement.head != "ridge" or agreement.intercept
        down += 8 * (layout.m + intercept) * layout.d - 8 * STATISTICS.length(agreement)
    return {"rounds": rounds, "upload_bytes_per_client": up, "download_bytes_per_client": down}


def bytes_of(agreement: Agreement, kinds: Sequence[SumKind]) -> tuple[int, int]:
    """What a site sends for these sums, and what it receives; all sums that models are chosen by come once more."""
    up = sum(8 * kind.length(agreement) for kind in kinds)
    down = sum(kind.download(agreement) + (8 * kind.length(agreement) if kind.shared_as else 0) for kind in kinds)
    for sums, agreed in ((PLAIN, agreement), (WIDE, agreement.wide)):
        if agreed is not None and agreed.head == "auto" and sums.statistics in kinds:
            down += known_bytes("", agreed)
    return up, down


def takes_lift(asks: Sequence[str]) -> bool:
    """Whether models are of features with the lift that competed: those of the features alone were not summed."""
    return WIDE.statistics.name in asks and STATISTICS.name not in asks


def tried_kinds(agreement: Agreement) -> list[SumKind]:
    """The sums that candidates with a lift are tried by."""
    return [kind for kind in (PRODUCTS, *WIDE.all) if kind.count(agreement)]
