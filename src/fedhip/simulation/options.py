"""What a ridge is of and how α and β are given, as every door takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedhip.core.exact.columns import Columns

Alpha = float | Literal["loo"]
Beta = float | Literal["auto", "gcv"]


@dataclass(frozen=True)
class RidgeOptions:
    """What the ridge is of: standardised features or those that came, with or without an intercept; weights by class.

    `fraction_bits` is the grid's scale for columns in units of their own; `columns` are these units, where they are
    known (lifted features have the same in all columns). A client's statistics are sent in no more
    than `room` bytes (`fedhip.core.exact.root`), or in 8 bytes a number.
    """

    standardize: bool = True
    intercept: bool = True
    balance: bool = False
    fraction_bits: int | None = None
    columns: Columns | None = None
    room: int | None = None

    @property
    def centred(self) -> bool:
        """Whether columns may have offsets."""
        return self.intercept or self.standardize


STANDARD = RidgeOptions()
#: The ridge as the paper has it.
PAPER = RidgeOptions(standardize=False, intercept=False)
