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
