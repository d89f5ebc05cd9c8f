"""What a method costs a site: sums, and the bytes that it sends and receives for them, keys and shares apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedhip.federation.agreement import Agreement
from fedhip.federation.later_sums import Ask, length
from fedhip.federation.vector import Layout


def traffic_of(agreement: Agreement, method: str, asks: Sequence[str] = ()) -> dict[str, Any]:
    """As in a row of results.json; `asks` are the sums after that of the statistics."""
    layout = Layout(agreement.width, len(agreement.classes))
    statistics, intercept = 8 * layout.size, agreement.head != "ridge"
    model = 8 * (layout.m + intercept) * layout.d
    weights, gradient = 4 * (layout.m + 1) * layout.d, 8 * length(Ask.GRADIENT, layout)
    told = {Ask.TEMPERATURE: statistics, Ask.GRADIENT: weights, Ask.PENALTY: 2 * (weights + gradient)}
    if method == "local":
        rounds, up, down = 0, 0, 0
    elif asks:
        rounds, up = 1 + len(asks), statistics + sum(8 * length(Ask(ask), layout) for ask in asks)
        down = model + sum(told[Ask(ask)] for ask in asks)
    else:
        rounds, up, down = 1, statistics, model if method == "global" else statistics
    return {"rounds": rounds, "upload_bytes_per_client": up, "download_bytes_per_client": down}
