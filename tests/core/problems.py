"""Random federations for the theorems, and oracles that know nothing of our code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

Array = npt.NDArray[Any]
Client = tuple[Array, Array]


@dataclass(frozen=True)
class Federation:
    """Clients' (features, labels), drawn at random."""

    clients: list[Client]
    num_classes: int
    scale: float = 1.0

    def beta(self, relative: float) -> float:
        """A penalty in units of one row's squared features, so that the problem is well conditioned."""
        return relative * self.scale**2

    @property
    def width(self) -> int:
        return int(self.clients[0][0].shape[1])

    @property
    def features(self) -> Array:
        return np.concatenate([F for F, _ in self.clients])

    @property
    def labels(self) -> Array:
        return np.concatenate([y for _, y in self.clients])

    def one_hot(self, labels: Array) -> Array:
        return np.eye(self.num_classes)[labels]

    def rows_of(self, k: int) -> slice:
        start = sum(len(F) for F, _ in self.clients[:k])
        return slice(start, start + len(self.clients[k][0]))

    def __repr__(self) -> str:
        sizes = [len(F) for F, _ in self.clients]
        return f"Federation(rows={sizes}, m={self.width}, d={self.num_classes})"


@st.composite
def federations(draw: st.DrawFn, max_clients: int = 6, max_width: int = 9) -> Federation:
    """K = 1 to 6 clients, long or wide, of one row, of one class, or with features of deficient rank."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, d = draw(st.integers(1, max_width)), draw(st.integers(1, 5))
    rank = draw(st.integers(1, m))
    mix = rng.normal(size=(rank, m)) if rank < m else np.eye(m)
    scale = draw(st.sampled_from([0.1, 1.0, 10.0]))
    clients = []
    for _ in range(draw(st.integers(1, max_clients))):
        rows = draw(st.sampled_from([1, 2, 3, m, 4 * m + 3]))
        only_one_class = draw(st.booleans())
        labels = np.full(rows, rng.integers(d)) if only_one_class else rng.integers(0, d, rows)
        clients.append((scale * rng.normal(size=(rows, rank)) @ mix, labels))
    return Federation(clients, d, scale)


def dirichlet_redistribution(federation: Federation, k: int, concentration: float, seed: int) -> list[Client]:
    """Deal all rows of clients other than k out again, class by class, with Dirichlet shares; k keeps its rows."""
    rng = np.random.default_rng(seed)
    others = [client for j, client in enumerate(federation.clients) if j != k]
    if not others:
        return list(federation.clients)
    F, y = np.concatenate([F for F, _ in others]), np.concatenate([y for _, y in others])
    order = rng.permutation(len(y))
    F, y = F[order], y[order]
    owner = np.empty(len(y), dtype=int)
    for c in np.unique(y):
        owner[y == c] = rng.choice(
            len(others), size=int((y == c).sum()), p=rng.dirichlet([concentration] * len(others))
        )
    dealt = [(F[owner == j], y[owner == j]) for j in range(len(others)) if (owner == j).any()]
    dealt.insert(int(rng.integers(len(dealt) + 1)), federation.clients[k])
    return dealt


def ridge_oracle(F: Array, Y: Array, beta: float, weights: Array | None = None) -> Array:
    """scikit-learn's ridge, (m, d)."""
    model = Ridge(alpha=beta, fit_intercept=False, solver="svd").fit(F, Y, sample_weight=weights)
    return np.asarray(model.coef_).reshape(Y.shape[1], F.shape[1]).T


def mpmath_oracle(F: Array, Y: Array, beta: float, weights: Array) -> Array:
    """The same ridge in 50-digit arithmetic: (FᵀDF + βI)⁻¹FᵀDY."""
    with mpmath.workdps(50):
        Fm, Ym, D = mpmath.matrix(F.tolist()), mpmath.matrix(Y.tolist()), mpmath.diag(weights.tolist())
        H = Fm.T * D * Fm + mpmath.mpf(beta) * mpmath.eye(F.shape[1])
        solution = mpmath.inverse(H) * (Fm.T * D * Ym)
        return np.array(solution.tolist(), dtype=float).reshape(F.shape[1], Y.shape[1])


def attainable(figure: float, federation: Federation, k: int, alpha: float, beta: float) -> float:
    """`figure` for well-conditioned problems (up to 1e4); beyond, as many digits less as the problem itself loses."""
    F_k = federation.clients[k][0]
    H = federation.features.T @ federation.features + alpha * F_k.T @ F_k + beta * np.eye(federation.width)
    return figure * max(1.0, float(np.linalg.cond(H)) / 1e4)


def relative_error(found: Any, expected: Any) -> float:
    """Largest difference, relative to the largest entry expected."""
    found, expected = np.asarray(found), np.asarray(expected)
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))


def refits(federation: Federation, k: int, alpha: float, beta: float) -> Array:
    """Scores of each of client k's rows by scikit-learn's ridge fitted without that row."""
    F, Y = federation.features, federation.one_hot(federation.labels)
    own = federation.rows_of(k)
    scores = []
    for i in range(own.start, own.stop):
        weights = np.ones(len(F))
        weights[own] += alpha
        others = np.arange(len(F)) != i
        scores.append(F[i] @ ridge_oracle(F[others], Y[others], beta, weights[others]) if others.any() else 0 * Y[i])
    return np.array(scores)


def realistic(rows: tuple[int, ...], m: int, d: int, seed: int) -> Federation:
    """Clients whose classes can be told apart, some of the time."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(d, m))
    clients = []
    for n in rows:
        labels = rng.integers(0, d, n)
        clients.append((means[labels] + 2.0 * rng.normal(size=(n, m)), labels))
    return Federation(clients, d)
