"""What a lift costs, before it is paid: bytes that a client sends, the width that a budget allows, memory.

The upload grows with the square of the width: `upload_bytes` says by how much, `exchange_bytes` what the first sum
takes, `width_for` the width that a budget allows.
"""

from __future__ import annotations

import math

from fedhip.core.exact.columns import Survey
from fedhip.errors import InputError
from fedhip.features.lifts.kinds import LANDMARKS, PROJECT, LiftKind

#: Features that are wider have one unit for all columns.
SAME_UNITS = 256
#: Gram matrices in memory at once: the sum's and its factor's, and those of each client that is worked on. With two
#: clients at once 11.8 were measured, in a run that was 2048 wide.
_SHARED_MATRICES, _CLIENT_MATRICES = 4, 4


def upload_bytes(width: int, num_classes: int) -> int:
    """What one client sends in round one: a triangle, class sums and counts, 8 bytes each."""
    return 8 * (width * (width + 1) // 2 + width * num_classes + num_classes)


def exchange_bytes(kind: LiftKind, num_features: int, width: int = 0) -> int:
    """What one client sends before round one: a survey of its columns; for landmarks, all products and sums instead.

    These are of columns whose units a federation has agreed on, so that no survey is sent. A projection of wide
    features, which are a backbone's and in the same units, needs a survey of the rows' lengths alone; then the sum and
    the squares of each of `width` directions, for their units.
    """
    m = num_features
    if kind in LANDMARKS:
        return 8 * (m * (m + 1) // 2 + m + 1)
    if kind == PROJECT:
        return 8 * (Survey.size(1 if m > SAME_UNITS else m) + 2 * width)
    return 8 * Survey.size(m)


def width_for(megabytes: float, num_classes: int) -> int:
    """The widest features whose upload stays within a budget."""
    if not (math.isfinite(megabytes) and megabytes > 0):
        raise InputError(f"the budget is {megabytes!r} MB; give a number above 0")
    entries = megabytes * 1e6 / 8 - num_classes
    half = num_classes + 0.5
    width = int(math.sqrt(half * half + 2.0 * max(entries, 0.0)) - half)
    while upload_bytes(width + 1, num_classes) <= megabytes * 1e6:  # the root is rounded
        width += 1
    while width > 0 and upload_bytes(width, num_classes) > megabytes * 1e6:
        width -= 1
    if width < 1:
        least = upload_bytes(1, num_classes) / 1e6
        raise InputError(f"{megabytes:g} MB do not hold the statistics of one feature; give at least {least:.3g}")
    return width


def require_memory(width: int, memory: int, rows: int = 0, at_once: int = 1) -> None:
    """Raise `InputError`, with the width that fits, if lifted rows and the matrices of a round exceed `memory` bytes.

    `at_once` is how many clients are worked on at a time.
    """
    needed = _memory(width, rows, at_once)
    if needed <= memory:
        return
    fits, too_wide = 0, width
    while too_wide - fits > 1:
        middle = (fits + too_wide) // 2
        fits, too_wide = (middle, too_wide) if _memory(middle, rows, at_once) <= memory else (fits, middle)
    remedy = f"width {fits} fits" if fits else "no width fits: free some memory"
    raise InputError(
        f"a lift of width {width} takes {needed / 2**30:.1f} GiB of memory and {memory / 2**30:.1f} are free; {remedy}"
    )


def _memory(width: int, rows: int, at_once: int) -> int:
    """Bytes of the matrices in float64, and of the rows in float32."""
    matrices = _SHARED_MATRICES + _CLIENT_MATRICES * at_once
    return 8 * matrices * width * width + 4 * rows * width
