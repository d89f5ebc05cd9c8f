"""Mask noise from a seed and the row of an image alone, on every device and at any batch size."""

from __future__ import annotations

import torch
from torch import Tensor

from fedhip.errors import InputError
from fedhip.utils.splitmix import GAMMA, mix, shifted


def check_seed(seed: int, name: str) -> int:
    """The seed, if it fits in 64 bits."""
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"{name} is {seed}; it must fit in 64 bits, from {-(2**63)} to {2**63 - 1}")
    return seed


def row_noise(seed: int, rows: Tensor, patches: int) -> Tensor:
    """Uniform numbers (B, patches) in [0, 1), float64, from a counter-based hash of (seed, row, patch)."""
    columns = torch.arange(patches, device=rows.device)
    key = mix(torch.tensor(seed, dtype=torch.int64, device=rows.device) + GAMMA)
    bits = mix((mix((key ^ rows.long()) + GAMMA)[:, None] ^ columns) + GAMMA)
    return shifted(bits, 11).double() / 2**53
