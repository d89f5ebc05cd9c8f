"""How much memory a client's work takes in a process of its own."""

from __future__ import annotations

#: The process with torch before it has any rows; matrices (m, m) of float64 at once; copies of rows (N, m).
_PROCESS, _MATRICES, _COPIES = 400 * 2**20, 10, 6
#: Of very many clients blocks and batches are worked on at a time.
_BLOCKS = 2**28


def bytes_of_a_task(width: int, largest: int) -> int:
    """Of features this wide, and clients of at most so many rows."""
    m = width + 1
    return _PROCESS + _BLOCKS + 8 * m * (_MATRICES * m + _COPIES * largest)
