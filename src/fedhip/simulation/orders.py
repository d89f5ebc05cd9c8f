"""In which order a client goes through its rows, and which clients take part: from names and counters alone.

Row r of a client stands in the order by the signed 64-bit number

key(r) = mix(s + (r + 1) γ),   s = absorb(seed, purpose, client, round, epoch),   absorb(…, v) = mix(absorb(…) + v + γ)

with absorb() = 0, mix the finaliser of SplitMix64, γ its constant, sums modulo 2⁶⁴, and the client the first eight
bytes, little-endian, of the SHA-256 of its name. (mix is one-to-one, so no two rows of a client have the same key.)
There is no state of a generator to keep, the orders of all clients and epochs are one sort, and a GPU finds the same
ones as a CPU. What is drawn for a whole round (participants, slices) comes from numpy's generators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.utils.splitmix import GAMMA, Numbers, mix, signed

Order = NDArray[np.int64]

SHUFFLE, SAMPLE, SLICE, ALIGN, TRACE, WARM_UP, HOLD_OUT, PARTS, MIXTURE, SYNTHETIC, CELLS = range(11)


_LAST = 2**63 - 1


def _keys(
    zero: Numbers, seed: int, purpose: int, client: Numbers, round_: int, epoch: Numbers, row: Numbers
) -> Numbers:
    """key(r) of a tensor's or an array's clients, epochs and rows, in the shape that these broadcast to."""
    state = mix(mix(zero + signed(seed + GAMMA)) + (purpose + GAMMA))
    state = mix(mix(state + client + GAMMA) + (round_ + GAMMA))
    return mix(mix(state + epoch + GAMMA) + (row + 1) * GAMMA)


@cache
def client_number(name: str) -> int:
    """What a client's name counts as."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "little", signed=True)


def sorted_rows(
    rows: Tensor, clients: Tensor, length: int, seed: int, round_: int, epochs: range, purpose: int = SHUFFLE
) -> Tensor:
    """(E, k, length): the orders of all clients in all epochs, one sort; rows that a client lacks stand last.

    `rows` (k,) says how many each has, at most `length`; `clients` (k,) are their numbers.
    """
    row = torch.arange(length, device=clients.device)
    epoch = torch.arange(epochs.start, epochs.stop, epochs.step, device=clients.device)
    keys = _keys(torch.zeros_like(row[:1]), seed, purpose, clients[:, None], round_, epoch[:, None, None], row)
    return keys.masked_fill_(row >= rows[:, None], _LAST).sort(dim=-1, stable=True).indices


def client_orders(
    rows: int, seed: int, client: str, round_: int, epochs: range, purpose: int = SHUFFLE
) -> Sequence[Order]:
    """The orders in which a client goes through its rows in some epochs; by numpy, where few numbers take no time."""
    name, epoch = np.array([client_number(client)]), np.array(epochs, np.int64)[:, None]
    keys: Order = _keys(np.zeros(1, np.int64), seed, purpose, name, round_, epoch, np.arange(rows))
    return list(keys.argsort(axis=-1))


def client_order(rows: int, seed: int, client: str, round_: int, epoch: int, purpose: int = SHUFFLE) -> Order:
    """The order in which a client goes through its rows in one epoch."""
    return client_orders(rows, seed, client, round_, range(epoch, epoch + 1), purpose)[0]


def draw(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """A generator for one purpose at one place (client, round, epoch): the same whatever was drawn before."""
    return np.random.default_rng((seed, purpose, *place))


def participants(clients: int, participation: float, seed: int, round_: int) -> list[int]:
    """int(clients · participation) of them, at least one, drawn anew each round."""
    number = max(1, int(clients * participation))
    if number >= clients:
        return list(range(clients))
    return sorted(draw(seed, SAMPLE, round_).choice(clients, number, replace=False).tolist())
