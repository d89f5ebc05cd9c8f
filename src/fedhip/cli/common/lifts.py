"""Options of lifts, for the commands that have them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fedhip.errors import InputError
from fedhip.features.lifts.kinds import DEFAULT_WIDTH, KINDS, NO_LIFT

if TYPE_CHECKING:
    from fedhip.simulation.lifting import LiftSettings

_OPTIONS = {"lift_width": "width", "lift_budget": "budget", "lift_seed": "seed", "lift_bandwidth": "bandwidth"}


def add_lift(parser: argparse.ArgumentParser) -> None:
    """Options that widen the features. None has a default here: a run without a lift says nothing of it."""
    group = parser.add_argument_group("lift")
    group.add_argument(
        "--lift", choices=(*KINDS, NO_LIFT),
        help="random features: widen the features by a map that all clients draw from one seed; none: never (default: "
        "--head auto may try one)",
    )  # fmt: skip
    group.add_argument(
        "--lift-width", type=int, metavar="W", help=f"number of random features (default: {DEFAULT_WIDTH})"
    )
    group.add_argument(
        "--lift-budget", type=float, metavar="MB", help="as wide as an upload of this size per client allows"
    )
    group.add_argument("--lift-seed", type=int, metavar="N", help="default: 0")
    group.add_argument("--lift-bandwidth", type=float, metavar="S", help="bandwidth of the kernel (default: 1)")


def lift_settings(args: argparse.Namespace) -> LiftSettings | None:
    """What the options say; an option without a lift is refused."""
    given: dict[str, Any] = {
        name: getattr(args, option) for option, name in _OPTIONS.items() if getattr(args, option) is not None
    }
    if args.lift in (None, NO_LIFT):
        if given:
            raise InputError(f"--lift-{next(iter(given))} needs a lift; add --lift {'|'.join(KINDS)}")
        return None
    from fedhip.simulation.lifting import LiftSettings

    return LiftSettings(args.lift, **given)
