"""A budget: what one client may send in all, and how narrow its features must be for that.

    --budget 5MB        survey, statistics, and everything that is chosen by

Where the statistics of the features as they are do not fit, rows are projected before anything else (the lift
"project"), and a client sends a square root of its statistics, rounded as finely as fits (`fedhip.core.exact.root`).
All directions are kept where that leaves enough bits for each number, and as many as leave enough where it does not.
Where the features as they are fit, nothing changes; a wider lift competes only if its bytes fit too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedhip.core.exact.columns import Survey
from fedhip.core.exact.root import MOST_BITS, root_bytes
from fedhip.errors import InputError
from fedhip.features.lifts.budget import exchange_bytes, upload_bytes
from fedhip.features.lifts.kinds import COMPETING, COMPETING_WIDTH, NARROW, PROJECT
from fedhip.heads.auto import choosing_bytes
from fedhip.simulation.federation import SCORES_BYTES
from fedhip.simulation.lifting import LiftSettings
from fedhip.utils.candidates import CANDIDATES, WIDE_CANDIDATES

#: What a number of the client with most rows has at least, in the mean; where all have as much, none is projected away.
LEAST_BITS = 8

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def bytes_of(size: str | float) -> int:
    """Bytes of a size such as "5MB", "500kB" or 500000."""
    found = _SIZE.fullmatch(str(size)) if isinstance(size, str) else None
    number = float(found[1]) if found else -1.0 if isinstance(size, str) else float(size)
    unit = _UNITS.get(found[2].lower()) if found else 1
    if unit is None or not math.isfinite(number) or number * unit < 1:
        raise InputError(f"the budget is {size!r}; give bytes, such as 5MB, 500kB or 500000")
    return int(number * unit)


@dataclass(frozen=True)
class Within:
    """What a budget leaves: a lift or none, whether a wider one may compete, and the bytes for a client's statistics.

    Without `room` these are sent in 8 bytes a number.
    """

    lift: LiftSettings | None
    wider: bool
    room: int | None = None


def within(budget: int, num_features: int, num_classes: int, rows: Sequence[int], *, prior: bool) -> Within:
    """What fits, for features so wide, classes, and training rows of each client."""
    choosing = SCORES_BYTES + choosing_bytes(CANDIDATES, prior=prior)
    plain = 8 * Survey.size(num_features) + upload_bytes(num_features, num_classes) + choosing
    if plain <= budget:
        # Where candidates of the features alone are taken in the end, their own upload comes after that with the lift.
        width = num_features + min(COMPETING_WIDTH, sum(rows))
        wide = exchange_bytes(COMPETING, num_features) + upload_bytes(width, num_classes)
        wide += 2 * SCORES_BYTES + choosing_bytes(WIDE_CANDIDATES, 2, prior=prior)
        return Within(None, num_features <= NARROW and plain + wide <= budget)

    def beside(width: int) -> int:
        return exchange_bytes(PROJECT, num_features, width) + choosing

    def projected(width: int) -> int:
        return beside(width) + root_bytes(max(rows), width, num_classes, LEAST_BITS)

    width = _widest(budget, projected, num_features)
    if width < 1:
        least = projected(1)
        raise InputError(
            f"a budget of {budget:,} bytes holds no upload of {num_features} features and {num_classes} classes; the "
            f"smallest is {least:,}"
        )
    room = min(budget - beside(width), root_bytes(max(rows), width, num_classes, MOST_BITS))
    return Within(LiftSettings(PROJECT, width), False, room)


def _widest(room: int, taken: Callable[[int], int], most: int) -> int:
    """The widest features, up to `most`, of which what is sent fits; 0 where none do."""
    fits, too_wide = 0, most + 1
    while too_wide - fits > 1:
        middle = (fits + too_wide) // 2
        fits, too_wide = (middle, too_wide) if taken(middle) <= room else (fits, middle)
    return fits
