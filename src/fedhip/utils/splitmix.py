"""A hash of whole numbers: the finaliser of SplitMix64, on tensors and arrays of int64, whose products wrap around."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Numbers = TypeVar("Numbers", Tensor, NDArray[np.int64])


def signed(value: int) -> int:
    """The 64-bit number with the same bits as `value` modulo 2⁶⁴."""
    return (value + 2**63) % 2**64 - 2**63


GAMMA = signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)


def mix(z: Numbers) -> Numbers:
    """The finaliser; GAMMA is not added."""
    z = (z ^ shifted(z, 30)) * _FIRST
    z = (z ^ shifted(z, 27)) * _SECOND
    return z ^ shifted(z, 31)


def shifted(z: Numbers, bits: int) -> Numbers:
    """Shifted right; shifts bring in the sign, which the mask takes out again."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
