"""Lifts over the network: one sum before that of the statistics, from which everybody draws the same lift.

    moments   Σ x² ‖ Σ x ‖ rows          2m + 1 whole numbers; Nyström's with all products, as statistics of one class

They are those of `fedhip run` (`fedhip.lifting`), at the scale that the agreed bound on raw features gives. Kind,
width, seed and bandwidth are agreed on; no matrix and no row travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import StatisticsError
from fedhip.federation.agreement import Agreement
from fedhip.federation.vector import Layout, Vector, from_vector, require_possible, to_vector

if TYPE_CHECKING:
    from fedhip.core.lifts import Lift
    from fedhip.lifting import LiftPlan
    from fedhip.simulation import Client


def plan_of(agreement: Agreement) -> LiftPlan:
    """The agreed lift, and what it costs."""
    from fedhip.lifting import LiftSettings

    kind, seed = agreement.lift, agreement.lift_seed
    assert kind != "none" and seed is not None  # noqa: S101, PT018  (who asks has looked)
    settings = LiftSettings(kind, agreement.lift_width, None, seed, agreement.lift_bandwidth)
    return settings.plan(agreement.width, len(agreement.classes))


def moment_bits(agreement: Agreement) -> int:
    """The scale of the first sum, which is of raw features."""
    from fedhip.core.fixedpoint import fraction_bits_for

    return fraction_bits_for(agreement.largest_feature)


def moments_length(agreement: Agreement) -> int:
    """How many numbers a site sends."""
    return Layout(agreement.width, 1).size if agreement.lift == "nystroem" else 2 * agreement.width + 1


def moments_vector(client: Client, agreement: Agreement) -> Vector:
    """A site's part, from its raw training rows."""
    from fedhip.lifting import moments_of

    moments = moments_of(client, moment_bits(agreement))
    if agreement.lift == "nystroem":
        return to_vector(moments)
    parts = moments.gram.diagonal(), moments.cross[:, 0], moments.counts
    return np.concatenate([part.numpy() for part in parts]).view(np.uint64)


def lift_of(vector: Vector, agreement: Agreement) -> Lift:
    """The lift that everybody draws from the sum."""
    import torch

    from fedhip.core.fixedpoint import GridStatistics, decode
    from fedhip.core.lifts import Lift

    m, bits, plan = agreement.width, moment_bits(agreement), plan_of(agreement)
    if agreement.lift == "nystroem":
        grid = from_vector(vector, Layout(m, 1), bits)
    else:
        squares, sums, rows = (torch.from_numpy(part.copy()) for part in np.split(vector.view(np.int64), [m, 2 * m]))
        grid = GridStatistics(torch.diag(squares), sums[:, None], rows, bits)
    settings = plan.settings
    return Lift.of(settings.kind, plan.width, settings.seed, decode(grid), settings.sigma)


def require_possible_moments(vector: Vector, agreement: Agreement, most_rows: int) -> None:
    """Refuse moments that no data set of so many rows has."""
    m, bits = agreement.width, moment_bits(agreement)
    if agreement.lift == "nystroem":
        return require_possible(vector, Layout(m, 1), bits, most_rows)
    squares, sums, (rows,) = np.split(vector.view(np.int64), [m, 2 * m])
    if not 0 < rows <= most_rows:
        raise StatisticsError(f"the moments are of {rows} rows, and at most {most_rows} are agreed on")
    # (Σx)² ≤ N Σx², to rounding.
    most = float(rows) * squares.astype(np.float64) * 2.0**-bits
    if (squares < 0).any() or (np.square(sums * 2.0**-bits) > most * (1.0 + 1e-9)).any():
        raise StatisticsError("the squares of the features are smaller than their sums allow; no data set has that")
    return None
