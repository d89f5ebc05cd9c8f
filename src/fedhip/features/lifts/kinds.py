"""Which lifts there are: names that the command line needs before it needs torch; see `fedhip.features.lifts.lift`."""

from __future__ import annotations

from typing import Literal, get_args

LiftKind = Literal["relu", "fourier", "nystroem", "project"]
KINDS: tuple[LiftKind, ...] = get_args(LiftKind)
DEFAULT_WIDTH = 2048
