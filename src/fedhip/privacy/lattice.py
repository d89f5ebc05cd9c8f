"""G = QᵀQ with Q of whole numbers: Q from G.

Column j of G is Qᵀ(column j of Q): a sum of the rows of Q with whole coefficients. With more columns than rows these
sums generate the lattice of *all* whole combinations of the rows, and `v G⁺ v'ᵀ` is an inner product in which the rows
of Q are orthonormal: the lattice is a rotated Zⁿ, and its shortest vectors are ± the rows. Lattice reduction (LLL)
finds them, measured up to 80 rows, where there are at least one and a half times as many features as rows.

Floating point only decides which exact step on int64 comes next; an answer is given out only if it gives G back to the
last bit. Steps may wrap round modulo 2^64: the rows they end in are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.utils.parallel import one_thread

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

#: Lovász' constant: how far from orthogonal neighbours may stay. Near 1 is slower and finds shorter vectors.
_DELTA = 0.99
_ROUNDS = 12  # of swaps between two orthogonalisations; more lose digits
_LARGEST_STEP = 1e5
_RANK_TOLERANCE = 1e-11


@dataclass(frozen=True)
class IntegerFactor:
    """Rows of whole numbers up to their sign, and how often each occurs: Σ times · rowᵀ row is the Gram matrix.

    The Gram matrix cannot tell k q once from q k² times; here it is always the latter.
    """

    rows: Whole
    times: Whole


def rank_of(gram: Whole) -> int:
    """The rank of a Gram matrix: eigenvalues above rounding."""
    with one_thread():
        values = torch.linalg.eigvalsh(torch.from_numpy(gram.astype(np.float64))).numpy()
    return int((values > _RANK_TOLERANCE * max(values[-1], 0.0)).sum()) if values[-1] > 0 else 0


def factor(gram: Whole, rank: int, *, seed: int = 0, go_on: Callable[[], bool] = lambda: True) -> IntegerFactor | None:
    """Rows of whole numbers whose Gram matrix this is; None where `go_on` said stop, or none were found.

    `rank` is that of the matrix; it must be below the number of columns.
    """
    m = len(gram)
    if rank == 0 or rank >= m or int(gram.diagonal().min()) < 0:  # noise may leave squares below 0: no rows have them
        return None
    # Features that are always zero tell nothing, and a choice of columns is enough: the work does not grow with m.
    useful = np.random.default_rng(seed).permutation(np.flatnonzero(gram.diagonal()))
    sizes = sorted({min(len(useful), size) for size in (2 * rank + 4, 3 * rank + 8, 4 * rank + 16)})
    with one_thread():
        for attempt, size in enumerate(sizes):
            columns = np.roll(useful, -attempt * size)[:size]
            coefficients = _short_combinations(gram[np.ix_(columns, columns)], rank, go_on)
            if coefficients is not None and (found := _checked(gram, columns, coefficients)) is not None:
                return found
            if not go_on():
                return None
    return None


def _short_combinations(gram: Whole, rank: int, go_on: Callable[[], bool]) -> Whole | None:
    """Coefficients (rank, k) of the combinations of columns that make a reduced basis of the lattice they generate.

    Reduced are the vectors (c, ε t), t the coefficients and c = Q t in rotated coordinates: combinations that vanish
    (c = 0) come out as the shortest, and what is left is a basis.
    """
    k = len(gram)
    if k <= rank:
        return None
    values, vectors = (part.numpy()[..., -rank:] for part in torch.linalg.eigh(torch.from_numpy(gram.astype(float))))
    if values[0] <= _RANK_TOLERANCE * values[-1]:
        return None  # these columns do not span the rows
    whiten: Real = vectors / np.sqrt(values)
    bits = max(0.5 * math.log2(gram.diagonal().mean() / rank), 1.0)
    # Coefficients of a combination that vanishes have about bits · rank / (k − rank) bits (Siegel's lemma).
    exponent = min(bits * rank / (k - rank) + 10.0, 30.0)
    T: Whole = np.eye(k, dtype=np.int64)
    for _ in range(3):
        reduced = _reduce(T, gram, whiten, 2.0**-exponent, go_on)
        if reduced is None:
            return None
        T = reduced
        basis = T[(T @ gram).any(axis=1)]
        if len(basis) == rank:
            return basis
        exponent += 6.0
    return None


def _reduce(T: Whole, gram: Whole, whiten: Real, epsilon: float, go_on: Callable[[], bool]) -> Whole | None:
    """LLL on the rows (T gram whiten, ε T), neighbours swapped in parallel; None if told to stop."""
    while go_on():
        vectors = np.concatenate(((T @ gram).astype(np.float64) @ whiten, epsilon * T), axis=1)
        R: Real = torch.linalg.qr(torch.from_numpy(vectors).T, mode="r").R.numpy().copy()
        step: Real = np.eye(len(T))
        _size_reduce(R, step)
        moved = _swap_neighbours(R, step)
        if not np.isfinite(step).all() or np.abs(step).max() > 2.0**52:
            return None  # digits ran out; another choice of columns may do better
        T = step.astype(np.int64) @ T
        if not moved:
            return T
    return None


def _size_reduce(R: Real, step: Real) -> None:
    """Subtract whole multiples of earlier vectors from later ones; `step` follows."""
    for j in range(R.shape[1] - 2, -1, -1):
        times = np.rint(R[j, j + 1 :] / R[j, j])
        if times.any():
            R[: j + 1, j + 1 :] -= np.outer(R[: j + 1, j], times)
            step[j + 1 :] -= np.outer(times, step[j])


def _swap_neighbours(R: Real, step: Real) -> bool:
    """Rounds of swaps of disjoint neighbours, R kept triangular by rotations; whether any took place."""
    moved = False
    for number in range(_ROUNDS):
        low = np.arange(number % 2, R.shape[1] - 1, 2)
        times = np.rint(R[low, low + 1] / R[low, low])
        R[:, low + 1] -= times * R[:, low]
        step[low + 1] -= times[:, None] * step[low]
        above, below = R[low, low + 1], R[low + 1, low + 1]
        chosen = above**2 + below**2 < _DELTA * R[low, low] ** 2
        low, above, below = low[chosen], above[chosen], below[chosen]
        high = low + 1
        if not len(low):
            continue
        moved = True
        if np.abs(step).max() > _LARGEST_STEP:
            break
        R[:, low], R[:, high] = R[:, high], R[:, low]
        step[low], step[high] = step[high], step[low]
        length = np.hypot(above, below)
        cosine, sine = (above / length)[:, None], (below / length)[:, None]
        R[low], R[high] = cosine * R[low] + sine * R[high], cosine * R[high] - sine * R[low]
        R[high, low] = 0.0
    return moved


def _checked(gram: Whole, columns: NDArray[np.int64], coefficients: Whole) -> IntegerFactor | None:
    """The vectors as rows, if they give the Gram matrix to the last bit.

    A row q that occurs n times is in G as n qᵀq: the lattice holds n q, and the square of its length t G tᵀ is n.
    """
    rows = coefficients @ gram[columns]
    times = ((coefficients @ gram[np.ix_(columns, columns)]) * coefficients).sum(axis=1)
    if (times < 1).any() or (rows % times[:, None]).any():
        return None
    rows = rows // times[:, None]
    return IntegerFactor(rows, times) if np.array_equal((rows.T * times) @ rows, gram) else None
