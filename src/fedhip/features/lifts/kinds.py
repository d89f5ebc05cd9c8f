"""Which lifts there are: names that the command line needs before it needs torch; see `fedhip.features.lifts.lift`."""

from __future__ import annotations

from typing import Final, Literal

LiftKind = Literal["relu", "fourier", "nystroem", "nystroem-axes", "project"]
#: Those that can be asked for by name.
KINDS: tuple[LiftKind, ...] = ("relu", "fourier", "nystroem", "nystroem-axes")
#: The one that is narrower, for a budget (`fedhip.heads.budget`).
PROJECT: Final = "project"
#: What says that no lift is to compete, where models are chosen.
NO_LIFT: Final = "none"
#: Those with landmarks, which are drawn from the products of all columns.
LANDMARKS: tuple[LiftKind, ...] = ("nystroem", "nystroem-axes")
DEFAULT_WIDTH = 2048
#: The lift that competes where models are chosen, for features up to so many wide, and how wide it is at most.
COMPETING: Final = "nystroem-axes"
NARROW, COMPETING_WIDTH = 256, 1024
#: The scale of its grid, and up to how many rows it competes: their squares, and those of features in units of their
#: deviation, then add up to less than 2^63 steps, however far out a single row lies.
COMPETING_BITS, COMPETING_ROWS = 40, 1 << 22
