"""Which lifts there are: names that the command line needs before it needs torch; see `fedhip.features.lifts.lift`."""

from __future__ import annotations

from typing import Final, Literal, get_args

LiftKind = Literal["relu", "fourier", "nystroem"]
KINDS: tuple[LiftKind, ...] = get_args(LiftKind)
#: What says that no lift is to compete, where models are chosen.
NO_LIFT: Final = "none"
DEFAULT_WIDTH = 2048
