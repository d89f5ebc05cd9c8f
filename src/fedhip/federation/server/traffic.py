"""What a method costs a site: sums, and the bytes that it sends and receives for them, keys and shares apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.later import Ask
from fedhip.federation.sums.lifts import moments_length
from fedhip.federation.sums.priors import later_length


def after_statistics(asks: Sequence[str]) -> list[str]:
    """What the sums after that of the statistics are of, among all from the first."""
    return list(asks[asks.index(Ask.STATISTICS) + 1 :])


def traffic_of(agreement: Agreement, method: str, asks: Sequence[str] = ()) -> dict[str, Any]:
    """As in a row of results.json; `asks` are the sums after that of the statistics.

    Of a lift the first sum is counted with the lift, and is no round (`fedhip.runs.results.add_lift`).
    """
    layout = agreement.layout
    statistics, intercept = 8 * layout.size, agreement.head != "ridge" or agreement.intercept
    model = 8 * (layout.m + intercept) * layout.d
    weights, gradient = 4 * (layout.m + 1) * layout.d, 8 * later_length(Ask.GRADIENT, agreement)
    head = model if agreement.head == "logistic" else 0  # the others follow from the sum
    pooled = 8 * later_length(Ask.PRIOR, agreement) if Ask.PRIOR in asks else 0
    told = {
        Ask.BETA: 0,
        Ask.TEMPERATURE: 0,
        Ask.GRADIENT: weights,
        Ask.PENALTY: 2 * (weights + gradient),
        Ask.SCALE: head,
        Ask.PRIOR: head,
    }
    if method == "local":
        rounds, up, down = 0, 0, 0
    elif asks:
        rounds, up = 1 + len(asks), statistics + sum(8 * later_length(Ask(ask), agreement) for ask in asks)
        down = statistics + sum(told[Ask(ask)] for ask in asks) + head + pooled
    else:
        rounds, up, down = 1, statistics, model if method == "global" else statistics
    if method != "local" and agreement.has_first_sum and agreement.lift == "none":
        first = 8 * moments_length(agreement)
        rounds, up, down = rounds + 1, up + first, down + first
    if method != "local" and agreement.has_census:
        census = 8 * layout.d
        rounds, up, down = rounds + 1, up + census, down + census
    return {"rounds": rounds, "upload_bytes_per_client": up, "download_bytes_per_client": down}
