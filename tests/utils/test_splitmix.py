"""The hash against numbers that its author published, on tensors and on arrays."""

from __future__ import annotations

import torch

from fedhip.utils.splitmix import GAMMA, mix


def test_splitmix64_gives_its_published_numbers() -> None:
    """Of state 1234567, from its author's program."""
    states = torch.arange(1, 4) * GAMMA + 1234567
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(z) % 2**64 for z in mix(states)] == published
    assert [int(z) % 2**64 for z in mix(states.numpy())] == published
