"""Masks over Z_2^64: which key makes which, and how they go into a vector and out of a sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedhip.federation.secure_sum.primitives import derive

#: Words of mask made at once: the block, the zeros it is made of and the part of the sum stay in the cache.
#: One thread: `cryptography` keeps the interpreter's lock while it encrypts, and a second one gained nothing.
BLOCK = 1 << 15


def is_vector(vector: object) -> bool:
    """Whether it is a vector of words that can be summed mod 2^64."""
    return isinstance(vector, np.ndarray) and vector.dtype == np.uint64 and vector.ndim == 1 and len(vector) > 0


def self_mask_key(seed: bytes, view: bytes, site: str) -> bytes:
    """The key of a site's own mask."""
    return derive(seed, b"own mask", view, site.encode())


def pair_mask_key(common: bytes, view: bytes, one: str, other: str) -> bytes:
    """The key of the mask that two sites have in common."""
    first, second = sorted((one, other))
    return derive(common, b"mask of two", view, first.encode(), second.encode())


def apply_masks(vector: NDArray[np.uint64], added: Sequence[bytes], removed: Sequence[bytes]) -> None:
    """vector ← vector + Σ stream(added) − Σ stream(removed) mod 2^64, in place.

    A stream is the AES-256-CTR keystream of its key, counter from 0, as little-endian words. Each key makes one
    stream ever, so that a fixed counter is safe. Extra memory is two blocks, whatever the vector's length.
    """
    streams = [
        (operation, Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor())
        for operation, keys in ((np.add, added), (np.subtract, removed))
        for key in keys
    ]
    zeros, block = memoryview(bytes(8 * BLOCK)), np.empty(8 * BLOCK, dtype=np.uint8)
    words = block.view("<u8")
    for start in range(0, len(vector), BLOCK):
        part = vector[start : start + BLOCK]
        for operation, stream in streams:
            stream.update_into(zeros[: part.nbytes], block.data[: part.nbytes])
            operation(part, words[: len(part)], out=part)
