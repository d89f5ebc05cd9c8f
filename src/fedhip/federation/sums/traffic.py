"""What a method costs a site: sums, and the bytes that it sends and receives for them, keys and shares apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedhip.federation.sums.choice import known_bytes
from fedhip.federation.sums.priors import head_bytes
from fedhip.federation.sums.table import KINDS, MOMENTS, PRIOR, STATISTICS, sums_before_head

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement


def after_statistics(asks: Sequence[str]) -> list[str]:
    """What the sums after that of the statistics are of, among all from the first."""
    return list(asks[asks.index(STATISTICS.name) + 1 :])


def traffic_of(agreement: Agreement, method: str, asks: Sequence[str] = ()) -> dict[str, Any]:
    """As in a row of results.json; `asks` are the sums after that of the statistics.

    Of a lift the moments are counted with the lift, and are no round (`fedhip.runs.results.add_lift`).
    """
    kinds = [*sums_before_head(agreement), *(KINDS[ask] for ask in asks)]
    if agreement.lift != "none":
        kinds.remove(MOMENTS)
    if method == "local":
        kinds = []
    up = sum(8 * kind.length(agreement) for kind in kinds)
    down = sum(kind.download(agreement) + (8 * kind.length(agreement) if kind.shared_as else 0) for kind in kinds)
    if PRIOR in kinds:  # everybody's losses come at last
        down += 8 * PRIOR.length(agreement)
    if agreement.head == "auto" and kinds:
        down += known_bytes("", agreement)
    if asks and kinds:
        down += head_bytes(agreement)
    elif method == "global":  # the federation's model alone would do
        layout, intercept = agreement.layout, agreement.head != "ridge" or agreement.intercept
        down += 8 * (layout.m + intercept) * layout.d - 8 * STATISTICS.length(agreement)
    return {"rounds": len(kinds), "upload_bytes_per_client": up, "download_bytes_per_client": down}
