"""What rivals that take features for Gaussian share: sums of rows, shrunk covariances, the linear discriminant.

counts n_c,   sums Σ x of each class,   products G = Σ x xᵀ;   N = Σ n_c,   μ_c the class means, μ the mean of all
total  S_T = G − N μ μᵀ,   within classes  S_W = G − Σ_c n_c μ_c μ_cᵀ
shrunk by s: Σ → (1 − s) Σ + s (tr Σ / m) I
scores_c(x) = x·Σ⁻¹μ_c − ½ μ_c·Σ⁻¹μ_c + log π_c
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core.solvers import rank_tolerance
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.laboratory import nbytes


@dataclass(frozen=True)
class Sums:
    """Rows of each class (d,), their sums (d, m), and the products of all (m, m): they add over clients."""

    counts: Tensor
    sums: Tensor
    products: Tensor

    @classmethod
    def of_all(cls, task: ClosedTask) -> Sums:
        """Of every client's training rows, one client at a time."""
        d, training = task.num_classes, task.training
        m = training[0].train[0].shape[1]
        counts = torch.zeros(d, dtype=torch.int64, device=task.device)
        sums = torch.zeros(d, m, dtype=torch.float64, device=task.device)
        products = torch.zeros(m, m, dtype=torch.float64, device=task.device)
        for done, client in enumerate(training, start=1):
            x, y = task.tensors(client.train)
            counts += torch.bincount(y, minlength=d)
            sums.index_add_(0, y, x)
            products.addmm_(x.mT, x)
            task.report("sums", done, len(training))
        return cls(counts, sums, products)

    @property
    def nbytes(self) -> int:
        """What they take on the wire; of the products, the lower triangle."""
        return nbytes(self.counts, self.sums) + triangle(len(self.products))

    @property
    def rounding(self) -> float:
        """Below this, a difference of the products is their rounding."""
        return rank_tolerance(len(self.products)) * float(self.products.diagonal().max())

    @property
    def means(self) -> Tensor:
        """μ_c (d, m); 0 for a class without rows."""
        return means_of(self.sums, self.counts)

    @property
    def total(self) -> Tensor:
        """S_T (m, m)."""
        whole = self.sums.sum(dim=0)
        return self.products - torch.outer(whole, whole) / self.counts.sum()

    @property
    def within(self) -> Tensor:
        """S_W (m, m)."""
        return self.products - self.sums.mT @ self.means


def means_of(sums: Tensor, counts: Tensor) -> Tensor:
    """Class means (d, m); 0 for a class without rows."""
    return sums / counts.clamp(min=1)[:, None]


def log_shares(counts: Tensor) -> Tensor:
    """log π_c (d,) from rows of each class; −∞ for a class without."""
    return (counts.double() / counts.sum()).log()


def triangle(m: int) -> int:
    """Bytes of a symmetric matrix (m, m), as its lower triangle in float64."""
    return 8 * (m * (m + 1) // 2)


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """(1 − s) Σ + s (tr Σ / m) I."""
    m = len(covariance)
    scale = covariance.trace() / m
    # Rows that are all alike have no covariance; any multiple of the identity then gives the nearest mean.
    scale = torch.where(scale > 0, scale, 1.0)
    return (1 - shrinkage) * covariance + shrinkage * scale * torch.eye(m).to(covariance)


@dataclass(frozen=True)
class LinearScores:
    """scores = x W + b; `singular` says that Σ had no inverse, and its pseudo-inverse was taken."""

    W: Tensor
    b: Tensor
    singular: bool = False

    @classmethod
    def of(cls, covariance: Tensor, means: Tensor, log_prior: Tensor, rounding: float = 0.0) -> LinearScores:
        """The discriminant of one covariance (m, m), class means (d, m) and log π (d,).

        Directions whose variance is no more than `rounding`, or than that of an eigendecomposition, are left out.
        """
        values, V = torch.linalg.eigh(covariance)
        kept = values > max(rounding, rank_tolerance(len(values)) * float(values.max()))
        V, values = V[:, kept], values[kept]
        W = V @ (V.mT @ means.mT / values[:, None])
        return cls(W, log_prior - (means * W.mT).sum(dim=1) / 2, not bool(kept.all()))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d)."""
        return x @ self.W + self.b
